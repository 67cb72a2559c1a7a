// A task is one collective operation on this worker: a state machine on the session's loop that sends chunks,
// takes those that arrive, and ends once. The tasks of all workers with the same operation number belong
// together. Each chunk carries its sender's signature of the operation, which `Operations` compares.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/group/group.h"
#include "core/mesh/landing.h"
#include "transport/network.h"

namespace dsgd {

class Operations;

enum class Kind : uint8_t {
  // 1 is reserved.
  kAllReduce = 2,
  kReduceScatter = 3,
  kAllGather = 4,
  kBroadcast = 5,
  kBarrier = 6,
  kBucket = 7,    // a bucket of a step
  kStart = 8,     // signature and initial values
  kStrategy = 9,  // a change of strategy
  kHeader = 10,   // a step's header
  kView = 11,     // what the workers of a new view tell each other
  kSave = 12,     // of a checkpoint
  kLoad = 13,
};
enum class Algorithm : uint8_t {
  kAuto = 0,
  kDirect = 1,
  kRing = 2,
  kOneHop = 3,
  kChain = 4,
  kRegistered = 5,
  kHalvingDoubling = 6
};

const char* kind_name(Kind kind);
const char* algorithm_name(Algorithm algorithm);
// For messages where workers may have different amounts of data.
inline constexpr char kUnevenDataAdvice[] =
    "a worker that has no data left calls step with weight 0 until all_done (dsgd.torch: join())";

// Returns a header with the fields that all workers must agree on. The caller and `Peers` set the others.
transport::BulkHeader shape_of(uint64_t operation, Kind kind, DType dtype, Algorithm algorithm, size_t count);
// "all-reduce (float32, sum, 1024 elements)"; `parts`, unless empty, replaces the number of elements.
std::string describe(const transport::BulkHeader& shape, const std::string& parts = {});

class Task {
 public:
  using Done = std::function<void(const Status&)>;
  // `shape`: operation, kind, dtype, reduction, algorithm, root, count, tag. `Peers` sets source and view.
  // `group`: the workers that take part; null: all. Tasks know their peers by their indices in it.
  Task(Operations& operations, const transport::BulkHeader& shape, Done done,
       std::shared_ptr<const Group> group = nullptr);
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  const transport::BulkHeader& shape() const { return shape_; }
  uint64_t operation() const { return shape_.operation; }
  std::string name() const;  // "step 17", or "all-reduce (call 7 of the session)"
  void rename(std::string name) { name_ = std::move(name); }
  // The setting that its deadline comes from ("step_timeout = 300.0 s"), for the message when the deadline
  // has passed.
  const std::string& limit() const { return limit_; }
  void set_limit(std::string limit) { limit_ = std::move(limit); }
  // Elements of each rank, for the message when workers disagree; the tag of the shape covers them.
  void set_counts(std::vector<uint64_t> counts) { counts_ = std::move(counts); }
  const std::vector<uint64_t>& counts() const { return counts_; }
  const Group& group() const { return *group_; }

  virtual void start() = 0;
  // Returns the destination of a chunk whose shape agrees; nothing if no such chunk may come from `source`,
  // or if it has come already. Offset and size are still unchecked. The caller writes the chunk to it.
  virtual std::optional<Landing> locate(int32_t source, const transport::BulkHeader& header,
                                        size_t nbytes) = 0;
  // Indices of the workers that this task still waits for; empty once it has ended.
  virtual std::vector<int32_t> missing() const = 0;
  std::vector<int32_t> missing_ranks() const;
  // The worker with this index closed its session before it made this call. Returns whether the task goes on
  // without it.
  virtual bool leave_out(int32_t /*index*/) { return false; }
  // The task has failed. Answers the chunks that it holds with the cause.
  virtual void drop_chunks(const Status& /*cause*/) {}

 protected:
  friend class Operations;
  // Once; `Operations` destroys the task afterwards. Success waits until all peers have agreed on the
  // operation.
  void end(const Status& status);
  bool ended() const { return ended_; }
  void send(int32_t index, const transport::BulkHeader& header, std::span<const std::byte> data,
            std::function<void(const Status&)> done);
  void send_small(int32_t index, const transport::BulkHeader& header, std::span<const std::byte> data);
  // Fails the operation: the peer sent a chunk outside the agreed layout.
  void protocol_error(int32_t index, const transport::BulkHeader& header, size_t nbytes);

  Operations& operations_;
  const transport::BulkHeader shape_;
  const std::shared_ptr<const Group> group_;

 private:
  Done done_;
  std::string name_, limit_ = "step_timeout";
  std::vector<uint64_t> counts_;
  bool ended_ = false;
};

}  // namespace dsgd
