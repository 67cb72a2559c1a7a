// Steps without workers that have closed their sessions in good order. Such a worker's goodbye names the
// first call that it does not make, so each step either has its header on all other workers, or has it on
// none. A worker that completes the exchange of headers therefore knows the same group of workers as all
// others that do, and nothing changes before it is complete.
//
// Buckets may travel before that. They do so among the group of the last header, and if it turns out that one
// of these workers has left, no such bucket can have been completed, since that worker contributed nothing.
// All workers drop these operations, and buckets travel again among the remaining workers, from the same
// gradients, by operations with other numbers. So the two attempts never mix, whichever worker knows of the
// departure first.

#include <algorithm>

#include "core/step/step.h"

namespace dsgd {

bool Step::members_have_left() const {
  return group_ && std::any_of(group_->ranks.begin(), group_->ranks.end(),
                               [this](int32_t rank) { return mesh_->has_left(rank); });
}

// The headers are in: makes the workers that sent one the new group. Fails, on all workers alike, if the step
// needs a departed worker.
Status Step::regroup() {
  if (!members_have_left()) return {};
  std::vector<int32_t> present;
  for (int32_t rank : group_->ranks) {
    if (!mesh_->left_before(rank, header_operation())) present.push_back(rank);
  }
  if (present.size() == group_->ranks.size()) return {};
  for (int32_t rank : group_->ranks) {
    if (std::find(present.begin(), present.end(), rank) != present.end()) continue;
    if (Status status = check_needless(rank); !status.ok()) return status;
  }
  group_ = std::make_shared<const Group>(std::move(present), rank());
  second_attempt_ = true;
  return {};
}

// Fails if the departed rank owns values or state, or was in a GPU team.
Status Step::check_needless(int32_t rank) const {
  const auto needed = [&](const std::string& why) {
    const Status closed = mesh_->has_closed(rank);
    return Status(
               Code::kWorkerLost,
               closed.message() + ", and " + name() + " needs it: " + why +
                   "; workers may leave early if the strategy is allreduce and NCCL reduces no GPU gradients")
        .with_rank(rank, closed.host())
        .with_operation(name());
  };
  if (by_teams()) return needed("NCCL reduces over GPU teams that were formed at start");
  if (!transforms()) return {};
  for (const Bucket& bucket : plan_) {
    for (const Piece& piece : bucket.pieces) {
      if (piece.owner != rank) continue;
      const std::string& parameter = model_.parameters[piece.parameter]->name;
      return needed("under strategy " + strategy_.describe() + " it owns a part of parameter '" + parameter +
                    "'")
          .with_parameter(parameter);
    }
  }
  return {};
}

void Step::restart_buckets() {
  bucket_failure_ = {};
  for (Buffers& buffers : buffers_) buffers.held = nullptr;
  mesh_->drop(operation_of(0, true, false), operation_of(0, true, true));
  const size_t begun = next_;  // fetch() may start further buckets
  for (size_t b = 0; b < begun && done_; ++b) {
    if (std::exchange(buffers_[b].travels, false)) fetch(b);  // one that is still being fetched goes on
  }
}

// The slices of the group's workers, by place. Workers outside the group own nothing.
std::vector<Slice> Step::slices_of(const Bucket& bucket) const {
  std::vector<Slice> slices;
  for (int32_t rank : group_->ranks)
    slices.push_back(
        {bucket.bounds[static_cast<size_t>(rank)], bucket.bounds[static_cast<size_t>(rank) + 1]});
  return slices;
}

}  // namespace dsgd
