// Copies of the owners' state (`ps` with copies=r). The owner sends the mean of a bucket's ranges to the
// workers that keep copies of its state, which compute the next state from it. A worker whose copies all have
// the next state tells all others. No worker commits before that is complete (README.md, "Copies").
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "core/step/commit.h"
#include "core/step/step_tasks.h"

namespace dsgd {

class StateCopies {
 public:
  // Calls `made` when all workers have made all copies.
  StateCopies(StepState& state, const StepGroup& group, const StepInFlight& step, StepTasks& tasks,
              Commit& commit, std::function<void()> made)
      : state_(state), group_(group), step_(step), tasks_(tasks), commit_(commit), made_(std::move(made)) {}
  void begin_step();
  // This worker owns a range of the bucket and has computed its mean: sends it.
  void owner_done(size_t bucket);
  // The results of the bucket are in. Its trailers tell which gradients were absent.
  void bucket_reduced(size_t bucket);
  // All workers have made all copies, or the step makes none.
  bool complete() const { return !are_due() || all_made_ || state_.plan.empty(); }

 private:
  struct BucketCopies {
    bool sending = false;   // means go to the workers that keep copies
    bool received = false;  // the means for the copies kept here are in
    bool made = false;      // these copies have the next state
  };
  bool are_due() const { return state_.path.keeps_copies && state_.contributing_replicas > 0; }
  void send_means(size_t bucket);
  void make(size_t bucket);

  StepState& state_;
  const StepGroup& group_;
  const StepInFlight& step_;
  StepTasks& tasks_;
  Commit& commit_;
  const std::function<void()> made_;

  // Of the step in flight.
  std::vector<BucketCopies> buckets_;
  size_t made_here_ = 0;   // buckets
  bool all_made_ = false;  // on all workers
};

}  // namespace dsgd
