// Named objects that every worker holds. Everything is on the session's loop.
//
// Put: the putter first sends all parts to rank 0, which accepts only the first put of a name. It then sends them to the other
// workers. So two puts of one name at the same time cannot leave different objects. Each part is answered when it is stored.
//
// Delete: rank 0 asks the other workers to delete the object and deletes its own copy last. Puts of the name fail until then.
// Each put has a number, and a request to delete names it. A worker that is still receiving that put drops its parts, and
// accepts those of a later put.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/collectives/mesh.h"
#include "core/session/object.h"

namespace dsgd {

class Objects {
 public:
  using Done = std::function<void(const Status&)>;

  struct Deadline {
    transport::Time time;
    std::string limit;  // the setting that it comes from
  };
  // mesh null: one worker.
  void put(Mesh* mesh, const std::string& name, SharedObject object, Deadline deadline, Done done);
  // Deletes the object on all workers. kNotFound: there is none, or another worker is deleting it.
  void remove(Mesh* mesh, const std::string& name, Deadline deadline, Done done);
  // Calls `done` with the object as soon as it is here. Returns a ticket for cancel(); 0 when `done` was called at once.
  uint64_t get(const std::string& name, std::function<void(Result<SharedObject>)> done);
  bool has(const std::string& name) const { return objects_.count(name) > 0; }
  void cancel(uint64_t ticket, const Status& why);  // harmless for a get that has ended
  // `deadline`: for a removal that rank 0 carries out for another worker.
  void receive(Mesh* mesh, Deadline deadline, transport::ObjectPart part, const transport::Responder& respond);
  void fail(const Status& cause);          // all operations in flight
  void peer_left(int32_t rank);
  void fail_waiters(const Status& cause);  // gets

 private:
  struct Stored {
    SharedObject object;
    uint64_t put;  // number of the put that made it
  };
  struct Incoming {
    std::string name;
    Object object = {};
    uint64_t received = 0;
    bool removed = false;  // its data is dropped
  };
  struct Waiter {
    uint64_t ticket;
    std::string name;
    std::function<void(Result<SharedObject>)> done;
  };
  struct Sending;
  struct Removal;
  uint64_t put_of(const std::string& name) const;  // number of the put that has the name here, though parts may be missing; 0: none
  void spread(const std::shared_ptr<Sending>& sending);
  void send_parts(std::shared_ptr<Sending> sending, int32_t rank);
  void answered(const std::shared_ptr<Sending>& sending, int32_t rank, const Status& status);
  void finish(const std::shared_ptr<Sending>& sending, const Status& status);
  void removed(const std::shared_ptr<Removal>& removal, int32_t rank, const Status& status);
  void finish(const std::shared_ptr<Removal>& removal, const Status& status);
  void receive_removal(Mesh* mesh, Deadline deadline, const transport::ObjectPart& request, const transport::Responder& respond);
  bool is_deleting(const Mesh& mesh, const std::string& name) const;  // at rank 0
  static void drop(Incoming* incoming);
  void erase(const std::string& name, uint64_t put);
  void store(const std::string& name, SharedObject object, uint64_t put);

  std::map<std::string, Stored> objects_;
  std::map<uint64_t, Incoming> incoming_;  // by number of the put
  std::set<uint64_t> removed_early_;       // puts that were removed before their first part came; kept if it never comes
  std::list<Waiter> waiters_;
  std::list<std::shared_ptr<Sending>> sending_;   // puts in flight
  std::list<std::shared_ptr<Removal>> removals_;  // removals in flight: those asked for here and, at rank 0, all
  uint64_t next_ticket_ = 1;
  uint64_t puts_ = 0;  // of this worker
};

}  // namespace dsgd
