// Named blobs that every worker holds. The putter sends an object in parts; each part is answered when
// stored. Parts go to rank 0 first, which gives a name to the first putter, then to the others. So two
// workers that put the same name at once never leave different objects behind. Everything is on the session's
// loop.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/collectives/mesh.h"

namespace dsgd {

class Objects {
 public:
  using Blob = std::shared_ptr<const std::vector<uint8_t>>;
  static constexpr size_t kLargest = size_t{1} << 30;

  struct Deadline {
    transport::Time time;
    std::string limit;  // the setting that it comes from
  };
  // mesh null: one worker.
  void put(Mesh* mesh, const std::string& name, Blob blob, Deadline deadline, std::function<void(const Status&)> done);
  // Calls `done` with the object as soon as it is here. Returns a ticket for cancel(); 0 when `done` was called at once.
  uint64_t get(const std::string& name, std::function<void(Result<Blob>)> done);
  bool has(const std::string& name) const { return objects_.count(name) > 0; }
  void cancel(uint64_t ticket, const Status& why);  // harmless for a get that has ended
  void receive(transport::ObjectPart part, const transport::Responder& respond);
  void fail(const Status& cause);          // puts and gets in flight
  void peer_left(int32_t rank);
  void fail_waiters(const Status& cause);  // gets

 private:
  struct Incoming {
    int32_t rank;
    std::vector<uint8_t> data;
    uint64_t received = 0;
  };
  struct Waiter {
    uint64_t ticket;
    std::string name;
    std::function<void(Result<Blob>)> done;
  };
  struct Sending;
  void spread(const std::shared_ptr<Sending>& sending);
  void send_parts(std::shared_ptr<Sending> sending, int32_t rank);
  static Status too_late(const Sending& sending);
  void finish(const std::shared_ptr<Sending>& sending, const Status& status);
  void store(const std::string& name, Blob blob);

  std::map<std::string, Blob> objects_;
  std::map<std::string, Incoming> incoming_;
  std::list<Waiter> waiters_;
  std::list<std::shared_ptr<Sending>> sending_;  // puts in flight
  uint64_t next_ticket_ = 1;
};

}  // namespace dsgd
