#include "core/objects/object_deletions.h"

#include <algorithm>
#include <vector>

namespace dsgd {

namespace {
std::vector<int32_t> ranks(const std::set<int32_t>& set) { return {set.begin(), set.end()}; }
}  // namespace

void ObjectDeletions::begin(const std::string& name, uint64_t put, const std::set<int32_t>& asked,
                            const ObjectDeadline& deadline, Done done) {
  auto deletion = std::make_shared<Deletion>(Deletion{name, put, std::move(done)});
  deletion->waiting = asked;
  deletions_.push_back(deletion);
  deletion->timer =
      peers_->loop().schedule(deadline.time, [this, limit = deadline.limit, weak = std::weak_ptr(deletion)] {
        const auto late = weak.lock();
        if (!late) return;
        const std::string what = "object '" + late->name + "' was not deleted on all workers";
        finish(late,
               peers_->members().timeout_error(what, limit, ranks(late->waiting)).with_operation(kOperation));
      });
  for (int32_t rank : asked) {
    peers_->call(rank, transport::DeleteObject{peers_->members().view().view, peers_->rank(), name, put},
                 transport::kNever, [this, deletion, rank](const Result<transport::Message>& r) {
                   answered(deletion, rank, r.status());
                 });
  }
}

void ObjectDeletions::answered(const std::shared_ptr<Deletion>& deletion, int32_t rank,
                               const Status& status) {
  if (!deletion->done) return;  // it has ended
  if (peers_->is_loss_undecided(rank, status)) {
    deletion->cut_off.insert(rank);
    return;
  }
  const bool gone = rank != kNameOwner && peers_->has_left(rank);  // a worker that has left holds no copy
  if (!status.ok() && !gone)
    return finish(deletion, peers_->failure_of_call(rank, status).with_operation(kOperation));
  deletion->waiting.erase(rank);
  if (deletion->waiting.empty()) finish(deletion, {});
}

void ObjectDeletions::finish(const std::shared_ptr<Deletion>& deletion, const Status& status) {
  deletions_.remove(deletion);
  peers_->loop().cancel(deletion->timer);
  if (status.ok() && peers_->rank() == kNameOwner) deleted_(deletion->name, deletion->put);
  if (auto done = std::exchange(deletion->done, nullptr)) done(status);
}

bool ObjectDeletions::is_deleting(const std::string& name) const {
  return std::any_of(deletions_.begin(), deletions_.end(),
                     [&](const auto& deletion) { return deletion->name == name; });
}

void ObjectDeletions::peer_left(int32_t rank) {
  const auto all = deletions_;
  for (const auto& deletion : all) {
    if (deletion->cut_off.count(rank)) answered(deletion, rank, peers_->members().closed_error(rank));
  }
}

void ObjectDeletions::fail(const Status& cause) {
  while (!deletions_.empty()) finish(std::shared_ptr<Deletion>(deletions_.front()), cause);
}

Status ObjectDeletions::waiting(const std::string& name) const {
  for (const auto& deletion : deletions_) {
    if (deletion->name == name && !deletion->waiting.empty())
      return unanswered(peers_->members(), kOperation, name, " is not deleted on ", ranks(deletion->waiting));
  }
  return {};
}

}  // namespace dsgd
