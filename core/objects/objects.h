// Named objects that every worker holds. Everything is on the session's loop.
//
// Put: the putter announces the object to rank 0, which accepts only the first put of a name. When rank 0 has
// accepted it, the putter announces it to the other workers. So two puts of one name at the same time cannot
// leave different objects. An announcement is answered when the receiver has the whole object. A small object
// travels in the announcement. Workers fetch a larger object along a chain (object_fetches.h): the putter,
// rank 0, then the ranks after the putter, and those before it. Rank 0 fetches the data only when it has
// accepted the put.
//
// A put that a change of the view has ended leaves the whole object or nothing on each worker. If rank 0 of
// the new view has it, the name is taken until the object is deleted. Otherwise the next put of the name
// replaces it on the workers that hold it.
//
// A worker that joins gets all objects from the worker that gives it its state, before the state, in
// announcements of the same kind.
//
// Delete: rank 0 asks the other workers to delete the object and deletes its own copy last. Puts of the name
// fail until then. Each put has a number, and a request to delete names it. A worker that is still fetching
// the object drops it. Data come only to workers that fetch them, so late data do not bring it back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/mesh/peers.h"
#include "core/metrics/counters.h"
#include "core/objects/object.h"
#include "core/objects/object_deletions.h"
#include "core/objects/object_fetches.h"
#include "core/objects/object_gets.h"
#include "core/objects/object_puts.h"
#include "core/objects/object_request.h"

namespace dsgd {

class Objects {
 public:
  using Done = std::function<void(const Status&)>;
  // Names of operations.
  static constexpr const char* kPut = ObjectPuts::kOperation;
  static constexpr const char* kDelete = ObjectDeletions::kOperation;
  static constexpr const char* kGet = "dsgd_object_get";

  using Deadline = ObjectDeadline;
  // Null: there is one worker. Called before the first put or message.
  void use_peers(Peers* peers);
  void put(const std::string& name, SharedObject object, Deadline deadline, Done done);
  // Deletes the object on all workers. kNotFound: there is none, or another worker is deleting it.
  void delete_everywhere(const std::string& name, Deadline deadline, Done done);
  // Calls `done` with the object as soon as this worker holds it. Returns a ticket for cancel(); 0 when
  // `done` was called at once.
  uint64_t get(const std::string& name, ObjectGets::Done done);
  bool has(const std::string& name) const { return objects_.count(name) > 0; }
  void cancel(uint64_t ticket, const Status& why) { gets_.cancel(ticket, why); }  // see ObjectGets
  // A message about an object. `deadline`: for a deletion that rank 0 carries out for another worker.
  void receive(Deadline deadline, transport::Message message, const transport::Responder& respond);
  // As ServerHandler::on_bulk and on_bulk_end.
  std::unique_ptr<transport::BulkSink> on_data(uint64_t put, const transport::BulkHeader& header,
                                               size_t nbytes) {
    return fetches_.on_data(put, header, nbytes);
  }
  void on_data_end(uint64_t put, const transport::BulkHeader& header,
                   std::unique_ptr<transport::BulkReceipt> receipt) {
    fetches_.on_data_end(put, header, std::move(receipt));
  }
  void fail(const Status& cause);  // ends all puts, deletions, fetches and gets with `cause`
  void peer_left(int32_t rank);
  // Gives all objects to a worker that has joined. `done` comes when it has them, or has failed; but not if
  // another view follows.
  void give(int32_t rank, Done done);
  // Ranks are those of another view: ends all puts, deletions and gets with `why`. Objects stay.
  void change_view(const Status& why);
  void fail_gets(const Status& cause) { gets_.fail(cause); }
  // Returns what this worker's call about the object waits for, as a sentence with the first missing rank; OK
  // if there is no such call.
  Status waiting(const std::string& operation, const std::string& name) const;
  // No put or deletion is in flight. A get only waits for another worker.
  bool idle() const { return puts_.empty() && deletions_.empty(); }
  // Returns the bytes of all objects that this worker holds. Any thread.
  uint64_t nbytes() const { return nbytes_.value(); }

 private:
  struct Stored {
    SharedObject object;
    uint64_t put;  // number of the put that made it
  };
  // An object that is being fetched. At rank 0 also one whose put has failed: other workers may hold it, so
  // the name is taken until the object is deleted or its putter puts it again.
  struct Incoming {
    std::string name;
    transport::Responder respond;  // to the announcement; null once the put has failed
  };
  uint64_t put_of(const std::string& name) const;  // number of the put that has the name here; 0: none
  bool is_arriving(const std::string& name) const;
  void drop_late(const std::string& name, uint64_t put);
  void on_put(transport::PutObject put, const transport::Responder& respond);
  void on_delete(Deadline deadline, const transport::DeleteObject& request,
                 const transport::Responder& respond);
  void on_fetch(const transport::FetchObject& request, const transport::Responder& respond);
  bool is_deleting(const std::string& name) const;  // at rank 0
  // Deletion, from the outside in: delete_everywhere() asks all workers, delete_here() ends all that this
  // worker has of a put, cancel_fetch() and forget() end one part of it.
  void cancel_fetch(uint64_t put, const Result<transport::Message>& answer);
  bool may_arrive(uint64_t put) const;
  void delete_here(const std::string& name, uint64_t put);
  void store(const std::string& name, SharedObject object, uint64_t put);
  void forget(std::map<std::string, Stored>::iterator object);

  Peers* peers_ = nullptr;
  std::map<std::string, Stored> objects_;
  metrics::Counter nbytes_;
  std::map<uint64_t, Incoming> incoming_;  // by number of the put
  // Puts that were deleted before they were announced; kept until then, or until the putter leaves.
  std::set<uint64_t> deleted_early_;
  ObjectFetches fetches_;
  ObjectGets gets_;
  ObjectPuts puts_{[this](const auto& name, const auto& object, uint64_t put) { store(name, object, put); },
                   [this](const auto& name, uint64_t put) { drop_late(name, put); }};
  ObjectDeletions deletions_{[this](const auto& name, uint64_t put) { delete_here(name, put); }};
  uint64_t last_put_ = 0;  // view and index of this worker's last number; those of later views are higher
};

}  // namespace dsgd
