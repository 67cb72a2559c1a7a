// A session as the C ABI sees it: thread-safe where dsgd.h says "any thread", blocking, errors as Status. It
// starts work on the engine's loop and waits; all protocol state is the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/log.h"
#include "core/config/config.h"
#include "core/data/shard_list.h"
#include "core/model/model.h"
#include "core/model/tensor_memory.h"
#include "core/session/operation.h"
#include "core/strategy/strategies.h"
#include "transport/base/status.h"
#include "transport/network.h"

namespace dsgd {

// Membership and progress of a session at one moment.
struct SessionInfo {
  enum class State { kJoining, kJoined, kStarted, kTorn, kFailed, kClosed };  // as dsgd_session_state
  State state = State::kJoining;
  int32_t rank = 0, size = 1, local_rank = 0, local_size = 1;
  int32_t replicas = 1;  // entries of `devices` for this worker
  int64_t view = 0;
  int64_t steps = 0;  // steps that have succeeded
};

class Session {
 public:
  // A session that has not joined yet. `config` is validated by this call. Does not block.
  static Result<std::shared_ptr<Session>> make(const Config& config,
                                               std::unique_ptr<transport::Environment> environment,
                                               std::shared_ptr<Log> log, const Registered& registered = {});
  // Makes a session and blocks until it has joined.
  static Result<std::shared_ptr<Session>> open(const Config& config,
                                               std::unique_ptr<transport::Environment> environment,
                                               std::shared_ptr<Log> log, const Registered& registered = {});
  // Closes with timeout 0. In a forked child, and as the process exits, it abandons threads and sockets.
  ~Session();

  // kQueue: the returned operation is running, and will be in the queue. kWait: it has ended. The calling
  // thread then drives the loop itself, which is the fast way.
  enum class Mode { kQueue, kWait };
  // Joins the job. Called once, before all others. `options.timeout` 0: init_timeout.
  Result<std::shared_ptr<Operation>> join(Mode mode, const CallOptions& options = {});
  Status joined() const;  // kState while it is joining; why it has not joined

  Status alive() const;  // see transport::Environment
  bool closed() const;
  // timeout < 0: operations in flight end by their own deadlines.
  Status close(std::chrono::milliseconds timeout);
  Status abort(const std::string& reason);
  Status fail(const std::string& reason);
  // Ends a dsgd_object_get alone; for other operations as abort(reason).
  Status abort(const std::shared_ptr<Operation>& operation, const std::string& reason);

  int32_t rank() const;
  int32_t size() const;
  int32_t local_rank() const;
  int32_t local_size() const;
  int64_t view() const;
  SessionInfo info() const;
  Result<std::string> metrics() const;  // OpenMetrics text
  // Returns the trace as JSON. `unix_now`: current Unix time.
  Result<std::string> trace(transport::Duration unix_now) const;

  Result<Parameter*> add_parameter(const std::string& name, DType dtype, std::span<const int64_t> shape,
                                   bool trained);
  Status set_parameter(Parameter* parameter, const std::string& options);
  Result<Replica*> add_replica(const std::string& device);  // "": next entry of `devices`
  Status set_replica_weight(Replica* replica, double weight);
  // `release` is called once, when the buffers are bound no more (rebind, close or destruction); may be
  // empty. On failure it is not called.
  Status bind(Replica* replica, Parameter* parameter, void* value, size_t value_nbytes, void* gradient,
              size_t gradient_nbytes, std::function<void()> release, bool read_only_gradient = false);
  Result<std::shared_ptr<TensorMemory>> alloc(Replica* replica, Parameter* parameter);  // binds too
  // Of an earlier alloc(); null if there was none.
  std::shared_ptr<TensorMemory> allocated(const Replica* replica, const Parameter* parameter);
  Status set_optimizer(const std::string& name, const std::string& options);
  Status set_learning_rate(double rate);
  double loss_scale() const;  // any thread
  // Before start, or collective.
  Result<std::shared_ptr<Operation>> set_strategy(const std::string& name, const std::string& options,
                                                  Mode mode, const CallOptions& options_of_call = {});
  Status set_strategy(const std::string& name, const std::string& options);
  Result<std::shared_ptr<Operation>> start(Mode mode, const CallOptions& options = {});
  Status start();

  // `path`: a folder; empty: that of the configuration. The model must not change until wait_until_copied()
  // has returned.
  Result<std::shared_ptr<Operation>> save_checkpoint(const std::string& path, Mode mode,
                                                     const CallOptions& options = {});
  Result<std::shared_ptr<Operation>> load_checkpoint(const std::string& path, Mode mode,
                                                     const CallOptions& options = {});
  void wait_until_copied(const Operation& save);  // blocks
  // A data shard of this worker, whose position is part of checkpoints as long as the host keeps it.
  std::shared_ptr<SharedShard> add_shard(uint64_t samples, uint64_t seed, bool shuffle);
  // Blocks while the workers of a new view deal out the samples. kClosed, kForked: none are dealt any more.
  Status wait_for_samples(const SharedShard& shard);

  Status step(double weight, StepResult* result);
  Result<std::shared_ptr<Operation>> step_begin(double weight, const CallOptions& options = {});
  Status gradient_ready(Replica* replica, Parameter* parameter, void* stream) {
    return gradients_ready(replica, {&parameter, 1}, stream);
  }
  // Marks all or none.
  Status gradients_ready(Replica* replica, std::span<Parameter* const> parameters, void* stream);
  Status stream_wait(Replica* replica, void* stream);
  Status gradient_absent(Replica* replica, Parameter* parameter);
  Status step_flush();
  Code stop_request() noexcept;  // kOk, kForked or kClosed; async-signal-safe

  // Collectives. Buffers: see dsgd.h. Checks the arguments and finds the device of the buffers. May block
  // to open the device. The returned function begins the collective, and blocks only with Mode::kWait; call
  // it once.
  using Collective = std::function<Result<std::shared_ptr<Operation>>(Mode mode)>;
  Result<Collective> allreduce(const void* send, void* receive, size_t nbytes, DType dtype,
                               Reduction reduction, const CallOptions& options = {});
  Result<Collective> broadcast(void* data, size_t nbytes, DType dtype, int32_t root,
                               const CallOptions& options = {});
  Result<Collective> allgather(const void* send, size_t send_nbytes, void* receive, size_t receive_nbytes,
                               const size_t* element_counts, DType dtype, const CallOptions& options = {});
  Result<Collective> reduce_scatter(const void* send, size_t send_nbytes, void* receive,
                                    size_t receive_nbytes, const size_t* element_counts, DType dtype,
                                    Reduction reduction, const CallOptions& options = {});
  Result<std::shared_ptr<Operation>> barrier(Mode mode, const CallOptions& options = {});

  // Waits for the end of an operation. timeout < 0: until it ends (its own deadline sees to that).
  // Code::kWaitTimeout if it has not ended; the message names the missing workers and gradients.
  Status wait(Operation& operation, std::chrono::milliseconds timeout);
  // Operations that have ended and that still are in the queue, oldest first; removes them from it.
  Result<std::vector<std::shared_ptr<Operation>>> queue_poll(size_t max, std::chrono::milliseconds timeout);
  // Readable while the queue is not empty; negative code on failure.
  int queue_fd() const;
  void queue_forget(const Operation& operation);  // the host freed it

  Result<std::shared_ptr<Operation>> object_put(const std::string& name, std::span<const uint8_t> data,
                                                int32_t dtype, std::span<const int64_t> shape, Mode mode,
                                                const CallOptions& options = {});
  Result<std::shared_ptr<Operation>> object_delete(const std::string& name, Mode mode,
                                                   const CallOptions& options = {});
  Result<std::shared_ptr<Operation>> object_get(const std::string& name, Mode mode,
                                                const CallOptions& options = {});

  Result<uint64_t> digest();

 private:
  Session();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsgd
