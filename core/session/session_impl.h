// The state of a session. Its functions are in session.cc (opening, calls, waiting, queue) and, by subject,
// in the other session_*.cc.
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/device/event_pool.h"
#include "core/metrics/counters.h"
#include "core/session/collective_buffers.h"
#include "core/session/retired_buffers.h"
#include "core/session/session.h"
#include "core/session/worker.h"

namespace dsgd {

struct Session::Impl {
  // A promise of dsgd.h: a call returns within 100 ms after its deadline. A blocked caller waits for kSlack
  // beyond a deadline, so that the protocol's own timers fire first: their messages say more.
  static constexpr transport::Duration kSlack = std::chrono::milliseconds(50);

  Impl(const Config& config, std::unique_ptr<transport::Environment> environment, std::shared_ptr<Log> log,
       const Registered& registered)
      : config(config),
        environment(std::move(environment)),
        log(std::move(log)),
        strategies(registered),
        backends(registered.backends),
        locate(registered.locate) {}

  // A call of the host in progress. close() waits until there is none, since calls use the loop.
  class HostCall {
   public:
    enum Use {
      kWork,    // refused when the session is closing or has failed
      kRead,    // refused when the session is closing: reads local state only
      kAlways,  // refused only when the session has ended: tells how operations ended, or ends them
    };
    explicit HostCall(Impl& impl, Use use = kWork);
    ~HostCall();
    // OK: the call may go on. Else kForked, kClosed, kState (on the loop, or while the session joins), or the
    // session's failure.
    const Status& status() const { return status_; }

   private:
    Impl& impl_;
    bool counted_ = false;
    Status status_;
  };

  transport::Loop& loop() { return worker->loop(); }
  Engine& engine() { return worker->engine(); }

  // Runs start(done) on the loop and blocks until `done` was called, at the latest at the operation's own
  // deadline.
  template <typename Start>
  void run(const std::shared_ptr<Operation>& operation, Start start) {
    run_task(operation, [this, start, operation] {
      begin(start, operation, [operation](const Status& status) { operation->end(status); });
    });
  }
  // On the loop.
  template <typename Start, typename End>
  void begin(const Start& start, const std::shared_ptr<Operation>& operation, End end) {
    if (operation->done()) return;  // ended by end_left_open(); its caller has returned
    start([this, operation, end, begun = loop().now()](const Status& status) {
      count(*operation, status, begun);
      report(status);
      end(status);
    });
  }
  void count(const Operation& operation, const Status& status, transport::Time begun);
  void report(const Status& status) {  // how an operation has ended, to the supervisor
    if (status.ok()) {
      log->report_success();
    } else if (status.rank() >= 0) {
      log->report_failure(status.rank());
    }
  }
  class BlockedCall {  // lists an operation in `blocked` while its caller waits
   public:
    BlockedCall(Impl& impl, const std::shared_ptr<Operation>& operation) : impl_(impl) {
      std::lock_guard lock(impl_.queue_mutex);
      at_ = impl_.blocked.insert(impl_.blocked.end(), operation);
    }
    ~BlockedCall() {
      std::lock_guard lock(impl_.queue_mutex);
      impl_.blocked.erase(at_);
    }

   private:
    Impl& impl_;
    std::list<std::shared_ptr<Operation>>::iterator at_;
  };
  // Ends the operations that an allocation failure left open after the session failed.
  void end_left_open(const Status& why);
  void run_task(const std::shared_ptr<Operation>& operation, transport::Task task) {
    const BlockedCall blocked_call(*this, operation);
    const bool ended = loop().run(std::move(task), operation->done_flag(), transport::kNever);
    if (!ended) operation->end(environment->alive());  // the process exits, and the loop no longer runs
  }
  // Runs start(done) on the loop, and blocks until `done` was called or the deadline has passed. Returns
  // whether it was called.
  template <typename Start>
  bool run_until(transport::Time deadline, Start start) {
    const auto done = std::make_shared<std::atomic<bool>>(false);
    return loop().run([start, done] { start([done] { *done = true; }); }, *done, deadline);
  }
  template <typename Start>
  Status block(Start start) {
    auto operation = std::make_shared<Operation>(0, "", false);
    run(operation, start);
    return operation->status();
  }
  // Makes an operation of the host; it ends on the loop.
  template <typename Start>
  std::shared_ptr<Operation> launch(const char* kind, size_t nbytes, Mode mode, const CallOptions& options,
                                    Start start) {
    auto operation = new_operation(kind, options);
    operation->set_nbytes(nbytes);
    launch_call(operation, mode, options.channel, start);
    return operation;
  }
  // start(done) makes the next call of the channel.
  template <typename Start>
  void launch_call(const std::shared_ptr<Operation>& operation, Mode mode, uint32_t channel, Start start) {
    launch(operation, mode, [this, start, operation, channel](auto done) {
      operation->set_waiting(waiting_for_next_call(channel));
      start(done);
    });
  }
  std::function<Status()> waiting_for_next_call(uint32_t channel = 0) {
    return [this, call = engine().next_call(channel)] { return engine().wait_report(call).text; };
  }
  std::shared_ptr<Operation> new_operation(const char* kind, const CallOptions& options) {
    return std::make_shared<Operation>(next_id.fetch_add(1), kind, false, options.user_data);
  }
  template <typename Start>
  std::shared_ptr<Operation> launch_for_object(const std::shared_ptr<Operation>& operation,
                                               const std::string& object, Mode mode, Start start) {
    launch(operation, mode, [this, operation, object, start](auto done) {
      operation->set_waiting([this, operation = operation->name(), object] {
        return engine().waiting_for_object(operation, object);
      });
      start(done);
    });
    return operation;
  }
  template <typename Start>
  void launch(const std::shared_ptr<Operation>& operation, Mode mode, const Start& start) {
    if (mode == Mode::kWait) {
      return run(operation, start);
    }
    post_async(operation, [this, start, operation] {
      begin(start, operation, [this, operation](const Status& status) { end_async(operation, status); });
    });
  }
  // Launches a change during which the host does not touch the model: start, another strategy, or a load of a
  // checkpoint. start(engine, done) begins it; `then` is called on the loop when it has succeeded.
  template <typename Start, typename Then>
  Result<std::shared_ptr<Operation>> launch_change(const char* name, Mode mode, const CallOptions& options,
                                                   Start start, Then then) {
    struct Changing {  // until the change has been launched, which may fail for want of memory
      Impl* impl;
      ~Changing() {
        if (impl) impl->set_changing(nullptr);
      }
    } changing_until_launched{this};
    set_changing(name);
    auto operation = launch(name, 0, mode, options, [this, start, then](auto done) {
      start(engine(), [this, then, done](const Status& status) {
        if (status.ok()) then();
        set_changing(nullptr);
        done(status);
      });
    });
    changing_until_launched.impl = nullptr;
    return operation;
  }
  void set_changing(const char* what) {
    std::lock_guard lock(step_mutex);
    changing = what;
  }
  // Joining: join() blocks; end_join() is called on the loop, where its first call ends the operation.
  void join(transport::Time deadline, const std::string& limit);
  Status attempt_join(transport::Time deadline, const std::string& limit);
  void end_join(const Status& status);
  void enter_view();  // takes the worker's view
  // This worker's place in the view for which the host makes a call. Fails as Engine::admit_call() does: the
  // arguments of the call may be those for an earlier view.
  struct Place {
    int32_t rank, size;
  };
  Result<Place> place_in_view();
  Status join_timeout_error(const std::string& limit, const std::string& progress);  // it did not end in time
  static Status closed_status();
  Status joined();             // kState while the session is joining; why it has not joined
  Status check_not_on_loop();  // kState on the session's own loop, which would wait for itself
  // `may_wait`: for the last step to be final, and for the comparison of values.
  void leave(bool may_wait);
  bool has_failed();
  // Fails the session, or ends joining, because the host has called dsgd_abort or dsgd_fail. `event`: for the
  // message, "failed". `operation`: of the failure.
  Status fail_by_host(const std::string& event, const std::string& reason, const std::string& operation);
  void wait_until_idle();
  void poll_idle();        // on the loop
  void await_last_step();  // as Engine::await_last_step(); sets closing_error
  // Leaves the job, on the loop. `left` is set when the head has answered. With `if_awaited`, returns false
  // and does not leave if a step has ended since await_last_step().
  bool leave_job(const std::shared_ptr<std::atomic<bool>>& left, bool if_awaited);
  void post_async(const std::shared_ptr<Operation>& operation, transport::Task task);
  void end_async(const std::shared_ptr<Operation>& operation, const Status& status);
  // The caller holds queue_mutex.
  void end_launched(std::list<std::shared_ptr<Operation>>::iterator at, const Status& status);
  void wake_queue();

  // "cpu", or a device of a backend: "cuda:0". One object for each name. Opens it within `limit`; the device
  // may be busy.
  Result<std::shared_ptr<device::Device>> device(const std::string& name,
                                                 transport::Duration limit = transport::Duration::max());
  transport::Duration timeout_of(const CallOptions& options) const {
    return options.timeout_or(config.duration("step_timeout"));
  }

  // Finds the device that the buffers of a collective are on, and records its stream. `receive` may be null.
  struct Buffer {
    const char* name;
    const void* data;
    size_t nbytes;
  };
  Result<CollectiveBuffers> locate_buffers(const char* operation, const Buffer& send, const Buffer* receive,
                                           const CallOptions& options);
  // Returns what launches a collective by start(done, options). `options.fetch` copies its input to host
  // memory first; its result is copied to the device before `done`.
  template <typename Start>
  Collective make_collective(const char* kind, size_t nbytes, const CallOptions& options,
                             const CollectiveBuffers& buffers, Start start);
  // Gives `use` the bytes of a replica's buffer, part by part. Blocks until the work enqueued before has
  // ended, or step_timeout.
  Status read(const Replica& replica, const std::byte* data, size_t nbytes,
              const std::function<void(const void*, size_t)>& use);

  // Releases buffers that the host has unbound; on a GPU once the device no longer uses them.
  void release_when_unused(const Replica& replica, const std::function<void()>& release);
  Status check_model() const;          // an error if the model cannot be started
  Status check_buffers_apart() const;  // no two of all bound buffers share memory
  // Tells the other workers that this one rejected the call; returns `why`.
  Status reject_call(const char* call, Status why);
  // kState while a step, or a change (launch_change), is in flight.
  Status check_model_writable(const char* what);
  Status check_not_in_step(const char* what) const;  // the same, with step_mutex held
  // kState while a change is in flight; step_mutex is held.
  Status check_not_changing(const char* what) const;
  // step_mutex is held in these.
  Status mark(const Replica& replica, std::span<Parameter* const> parameters, bool absent, void* stream);
  // Tells the step in flight that these buckets are complete. If the host is capturing a graph (kState),
  // calls `undo`, which takes the marks back.
  Status tell_ready(std::vector<uint32_t> buckets, const std::function<void()>& undo);
  Status record_streams(const std::vector<uint32_t>& buckets);
  // The folder that a call on checkpoints uses; an error if it cannot be made now.
  Result<std::string> checkpoint_folder(const char* call, const std::string& path);
  Status no_step_error() const;  // why no gradient can be marked while no step is in flight

  GradientMarks& marks() { return engine().marks(); }
  bool in_unmarked_step();  // the caller holds step_mutex
  void leave_unmarked_step(bool may_wait);
  Result<std::vector<double>> split_weight(double weight);
  std::string next_step_name();
  // Begins a step. `blocking`: marks all gradients, and returns when the step has ended.
  Status begin_step(double weight, bool blocking, const std::shared_ptr<Operation>& operation,
                    const CallOptions& options = {});
  // By name and options; the algorithm must go with the key `wire`.
  Result<StrategySpec> find_strategy(const std::string& name, const std::string& options) const;
  void step_ended(const std::shared_ptr<Operation>& operation, const Status& status, const StepResult& result,
                  bool blocking);

  const Config config;
  const std::unique_ptr<transport::Environment> environment;
  const std::shared_ptr<Log> log;
  const bool views_change = config.views_change();
  bool devices_taken = false;  // a replica without a device name has taken an entry of `devices`
  bool devices_found = false;  // `devices` was auto
  const device::TimeLimits device_limits{
      .allocation = config.duration("step_timeout"),
      .release = config.duration("lease"),
      .warn = [log = log](const std::string& message) { log->warning(message); }};  // with all devices
  const Strategies strategies;
  const Registered::Backends backends;
  const Registered::Locate locate;
  std::mutex devices_mutex;
  std::vector<std::shared_ptr<device::Device>> devices;  // opened so far; under devices_mutex
  device::EventPool events;                              // of streams that collectives wait for
  Model model;
  ShardList shards;
  std::unique_ptr<Worker> worker;
  std::unique_ptr<transport::Notifier> notifier;
  std::mutex view_mutex;  // held while the loop changes the following
  // Of the present view.
  std::atomic<int32_t> rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::atomic<int64_t> view = 1;
  StrategySpec strategy;

  std::mutex close_mutex;  // a second close() waits for the first
  std::mutex call_mutex;
  int calls = 0;  // of the host, in progress
  enum class Life {
    kMaking,  // under construction; there may be no loop yet
    kOpen,
    kClosing,  // no new work begins
    kEnded,    // all operations have ended, and no new wait begins
    kClosed,
  };
  std::atomic<Life> life{Life::kMaking};  // grows; written under call_mutex
  bool is_closing() const { return life >= Life::kClosing; }
  bool has_ended() const { return life >= Life::kEnded; }
  std::atomic<bool> drained{false};  // ended, and no call is in progress
  Status closing_error;              // found by the first close(), and returned by all
  enum class Membership { kJoining, kJoined, kFailed };
  // Written on the loop, after the values that it announces: those of the view, or `failure`.
  std::atomic<Membership> membership{Membership::kJoining};
  // The join in flight; null once it has ended. Once join() has begun, used on the loop only.
  std::shared_ptr<Operation> join_operation;
  std::atomic<uint64_t> next_id{1};
  std::atomic<bool> started{false};
  std::atomic<transport::Time> close_until{transport::kNever};
  std::atomic<bool> idle{false};                               // the wait of close() for operations has ended
  std::atomic<transport::Time> idle_since{transport::kNever};  // no operation has been in flight
  std::atomic<bool> stop{false};

  std::mutex model_mutex;                                // registering and binding
  std::unordered_set<std::string_view> parameter_names;  // of the model; under model_mutex
  RetiredBuffers retired;                                // added to under model_mutex
  metrics::Counter allocated;                            // bytes of dsgd_alloc; changed under model_mutex
  std::mutex step_mutex;                      // the step in flight, and the order of its messages to the loop
  std::shared_ptr<Operation> step_operation;  // null: no step is in flight
  bool in_step() const { return step_operation != nullptr; }
  std::shared_ptr<Operation> last_save;  // null: none has begun, or a step has begun since
  const char* changing = nullptr;        // the call of the change in flight (launch_change); null: none
  int64_t next_step = 0;                 // index of the step in flight, or of the next one
  bool step_begun = false;               // since the start, or since a checkpoint was loaded
  Status step_failure;                   // of the last step begun
  bool torn = false;                     // as engine().torn(), for other threads

  struct CallsOfAKind {
    const char *operation, *label;  // the operations' name; the name in metrics
    metrics::CallCounters counters = {};
  };
  CallsOfAKind calls_by_kind[12] = {{"all-reduce", "allreduce"},
                                    {"broadcast", "broadcast"},
                                    {"all-gather", "allgather"},
                                    {"reduce-scatter", "reduce_scatter"},
                                    {"barrier", "barrier"},
                                    {"dsgd_start", "start"},
                                    {"dsgd_strategy_set", "strategy_set"},
                                    {"dsgd_checkpoint_save", "checkpoint_save"},
                                    {"dsgd_checkpoint_load", "checkpoint_load"},
                                    {"dsgd_object_put", "object_put"},
                                    {"dsgd_object_get", "object_get"},
                                    {"dsgd_object_delete", "object_delete"}};

  std::mutex failure_mutex;
  Status failure;  // of the session; written on the loop

  std::mutex queue_mutex;
  std::list<std::shared_ptr<Operation>> queue;     // ended, not polled yet
  std::list<std::shared_ptr<Operation>> launched;  // in flight, asynchronous
  std::list<std::shared_ptr<Operation>> blocked;   // in flight, with a blocked caller
  std::list<std::atomic<bool>*> queue_waiters;
};

// Replaces devices=auto by the devices of this machine.
Status find_devices(Config& config, const Registered& registered, Log& log);

}  // namespace dsgd
