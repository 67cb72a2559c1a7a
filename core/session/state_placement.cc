#include "core/session/state_placement.h"

#include <algorithm>
#include <utility>

#include "core/base/text.h"
#include "core/session/saved_parts.h"

namespace dsgd {
namespace {

bool holds(const HeldRanges& held, size_t range) {
  return range / 8 < held.size() && (held[range / 8] >> range % 8 & 1) != 0;
}

}  // namespace

HeldRanges StatePlacement::held_under(const Plan& plan) const {
  const std::vector<const Piece*> ranges = key_ranges(plan);
  HeldRanges held((ranges.size() + 7) / 8);
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i]->is_kept_by(state_.rank())) held[i / 8] |= static_cast<uint8_t>(1 << i % 8);
  }
  return held;
}

void StatePlacement::note_held() {
  held_.clear();
  if (!state_.options.views_change || !state_.step.updates_at_owner()) return;
  if (const auto plan = state_.plan_of(state_.step.strategy(), true); plan.ok())
    held_ = held_under(plan.value());
}

void StatePlacement::note_all_held() {
  if (!held_.empty()) held_.assign(held_.size(), 0xff);
}

void StatePlacement::place(const std::shared_ptr<Call>& call, const std::vector<HeldRanges>& held,
                           std::function<void()> then) {
  if (!state_.step.updates_at_owner()) return then();
  // Before the first step all state is zero, everywhere. Workers may have released ranges for another view.
  if (state_.next_step == 0) {
    note_held();
    return then();
  }
  auto planned = state_.plan_of(state_.step.strategy(), true);
  if (!planned.ok()) return state_.fail(planned.status(), true);
  const auto plan = std::make_shared<const Plan>(std::move(planned).value());
  auto found = transfers_for(*plan, held);
  if (!found.ok()) return state_.fail(found.status(), true);
  std::vector<RangeTransfer> transfers = std::move(found).value();
  if (transfers.empty()) {
    held_ = held_under(*plan);
    return then();
  }
  // Workers that copied nothing have used fewer numbers of the call, so all go on with the same one.
  call->next_operation = kOperationsOfACall / 2;
  size_t nbytes = 0;
  for (const RangeTransfer& transfer : transfers) {
    if (transfer.to == state_.rank()) nbytes += transfer.nbytes;
  }
  state_.log->info("this worker receives " + std::to_string(nbytes) + " bytes of optimizer state for view " +
                   std::to_string(state_.view()));
  state_.calls.schedule(
      call,
      [this, transfers = std::move(transfers)](uint64_t operation, const EngineState::Done& ended) {
        auto shape = shape_of(operation, Kind::kView, DType::kUint8, Algorithm::kDirect, transfers.size());
        shape.tag = RangeTransfers::tag(state_.mesh->operations, transfers);
        auto task = std::make_unique<RangeTransfers>(state_.mesh->operations, shape, transfers, ended);
        task->rename(state_.view_change_name());
        return task;
      },
      state_.in_view([this, call, plan, then = std::move(then)](const Status& status) {
        status.ok() ? agree(call, plan, then) : state_.fail(status, true);
      }));
}

// The state that must travel, alike on all workers. A range goes from one of its keepers in the new view if
// one of them has it, else from the lowest rank that has it. Fails if no worker has a range.
Result<std::vector<RangeTransfer>> StatePlacement::transfers_for(const Plan& plan,
                                                                 const std::vector<HeldRanges>& held) const {
  const std::vector<const Piece*> ranges = key_ranges(plan);
  const OptimizerState& state = state_.step.optimizer_state().on_host();
  std::vector<RangeTransfer> transfers;
  size_t lost = 0;
  const Parameter* first_lost = nullptr;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Piece& range = *ranges[i];
    const Parameter& parameter = *state_.model.parameters[range.parameter];
    const size_t states = state_.model.states_of(parameter);
    if (states == 0) continue;
    std::vector<int32_t> keepers = {range.owner};
    keepers.insert(keepers.end(), range.copies.begin(), range.copies.end());
    const auto has = [&](int32_t worker) { return holds(held[static_cast<size_t>(worker)], i); };
    int32_t source = 0;
    while (source < state_.size() && !has(source)) ++source;
    if (source == state_.size()) {
      if (lost++ == 0) first_lost = &parameter;
      continue;
    }
    const auto keeper = std::find_if(keepers.begin(), keepers.end(), has);
    if (keeper != keepers.end()) source = *keeper;
    const size_t element = dtype_size(wide(parameter.dtype));
    for (int32_t to : keepers) {
      for (size_t s = 0; s < states && !has(to); ++s) {
        const bool here = source == state_.rank() || to == state_.rank();
        std::byte* const data =
            here ? static_cast<std::byte*>(state[range.parameter][s].get()) + range.begin * element : nullptr;
        transfers.push_back({source, to, data, range.count * element});
      }
    }
  }
  if (lost > 0) return lost_ranges(lost, ranges.size(), first_lost->name);
  return transfers;
}

// `parameter`: of the first of them.
Status StatePlacement::lost_ranges(size_t lost, size_t all, const std::string& parameter) const {
  return Status(Code::kWorkerLost,
                state_.view_cause.message() + "; no worker that is left has the optimizer's state of " +
                    counted(lost, "key range") + " of " + std::to_string(all) + " (parameter '" + parameter +
                    "'), since " + state_.step.strategy().describe() + " outlives the loss of " +
                    counted(static_cast<size_t>(state_.step.strategy().copies - 1), "worker") +
                    " at once; start the job again from a checkpoint, with more copies")
      .with_rank(state_.view_cause.rank(), state_.view_cause.host())
      .with_parameter(parameter);
}

void StatePlacement::agree(const std::shared_ptr<Call>& call, std::shared_ptr<const Plan> plan,
                           std::function<void()> then) {
  const HeldRanges mine = held_under(*plan);
  held_.resize(mine.size());
  bool more = false;
  for (size_t i = 0; i < mine.size(); ++i) {
    more = more || (held_[i] & ~mine[i]) != 0;
    held_[i] |= mine[i];
  }
  state_.calls.exchange(call, shape_of(0, Kind::kView, DType::kUint8, Algorithm::kOneHop, 1), {},
                        state_.view_change_name(),
                        state_.in_view([this, plan, mine, more, then = std::move(then)](const Status& status,
                                                                                        const Calls::Parts&) {
                          if (!status.ok()) return state_.fail(status, true);
                          held_ = mine;
                          if (more) {
                            std::vector<std::vector<std::pair<uint64_t, uint64_t>>> ranges;
                            for (uint32_t p = 0; p < state_.model.parameters.size(); ++p)
                              ranges.push_back(owned_ranges(*plan, p, state_.rank(), true));
                            if (Status kept = state_.step.optimizer_state().keep_only(ranges); !kept.ok())
                              return state_.fail(kept, true);
                          }
                          then();
                        }));
}

}  // namespace dsgd
