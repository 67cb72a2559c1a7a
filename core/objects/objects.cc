#include "core/objects/objects.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "core/base/join.h"

namespace dsgd {

namespace {
// The number of a put, unique in the job and not 0, has three parts, the highest first: the rank of the
// putter, the view (0: the first one), and an index of 24 bits. View and index have 40 bits together.
constexpr int kNumbersOfAPutter = 40, kNumbersOfAView = 24;
uint64_t put_number(int32_t rank, uint64_t index) {
  return static_cast<uint64_t>(rank) << kNumbersOfAPutter | index;
}
int32_t putter(uint64_t number) { return static_cast<int32_t>(number >> kNumbersOfAPutter); }
uint64_t view_of(uint64_t number) {
  return (number & ((uint64_t{1} << kNumbersOfAPutter) - 1)) >> kNumbersOfAView;
}

// Returns the ranks before `rank` in the chain, the nearest first.
std::vector<int32_t> sources_of(int32_t rank, int32_t putter, int32_t size) {
  const std::vector<int32_t> ranks = object_chain(putter, size);
  return {std::make_reverse_iterator(std::find(ranks.begin(), ranks.end(), rank)), ranks.rend()};
}

Status exists(const std::string& name) {
  return Status(Code::kExists,
                "there is an object '" + name + "' already; choose another name or delete the object first");
}
Status not_found(const std::string& name) {
  return Status(Code::kNotFound,
                "there is no object '" + name +
                    "'; it has not been put, or another worker has deleted it; put it first");
}
std::string not_put(const std::string& name) {
  return "no worker has put object '" + name + "'; some worker must call dsgd_object_put with this name";
}
transport::Message empty() { return transport::Empty{}; }
}  // namespace

void Objects::use_peers(Peers* peers) {
  peers_ = peers;
  fetches_.use_peers(peers);
  puts_.use_peers(peers);
  deletions_.use_peers(peers);
}

// ---- putting

uint64_t Objects::put_of(const std::string& name) const {
  if (const auto object = objects_.find(name); object != objects_.end()) return object->second.put;
  const auto incoming = std::find_if(incoming_.begin(), incoming_.end(),
                                     [&](const auto& item) { return item.second.name == name; });
  return incoming == incoming_.end() ? 0 : incoming->first;
}

bool Objects::is_arriving(const std::string& name) const {
  return std::any_of(incoming_.begin(), incoming_.end(),
                     [&](const auto& item) { return item.second.name == name && item.second.respond; });
}

bool Objects::is_deleting(const std::string& name) const {
  return peers_->rank() == kNameOwner && deletions_.is_deleting(name);
}

void Objects::put(const std::string& name, SharedObject object, Deadline deadline, Done done) {
  if (put_of(name) != 0 || puts_.is_putting(name) || (peers_ && is_deleting(name))) return done(exists(name));
  const uint64_t number = put_number(peers_ ? peers_->rank() : 0, ++last_put_);
  if (!peers_ || peers_->size() == 1) {
    store(name, std::move(object), number);
    return done({});
  }
  puts_.begin(name, number, std::move(object), std::move(deadline), std::move(done));
}

void Objects::give(int32_t rank, Done done) {
  const auto given = join(objects_.size() + 1, std::move(done));
  for (const auto& [name, stored] : objects_) {
    transport::PutObject put = puts_.announcement(rank, name, *stored.object, stored.put);
    put.again = true;
    peers_->call(rank, std::move(put), transport::kNever, [given](const Result<transport::Message>& answer) {
      // The receiver is lost, or has heard of a later view first. This worker enters another view then, too.
      const Status& status = answer.status();
      if (!is_break(status) && status.code() != Code::kViewChanged) given({});
    });
  }
  given({});
}

// The deadline of a put of this worker has passed: drops the object. At rank 0 the name stays taken
// (Incoming).
void Objects::drop_late(const std::string& name, uint64_t put) {
  const auto object = objects_.find(name);
  if (object == objects_.end() || object->second.put != put) return;
  forget(object);
  if (peers_->rank() == kNameOwner) incoming_[put] = {name, nullptr};
}

void Objects::peer_left(int32_t rank) {
  std::erase_if(deleted_early_, [rank](uint64_t put) { return putter(put) == rank; });
  fetches_.peer_left(rank);
  puts_.peer_left(rank);
  deletions_.peer_left(rank);
}

Status Objects::waiting(const std::string& operation, const std::string& name) const {
  if (operation == kPut) return puts_.waiting(name);
  if (operation == kDelete) return deletions_.waiting(name);
  if (operation != kGet || !gets_.is_waiting(name)) return {};
  return Status(Code::kWaitTimeout,
                is_arriving(name) ? "the data of object '" + name + "' is still to come" : not_put(name))
      .with_operation(operation);
}

// ---- deleting

void Objects::delete_everywhere(const std::string& name, Deadline deadline, Done done) {
  const bool alone = !peers_ || peers_->size() == 1;
  uint64_t put = 0;
  std::set<int32_t> asked = {kNameOwner};
  if (alone || peers_->rank() == kNameOwner) {
    put = put_of(name);
    if (put == 0 || (!alone && is_deleting(name))) return done(not_found(name));
    if (alone) {
      forget(objects_.find(name));
      return done({});
    }
    cancel_fetch(put, empty());
    asked.clear();
    for (int32_t rank = 0; rank < peers_->size(); ++rank) {
      if (rank != kNameOwner) asked.insert(rank);
    }
  }
  deletions_.begin(name, put, asked, deadline, std::move(done));
}

void Objects::on_delete(Deadline deadline, const transport::DeleteObject& request,
                        const transport::Responder& respond) {
  if (peers_->rank() == kNameOwner) {
    return delete_everywhere(request.name, std::move(deadline), [respond](const Status& status) {
      status.ok() ? respond(empty()) : respond(status);
    });
  }
  if (request.rank != kNameOwner)
    return respond(Status(Code::kInternal, "only rank 0 deletes object '" + request.name + "'"));
  delete_here(request.name, request.put);
  respond(empty());
}

// Drops an object that is being fetched, and answers its announcement.
void Objects::cancel_fetch(uint64_t put, const Result<transport::Message>& answer) {
  const auto dropped = incoming_.extract(put);
  if (!dropped) return;
  fetches_.drop(put);
  if (dropped.mapped().respond) dropped.mapped().respond(answer);
}

// Whether the announcement of a put may still arrive. The rank in the number of a put of an earlier view says
// nothing, and a worker that has joined may get such an object from the one that gives it its state.
bool Objects::may_arrive(uint64_t put) const {
  if (view_of(put) < view_of(last_put_)) return true;
  return putter(put) != peers_->rank() && !peers_->has_left(putter(put));
}

void Objects::delete_here(const std::string& name, uint64_t put) {
  puts_.note_deleted(put);
  if (const auto object = objects_.find(name); object != objects_.end() && object->second.put == put) {
    forget(object);
    peers_->revoke(object_operation(put));
  } else if (incoming_.count(put) > 0) {
    cancel_fetch(put, empty());
  } else if (peers_->rank() != kNameOwner && may_arrive(put)) {
    deleted_early_.insert(put);
  }
}

// ---- receiving

void Objects::receive(Deadline deadline, transport::Message message, const transport::Responder& respond) {
  if (auto* put = std::get_if<transport::PutObject>(&message)) {
    on_put(std::move(*put), respond);
  } else if (auto* deletion = std::get_if<transport::DeleteObject>(&message)) {
    on_delete(std::move(deadline), *deletion, respond);
  } else {
    on_fetch(std::get<transport::FetchObject>(message), respond);
  }
}

void Objects::on_put(transport::PutObject put, const transport::Responder& respond) {
  peers_->count_received(put.rank, put.data.size());
  const bool small = put.total <= ObjectPuts::kSmall;
  if (put.total > Object::kLargest || put.data.size() != (small ? put.total : 0) ||
      (putter(put.put) != put.rank && !put.again) || put.put >= kObjects || incoming_.count(put.put) > 0) {
    return respond(Status(Code::kInternal, "the announcement of object '" + put.name + "' is wrong"));
  }
  if (const std::string why = object_mismatch(put.dtype, put.shape, put.total); !why.empty()) {
    return respond(Status(Code::kInternal, "object '" + put.name + "': " + why));
  }
  if (deleted_early_.erase(put.put) > 0) return respond(empty());
  if (put.again && put_of(put.name) == put.put) return respond(empty());
  // A worker has at most one put of a name in flight. So an earlier put of the same worker has failed, and is
  // forgotten. Exception: if rank 0 holds the object, that put has succeeded, and the name is taken.
  const uint64_t earlier = put_of(put.name);
  const bool same_putter = earlier != 0 && putter(earlier) == put.rank && earlier < put.put;
  const bool succeeded = peers_->rank() == kNameOwner && has(put.name);
  // Rank 0 has accepted this put, so it has no object of the name: what this worker has is left of a put that
  // a change of the view has ended.
  const bool is_left =
      earlier != 0 && peers_->rank() != kNameOwner && view_of(earlier) < view_of(put.put) && !put.again;
  if ((same_putter && !succeeded) || is_left) delete_here(put.name, earlier);
  if (put_of(put.name) != 0 || is_deleting(put.name)) return respond(exists(put.name));
  Object object{.bytes = std::move(put.data), .dtype = put.dtype, .shape = std::move(put.shape)};
  if (small) {
    store(put.name, std::make_shared<const Object>(std::move(object)), put.put);
    return respond(empty());
  }
  incoming_[put.put] = {put.name, respond};
  fetches_.begin(put.put, put.name, std::move(object), put.total,
                 put.again ? std::vector{put.rank} : sources_of(peers_->rank(), put.rank, peers_->size()),
                 [this, number = put.put,
                  is_rank_0 = peers_->rank() == kNameOwner](const Result<SharedObject>& fetched) {
                   const auto at = incoming_.find(number);
                   const std::string name = at->second.name;
                   const auto respond = std::exchange(at->second.respond, nullptr);
                   const bool name_stays_taken = !fetched.ok() && is_rank_0;
                   if (!name_stays_taken) incoming_.erase(at);
                   if (fetched.ok()) store(name, fetched.value(), number);
                   fetched.ok() ? respond(empty()) : respond(fetched.status());
                 });
}

void Objects::on_fetch(const transport::FetchObject& request, const transport::Responder& respond) {
  if (request.rank == kNameOwner) puts_.note_accepted(request.put);
  ObjectFetches::Reader reader{request.rank, request.offset, respond};
  if (fetches_.is_fetching(request.put)) return fetches_.add_reader(request.put, std::move(reader));
  const auto stored = objects_.find(request.name);
  if (stored == objects_.end() || stored->second.put != request.put ||
      request.offset >= stored->second.object->bytes.size()) {
    return respond(not_found(request.name));
  }
  fetches_.send(request.put, stored->second.object, std::move(reader));
}

void Objects::forget(std::map<std::string, Stored>::iterator object) {
  nbytes_.set(nbytes_.value() - object->second.object->bytes.size());
  objects_.erase(object);
}

void Objects::store(const std::string& name, SharedObject object, uint64_t put) {
  if (const auto earlier = objects_.find(name); earlier != objects_.end()) forget(earlier);
  objects_[name] = {object, put};
  nbytes_.add(object->bytes.size());
  gets_.answer(name, object);
}

uint64_t Objects::get(const std::string& name, ObjectGets::Done done) {
  if (auto it = objects_.find(name); it != objects_.end()) {
    done(it->second.object);
    return 0;
  }
  return gets_.add(name, std::move(done));
}

// ---- failure

void Objects::fail(const Status& cause) {
  while (!incoming_.empty()) cancel_fetch(incoming_.begin()->first, cause);
  for (const auto& [name, stored] : objects_) {
    if (peers_) peers_->revoke(object_operation(stored.put));
  }
  puts_.fail(cause);
  deletions_.fail(cause);
  fail_gets(cause);
}

void Objects::change_view(const Status& why) {
  fail(why);
  deleted_early_.clear();
  last_put_ = std::max(last_put_, peers_->members().view().view << kNumbersOfAView);
}

}  // namespace dsgd
