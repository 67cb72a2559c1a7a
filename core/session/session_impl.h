// The state of a session. Its functions are in session.cc (life, waiting, queue), session_model.cc
// (parameters, buffers), session_step.cc (start, steps) and session_collectives.cc.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "core/metrics/counters.h"
#include "core/session/retired_buffers.h"
#include "core/session/session.h"
#include "core/session/worker.h"

namespace dsgd {

struct Session::Impl {
  Impl(const Config& config, std::unique_ptr<transport::Environment> environment, std::shared_ptr<Log> log,
       const Registered& registered)
      : config(config),
        environment(std::move(environment)),
        log(std::move(log)),
        strategies(registered),
        backends(registered.backends),
        check_host_memory(registered.check_host_memory) {}

  // A call in progress. close() waits until there is none, since calls use the loop.
  class Call {
   public:
    enum Use {
      kWork,  // refused when the session is closing or has failed
      kRead,  // refused when the session is closing: reads local state only
      kWait,  // refused when the session has ended: tells how operations ended, or ends them
    };
    explicit Call(Impl& impl, Use use = kWork);
    ~Call();
    const Status& status() const { return status_; }  // kForked, kClosed, or the session's failure

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
    if (operation->done()) return;  // ended by end_lost(); its caller has returned
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
  class Waited {  // while a caller is blocked
   public:
    Waited(Impl& impl, const std::shared_ptr<Operation>& operation) : impl_(impl) {
      std::lock_guard lock(impl_.queue_mutex);
      at_ = impl_.waited.insert(impl_.waited.end(), operation);
    }
    ~Waited() {
      std::lock_guard lock(impl_.queue_mutex);
      impl_.waited.erase(at_);
    }

   private:
    Impl& impl_;
    std::list<std::shared_ptr<Operation>>::iterator at_;
  };
  // Ends the operations that an allocation failure left open after the session failed.
  void end_lost(const Status& why);
  void run_task(const std::shared_ptr<Operation>& operation, transport::Task task) {
    const Waited waited(*this, operation);
    const bool ended = loop().run(std::move(task), operation->done_flag(), transport::kNever);
    if (!ended) operation->end(environment->alive());  // the process exits, and the loop no longer runs
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
    auto operation = std::make_shared<Operation>(next_id.fetch_add(1), kind, false, options.user_data);
    operation->set_nbytes(nbytes);
    const auto call = [this, start, operation, channel = options.channel](auto done) {
      operation->set_waiting(waiting_for_next_call(channel));
      start(done);
    };
    launch(operation, mode, call);
    return operation;
  }
  std::function<Status()> waiting_for_next_call(uint32_t channel = 0) {
    return [this, call = engine().next_call(channel)] { return engine().waiting(call); };
  }
  std::function<Status()> waiting_for_object(const std::string& operation, const std::string& object) {
    return [this, operation, object] { return engine().waiting_for_object(operation, object); };
  }
  template <typename Call>
  void launch(const std::shared_ptr<Operation>& operation, Mode mode, const Call& call) {
    if (mode == Mode::kWait) {
      return run(operation, call);
    }
    post_async(operation, [this, call, operation] {
      begin(call, operation, [this, operation](const Status& status) { end_async(operation, status); });
    });
  }
  // Launches what changes the plan of the steps, during which the model is not touched: start, or another
  // strategy. start(engine, done) begins it; `then` is called on the loop when it has succeeded.
  template <typename Start, typename Then>
  Result<std::shared_ptr<Operation>> launch_change(const char* name, Mode mode, const CallOptions& options,
                                                   Start start, Then then) {
    set_changing(name);
    try {
      return launch(name, 0, mode, options, [this, start, then](auto done) {
        start(engine(), [this, then, done](const Status& status) {
          if (status.ok()) then();
          set_changing(nullptr);
          done(status);
        });
      });
    } catch (const std::bad_alloc&) {
      set_changing(nullptr);
      throw;
    }
  }
  void set_changing(const char* what) {
    std::lock_guard lock(step_mutex);
    changing = what;
  }
  // Joining: join() blocks; end_join() is called on the loop, where its first call ends the operation.
  void join(transport::Time deadline, const std::string& limit);
  Status attempt_join(transport::Time deadline, const std::string& limit);
  void end_join(const Status& status);
  Status late_join(const std::string& limit, const std::string& progress);  // it did not end in time
  Status joined();  // kState while the session is joining; why it has not joined
  void leave(transport::Time deadline, bool compare);
  bool has_failed();
  void compare_last_values(transport::Time until);  // a GPU has until then to give them
  // Leaves the job, on the loop. `left` is set when the head has answered.
  void leave_loop(const std::shared_ptr<std::atomic<bool>>& left);
  void post_async(const std::shared_ptr<Operation>& operation, transport::Task task);
  void end_async(const std::shared_ptr<Operation>& operation, const Status& status);
  // The caller holds queue_mutex.
  void end_launched(std::list<std::shared_ptr<Operation>>::iterator at, const Status& status);
  void wake_queue();

  // "cpu", or a device of a backend: "cuda:0". One object for each name.
  Result<std::shared_ptr<device::Device>> device(const std::string& name);
  // Gives `use` the bytes of a replica's buffer, part by part. Blocks until the work enqueued before has
  // ended, or step_timeout.
  Status read(const Replica& replica, const std::byte* data, size_t nbytes,
              const std::function<void(const void*, size_t)>& use);

  // Releases buffers that the host has unbound; on a GPU once the device no longer uses them.
  void release_when_unused(const Replica& replica, const std::function<void()>& release);
  Status check_model() const;          // an error if the model cannot be started
  Status check_buffers_apart() const;  // no two of all bound buffers share memory
  // Tells the other workers that this one rejected the call; returns `why`.
  Status refused(const char* call, Status why);
  Status writable(const char* what);  // kState while a step, or a change of the plan, is in flight
  // kState while a change of the plan is in flight; step_mutex is held.
  Status unchanging(const char* what) const;
  // step_mutex is held in these.
  Status mark(const Replica& replica, std::span<Parameter* const> parameters, bool absent, void* stream);
  // Tells the step in flight that these buckets are complete. Takes the marks back by `undo` if the host is
  // capturing a graph, or if memory runs out.
  Status tell_ready(std::vector<uint32_t> buckets, const std::function<void()>& undo);
  Status record_streams(const std::vector<uint32_t>& buckets);
  Status no_step() const;  // why no gradient can be marked while no step is in flight

  GradientMarks& marks() { return engine().marks(); }
  void leave_unmarked_step();
  Result<std::vector<double>> split_weight(double weight);
  std::string next_step_name();
  // Begins a step on the loop; `blocking` marks everything at once.
  Status begin_step(double weight, bool blocking, const std::shared_ptr<Operation>& operation,
                    const CallOptions& options = {});
  Status post_step(const std::shared_ptr<Operation>& operation, bool blocking, std::vector<double> weights,
                   std::vector<uint32_t> ready, const CallOptions& options);
  void step_ended(const std::shared_ptr<Operation>& operation, const Status& status, const StepResult& result,
                  bool blocking);

  const Config config;
  const std::unique_ptr<transport::Environment> environment;
  const std::shared_ptr<Log> log;
  bool devices_taken = false;  // a replica without a device name has taken an entry of `devices`
  bool devices_found = false;  // `devices` was auto
  const device::Patience patience{
      .allocation = config.duration("step_timeout"),
      .release = config.duration("lease"),
      .warn = [log = log](const std::string& message) { log->warning(message); }};  // with all devices
  const Strategies strategies;
  const Registered::Backends backends;
  const Registered::CheckHostMemory check_host_memory;
  Model model;
  std::unique_ptr<Worker> worker;
  std::unique_ptr<transport::Notifier> notifier;
  int32_t rank = 0, size = 1, local_rank = 0, local_size = 1;
  int64_t view = 1;
  StrategySpec strategy;

  std::mutex close_mutex;  // a second close() waits for the first
  std::mutex call_mutex;
  int calls = 0;                     // in progress
  std::atomic<bool> closing{false};  // written under call_mutex; no new work begins
  // All operations have ended, and no new wait begins. Written under call_mutex.
  std::atomic<bool> ended{false};
  std::atomic<bool> drained{false};  // ended, and no call is in progress
  bool closed = false;
  Status diverged;      // as the first close() has found
  bool opened = false;  // there is a loop, and so something to end
  enum class Membership { kJoining, kJoined, kFailed };
  std::atomic<Membership> membership{Membership::kJoining};  // written on the loop, after what it stands for
  // The join in flight; null once it has ended. Once join() has begun, used on the loop only.
  std::shared_ptr<Operation> join_operation;
  std::atomic<uint64_t> next_id{1};
  std::atomic<bool> started{false};
  std::atomic<transport::Time> close_until{transport::kNever};
  std::atomic<bool> stop{false};

  std::mutex model_mutex;      // registering and binding
  RetiredBuffers retired;      // added to under model_mutex
  metrics::Counter allocated;  // bytes of dsgd_alloc; changed under model_mutex
  std::mutex step_mutex;       // the step in flight, and the order of its messages to the loop
  std::shared_ptr<Operation> step_operation;
  bool in_step = false;
  const char* changing = nullptr;  // the change of the plan in flight: start, or another strategy
  int64_t next_step = 0;           // index of the step in flight, or of the next one
  Status step_failure;             // of the last step begun
  bool torn = false;               // as engine().torn(), for other threads

  struct CallsOfAKind {
    const char *operation, *label;  // the operations' name; the name in metrics
    metrics::CallCounters counters = {};
  };
  CallsOfAKind calls_by_kind[10] = {{"all-reduce", "allreduce"},
                                    {"broadcast", "broadcast"},
                                    {"all-gather", "allgather"},
                                    {"reduce-scatter", "reduce_scatter"},
                                    {"barrier", "barrier"},
                                    {"dsgd_start", "start"},
                                    {"dsgd_strategy_set", "strategy_set"},
                                    {"dsgd_object_put", "object_put"},
                                    {"dsgd_object_get", "object_get"},
                                    {"dsgd_object_delete", "object_delete"}};

  std::mutex failure_mutex;
  Status failure;  // of the session; written on the loop

  std::mutex queue_mutex;
  std::list<std::shared_ptr<Operation>> queue;     // ended, not polled yet
  std::list<std::shared_ptr<Operation>> launched;  // in flight, asynchronous
  std::list<std::shared_ptr<Operation>> waited;    // in flight, with a blocked caller
  std::list<std::atomic<bool>*> queue_waiters;
};

// Replaces devices=auto by the devices of this machine.
Status find_devices(Config& config, const Registered& registered, Log& log);

}  // namespace dsgd
