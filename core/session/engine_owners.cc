// The optimizer's state in another view, where the owners of key ranges keep it (ps with copies=r). Each
// range has an owner and r-1 workers with copies of its state, by the hash ring of the view's workers.
//
//   report               tells of which ranges this worker has the state
//   place_state          decides from all reports, alike on all workers, which ranges travel from where to
//                        where; they arrive beside the ranges that a worker has
//   agree_on_placement   when all workers have what the new view gives them, each releases the rest
//
// So a range that r workers had before a change of the view is lost only if all r are lost until the change
// has ended. A loss in between begins all this again, with the ranges that each worker has by then. All
// ranges have the state of the same step: workers that were one step behind have advanced before
// (OptimizerStateStore::advance).

#include <algorithm>
#include <utility>

#include "core/base/text.h"
#include "core/collectives/range_transfers.h"
#include "core/session/engine.h"
#include "core/session/saved_parts.h"

namespace dsgd {
namespace {

bool holds(const std::vector<uint8_t>& held, size_t range) {
  return range / 8 < held.size() && (held[range / 8] >> range % 8 & 1) != 0;
}

}  // namespace

Engine::HeldRanges Engine::held_under(const Plan& plan) const {
  const std::vector<const Piece*> ranges = key_ranges(plan);
  HeldRanges held((ranges.size() + 7) / 8);
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i]->is_kept_by(rank())) held[i / 8] |= static_cast<uint8_t>(1 << i % 8);
  }
  return held;
}

void Engine::note_held() {
  held_.clear();
  if (!options_.views_change || !step_.updates_at_owner()) return;
  if (const auto plan = plan_of(step_.strategy(), true); plan.ok()) held_ = held_under(plan.value());
}

// `held`: by rank.
void Engine::place_state(const std::shared_ptr<Call>& call, const std::vector<HeldRanges>& held,
                         std::function<void()> then) {
  if (!step_.updates_at_owner()) return then();
  if (next_step_ == 0) {  // all state is zero, everywhere; workers may have released ranges for another view
    note_held();
    return then();
  }
  auto planned = plan_of(step_.strategy(), true);
  if (!planned.ok()) return fail(planned.status(), true);
  const auto plan = std::make_shared<const Plan>(std::move(planned).value());
  const std::vector<const Piece*> ranges = key_ranges(*plan);
  const OptimizerState& state = step_.optimizer_state().on_host();
  std::vector<RangeTransfer> transfers;
  size_t lost = 0;
  const Parameter* first_lost = nullptr;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Piece& range = *ranges[i];
    const Parameter& parameter = *model_.parameters[range.parameter];
    const size_t states = model_.states_of(parameter);
    if (states == 0) continue;
    std::vector<int32_t> keepers = {range.owner};
    keepers.insert(keepers.end(), range.copies.begin(), range.copies.end());
    const auto has = [&](int32_t worker) { return holds(held[static_cast<size_t>(worker)], i); };
    int32_t source = 0;
    while (source < size() && !has(source)) ++source;
    if (source == size()) {
      if (lost++ == 0) first_lost = &parameter;
      continue;
    }
    const auto keeper = std::find_if(keepers.begin(), keepers.end(), has);
    if (keeper != keepers.end()) source = *keeper;
    const size_t element = dtype_size(wide(parameter.dtype));
    for (int32_t to : keepers) {
      for (size_t s = 0; s < states && !has(to); ++s) {
        const bool here = source == rank() || to == rank();
        std::byte* const data =
            here ? static_cast<std::byte*>(state[range.parameter][s].get()) + range.begin * element : nullptr;
        transfers.push_back({source, to, data, range.count * element});
      }
    }
  }
  if (lost > 0) {
    return fail(
        Status(Code::kWorkerLost,
               view_cause_.message() + "; no worker that is left has the optimizer's state of " +
                   counted(lost, "key range") + " of " + std::to_string(ranges.size()) + " (parameter '" +
                   first_lost->name + "'), since " + step_.strategy().describe() + " outlives the loss of " +
                   counted(static_cast<size_t>(step_.strategy().copies - 1), "worker") +
                   " at once; start the job again from a checkpoint, with more copies")
            .with_rank(view_cause_.rank(), view_cause_.host())
            .with_parameter(first_lost->name),
        true);
  }
  if (transfers.empty()) {
    held_ = held_under(*plan);
    return then();
  }
  // Workers that copied nothing have used fewer numbers of the call, so all go on with the same one.
  call->next_operation = kOperationsOfACall / 2;
  size_t nbytes = 0;
  for (const RangeTransfer& transfer : transfers) {
    if (transfer.to == rank()) nbytes += transfer.nbytes;
  }
  log_->info("gets " + std::to_string(nbytes) + " bytes of optimizer state for view " +
             std::to_string(view()));
  calls_.schedule(
      call,
      [this, transfers = std::move(transfers)](uint64_t operation, Done ended) {
        auto shape = shape_of(operation, Kind::kView, DType::kUint8, Algorithm::kDirect, transfers.size());
        shape.tag = RangeTransfers::tag(mesh_->operations, transfers);
        auto task = std::make_unique<RangeTransfers>(mesh_->operations, shape, transfers, std::move(ended));
        task->rename("the change to view " + std::to_string(view()));
        return task;
      },
      in_view([this, call, plan, then = std::move(then)](const Status& status) {
        status.ok() ? agree_on_placement(call, plan, then) : fail(status, true);
      }));
}

void Engine::agree_on_placement(const std::shared_ptr<Call>& call, std::shared_ptr<const Plan> plan,
                                std::function<void()> then) {
  const HeldRanges mine = held_under(*plan);
  held_.resize(mine.size());
  bool more = false;
  for (size_t i = 0; i < mine.size(); ++i) {
    more = more || (held_[i] & ~mine[i]) != 0;
    held_[i] |= mine[i];
  }
  calls_.exchange(call, shape_of(0, Kind::kView, DType::kUint8, Algorithm::kOneHop, 1), {},
                  "the change to view " + std::to_string(view()),
                  in_view([this, plan, mine, more, then = std::move(then)](
                              const Status& status, const std::vector<std::vector<std::byte>>&) {
                    if (!status.ok()) return fail(status, true);
                    held_ = mine;
                    if (more) {
                      std::vector<std::vector<std::pair<uint64_t, uint64_t>>> ranges;
                      for (uint32_t p = 0; p < model_.parameters.size(); ++p)
                        ranges.push_back(owned_ranges(*plan, p, rank(), true));
                      if (Status kept = step_.optimizer_state().keep_only(ranges); !kept.ok())
                        return fail(kept, true);
                    }
                    then();
                  }));
}

}  // namespace dsgd
