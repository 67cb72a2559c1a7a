#include "core/session/engine.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "core/base/describe.h"
#include "core/collectives/all_reduce.h"
#include "core/collectives/broadcast.h"
#include "core/collectives/direct.h"
#include "core/collectives/exchange.h"
#include "core/reduce/kernels.h"
#include "core/step/divergence.h"
#include "transport/schema/codec.h"

namespace dsgd {

using transport::BulkHeader;

namespace {

auto adder(DType dtype, Reduction reduction) {
  return [dtype, reduction](void* destination, const void* source, size_t count) {
    reduce_into(dtype, reduction, destination, source, count);
  };
}

Status nobody_puts() {
  return Status(
      Code::kWorkerLost,
      "all other workers have closed their sessions, so no worker can put this object; put it before "
      "the sessions are closed");
}

// Half types are added up in float32, which is what travels.
std::shared_ptr<std::vector<float>> widened_copy(std::span<const std::byte> data, DType dtype) {
  auto copy = std::make_shared<std::vector<float>>(data.size() / dtype_size(dtype));
  widen(dtype, copy->data(), data.data(), copy->size());
  return copy;
}

constexpr const char* kCommunication = "what its communication needs";

std::vector<size_t> bounds_of(const std::vector<size_t>& counts) {
  std::vector<size_t> bounds(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), bounds.begin() + 1);
  return bounds;
}

}  // namespace

Engine::Engine(transport::Loop& loop, Model& model, EngineOptions options, std::shared_ptr<Log> log)
    : loop_(loop),
      model_(model),
      options_(std::move(options)),
      log_(std::move(log)),
      waiter_(loop),
      copies_(loop, options_.step.lease),
      step_(loop, model, options_.step),
      exhausted_(Code::kNoMemory, std::string("no memory for ") + kCommunication),
      stalls_(loop, options_.stall_warning, log_),
      events_(loop, log_),
      checkpoints_(loop, [this] { return !recovering_; }) {
  step_.on_device_failure([this](const Status& why) { fail(why, true); });
}

Engine::~Engine() = default;

transport::Time Engine::deadline(const CallOptions& options) const {
  return loop_.now() + options.timeout_or(options_.step_timeout);
}

std::string Engine::deadline_setting(const CallOptions& options) const {
  return options.limit_or("step_timeout = " + describe_duration(options_.step_timeout));
}

bool Engine::idle() const {
  if (at_rest_) return true;
  return !step_.running() && objects_.idle() && copies_.idle() && checkpoints_.idle() && !gives_state() &&
         std::all_of(channels_.begin(), channels_.end(),
                     [](const Channel& channel) { return channel.running == 0 && channel.pending.empty(); });
}

std::shared_ptr<Engine::Call> Engine::begin_call(Done* done, const CallOptions& options) {
  const uint64_t number = next_call(options.channel);
  ++channels_[options.channel].next_call;
  const uint64_t watch = stalls_.begin([this, number] { return wait_report(number); });
  *done = [this, number, watch, done = std::move(*done)](const Status& status) {
    stalls_.end(watch);
    if (mesh_) mesh_->operations.end_call(number, status);
    done(status);
  };
  return std::make_shared<Call>(Call{number, deadline(options), deadline_setting(options)});
}

void Engine::enqueue(std::shared_ptr<Call> call, MakeTask make, Done done) {
  if (!failure_.ok()) return done(failure_);
  const uint64_t operation = operation_number(call->number, call->next++);
  insert(channel_of(call->number),
         {std::move(make), {}, std::move(done), operation, call->deadline, call->limit});
}

void Engine::insert(uint32_t channel, Pending added) {
  // In the order of the calls: a call's second operation goes before later calls, since other workers may
  // wait for it.
  auto& pending = channels_[channel].pending;
  auto position = pending.end();
  while (position != pending.begin() && std::prev(position)->operation > added.operation) --position;
  pending.insert(position, std::move(added));
  pump(channel);
}

void Engine::when_fetched(const std::shared_ptr<Call>& call, const char* name, const CallOptions& options,
                          Done done, std::function<void()> rest) {
  if (!options.fetch) return rest();
  if (!mesh_) {
    return options.fetch([done = std::move(done), rest = std::move(rest)](const Status& status) {
      status.ok() ? rest() : done(status);
    });
  }
  const uint64_t number = call->number, first = operation_number(number, 0);
  fetching_[number] = name;
  const Done fetched = [=, this, done = std::move(done), rest = std::move(rest),
                        view = view()](const Status& status) {
    fetching_.erase(number);
    if (view != this->view()) return done(view_changed());
    if (status.ok()) return rest();
    if (!failure_.ok()) return done(status);
    const Status told = Status(status.code(), mesh_->members().name(rank()) + ": " + status.message())
                            .with_rank(rank(), mesh_->members().host_of(rank()))
                            .with_operation(name);
    mesh_->operations.refuse(first, told);
    done(told);
  };
  insert(channel_of(number), {{}, options.fetch, fetched, first, call->deadline, call->limit});
}

Status Engine::no_memory(const std::string& what) const {
  return Status(Code::kNoMemory, "rank " + std::to_string(rank()) + ": no memory for " + what)
      .with_rank(rank());
}

Status Engine::open(const transport::JoinReply& view) {
  Status status = mesh_ ? mesh_->open(view) : Status();
  if (view.members.size() == 1 && !options_.views_change) use_mesh(nullptr);  // this worker is the whole job
  exhausted_ = no_memory(kCommunication);
  return status;
}

void Engine::pump(uint32_t channel) {
  const size_t limit = channel == 0 ? kOpenTasks : kOpenTasksOfAChannel;
  auto& [next_call, pending, running] = channels_[channel];
  // fail() ends the rest of a failed session, and enter_view() that of an earlier view.
  while (failure_.ok() && !entering_ && running < limit && !pending.empty()) {
    Pending& next = pending.front();
    const Done ended = [this, channel, done = next.done](const Status& status) {
      --channels_[channel].running;
      done(status);
      pump(channel);
    };
    if (next.fetch) {
      const auto fetch = std::move(next.fetch);
      pending.pop_front();
      ++running;
      fetch(ended);
      continue;
    }
    auto task = next.make(next.operation, ended);
    if (task.ok()) task.value()->set_limit(std::move(next.limit));
    const transport::Time deadline = next.deadline;
    pending.pop_front();
    ++running;
    if (!task.ok()) {
      ended(task.status());
    } else {
      mesh_->operations.add(std::move(task).value(), deadline);
    }
  }
}

void Engine::give_all(std::shared_ptr<Call> call, Kind kind, DType dtype, std::span<std::byte> data,
                      int32_t source, const std::string& name, Done done,
                      std::shared_ptr<const Group> group) {
  schedule(
      std::move(call),
      [=, this](uint64_t operation, Done ended) {
        BulkHeader header =
            shape_of(operation, kind, dtype, Algorithm::kChain, data.size() / dtype_size(dtype));
        header.root = source;
        auto task = std::make_unique<Broadcast>(mesh_->operations, header, data, ended, group);
        task->rename(name);
        return task;
      },
      std::move(done));
}

void Engine::exchange(std::shared_ptr<Call> call, const BulkHeader& like, std::vector<std::byte> mine,
                      std::string name,
                      std::function<void(const Status&, const std::vector<std::vector<std::byte>>&)> done) {
  auto parts = std::make_shared<std::vector<std::vector<std::byte>>>();
  schedule(
      std::move(call),
      [=, this, mine = std::move(mine)](uint64_t operation, Done ended) {
        BulkHeader header = like;
        header.operation = operation;
        auto task = std::make_unique<Exchange>(mesh_->operations, header, mine,
                                               [parts, ended](const Status& status, const auto& all) {
                                                 *parts = all;
                                                 ended(status);
                                               });
        if (!name.empty()) task->rename(name);
        return task;
      },
      [parts, done](const Status& status) { done(status, *parts); });
}

// ---- collectives

void Engine::allreduce(std::span<std::byte> data, DType dtype, Reduction reduction, Done done,
                       const CallOptions& options) {
  if (Status status = admit_call(); !status.ok()) return done(status);
  const std::shared_ptr<Call> call = mesh_ ? begin_call(&done, options) : nullptr;
  when_fetched(call, "all-reduce", options, done, [=, this] {
    if (!mesh_) return done({});  // sum, min, max, product and mean of one
    if (!is_half(dtype)) return allreduce_wide(call, data, dtype, reduction, done);
    const auto widened = widened_copy(data, dtype);
    allreduce_wide(call, std::as_writable_bytes(std::span(*widened)), dtype, reduction,
                   [widened, data, dtype, done](const Status& status) {
                     if (status.ok()) narrow(dtype, data.data(), widened->data(), widened->size());
                     done(status);
                   });
  });
}

// In the following, `dtype` is what the host has; the data is of wide(dtype).
void Engine::allreduce_wide(std::shared_ptr<Call> call, std::span<std::byte> data, DType dtype,
                            Reduction reduction, Done done) {
  const size_t count = data.size() / dtype_size(wide(dtype));
  if (!options_.algorithm->registered() || count == 0)
    return reduce_all(std::move(call), data, dtype, reduction, std::move(done));
  // If the function gave different schedules on different workers, they would wait for each other. So they
  // are compared, in each call: blocking and asynchronous callers may not agree on which call is the first of
  // its size.
  compare_schedules(call, dtype, reduction, count, [=, this](const Status& status) {
    if (!status.ok()) return done(status);
    reduce_all(call, data, dtype, reduction, done);
  });
}

void Engine::compare_schedules(std::shared_ptr<Call> call, DType dtype, Reduction reduction, size_t count,
                               Done done) {
  const std::string algorithm = options_.algorithm->name;
  auto schedule = options_.algorithm->schedules->schedule(rank(), size(), count);
  const transport::ScheduleDigest mine{schedule.ok() ? schedule.value()->digest : 0, schedule.status()};
  BulkHeader like = shape_of(0, Kind::kAllReduce, dtype, Algorithm::kRegistered, count);
  like.reduction = static_cast<uint8_t>(reduction);
  like.tag = mesh_->peers.chunk_bytes();
  exchange(std::move(call), like, transport::encode(mine), "",
           [count, algorithm, done](const Status& status, const std::vector<std::vector<std::byte>>& all) {
             if (!status.ok()) return done(status);
             uint64_t first = 0;
             for (size_t rank = 0; rank < all.size(); ++rank) {
               auto theirs = transport::decode_schedule_digest(all[rank]);
               const auto failed = [&](Code code, const std::string& message) {
                 done(Status(code, message).with_rank(static_cast<int32_t>(rank)));
               };
               if (!theirs.ok()) {
                 return done(invalid_data("all-reduce", static_cast<int32_t>(rank),
                                          "an invalid schedule digest: " + theirs.status().message()));
               }
               if (!theirs->failure.ok()) return failed(theirs->failure.code(), theirs->failure.message());
               if (rank == 0) first = theirs->digest;
               if (theirs->digest != first) {
                 return failed(Code::kMismatch,
                               "all-reduce: workers disagree on algorithm '" + algorithm + "': for " +
                                   std::to_string(count) + " elements rank 0 and rank " +
                                   std::to_string(rank) +
                                   " have different schedules; register the same function on all workers");
               }
             }
             done({});
           });
}

void Engine::reduce_all(std::shared_ptr<Call> call, std::span<std::byte> data, DType dtype,
                        Reduction reduction, Done done) {
  const DType type = wide(dtype);
  const size_t element = dtype_size(type), count = data.size() / element;
  schedule(
      std::move(call),
      [=, this](uint64_t operation, Done ended) -> Result<std::unique_ptr<Task>> {
        BulkHeader header = shape_of(operation, Kind::kAllReduce, dtype, Algorithm::kAuto, count);
        header.reduction = static_cast<uint8_t>(reduction);
        AllReducePlan plan{count, type, reduction, data.data(), nullptr};
        if (reduction == Reduction::kMean) {
          plan.finish = [this, data, type, element](size_t begin, size_t end) {
            divide(type, data.data() + begin * element, end - begin, static_cast<double>(size()));
          };
        }
        return make_all_reduce(mesh_->operations, header, options_.algorithm, std::move(plan),
                               std::move(ended));
      },
      std::move(done));
}

void Engine::broadcast(std::span<std::byte> data, DType dtype, int32_t root, Done done,
                       const CallOptions& options) {
  if (Status status = admit_call(); !status.ok()) return done(status);
  if (!mesh_) return done({});
  const std::shared_ptr<Call> call = begin_call(&done, options);
  when_fetched(call, "broadcast", options, done, [=, this] {
    schedule(
        call,
        [=, this](uint64_t operation, Done ended) {
          BulkHeader header = shape_of(operation, Kind::kBroadcast, dtype, Algorithm::kChain,
                                       data.size() / dtype_size(dtype));
          header.root = root;
          header.tag = mesh_->peers.chunk_bytes();
          return std::make_unique<Broadcast>(mesh_->operations, header, data, ended);
        },
        done);
  });
}

void Engine::allgather(std::span<const std::byte> send, std::span<std::byte> receive,
                       std::vector<size_t> counts, DType dtype, Done done, const CallOptions& options) {
  if (Status status = admit_call(); !status.ok()) return done(status);
  const std::shared_ptr<Call> call = mesh_ ? begin_call(&done, options) : nullptr;
  when_fetched(call, "all-gather", options, done,
               [=, this] { allgather_fetched(call, send, receive, counts, dtype, done); });
}

void Engine::allgather_fetched(std::shared_ptr<Call> call, std::span<const std::byte> send,
                               std::span<std::byte> receive, std::vector<size_t> counts, DType dtype,
                               Done done) {
  const size_t element = dtype_size(dtype);
  const std::vector<size_t> bounds = bounds_of(counts);
  std::byte* own = receive.data() + bounds[rank()] * element;
  if (!send.empty() && own != send.data()) std::memmove(own, send.data(), send.size());
  if (!mesh_) return done({});
  if (bounds.back() == 0)
    return meet(std::move(call), Kind::kAllGather, dtype, Reduction::kSum, std::move(counts),
                std::move(done));
  schedule(
      std::move(call),
      [=, this](uint64_t operation, Done ended) {
        BulkHeader header = shape_of(operation, Kind::kAllGather, dtype, Algorithm::kDirect, bounds.back());
        DirectPlan plan;
        plan.slices = slices_between(bounds);
        plan.reduce = false;
        plan.element = plan.result_element = element;
        plan.data = plan.result = receive.data();
        header.tag = Direct::tag(mesh_->operations, plan);
        auto task = std::make_unique<Direct>(mesh_->operations, header, std::move(plan), false, ended);
        task->set_counts({counts.begin(), counts.end()});
        return task;
      },
      std::move(done));
}

void Engine::reduce_scatter(std::span<const std::byte> send, std::span<std::byte> receive,
                            std::vector<size_t> counts, DType dtype, Reduction reduction, Done done,
                            const CallOptions& options) {
  if (Status status = admit_call(); !status.ok()) return done(status);
  const std::shared_ptr<Call> call = mesh_ ? begin_call(&done, options) : nullptr;
  when_fetched(call, "reduce-scatter", options, done,
               [=, this] { reduce_scatter_fetched(call, send, receive, counts, dtype, reduction, done); });
}

void Engine::reduce_scatter_fetched(std::shared_ptr<Call> call, std::span<const std::byte> send,
                                    std::span<std::byte> receive, std::vector<size_t> counts, DType dtype,
                                    Reduction reduction, Done done) {
  if (!mesh_) {
    if (!receive.empty() && send.data() != receive.data())
      std::memmove(receive.data(), send.data(), receive.size());
    return done({});
  }
  if (!is_half(dtype)) {
    return reduce_scatter_wide(std::move(call), send, receive, std::move(counts), dtype, reduction,
                               std::move(done));
  }
  const auto given = widened_copy(send, dtype);
  const auto sums = std::make_shared<std::vector<float>>(receive.size() / dtype_size(dtype));
  reduce_scatter_wide(std::move(call), std::as_bytes(std::span(*given)),
                      std::as_writable_bytes(std::span(*sums)), std::move(counts), dtype, reduction,
                      [given, sums, receive, dtype, done](const Status& status) {
                        if (status.ok()) narrow(dtype, receive.data(), sums->data(), sums->size());
                        done(status);
                      });
}

void Engine::reduce_scatter_wide(std::shared_ptr<Call> call, std::span<const std::byte> send,
                                 std::span<std::byte> receive, std::vector<size_t> counts, DType dtype,
                                 Reduction reduction, Done done) {
  const DType type = wide(dtype);
  const size_t element = dtype_size(type);
  const std::vector<size_t> bounds = bounds_of(counts);
  const std::byte* own = send.data() + bounds[rank()] * element;
  if (bounds.back() == 0)
    return meet(std::move(call), Kind::kReduceScatter, dtype, reduction, std::move(counts), std::move(done));
  // The sum is made in `receive`, beginning with this rank's own contribution: `send` stays as it is.
  if (!receive.empty() && own != receive.data()) std::memcpy(receive.data(), own, receive.size());
  schedule(
      std::move(call),
      [=, this](uint64_t operation, Done ended) {
        BulkHeader header =
            shape_of(operation, Kind::kReduceScatter, dtype, Algorithm::kDirect, bounds.back());
        header.reduction = static_cast<uint8_t>(reduction);
        DirectPlan plan;
        plan.slices = slices_between(bounds);
        plan.gather = false;
        plan.element = plan.result_element = element;
        plan.data = const_cast<std::byte*>(send.data());
        plan.own = receive.data();
        plan.ordered = is_floating(type);
        plan.add = adder(type, reduction);
        if (reduction == Reduction::kMean) {
          plan.transform = [this, receive, type, element, first = bounds[rank()]](size_t begin, size_t end) {
            divide(type, receive.data() + (begin - first) * element, end - begin,
                   static_cast<double>(size()));
          };
        }
        header.tag = Direct::tag(mesh_->operations, plan);
        auto task = std::make_unique<Direct>(mesh_->operations, header, std::move(plan), false, ended);
        task->set_counts({counts.begin(), counts.end()});
        return task;
      },
      std::move(done));
}

void Engine::barrier(Done done, const CallOptions& options) {
  if (Status status = admit_call(); !status.ok()) return done(status);
  if (!mesh_) return done({});
  std::shared_ptr<Call> call = begin_call(&done, options);
  meet(std::move(call), Kind::kBarrier, DType::kUint8, Reduction::kSum, {}, std::move(done));
}

// There is nothing to move; all workers must make the same call.
void Engine::meet(std::shared_ptr<Call> call, Kind kind, DType dtype, Reduction reduction,
                  std::vector<size_t> counts, Done done) {
  schedule(
      std::move(call),
      [=, this](uint64_t operation, Done ended) {
        BulkHeader header = shape_of(operation, kind, dtype, Algorithm::kOneHop, 0);
        header.reduction = static_cast<uint8_t>(reduction);
        auto task = std::make_unique<Exchange>(mesh_->operations, header, std::vector<std::byte>(),
                                               [ended](const Status& status, const auto&) { ended(status); });
        task->set_counts({counts.begin(), counts.end()});
        return task;
      },
      std::move(done));
}

// ---- the step

void Engine::step_begin(std::vector<double> weights, bool stop, bool wait_for_devices, StepDone done,
                        const CallOptions& options) {
  if (!torn_.ok()) return done(torn_, {});
  if (!failure_.ok()) return done(failure_, {});
  StepRequest request;
  request.step = next_step_;
  request.call = next_call();
  request.weights = std::move(weights);
  request.stop = stop;
  request.wait_for_devices = wait_for_devices;
  request.timeout = options.timeout_or(options_.step_timeout);
  request.deadline = loop_.now() + request.timeout;
  request.limit = deadline_setting(options);
  request.previous_view = std::max<int64_t>(last_result_.view, 1);
  if (options_.views_change && shards_) request.drawn = shards_->drawn_for_step();
  const uint64_t watch = stalls_.begin([this] { return wait_report(step_.call()); });
  const auto ended = [this, watch, done = std::move(done)](const Status& status, const StepResult& result) {
    stalls_.end(watch);
    last_step_failed_ = !status.ok() && !step_.failed_in_agreement();
    if (status.ok()) {
      ++next_step_;
      answer_completed({});
      answer_learners();
      last_step_call_ = step_.call();
      last_result_ = result;
      if (shards_) shards_->commit(step_.drawn());
      compared_ = result.all_done;
      reported_view_ = static_cast<uint64_t>(result.view);  // of a copied step an earlier one
      report_non_finite(result);
      warn_of_departed(last_step_call_);
      // While workers recover from a loss, those that made the step before cannot save it any more.
      if (options_.checkpoint_interval > 0 && next_step_ % options_.checkpoint_interval == 0 &&
          !recovering_ && !next_view_)
        return save_at_interval([done, result] { done({}, result); });
    } else if (status.code() == Code::kDiverged) {
      torn_ = status;
    } else if (torn_.ok() && !step_.failed_in_agreement()) {
      torn_ = Status(Code::kTorn, "step " + std::to_string(next_step_) +
                                      " failed half-way, so workers may be at different steps: " +
                                      status.message() + "; load a checkpoint")
                  .with_rank(status.rank(), status.host())
                  .with_operation(status.operation());
    }
    done(status, result);
    enter_view();
  };
  if (recovering_) return step_.begin_suspended(std::move(request), ended);
  ++channels_[0].next_call;
  step_.begin(std::move(request), ended);
}

void Engine::report_non_finite(const StepResult& result) {
  if (result.nonfinite == 0) return;
  const std::string step = "step " + std::to_string(result.step);
  if (options_.step.nonfinite == NonFiniteAction::kSkip) {
    events_.note_event(
        "a step with gradients that are not finite was skipped",
        step + " was skipped, since gradients are not finite (nonfinite = skip): " + result.nonfinite_text);
  } else {
    events_.note_event(
        "elements of gradients that are not finite counted as 0",
        step + ": elements of gradients are not finite and count as 0 (nonfinite = zero): " +
            result.nonfinite_text +
            (result.skipped ? "; the step was skipped, since the mean is not finite (loss_scale)" : ""));
  }
}

// ---- objects

uint64_t Engine::watch_object(const char* operation, const std::string& name) {
  return stalls_.begin([this, operation, name] { return WaitReport{waiting_for_object(operation, name)}; });
}

Engine::Done Engine::watched(const char* operation, const std::string& name, Done done) {
  return [this, watch = watch_object(operation, name), done = std::move(done)](const Status& status) {
    stalls_.end(watch);
    done(status);
  };
}

void Engine::put_object(const std::string& name, SharedObject object, Done done, const CallOptions& options) {
  if (Status status = admit_call(); !status.ok()) return done(status);
  objects_.put(peers(), name, std::move(object), {deadline(options), deadline_setting(options)},
               watched(Objects::kPut, name, std::move(done)));
}

void Engine::delete_object(const std::string& name, Done done, const CallOptions& options) {
  if (Status status = admit_call(); !status.ok()) return done(status);
  objects_.delete_everywhere(peers(), name, {deadline(options), deadline_setting(options)},
                             watched(Objects::kDelete, name, std::move(done)));
}

uint64_t Engine::get_object(const std::string& name, std::function<void(Result<SharedObject>)> done,
                            const CallOptions& options) {
  if (!objects_.has(name)) {
    Status nobody = failure_.ok() && size() > 1 && mesh_->peers.alone() ? nobody_puts() : failure_;
    if (!nobody.ok()) {
      done(nobody);
      return 0;
    }
  }
  const auto timer = std::make_shared<transport::TimerId>(0);
  const uint64_t watch = watch_object(Objects::kGet, name);
  const uint64_t ticket =
      objects_.get(name, [this, timer, watch, done = std::move(done)](Result<SharedObject> object) {
        loop_.cancel(*timer);
        stalls_.end(watch);
        done(std::move(object));
      });
  if (ticket == 0) return 0;
  *timer = loop_.schedule(deadline(options), [this, ticket, name, limit = deadline_setting(options)] {
    const Status why = objects_.waiting(Objects::kGet, name);
    cancel_get(ticket, Status(Code::kTimeout,
                              "dsgd_object_get has not ended within " + limit + ": " + why.message()));
  });
  return ticket;
}

// ---- failure and end

void Engine::fail(const Status& cause, bool tell_peers) {
  if (failure_.ok()) {
    failure_ = cause;
    tell_peers_ = tell_peers;
    log_->report_failure(cause.rank());
    if (before_failure_) before_failure_(cause);
    // With one worker, the host itself has called dsgd_abort, so that is no error.
    const bool own = size() == 1 && cause.code() == Code::kAborted;
    log_->write(own ? LogLevel::kInfo : LogLevel::kError, failure_.message());
  }
  // Each part may be repeated: the loop calls fail() again if an allocation failure interrupts this.
  if (at_rest_ || failing_) return;
  struct Failing {
    bool& flag;
    ~Failing() { flag = false; }
  } failing{failing_};
  failing_ = true;
  if (shards_) shards_->resume();
  if (mesh_ && tell_peers_ && !enter_) mesh_->peers.tell_session_failed(failure_);
  if (mesh_) mesh_->fail(failure_);
  step_.abort(failure_);
  end_waits(failure_);
  if (after_failure_) after_failure_(failure_);
  at_rest_ = true;
}

void Engine::end_waits(const Status& why) {
  waiter_.fail(why);
  fail_pending(why);
  checkpoints_.fail(why);
  objects_.fail(peers(), why);
  drop_learners(why);
  answer_completed(why);
  end_wait_for_last_step();
  copies_.fail(why);
}

void Engine::fail_pending(const Status& cause) {
  if (starting_ && !entering_) std::exchange(starting_, std::nullopt)->done(cause);
  for (Channel& channel : channels_) {
    while (!channel.pending.empty()) {
      const Done done = std::move(channel.pending.front().done);
      channel.pending.pop_front();
      done(cause);
    }
  }
}

void Engine::compare_last_values(transport::Time deadline, std::function<void()> then) {
  if (!mesh_ || !started_ || compared_ || next_step_ == 0 || step_.running() || !failure_.ok() || !torn_.ok())
    return then();
  step_.digest_values(deadline,
                      [this, then = std::move(then)](const Status& status, std::vector<uint64_t> digests) {
                        if (!status.ok()) {
                          log_->warning("dsgd_close has not compared the values: " + status.message());
                        } else if (failure_.ok()) {
                          last_digests_ = std::move(digests);
                          compare_goodbyes();
                        }
                        then();
                      });
}

void Engine::compare_goodbyes() {
  if (last_digests_.empty()) return;
  std::map<int32_t, std::vector<uint64_t>> digests = {{rank(), last_digests_}};
  for (const auto& [other, goodbye] : goodbyes_) {
    if (goodbye.steps == next_step_) digests[other] = goodbye.digests;
  }
  // Further goodbyes may show that another rank is the one that differs.
  divergence_ = find_divergence(model_, digests, "dsgd_close after step " + std::to_string(next_step_ - 1));
}

void Engine::on_goodbye(int32_t rank, uint64_t steps, std::vector<uint64_t> digests) {
  if (digests.empty() || !started_) return;
  goodbyes_[rank] = {steps, std::move(digests)};
  compare_goodbyes();
}

uint64_t Engine::close(const Status& cause) {
  const Status closed =
      cause.ok() ? Status(Code::kClosed, "the session was closed while this operation was in flight") : cause;
  if (failure_.ok()) failure_ = closed;
  cause.ok() ? step_.fail(closed) : step_.abort(cause);
  // Steps go on without this worker if its start and all its steps have succeeded. step_.fail() above has
  // marked a step in flight as failed.
  const uint64_t departure_call = started_ && torn_.ok() && !last_step_failed_ ? next_call() : 0;
  if (shards_) shards_->resume();
  end_waits(closed);
  if (mesh_) mesh_->close(cause, next_step_, last_digests_, departure_call);
  return departure_call;
}

void Engine::on_peer_failure(int32_t rank, const Status& why) {
  if (enter_) return;  // a learner outside of any view: a failing peer does not keep it from entering one
  // A mismatch with a worker that has joined the running job is its own.
  const bool of_one = options_.views_change ? !concerns_all_workers(why.code()) ||
                                                  (why.code() == Code::kMismatch && has_joined_later(rank))
                                            : why.code() == Code::kWorkerLost;
  if (!of_one) return fail(why, true);
  // No other worker has noticed damaged data, so the head has to be told.
  const bool corrupted = options_.views_change && why.code() == Code::kCorrupted;
  if (!mesh_->peers.is_leaving(rank)) return await_verdict(why, corrupted ? rank : -1, why);
  // Some of its data is lost. The head does not judge workers that have left, but may begin a new view.
  options_.views_change ? await_verdict(why, rank, why) : fail(why, true);
}

void Engine::on_peer_unreachable(int32_t rank, const Status& error, const Status& network_error,
                                 bool silent) {
  if (enter_) return;
  await_verdict(error, rank, network_error, silent);
}

// Waits for the head's verdict: two workers that cannot reach each other would each name the other, but the
// head has both reports, and all workers get its verdict. `peer` is -1 if another worker has found the loss.
// `silent`: as in on_peer_unreachable().
void Engine::await_verdict(const Status& error, int32_t peer, const Status& network_error, bool silent) {
  if (!failure_.ok()) return;
  if (!on_loss_ || !on_loss_(peer, network_error, silent)) return fail(error, true);
  fail_without_verdict(error, peer, silent, loop_.now());
}

// Fails the session when the verdict is due and has not come. That time becomes later while the head is lost.
void Engine::fail_without_verdict(const Status& error, int32_t peer, bool silent, transport::Time reported) {
  loop_.schedule(verdict_due_(reported),
                 [this, error, peer, silent, reported, view = view(), alive = std::weak_ptr(alive_)] {
                   if (alive.expired() || !failure_.ok() || view != this->view()) return;
                   if (verdict_due_(reported) > loop_.now())
                     return fail_without_verdict(error, peer, silent, reported);
                   // A head that was started again does not know of a cut that is over.
                   if (silent && !mesh_->is_silent(peer)) return;
                   // If the peer has left, Peers has ended what waits for it.
                   if (options_.views_change || !mesh_->peers.is_leaving(peer)) fail(error, true);
                 });
}

// Warns once for each departed worker that a step has run without it.
void Engine::warn_of_departed(uint64_t call) {
  std::erase_if(departed_, [&](int32_t rank) {
    if (!mesh_->peers.left_before(rank, operation_number(call, 0))) return false;
    log_->warning("training goes on without " + mesh_->members().name(rank) +
                  ", which has closed its session; its model keeps the values that it had then; " +
                  kUnevenDataAdvice);
    return true;
  });
}

void Engine::on_peer_departed(int32_t rank) {
  log_->info(mesh_->members().name(rank) + " has closed its session");
  departed_.push_back(rank);
  if (last_step_ && !recovering_) ask_for_last_step();  // of those that are left
  objects_.peer_left(rank);
  on_source_left(rank);
  if (mesh_->peers.alone()) objects_.fail_gets(nobody_puts());
}

// The peer's steps have ended, so those of this worker end, too.
void Engine::on_given_up(int32_t rank, uint64_t call, const Status& cause) {
  if (step_.running() && step_.call() == call) return step_.fail(cause);
  if (call != last_step_call_ || !torn_.ok()) return;
  torn_ = Status(Code::kTorn, "step " + std::to_string(next_step_ - 1) + " has succeeded here, but " +
                                  mesh_->members().name(rank) + " gave it up: " + cause.message() +
                                  "; load a checkpoint")
              .with_rank(rank, mesh_->members().host_of(rank));
  log_->error(torn_.message());
  log_->report_failure(rank);
  end_wait_for_last_step();  // that peer never completes it
  if (step_.running()) step_.fail(torn_);
}

void Engine::on_object(transport::Message message, transport::Responder respond) {
  if (!failure_.ok()) return respond(failure_);
  if (const auto* put = std::get_if<transport::PutObject>(&message); put && put->again) {
    // This worker has joined. If it cannot take an object of the job, it fails alone. One that is not found
    // was deleted meanwhile.
    const auto failed = in_view([this](const Status& why) { fail(why, false); });
    respond = [respond = std::move(respond), failed](const Result<transport::Message>& answer) {
      const Status why = answer.status();
      respond(answer);
      if (!why.ok() && !is_break(why) && why.code() != Code::kNotFound && why.code() != Code::kViewChanged)
        failed(why);
    };
  }
  objects_.receive(peers(), {deadline(), deadline_setting()}, std::move(message), respond);
}

}  // namespace dsgd
