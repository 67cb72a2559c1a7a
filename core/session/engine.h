// The engine: a worker's whole protocol state after it has joined, on the session's loop. Each function
// starts work and returns; the loop calls `done` when the work has ended. The session (threads, blocking) and
// the simulation (neither) both drive it.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/mesh/mesh.h"
#include "core/model/model.h"
#include "core/objects/objects.h"
#include "core/session/operation.h"
#include "core/session/stall_watch.h"
#include "core/step/step.h"

namespace dsgd {

struct EngineOptions {
  transport::Duration step_timeout = std::chrono::seconds(300);
  size_t bucket_bytes = 4 << 20;
  int32_t servers = 0;  // 0: as many as workers
  AlgorithmChoice algorithm = {};
  bool internode_nccl = false;  // GPUs of all nodes are one team; else those of each
  std::string nccl_library = {};
  transport::Duration stall_warning = std::chrono::seconds(30);
  StepOptions step;
  std::string library_version;
  std::string fingerprint;  // of the host's code
};

class Engine final : public SessionEvents {
 public:
  using Done = std::function<void(const Status&)>;
  using StepDone = Step::Done;

  // Without a mesh (one worker) collectives are local.
  Engine(transport::Loop& loop, Model& model, EngineOptions options, std::shared_ptr<Log> log);
  ~Engine() override;
  // `broken` is called once, when the session has failed, with the cause.
  void on_broken(std::function<void(const Status&)> broken) { on_broken_ = std::move(broken); }
  // `failed` is called once, before any operation ends with the failure; it must not throw.
  void on_failed(std::function<void(const Status&)> failed) { on_failed_ = std::move(failed); }
  // A worker seems lost: this worker cannot reach the peer `unreachable`, because of `cause`; or, with -1,
  // another worker says so. `loss` returns true if the head will decide which worker is lost; then fail()
  // follows, or the session fails after a lease.
  void on_loss(std::function<bool(int32_t unreachable, const Status& cause)> loss) {
    on_loss_ = std::move(loss);
  }

  // The mesh exists before the view does, since peers may dial early.
  void use_mesh(Mesh* mesh) { mesh_ = mesh, step_.use_mesh(mesh); }
  Status open(const transport::JoinReply& view);
  // This worker rejects the call `name`, which all workers make together. The call fails on the others, too;
  // the session goes on.
  void refuse(const std::string& name, const Status& why);

  int32_t rank() const { return mesh_ ? mesh_->peers.rank() : 0; }
  int32_t size() const { return mesh_ ? mesh_->peers.size() : 1; }
  const Status& broken() const { return broken_; }
  bool torn() const { return !torn_.ok(); }

  // Collectives on the world. Buffers are untouched after `done`.
  void allreduce(std::span<std::byte> data, DType dtype, Reduction reduction, Done done,
                 const CallOptions& options = {});
  void broadcast(std::span<std::byte> data, DType dtype, int32_t root, Done done,
                 const CallOptions& options = {});
  void allgather(std::span<const std::byte> send, std::span<std::byte> receive, std::vector<size_t> counts,
                 DType dtype, Done done, const CallOptions& options = {});
  void reduce_scatter(std::span<const std::byte> send, std::span<std::byte> receive,
                      std::vector<size_t> counts, DType dtype, Reduction reduction, Done done,
                      const CallOptions& options = {});
  void barrier(Done done, const CallOptions& options = {});

  void start(const StrategySpec& strategy, Done done, const CallOptions& options = {});
  void set_strategy(const StrategySpec& strategy, Done done, const CallOptions& options = {});
  bool started() const { return started_; }
  Status replan();  // settings of parameters have changed
  const Step& steps() const { return step_; }
  GradientMarks& marks() { return step_.marks(); }  // any thread
  const Objects& objects() const { return objects_; }
  // A stream of the host, which the step in flight was to wait for, has failed.
  void stream_failed(const Status& why) { step_.device_failed(why); }

  // `weights` by replica.
  // `wait_for_devices`: `done` is called when the new values are in memory, not only enqueued on the devices.
  void step_begin(std::vector<double> weights, bool stop, bool wait_for_devices, StepDone done,
                  const CallOptions& options = {});
  void buckets_ready(const std::vector<uint32_t>& buckets) { step_.buckets_ready(buckets); }

  // Calls `done` when the work enqueued in the context has ended, or with an error after step_timeout.
  void when_reached(DeviceContext& context, Done done) {
    waiter_.after(context.device->name(), *context.queue, *context.reached, deadline(), std::move(done));
  }

  // Calls `done` when all work that is enqueued on the replicas' devices now has ended, or with the failure
  // of a device or of the session.
  void when_devices_done(Done done) { step_.when_devices_done(waiter_, std::move(done)); }

  void put_object(const std::string& name, SharedObject object, Done done, const CallOptions& options = {});
  void delete_object(const std::string& name, Done done, const CallOptions& options = {});
  // Returns a ticket for cancel_get; 0 when `done` was called at once.
  uint64_t get_object(const std::string& name, std::function<void(Result<SharedObject>)> done,
                      const CallOptions& options = {});
  void cancel_get(uint64_t ticket, const Status& why) { objects_.cancel(ticket, why); }

  // Returns the number of the channel's next call.
  uint64_t next_call(uint32_t channel = 0) const {
    return call_number(channel, channels_[channel].next_call);
  }
  // Returns what the call waits for, as a sentence with the first missing rank and a parameter; OK if nothing
  // is known (engine_waiting.cc).
  Status waiting(uint64_t call) const;
  Status waiting_for_object(const std::string& operation, const std::string& name) const {
    return objects_.waiting(operation, name);
  }

  // Fails the session with `cause`. `tell_peers`: the other workers do not know the cause yet.
  void fail(const Status& cause, bool tell_peers);
  // The failure of a session that has run out of memory, preallocated.
  const Status& exhausted() const { return exhausted_; }
  void note_departure(int32_t rank, uint64_t departure_call) {  // the head's news
    if (mesh_) mesh_->peers.note_departure(rank, departure_call);
  }
  // This worker closes its session in the middle of a step, which cannot end without these gradients.
  void leave_step(const UnmarkedGradients& unmarked) { step_.leave(unmarked); }
  // Digests the values and compares them with goodbyes that have come; close() sends the digests. Does
  // nothing for a single worker, before the first step, after a failure, or if the last step has compared all
  // values. Calls `then` in every case.
  void compare_last_values(transport::Time deadline, std::function<void()> then);
  // Returns the first call that this worker does not make, if steps of that and later calls may go on without
  // it; else 0.
  uint64_t close(const Status& cause);
  const Status& divergence() const { return divergence_; }                // found as it closed
  void leave_loop() { waiter_.close(), step_.close(), stalls_.close(); }  // the last call on it
  bool idle() const;                                                      // no operation is in flight
  bool sent() const { return !mesh_ || mesh_->peers.sent(); }             // no message waits for a connection

  // SessionEvents
  void on_peer_failure(int32_t rank, const Status& why) override;
  void on_peer_unreachable(int32_t rank, const Status& error, const Status& network_error) override;
  void on_peer_departed(int32_t rank) override;
  void on_goodbye(int32_t rank, uint64_t steps, std::vector<uint64_t> digests) override;
  void on_given_up(int32_t rank, uint64_t call, const Status& cause) override;
  void on_object(transport::Message message, transport::Responder respond) override;
  std::unique_ptr<transport::BulkSink> on_object_data(uint64_t put, const transport::BulkHeader& header,
                                                      size_t nbytes) override {
    return objects_.on_data(put, header, nbytes);
  }
  void on_object_data_end(uint64_t put, const transport::BulkHeader& header,
                          std::unique_ptr<transport::BulkReceipt> receipt) override {
    objects_.on_data_end(put, header, std::move(receipt));
  }

 private:
  using MakeTask = std::function<Result<std::unique_ptr<Task>>(uint64_t operation, const Done& done)>;
  // One call of the user, which may take several operations; see core/mesh/channels.h.
  struct Call {
    uint64_t number;
    transport::Time deadline;
    std::string limit;  // the setting that the deadline comes from
    uint64_t next = 0;
  };
  // `done` will end the call.
  std::shared_ptr<Call> begin_call(Done* done, const CallOptions& options = {});
  // Warns of an object's call that does not end. Returns a ticket for StallWatch::end().
  uint64_t watch_object(const char* operation, const std::string& name);
  // Warns in the same way until the returned function is called, which calls `done`.
  Done watched(const char* operation, const std::string& name, Done done);
  // The collectives of a channel run in issue order, a few at a time.
  // `make(operation, done)` returns the task or an error.
  template <typename Make>
  void schedule(std::shared_ptr<Call> call, Make make, Done done) {
    enqueue(
        std::move(call),
        [make = std::move(make)](uint64_t operation, const Done& ended) {
          return Result<std::unique_ptr<Task>>(make(operation, ended));
        },
        std::move(done));
  }
  void enqueue(std::shared_ptr<Call> call, MakeTask make, Done done);
  void pump(uint32_t channel);
  Status usable() const;
  Peers* peers() const { return mesh_ ? &mesh_->peers : nullptr; }
  transport::Time deadline(const CallOptions& options = {}) const;
  void exchange(std::shared_ptr<Call> call, const transport::BulkHeader& like, std::vector<std::byte> mine,
                std::string name,
                std::function<void(const Status&, const std::vector<std::vector<std::byte>>&)> done);
  void meet(std::shared_ptr<Call> call, Kind kind, DType dtype, Reduction reduction,
            std::vector<size_t> counts, Done done);
  void allreduce_wide(std::shared_ptr<Call> call, std::span<std::byte> data, DType dtype, Reduction reduction,
                      Done done);
  void reduce_scatter_wide(std::shared_ptr<Call> call, std::span<const std::byte> send,
                           std::span<std::byte> receive, std::vector<size_t> counts, DType dtype,
                           Reduction reduction, Done done);
  void reduce_all(std::shared_ptr<Call> call, std::span<std::byte> data, DType dtype, Reduction reduction,
                  Done done);
  void compare_schedules(std::shared_ptr<Call> call, DType dtype, Reduction reduction, size_t count,
                         Done done);

  // start (engine_start.cc)
  std::string signature(const std::string& strategy) const;
  void compare_signatures(std::shared_ptr<Call> call, std::string mine, size_t length, Done done);
  // Teams of GPUs (engine_teams.cc). `gpus_of`: number of GPUs by rank.
  //
  // The GPUs of this worker's replicas, each once, in the order of the replicas.
  std::vector<std::shared_ptr<device::Device>> gpus() const;
  Result<device::Device::CommunicatorLibrary> communicator_library() const;
  void form_teams(std::shared_ptr<Call> call, const StrategySpec& strategy, std::vector<uint32_t> gpus_of,
                  Done done);
  Result<Teams> compute_teams(const std::vector<std::vector<std::byte>>& said,
                              const std::vector<uint32_t>& gpus_of, bool demanded);
  void join_team(std::shared_ptr<Call> call, Teams teams, Done done);
  // `why`: what is wrong with the message of that rank.
  Status other_version(int32_t rank, const Status& why) const;
  void give_values(std::shared_ptr<Call> call, std::shared_ptr<const Plan> plan, Done done);
  // Values on the host, by parameter: replica 0's own buffers, or copies where a replica is on another
  // device.
  using HostValues = std::vector<std::shared_ptr<void>>;
  Result<HostValues> host_values();
  Status spread_values(const HostValues& values);
  // Fails also if the strategy's algorithm cannot run this job. `frozen_too`: includes frozen parameters,
  // whose state may move.
  Result<Plan> plan_of(const StrategySpec& strategy, bool frozen_too = false) const;
  Status apply_plan(Plan plan);
  void replace_plan(transport::Time deadline, std::shared_ptr<const Plan> plan, Done done);
  void move_state(std::shared_ptr<Call> call, Done done);
  void gather_state(std::shared_ptr<Call> call, std::shared_ptr<const Plan> plan, size_t bucket,
                    size_t tensor, Done done);

  transport::Loop& loop_;
  Model& model_;
  EngineOptions options_;
  std::shared_ptr<Log> log_;
  Mesh* mesh_ = nullptr;
  Objects objects_;
  device::Waiter waiter_;
  Step step_;
  Status broken_, exhausted_;
  bool failing_ = false;  // fail() is running
  bool at_rest_ = false;  // the session has failed, and all operations have ended
  bool tell_peers_ = false;
  Status torn_;  // why no step can succeed any more: one failed half-way, or values differ
  void await_verdict(const Status& error, int32_t peer, const Status& network_error);
  std::function<void(const Status&)> on_broken_, on_failed_;
  std::function<bool(int32_t, const Status&)> on_loss_;
  std::shared_ptr<int> alive_ = std::make_shared<int>();
  StallWatch stalls_;
  struct Pending {
    MakeTask make;
    Done done;
    uint64_t operation;
    transport::Time deadline;
    std::string limit;
  };
  void fail_pending(const Status& cause);
  void compare_goodbyes();
  void warn_of_departed(uint64_t call);
  Status no_memory(const std::string& what) const;
  struct Channel {
    uint64_t next_call = 1;
    std::deque<Pending> pending;
    size_t running = 0;
  };
  std::array<Channel, kChannels> channels_;
  bool started_ = false;
  uint64_t next_step_ = 0, strategy_version_ = 0;
  uint32_t total_replicas_ = 1;
  bool last_step_failed_ = false;
  uint64_t last_step_call_ = 0;         // of the last step that succeeded
  bool compared_ = false;               // the last step has compared all values
  std::vector<uint64_t> last_digests_;  // of this worker's values, as it closes
  struct LastDigests {
    uint64_t steps;  // made before
    std::vector<uint64_t> digests;
  };
  std::map<int32_t, LastDigests> goodbyes_;  // of workers that have closed, by rank
  std::vector<int32_t> departed_;            // without which no step has gone on yet
  Status divergence_;
};

}  // namespace dsgd
