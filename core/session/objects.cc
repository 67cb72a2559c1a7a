#include "core/session/objects.h"

#include <algorithm>
#include <utility>

namespace dsgd {

namespace {
constexpr size_t kPart = 256 * 1024;
constexpr int32_t kNameOwner =
    0;  // the rank that decides which put of a name wins, and that carries out deletions
const char* const kPut = "dsgd_object_put";
const char* const kDelete = "dsgd_object_delete";

// The number of a worker's put, unique in the job. It is not 0.
uint64_t put_number(int32_t rank, uint64_t index) { return static_cast<uint64_t>(rank) << 40 | index; }
uint64_t putter(uint64_t number) { return number >> 40; }  // the rank

Status exists(const std::string& name) {
  return Status(Code::kExists,
                "there is an object '" + name + "' already; choose another name or delete the object first");
}
Status not_found(const std::string& name) {
  return Status(Code::kNotFound,
                "there is no object '" + name + "'; it has not been put, or another worker has deleted it");
}
Status missing(const std::string& name) {
  return Status(Code::kInternal, "a part of object '" + name + "' is missing");
}
transport::Message empty() { return transport::Empty{}; }
std::vector<int32_t> ranks(const std::set<int32_t>& set) { return {set.begin(), set.end()}; }
}  // namespace

struct Objects::Sending {
  Mesh* mesh;
  std::string name;
  uint64_t put;
  SharedObject object;
  Deadline deadline;
  Done done;
  transport::TimerId timer = 0;
  std::vector<size_t> offset = {};  // by rank, next part
  bool spreading = false;           // rank 0 has accepted the put
  bool removed = false;             // another worker has deleted the object
  std::set<int32_t> waiting = {};   // peers that parts are sent to and that do not have all yet
  std::set<int32_t> cut_off =
      {};  // those of them whose connection has ended; they have left, or else the session fails
  Status failure = {};

  Status too_late() const {
    return mesh->too_late("object '" + name + "' has not reached all workers", deadline.limit, ranks(waiting))
        .with_operation(kPut);
  }
};

struct Objects::Removal {
  Mesh* mesh;
  std::string name;
  uint64_t put;  // 0: rank 0 knows it
  Done done;
  transport::TimerId timer = 0;
  std::set<int32_t> waiting = {};  // workers that have not answered yet
  std::set<int32_t> cut_off =
      {};  // those of them whose connection has ended; they have left, or else the session fails
};

// ---- putting

uint64_t Objects::put_of(const std::string& name) const {
  if (const auto object = objects_.find(name); object != objects_.end()) return object->second.put;
  const auto incoming = std::find_if(incoming_.begin(), incoming_.end(), [&](const auto& item) {
    return item.second.name == name && !item.second.removed;
  });
  return incoming == incoming_.end() ? 0 : incoming->first;
}

bool Objects::is_deleting(const Mesh& mesh, const std::string& name) const {
  return mesh.rank() == kNameOwner &&
         std::any_of(removals_.begin(), removals_.end(), [&](const auto& r) { return r->name == name; });
}

void Objects::put(Mesh* mesh, const std::string& name, SharedObject object, Deadline deadline, Done done) {
  const bool under_way = std::any_of(sending_.begin(), sending_.end(),
                                     [&](const auto& s) { return s->name == name && !s->removed; });
  if (put_of(name) != 0 || under_way || (mesh && is_deleting(*mesh, name))) return done(exists(name));
  const uint64_t number = put_number(mesh ? mesh->rank() : 0, ++puts_);
  if (!mesh || mesh->size() == 1) {
    store(name, std::move(object), number);
    return done({});
  }
  auto sending = std::make_shared<Sending>(
      Sending{mesh, name, number, std::move(object), std::move(deadline), std::move(done)});
  sending->offset.assign(mesh->size(), 0);
  sending_.push_back(sending);
  sending->timer = mesh->loop().schedule(sending->deadline.time, [this, weak = std::weak_ptr(sending)] {
    if (const auto late = weak.lock()) finish(late, late->too_late());
  });
  if (mesh->rank() == kNameOwner) return spread(sending);
  sending->waiting = {kNameOwner};
  send_parts(sending, kNameOwner);
}

// Rank 0 has accepted the put. Stores the object here and sends it to the workers that do not have it yet.
void Objects::spread(const std::shared_ptr<Sending>& sending) {
  Mesh& mesh = *sending->mesh;
  if (!sending->removed) store(sending->name, sending->object, sending->put);
  sending->spreading = true;
  std::vector<int32_t>
      others;  // starts at the next rank, so that concurrent putters start at different workers
  for (int32_t hop = 1; hop < mesh.size(); ++hop) {
    const int32_t rank = (mesh.rank() + hop) % mesh.size();
    if (rank != kNameOwner) others.push_back(rank);
  }
  if (others.empty()) return finish(sending, {});
  sending->waiting.insert(others.begin(), others.end());
  for (int32_t rank : others) send_parts(sending, rank);
}

// One part at a time to each peer: objects are small against a step's data and must not get in its way.
void Objects::send_parts(std::shared_ptr<Sending> sending, int32_t rank) {
  const std::vector<uint8_t>& bytes = sending->object->bytes;
  const size_t offset = sending->offset[rank], count = std::min(kPart, bytes.size() - offset);
  transport::ObjectPart part;
  part.view = sending->mesh->view().view;
  part.rank = sending->mesh->rank();
  part.name = sending->name;
  part.total = bytes.size();
  part.offset = offset;
  part.data.assign(bytes.begin() + offset, bytes.begin() + offset + count);
  if (offset == 0) {
    part.dtype = sending->object->dtype;
    part.shape = sending->object->shape;
  }
  part.put = sending->put;
  sending->mesh->call(rank, std::move(part), sending->deadline.time,
                      [this, sending, rank, count](Result<transport::Message> r) {
                        if (r.ok()) sending->offset[rank] += count;
                        answered(sending, rank, r.status());
                      });
}

// `rank` has answered a part.
void Objects::answered(const std::shared_ptr<Sending>& sending, int32_t rank, const Status& status) {
  if (!sending->done) return;  // the put has ended
  Mesh& mesh = *sending->mesh;
  if (mesh.undecided(rank, status)) {
    sending->cut_off.insert(rank);
    return;
  }
  if (status.ok() && sending->offset[rank] < sending->object->bytes.size()) return send_parts(sending, rank);
  if (!status.ok() && sending->failure.ok()) {  // the others still get the object
    sending->failure =
        status.code() == Code::kTimeout ? sending->too_late() : mesh.blame(rank, status).with_operation(kPut);
  }
  sending->waiting.erase(rank);
  if (!sending->waiting.empty()) return;
  if (!sending->spreading && sending->failure.ok()) return spread(sending);
  finish(sending, sending->failure);
}

void Objects::finish(const std::shared_ptr<Sending>& sending, const Status& status) {
  sending_.remove(sending);
  sending->mesh->loop().cancel(sending->timer);
  if (auto done = std::exchange(sending->done, nullptr)) done(status);
}

void Objects::peer_left(int32_t rank) {
  const auto all = sending_;
  for (const auto& sending : all) {
    if (sending->cut_off.count(rank)) answered(sending, rank, sending->mesh->has_closed(rank));
  }
  const auto removals = removals_;
  for (const auto& removal : removals) {
    if (removal->cut_off.count(rank)) removed(removal, rank, removal->mesh->has_closed(rank));
  }
}

// ---- deleting

void Objects::remove(Mesh* mesh, const std::string& name, Deadline deadline, Done done) {
  const bool alone = !mesh || mesh->size() == 1;
  uint64_t put = 0;
  std::set<int32_t> asked = {kNameOwner};
  if (alone || mesh->rank() == kNameOwner) {
    put = put_of(name);
    if (put == 0 || (!alone && is_deleting(*mesh, name))) return done(not_found(name));
    if (alone) {
      objects_.erase(name);
      return done({});
    }
    if (const auto incoming = incoming_.find(put); incoming != incoming_.end()) drop(&incoming->second);
    asked.clear();
    for (int32_t rank = 0; rank < mesh->size(); ++rank) {
      if (rank != kNameOwner) asked.insert(rank);
    }
  }
  auto removal = std::make_shared<Removal>(Removal{mesh, name, put, std::move(done)});
  removal->waiting = asked;
  removals_.push_back(removal);
  removal->timer =
      mesh->loop().schedule(deadline.time, [this, limit = deadline.limit, weak = std::weak_ptr(removal)] {
        const auto late = weak.lock();
        if (!late) return;
        const std::string what = "object '" + late->name + "' was not deleted on all workers";
        finish(late, late->mesh->too_late(what, limit, ranks(late->waiting)).with_operation(kDelete));
      });
  for (int32_t rank : asked) {
    transport::ObjectPart request;
    request.view = mesh->view().view;
    request.rank = mesh->rank();
    request.name = name;
    request.remove = true;
    request.put = put;
    mesh->call(rank, std::move(request), transport::kNever,
               [this, removal, rank](Result<transport::Message> r) { removed(removal, rank, r.status()); });
  }
}

// `rank` has answered.
void Objects::removed(const std::shared_ptr<Removal>& removal, int32_t rank, const Status& status) {
  if (!removal->done) return;  // it has ended
  Mesh& mesh = *removal->mesh;
  if (mesh.undecided(rank, status)) {
    removal->cut_off.insert(rank);
    return;
  }
  const bool gone = rank != kNameOwner && mesh.has_left(rank);  // a worker that has left holds no copy
  if (!status.ok() && !gone) return finish(removal, mesh.blame(rank, status).with_operation(kDelete));
  removal->waiting.erase(rank);
  if (removal->waiting.empty()) finish(removal, {});
}

void Objects::finish(const std::shared_ptr<Removal>& removal, const Status& status) {
  removals_.remove(removal);
  removal->mesh->loop().cancel(removal->timer);
  if (status.ok() && removal->mesh->rank() == kNameOwner) erase(removal->name, removal->put);
  if (auto done = std::exchange(removal->done, nullptr)) done(status);
}

void Objects::receive_removal(Mesh* mesh, Deadline deadline, const transport::ObjectPart& request,
                              const transport::Responder& respond) {
  if (mesh->rank() == kNameOwner) {
    return remove(mesh, request.name, std::move(deadline),
                  [respond](const Status& status) { status.ok() ? respond(empty()) : respond(status); });
  }
  if (request.rank != kNameOwner)
    return respond(Status(Code::kInternal, "only rank 0 deletes object '" + request.name + "'"));
  erase(request.name, request.put);
  respond(empty());
}

void Objects::drop(Incoming* incoming) {
  incoming->removed = true;
  incoming->object = {};
}

void Objects::erase(const std::string& name, uint64_t put) {
  const auto sending =
      std::find_if(sending_.begin(), sending_.end(), [put](const auto& s) { return s->put == put; });
  if (sending != sending_.end()) (*sending)->removed = true;
  if (const auto object = objects_.find(name); object != objects_.end() && object->second.put == put) {
    objects_.erase(object);
  } else if (const auto incoming = incoming_.find(put); incoming != incoming_.end()) {
    drop(&incoming->second);
  } else if (sending == sending_.end()) {
    removed_early_.insert(put);
  }
}

// ---- receiving

void Objects::receive(Mesh* mesh, Deadline deadline, transport::ObjectPart part,
                      const transport::Responder& respond) {
  if (part.remove) return receive_removal(mesh, std::move(deadline), part, respond);
  if (part.total > Object::kLargest || part.offset > part.total ||
      part.data.size() > part.total - part.offset) {
    return respond(Status(Code::kInternal, "a part of object '" + part.name + "' lies outside of it"));
  }
  if (!incoming_.count(part.put)) {
    // A putter puts a name once at a time. So a partial earlier put of this putter has failed: drop it.
    std::erase_if(incoming_, [&](const auto& item) {
      return item.second.name == part.name && putter(item.first) == putter(part.put) &&
             item.first < part.put && !item.second.removed;
    });
    if (put_of(part.name) != 0 || is_deleting(*mesh, part.name)) return respond(exists(part.name));
    if (part.offset > 0) return respond(missing(part.name));
    if (const std::string why = object_mismatch(part.dtype, part.shape, part.total); !why.empty()) {
      return respond(Status(Code::kInternal, "object '" + part.name + "': " + why));
    }
    incoming_.emplace(part.put,
                      Incoming{.name = part.name,
                               .object = {.bytes = {}, .dtype = part.dtype, .shape = std::move(part.shape)},
                               .removed = removed_early_.erase(part.put) > 0});
  }
  Incoming& incoming = incoming_.at(part.put);
  if (part.offset != incoming.received) return respond(missing(part.name));
  // The memory grows with the data received, not with `total`.
  std::vector<uint8_t>& bytes = incoming.object.bytes;
  if (!incoming.removed) bytes.insert(bytes.end(), part.data.begin(), part.data.end());
  incoming.received += part.data.size();
  respond(empty());
  if (incoming.received < part.total) return;
  Incoming whole = std::move(incoming_.extract(part.put).mapped());
  if (!whole.removed) store(part.name, std::make_shared<const Object>(std::move(whole.object)), part.put);
}

void Objects::store(const std::string& name, SharedObject object, uint64_t put) {
  objects_[name] = {object, put};
  std::vector<std::function<void(Result<SharedObject>)>> ready;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (it->name == name) {
      ready.push_back(std::move(it->done));
      it = waiters_.erase(it);
    } else {
      ++it;
    }
  }
  for (auto& done : ready) done(object);
}

uint64_t Objects::get(const std::string& name, std::function<void(Result<SharedObject>)> done) {
  if (auto it = objects_.find(name); it != objects_.end()) {
    done(it->second.object);
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

// ---- failure

void Objects::fail(const Status& cause) {
  while (!sending_.empty()) finish(std::shared_ptr<Sending>(sending_.front()), cause);
  while (!removals_.empty()) finish(std::shared_ptr<Removal>(removals_.front()), cause);
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
