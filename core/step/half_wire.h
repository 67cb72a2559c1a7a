// Gradients that travel as halves (the key `wire`): float32 sums are rounded where they leave a worker, and
// are still added up in float32 by the owner of a slice.
//
// Contributions are scaled by a power of two, of the order of the reciprocal of all weights, so that a sum is
// not larger than the gradients, and rounding is relative to them. The headers have the weights, so buckets
// travel after these.
//
// Error feedback (Seide et al. 2014; Karimireddy et al. 2019): a worker keeps the rounding error of each
// element that it sends, as a contributor or as an owner, and adds it to the same element in the next step.
// So the errors of an element do not accumulate over steps. A step that changes nothing leaves the residual
// as it was, so there are two of them, as of an owner's optimizer state.
#pragma once

#include <cstddef>
#include <vector>

#include "core/collectives/direct.h"
#include "core/step/step_state.h"

namespace dsgd {

class HalfWire {
 public:
  explicit HalfWire(StepState& state) : state_(state) {}
  // Allocates buffers for the plan. Keeps residuals of earlier plans. Fails for want of memory.
  Status make_buffers();
  // The weights are known: sets the scale of this step's contributions.
  void begin_step();
  // Rounds this worker's contributions to the slices of others, and sets the halves of `plan`, whose slices
  // are set.
  void round_contributions(size_t bucket, int32_t own_index, DirectPlan* plan);
  // At the owner of [begin, end) of a bucket: its results, which may be sums, are complete. All workers get
  // the rounded ones, the owner too.
  void round_results(size_t bucket, size_t begin, size_t end);
  // The step has changed these parameters.
  void finish(const std::vector<char>& changed);

 private:
  struct Residual {     // of one parameter
    Memory kept, next;  // float32
    double unit = 0;    // `kept` divided by this is the rounding error of the mean gradient
  };
  void round(size_t bucket, size_t begin, size_t end, bool in_place);

  StepState& state_;
  std::vector<Residual> residuals_;             // by parameter; empty for those that are not rounded
  std::vector<std::vector<WireRange>> ranges_;  // by bucket
  double unit_ = 1;                             // in this step
};

}  // namespace dsgd
