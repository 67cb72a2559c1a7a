#include "core/objects/object_puts.h"

#include <algorithm>
#include <utility>

namespace dsgd {

std::vector<int32_t> object_chain(int32_t putter, int32_t size) {
  std::vector<int32_t> ranks = {putter};
  if (putter != kNameOwner) ranks.push_back(kNameOwner);
  for (int32_t hop = 1; hop < size; ++hop) {
    if (const int32_t rank = (putter + hop) % size; rank != kNameOwner) ranks.push_back(rank);
  }
  return ranks;
}

struct ObjectPuts::Sending : ObjectRequest {
  SharedObject object;
  ObjectDeadline deadline;
  bool spreading = false;  // rank 0 has accepted the put
  bool deleted = false;    // another worker has deleted the object
  Status failure = {};
};

void ObjectPuts::begin(const std::string& name, uint64_t put, SharedObject object, ObjectDeadline deadline,
                       Done done) {
  auto sending = std::make_shared<Sending>(
      Sending{{name, put, std::move(done)}, std::move(object), std::move(deadline)});
  sending_.push_back(sending);
  sending->timer = peers_->loop().schedule(sending->deadline.time, [this, weak = std::weak_ptr(sending)] {
    if (const auto late = weak.lock()) give_up(late);
  });
  if (peers_->rank() == kNameOwner) return spread(sending);
  sending->waiting = {kNameOwner};
  announce(sending, kNameOwner);
}

bool ObjectPuts::is_putting(const std::string& name) const {
  return std::any_of(sending_.begin(), sending_.end(),
                     [&](const auto& sending) { return sending->name == name && !sending->deleted; });
}

std::shared_ptr<ObjectPuts::Sending> ObjectPuts::find(uint64_t put) const {
  const auto found = std::find_if(sending_.begin(), sending_.end(),
                                  [put](const auto& sending) { return sending->put == put; });
  return found == sending_.end() ? nullptr : *found;
}

void ObjectPuts::note_accepted(uint64_t put) {
  if (const auto sending = find(put); sending && !sending->spreading) spread(sending);
}

void ObjectPuts::note_deleted(uint64_t put) {
  if (const auto sending = find(put)) sending->deleted = true;
}

// Rank 0 has accepted the put. Announces the object to the other workers.
void ObjectPuts::spread(const std::shared_ptr<Sending>& sending) {
  if (!sending->deleted) accepted_(sending->name, sending->object, sending->put);
  sending->spreading = true;
  std::vector<int32_t> others = object_chain(peers_->rank(), peers_->size());
  std::erase_if(others, [&](int32_t rank) { return rank == peers_->rank() || rank == kNameOwner; });
  sending->waiting.insert(others.begin(), others.end());
  if (sending->waiting.empty()) return finish(sending, {});
  for (int32_t rank : others) announce(sending, rank);
}

void ObjectPuts::announce(const std::shared_ptr<Sending>& sending, int32_t rank) {
  peers_->call(
      rank, announcement(rank, sending->name, *sending->object, sending->put), transport::kNever,
      [this, sending, rank](const Result<transport::Message>& r) { answered(sending, rank, r.status()); });
}

transport::PutObject ObjectPuts::announcement(int32_t rank, const std::string& name, const Object& object,
                                              uint64_t put) {
  transport::PutObject message;
  message.view = peers_->members().view().view;
  message.rank = peers_->rank();
  message.name = name;
  message.put = put;
  message.total = object.bytes.size();
  if (object.bytes.size() <= kSmall) message.data = object.bytes;
  peers_->count_sent(rank, message.data.size());
  message.dtype = object.dtype;
  message.shape = object.shape;
  return message;
}

// `rank` has the object, or will not get it.
void ObjectPuts::answered(const std::shared_ptr<Sending>& sending, int32_t rank, const Status& status) {
  if (!sending->done) return;  // the put has ended
  if (peers_->is_loss_undecided(rank, status)) {
    sending->cut_off.insert(rank);
    return;
  }
  if (!status.ok() && !sending->deleted && sending->failure.ok()) {  // the others still get the object
    sending->failure = peers_->failure_of_call(rank, status).with_operation(kOperation);
  }
  sending->waiting.erase(rank);
  if (!sending->waiting.empty()) return;
  if (!sending->spreading && sending->failure.ok()) return spread(sending);
  finish(sending, sending->failure);
}

void ObjectPuts::finish(const std::shared_ptr<Sending>& sending, const Status& status) {
  sending_.remove(sending);
  peers_->loop().cancel(sending->timer);
  if (auto done = std::exchange(sending->done, nullptr)) done(status);
}

// The deadline has passed. Workers that do not have the whole object get no more of it from here, and drop it
// unless another worker has it.
void ObjectPuts::give_up(const std::shared_ptr<Sending>& sending) {
  const Status why = peers_->members()
                         .timeout_error("object '" + sending->name + "' has not reached all workers",
                                        sending->deadline.limit, missing(*sending))
                         .with_operation(kOperation);
  late_(sending->name, sending->put);
  peers_->revoke(object_operation(sending->put));
  finish(sending, why);
}

void ObjectPuts::peer_left(int32_t rank) {
  const auto all = sending_;
  for (const auto& sending : all) {
    if (sending->cut_off.count(rank)) answered(sending, rank, peers_->members().closed_error(rank));
  }
}

void ObjectPuts::fail(const Status& cause) {
  while (!sending_.empty()) finish(std::shared_ptr<Sending>(sending_.front()), cause);
}

// Returns the workers that have not answered, in the order of the chain: the first one holds up the others.
std::vector<int32_t> ObjectPuts::missing(const Sending& sending) const {
  std::vector<int32_t> missing = object_chain(peers_->rank(), peers_->size());
  std::erase_if(missing, [&](int32_t rank) { return sending.waiting.count(rank) == 0; });
  return missing;
}

Status ObjectPuts::waiting(const std::string& name) const {
  for (const auto& sending : sending_) {
    if (sending->name == name && !sending->waiting.empty())
      return unanswered(peers_->members(), kOperation, name, " has not reached ", missing(*sending));
  }
  return {};
}

}  // namespace dsgd
