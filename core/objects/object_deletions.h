// The deletions in flight: those that this worker has been asked for and, at rank 0, all. Asks the other
// workers and waits for their answers. Everything is on the session's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "core/mesh/peers.h"
#include "core/objects/object_request.h"

namespace dsgd {

class ObjectDeletions {
 public:
  static constexpr const char* kOperation = "dsgd_object_delete";

  using Done = std::function<void(const Status&)>;
  // At rank 0: the other workers have deleted an object, so the owner deletes its own copy.
  using Deleted = std::function<void(const std::string& name, uint64_t put)>;

  explicit ObjectDeletions(Deleted deleted) : deleted_(std::move(deleted)) {}
  void use_peers(Peers* peers) { peers_ = peers; }

  // Asks these workers. `put`: number of the put that has the name; 0 if only rank 0 knows it.
  void begin(const std::string& name, uint64_t put, const std::set<int32_t>& asked,
             const ObjectDeadline& deadline, Done done);
  bool is_deleting(const std::string& name) const;
  void peer_left(int32_t rank);
  void fail(const Status& cause);  // ends all deletions
  bool empty() const { return deletions_.empty(); }
  Status waiting(const std::string& name) const;  // as Objects::waiting

 private:
  using Deletion = ObjectRequest;
  void answered(const std::shared_ptr<Deletion>& deletion, int32_t rank, const Status& status);
  void finish(const std::shared_ptr<Deletion>& deletion, const Status& status);

  const Deleted deleted_;
  Peers* peers_ = nullptr;
  std::list<std::shared_ptr<Deletion>> deletions_;
};

}  // namespace dsgd
