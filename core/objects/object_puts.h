// The puts of this worker that are in flight: announces their objects to the other workers and waits until
// all have them. Everything is on the session's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh/peers.h"
#include "core/objects/object.h"
#include "core/objects/object_request.h"

namespace dsgd {

// Returns the ranks of a job in the order in which an object travels.
std::vector<int32_t> object_chain(int32_t putter, int32_t size);

class ObjectPuts {
 public:
  static constexpr const char* kOperation = "dsgd_object_put";
  // Up to here an object travels in its announcement.
  static constexpr size_t kSmall = transport::kSmallBytes;

  using Done = std::function<void(const Status&)>;
  // Rank 0 has accepted a put: the owner stores the object before the other workers hear of it.
  using Accepted = std::function<void(const std::string& name, const SharedObject& object, uint64_t put)>;
  // The deadline of a put has passed: the owner drops the object, if it has stored it.
  using Late = std::function<void(const std::string& name, uint64_t put)>;

  ObjectPuts(Accepted accepted, Late late) : accepted_(std::move(accepted)), late_(std::move(late)) {}
  void use_peers(Peers* peers) { peers_ = peers; }

  // `put`: number of the put. There are other workers.
  void begin(const std::string& name, uint64_t put, SharedObject object, ObjectDeadline deadline, Done done);
  // Returns whether a put of this name is in flight whose object no other worker has deleted.
  bool is_putting(const std::string& name) const;
  void note_accepted(uint64_t put);  // rank 0 has accepted a put; harmless if it is known, or not in flight
  void note_deleted(uint64_t put);   // another worker has deleted the object; harmless as above
  void peer_left(int32_t rank);
  void fail(const Status& cause);  // ends all puts
  bool empty() const { return sending_.empty(); }
  Status waiting(const std::string& name) const;  // as Objects::waiting

  // Returns the message that announces an object to `rank`, and counts its data as sent.
  transport::PutObject announcement(int32_t rank, const std::string& name, const Object& object,
                                    uint64_t put);

 private:
  struct Sending;
  void spread(const std::shared_ptr<Sending>& sending);
  std::vector<int32_t> missing(const Sending& sending) const;
  void announce(const std::shared_ptr<Sending>& sending, int32_t rank);
  void answered(const std::shared_ptr<Sending>& sending, int32_t rank, const Status& status);
  void finish(const std::shared_ptr<Sending>& sending, const Status& status);
  void give_up(const std::shared_ptr<Sending>& sending);
  std::shared_ptr<Sending> find(uint64_t put) const;  // null: it is not in flight

  const Accepted accepted_;
  const Late late_;
  Peers* peers_ = nullptr;
  std::list<std::shared_ptr<Sending>> sending_;
};

}  // namespace dsgd
