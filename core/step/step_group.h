// The workers of a step. Workers that have closed their sessions in good order before a step take no part in
// it. A departed worker names the first call that it does not make, to its peers (Goodbye) and to the head
// (Leave). A worker that has not received all data of the departed one fails the session or, where views
// change, waits for a view without it. So all workers that complete the exchange of headers know the same
// group. Nothing changes before the exchange is complete.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/collectives/direct.h"
#include "core/group/group.h"
#include "core/step/step_state.h"

namespace dsgd {

class StepGroup {
 public:
  explicit StepGroup(const StepState& state) : state_(state) {}
  void begin_step() {
    if (state_.mesh && !workers_) workers_ = state_.mesh->members().world();
  }
  void change_view() { workers_ = nullptr; }  // the next step begins with all workers of the view
  // The workers of the last header; null without a mesh, and before the first step.
  const std::shared_ptr<const Group>& workers() const { return workers_; }
  bool members_have_left() const;
  // The headers are in: makes the workers that sent one the new group. Fails, on all workers alike, if the
  // step needs a departed worker. Returns whether the group has changed.
  Result<bool> regroup(uint64_t header_operation);
  // The slices of the group's workers, by index. Workers outside the group own nothing.
  std::vector<Slice> slices_of(const Bucket& bucket) const;

 private:
  // Fails if the step needs the departed rank.
  Status check_can_go_on_without(int32_t rank) const;

  const StepState& state_;
  std::shared_ptr<const Group> workers_;
};

}  // namespace dsgd
