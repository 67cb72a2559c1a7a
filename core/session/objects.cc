#include "core/session/objects.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace dsgd {

namespace {
constexpr size_t kPart = 256 * 1024;
const char* const kPut = "dsgd_object_put";
Status exists(const std::string& name) {
  return Status(Code::kExists, "there is an object '" + name + "' already; objects are put once, choose another name");
}
}  // namespace

struct Objects::Sending {
  static constexpr int32_t kNameOwner = 0;  // the rank that gives each name to one worker

  Mesh* mesh;
  std::string name;
  Blob blob;
  Deadline deadline;
  std::function<void(const Status&)> done;
  std::vector<size_t> offset;  // by rank, next part
  bool spreading = false;      // rank 0 has given the name
  std::set<int32_t> waiting;   // peers that parts are sent to and that do not have all yet
  std::set<int32_t> cut_off;   // those of them whose connection has ended; they have left, or else the session fails
  Status failure;
};

Status Objects::too_late(const Sending& sending) {
  const std::vector<int32_t> missing(sending.waiting.begin(), sending.waiting.end());
  return sending.mesh->too_late("object '" + sending.name + "' has not reached all workers", sending.deadline.limit, missing).with_operation(kPut);
}

void Objects::put(Mesh* mesh, const std::string& name, Blob blob, Deadline deadline, std::function<void(const Status&)> done) {
  const bool under_way = std::any_of(sending_.begin(), sending_.end(), [&](const auto& s) { return s->name == name; });
  if (objects_.count(name) || incoming_.count(name) || under_way) return done(exists(name));
  if (!mesh || mesh->size() == 1) {
    store(name, blob);
    return done({});
  }
  auto sending = std::make_shared<Sending>();
  sending->mesh = mesh;
  sending->name = name;
  sending->blob = std::move(blob);
  sending->deadline = std::move(deadline);
  sending->done = std::move(done);
  sending->offset.assign(mesh->size(), 0);
  sending_.push_back(sending);
  mesh->loop().schedule(sending->deadline.time, [this, weak = std::weak_ptr(sending), name] {
    auto late = weak.lock();
    if (!late || !late->done) return;
    finish(late, too_late(*late));
  });
  if (mesh->rank() == Sending::kNameOwner) return spread(sending);
  sending->waiting = {Sending::kNameOwner};
  send_parts(sending, Sending::kNameOwner);
}

// The name is this worker's: it keeps the object, and so do all others that do not have it yet.
void Objects::spread(const std::shared_ptr<Sending>& sending) {
  Mesh& mesh = *sending->mesh;
  store(sending->name, sending->blob);
  sending->spreading = true;
  std::vector<int32_t> others;  // beginning with the next one, so that putters do not all begin with the same
  for (int32_t hop = 1; hop < mesh.size(); ++hop) {
    const int32_t rank = (mesh.rank() + hop) % mesh.size();
    if (rank != Sending::kNameOwner) others.push_back(rank);
  }
  if (others.empty()) return finish(sending, {});
  sending->waiting.insert(others.begin(), others.end());
  for (int32_t rank : others) send_parts(sending, rank);
}

// One part at a time to each peer: objects are small against a step's data and must not get in its way.
void Objects::send_parts(std::shared_ptr<Sending> sending, int32_t rank) {
  const std::vector<uint8_t>& blob = *sending->blob;
  const size_t offset = sending->offset[rank], count = std::min(kPart, blob.size() - offset);
  transport::ObjectPart part{sending->mesh->view().view, sending->mesh->rank(), sending->name, blob.size(), offset,
                             {blob.begin() + offset, blob.begin() + offset + count}};
  sending->mesh->call(rank, std::move(part), sending->deadline.time, [this, sending, rank, count](Result<transport::Message> r) {
    if (sending->mesh->undecided(rank, r.status())) {
      sending->cut_off.insert(rank);
      return;
    }
    sending->offset[rank] += count;
    if (!r.ok() && sending->failure.ok()) {
      sending->failure = r.status().code() == Code::kTimeout
                             ? too_late(*sending)
                             : sending->mesh->blame(rank, r.status()).with_operation(kPut);
    }
    if (r.ok() && sending->offset[rank] < sending->blob->size()) return send_parts(sending, rank);
    sending->waiting.erase(rank);
    if (!sending->waiting.empty() || !sending->done) return;
    if (!sending->spreading && sending->failure.ok()) return spread(sending);
    finish(sending, sending->failure);
  });
}

void Objects::peer_left(int32_t rank) {
  const auto all = sending_;
  for (const auto& sending : all) {
    if (sending->cut_off.count(rank)) finish(sending, sending->mesh->has_closed(rank).with_operation(kPut));
  }
}

void Objects::receive(transport::ObjectPart part, const transport::Responder& respond) {
  if (objects_.count(part.name)) return respond(exists(part.name));
  if (part.total > kLargest || part.offset > part.total || part.data.size() > part.total - part.offset) {
    return respond(Status(Code::kInternal, "a part of object '" + part.name + "' lies outside of it"));
  }
  Incoming& incoming = incoming_.try_emplace(part.name, Incoming{part.rank, {}, 0}).first->second;
  if (incoming.rank != part.rank) return respond(exists(part.name));
  if (part.offset != incoming.received) return respond(Status(Code::kInternal, "a part of object '" + part.name + "' is missing"));
  incoming.data.insert(incoming.data.end(), part.data.begin(), part.data.end());  // grows with what came, not with `total`
  incoming.received += part.data.size();
  respond(transport::Message(transport::Empty{}));
  if (incoming.received < part.total) return;
  auto blob = std::make_shared<const std::vector<uint8_t>>(std::move(incoming.data));
  incoming_.erase(part.name);
  store(part.name, std::move(blob));
}

void Objects::store(const std::string& name, Blob blob) {
  objects_[name] = blob;
  std::vector<std::function<void(Result<Blob>)>> ready;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (it->name == name) {
      ready.push_back(std::move(it->done));
      it = waiters_.erase(it);
    } else {
      ++it;
    }
  }
  for (auto& done : ready) done(blob);
}

uint64_t Objects::get(const std::string& name, std::function<void(Result<Blob>)> done) {
  if (auto it = objects_.find(name); it != objects_.end()) {
    done(it->second);
    return 0;
  }
  waiters_.push_back({next_ticket_, name, std::move(done)});
  return next_ticket_++;
}

void Objects::cancel(uint64_t ticket, const Status& why) {
  const auto at = std::find_if(waiters_.begin(), waiters_.end(), [ticket](const Waiter& waiter) { return waiter.ticket == ticket; });
  if (at == waiters_.end()) return;
  const auto done = std::move(at->done);
  waiters_.erase(at);
  done(why);
}

void Objects::finish(const std::shared_ptr<Sending>& sending, const Status& status) {
  sending_.remove(sending);
  if (auto done = std::exchange(sending->done, nullptr)) done(status);
}

void Objects::fail(const Status& cause) {
  while (!sending_.empty()) finish(std::shared_ptr<Sending>(sending_.front()), cause);
  fail_waiters(cause);
}

void Objects::fail_waiters(const Status& cause) {
  while (!waiters_.empty()) {
    const Waiter waiter = std::move(waiters_.front());
    waiters_.pop_front();
    waiter.done(cause);
  }
}

}  // namespace dsgd
