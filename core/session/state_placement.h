// The optimizer's state in another view, where the owners of key ranges keep it (ps with copies=r). Each
// range has an owner and r-1 workers with copies of its state, by the hash ring of the view's workers.
//
//   held     tells of which ranges this worker has the state; the workers of a view report it
//   place    decides from all reports, alike on all workers, which ranges travel from where to where; they
//            arrive beside the ranges that a worker has
//   agree    when all workers have what the new view gives them, each releases the rest
//
// So a range that r workers had before a change of the view is lost only if all r are lost until the change
// has ended. A loss in between begins all this again, with the ranges that each worker has by then. All
// ranges have the state of the same step: workers that were one step behind have advanced before
// (OptimizerStateStore::advance).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/collectives/range_transfers.h"
#include "core/session/engine_state.h"

namespace dsgd {

using HeldRanges = std::vector<uint8_t>;  // a bit for each key range

class StatePlacement {
 public:
  explicit StatePlacement(EngineState& state) : state_(state) {}
  // Key ranges of which this worker has the state; empty unless owners keep it and views change.
  const HeldRanges& held() const { return held_; }
  void note_held();      // this worker has the state of the ranges that the plan gives it
  void note_all_held();  // or of all ranges
  // `call`: of the change of the view, which fails the session if it cannot end. `held`: by rank.
  void place(const std::shared_ptr<Call>& call, const std::vector<HeldRanges>& held,
             std::function<void()> then);

 private:
  HeldRanges held_under(const Plan& plan) const;
  Result<std::vector<RangeTransfer>> transfers_for(const Plan& plan,
                                                   const std::vector<HeldRanges>& held) const;
  Status lost_ranges(size_t lost, size_t all, const std::string& parameter) const;
  void agree(const std::shared_ptr<Call>& call, std::shared_ptr<const Plan> plan, std::function<void()> then);

  EngineState& state_;
  HeldRanges held_;
};

}  // namespace dsgd
