// The buckets of a step, from marked gradients to complete sums:
//
//   fetch        a bucket with all its gradients is reduced over each device's replicas and comes to the host
//   contribute   the host adds up the devices' sums; exact sums first need the exponents of all workers
//   reduce       buckets travel in index order, a few at a time, by the strategy's algorithm
//   return       a bucket's result goes to the devices, into the memory of their sums
//
// Workers whose devices form a team (teams.h) first reduce a bucket over these devices. If all workers are
// one team and no owner computes for the others, that is all. Else each worker copies its part to the host,
// parts travel, and the devices gather them.
//
// Buckets may travel before the header is complete, among the group of the last header. If one of these
// workers has left (step_group.h), all workers drop these operations, and the buckets travel again among the
// remaining workers, in a second attempt by operations with other numbers (README.md says why no such bucket
// can have been completed).
//
// When a worker has summed its last bucket, it reports gradients that are not finite (gradient_check.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/mesh/task.h"
#include "core/step/commit.h"
#include "core/step/device_path.h"
#include "core/step/half_wire.h"
#include "core/step/host_path.h"
#include "core/step/state_copies.h"
#include "core/step/step_group.h"
#include "core/step/step_in_flight.h"
#include "core/step/step_state.h"
#include "core/step/step_tasks.h"
#include "core/step/step_trace.h"
#include "core/step/team_path.h"

namespace dsgd {

class StepBuckets {
 public:
  // Calls `progressed` when complete() may have become true. It may end the step.
  StepBuckets(StepState& state, const StepGroup& group, const StepInFlight& step, StepTasks& tasks,
              StepTrace& trace, DevicePath& devices, HalfWire& wire, Commit& commit,
              std::function<void()> progressed);
  void begin_step();
  // Starts buckets whose gradients are marked, unless they must wait for the header. Then starts the gathers
  // of teams, "all enqueued" and the reports, if they are due.
  void launch();
  // A worker of the group has left: ignores the results and failures of all buckets that have begun to
  // travel. go_on() restarts these buckets.
  void begin_second_attempt();
  // The first failure of a bucket before the header was done; OK: none. The step fails with it if the headers
  // agree.
  const Status& failure() const { return progress_.failure; }
  // The header is done: restarts buckets in a second attempt, releases those that wait for it, starts others.
  void go_on();
  // Everything that the commit needs of the buckets is in: sums, reports, copies of the owners' state.
  bool complete() const;

  // Forgets the tasks that wait for the header, since the step ends or is suspended.
  void forget_held();
  // Tells the peers that this worker does not complete the operations that it has begun, nor begin those of
  // the next bucket.
  void announce_failure(const Status& why);
  std::string parameters_text(const std::vector<uint64_t>& operations) const;  // as Step's
  TeamPath& team() { return team_; }

 private:
  void restart();
  void fetch(size_t bucket);
  void fetched(size_t bucket);
  void exchange_exponents(size_t bucket);
  void contribute(size_t bucket);
  void reduce(size_t bucket);
  bool narrows(const Bucket& bucket) const {
    return state_.path.narrows && state_.data_type(bucket) == DType::kFloat32;
  }
  void reduce_directly(size_t bucket, Task::Done done);
  void bucket_done(size_t bucket, const Status& status);
  void report_gradients();

  void reduce_in_team(size_t bucket);
  void launch_gathers();
  void tell_all_enqueued();

  // Of the present attempt.
  uint64_t data_operation(size_t bucket) const {
    return state_.numbers.data(bucket, progress_.second_attempt);
  }
  uint64_t exponents_operation(size_t bucket) const {
    return state_.numbers.exponents(bucket, progress_.second_attempt);
  }

  StepState& state_;
  const StepGroup& group_;
  const StepInFlight& step_;
  StepTasks& tasks_;
  StepTrace& trace_;
  DevicePath& devices_;
  HalfWire& wire_;
  Commit& commit_;
  const std::function<void()> progressed_;
  StateCopies copies_;
  HostPath host_;

  bool launching_ = false;  // launch() is running, perhaps for the step before
  struct Progress {
    Status failure;
    bool second_attempt = false;
    size_t next = 0;            // next bucket to start
    size_t open = 0;            // buckets in flight, "all enqueued" and the reports
    size_t reduced = 0;         // buckets whose sums or results this worker has
    size_t next_gather = 0;     // next bucket that a team gathers
    bool all_enqueued = false;  // this worker has announced that all its sums are enqueued
    bool gradients_reported = false;
  } progress_;  // of the step in flight; reset whole by begin_step()

  TeamPath team_;  // last member: destroyed first, which stops devices from using the others
};

}  // namespace dsgd
