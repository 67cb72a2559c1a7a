#include "core/step/step_group.h"

#include <algorithm>
#include <string>
#include <utility>

namespace dsgd {

bool StepGroup::members_have_left() const {
  return workers_ && std::any_of(workers_->ranks.begin(), workers_->ranks.end(),
                                 [this](int32_t rank) { return state_.mesh->peers.has_left(rank); });
}

Result<bool> StepGroup::regroup(uint64_t header_operation) {
  if (!members_have_left()) return false;
  std::vector<int32_t> present;
  for (int32_t rank : workers_->ranks) {
    if (!state_.mesh->peers.left_before(rank, header_operation)) present.push_back(rank);
  }
  if (present.size() == workers_->ranks.size()) return false;
  for (int32_t rank : workers_->ranks) {
    if (std::find(present.begin(), present.end(), rank) != present.end()) continue;
    DSGD_RETURN_IF_ERROR(check_can_go_on_without(rank));
  }
  workers_ = std::make_shared<const Group>(std::move(present), state_.rank());
  return true;
}

// Fails if the departed rank owns values or state, or was in a GPU team.
Status StepGroup::check_can_go_on_without(int32_t rank) const {
  const auto needed = [&](const std::string& why) {
    const Status closed = state_.mesh->members().closed_error(rank);
    return Status(
               Code::kWorkerLost,
               closed.message() + ", and " + state_.name() + " needs it: " + why +
                   "; workers may leave early if the strategy is allreduce and NCCL reduces no GPU gradients")
        .with_rank(rank, closed.host())
        .with_operation(state_.name());
  };
  if (state_.path.by_teams) return needed("NCCL reduces over GPU teams that were formed at start");
  if (!state_.path.has_owners) return {};
  for (const Bucket& bucket : state_.plan) {
    for (const Piece& piece : bucket.pieces) {
      if (!piece.is_kept_by(rank)) continue;
      const std::string& parameter = state_.model.parameters[piece.parameter]->name;
      return needed("under strategy " + state_.strategy.describe() + " it owns a part of parameter '" +
                    parameter + "'")
          .with_parameter(parameter);
    }
  }
  return {};
}

std::vector<Slice> StepGroup::slices_of(const Bucket& bucket) const {
  std::vector<Slice> slices;
  for (int32_t rank : workers_->ranks)
    slices.push_back(
        {bucket.bounds[static_cast<size_t>(rank)], bucket.bounds[static_cast<size_t>(rank) + 1]});
  return slices;
}

}  // namespace dsgd
