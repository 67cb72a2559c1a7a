// The calls that all workers make together, by channel (core/mesh/channels.h). The operations of a channel
// begin in the order of their numbers, a few at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh/channels.h"
#include "core/mesh/mesh.h"
#include "core/mesh/task.h"
#include "core/session/operation.h"
#include "core/session/stall_watch.h"
#include "transport/loop.h"

namespace dsgd {

// One call, which may take several operations of the mesh.
struct Call {
  uint64_t number;
  transport::Time deadline;
  std::string limit;            // the setting that the deadline comes from
  uint64_t next_operation = 0;  // index in the call
};

// On the loop.
class Calls {
 public:
  using Done = std::function<void(const Status&)>;
  using MakeTask = std::function<Result<std::unique_ptr<Task>>(uint64_t operation, const Done& done)>;
  using Parts = std::vector<std::vector<std::byte>>;  // by rank

  // `report`: what the call of that number waits for.
  Calls(transport::Loop& loop, transport::Duration step_timeout, StallWatch& stalls,
        std::function<WaitReport(uint64_t number)> report);
  // Null: there is one worker, and no operation is scheduled. Calls have numbers nevertheless.
  void use_mesh(Mesh* mesh) { mesh_ = mesh; }
  Mesh* mesh() const { return mesh_; }

  transport::Time deadline(const CallOptions& options = {}) const;
  // The setting that this deadline comes from: "step_timeout = 300.0 s" or "timeout = 500 ms".
  std::string deadline_setting(const CallOptions& options = {}) const;

  // Returns the number of the channel's next call.
  uint64_t next(uint32_t channel = 0) const { return call_number(channel, channels_[channel].next_call); }
  // Returns that number and counts the call.
  uint64_t take(uint32_t channel = 0);
  // Makes the call of this number, whose deadline counts from now.
  std::shared_ptr<Call> make(uint64_t number, const CallOptions& options = {}) const;
  // Takes the next call number and makes its call. Wraps `*done` so that it also ends the call.
  std::shared_ptr<Call> begin(Done* done, const CallOptions& options = {});

  // Runs the next operation of the call. `make(operation, done)` returns the task or an error.
  template <typename Make>
  void schedule(const std::shared_ptr<Call>& call, Make make, Done done) {
    enqueue(
        call,
        [make = std::move(make)](uint64_t operation, const Done& ended) {
          return Result<std::unique_ptr<Task>>(make(operation, ended));
        },
        std::move(done));
  }
  // Runs the rest of a collective when what it reads is in host memory. Until then it keeps its place in the
  // channel. A failure is told to the peers, which wait for this worker.
  void when_fetched(const std::shared_ptr<Call>& call, const char* name, const CallOptions& options,
                    Done done, std::function<void()> rest);
  // Returns the name of the collective whose input is being copied to host memory; empty if the call is none.
  std::string fetching(uint64_t call) const;

  // The following are operations of dsgd's own. This one broadcasts the data of a rank of the group; `group`
  // null: of all workers.
  void broadcast(const std::shared_ptr<Call>& call, Kind kind, DType dtype, std::span<std::byte> data,
                 int32_t source, const std::string& name, Done done,
                 std::shared_ptr<const Group> group = nullptr);
  // Each worker gets the bytes of all. `like` has all of the header but the operation.
  void exchange(const std::shared_ptr<Call>& call, const transport::BulkHeader& like,
                std::vector<std::byte> mine, const std::string& name,
                std::function<void(const Status&, const Parts&)> done);
  // The same under the name of this kind. `number`: of the exchange among those of the call, since workers
  // could be at different ones.
  void exchange(const std::shared_ptr<Call>& call, Kind kind, uint64_t number, std::vector<std::byte> mine,
                std::function<void(const Status&, const Parts&)> done) {
    exchange(call, shape_of(0, kind, DType::kUint8, Algorithm::kOneHop, number), std::move(mine),
             kind_name(kind), std::move(done));
  }

  bool idle() const;
  size_t open(uint32_t channel) const {  // operations of its calls in flight
    return channels_[channel].running + channels_[channel].waiting.size();
  }
  // Until go_on() no operation begins; one that is scheduled ends with `why`.
  void stop(const Status& why) { stopped_ = why; }
  void go_on() { stopped_ = {}; }
  void end_waiting(const Status& why);  // ends the operations that have not begun
  // By channel: the index of the next call.
  std::vector<uint64_t> next_indexes() const;
  void set_next_indexes(const std::vector<uint64_t>& next_indexes);

 private:
  struct Waiting {
    MakeTask make;
    std::function<void(Done)> fetch;  // in place of a task
    Done done;
    uint64_t operation;
    transport::Time deadline;
    std::string limit;
  };
  struct Channel {
    uint64_t next_call = 1;
    std::deque<Waiting> waiting;
    size_t running = 0;
  };

  void enqueue(const std::shared_ptr<Call>& call, MakeTask make, Done done);
  void insert(uint32_t channel, Waiting added);
  void pump(uint32_t channel);
  uint64_t view() const { return mesh_->members().view().view; }

  transport::Loop& loop_;
  const transport::Duration step_timeout_;
  StallWatch& stalls_;
  const std::function<WaitReport(uint64_t)> report_;
  Mesh* mesh_ = nullptr;
  std::array<Channel, kChannels> channels_;
  std::map<uint64_t, std::string> fetching_;  // by call
  Status stopped_;                            // OK: operations begin
  Status ended_;                              // of the last end_waiting()
};

}  // namespace dsgd
