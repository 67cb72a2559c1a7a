// Start, change of strategy, and the step as the host drives it.

#include <algorithm>
#include <cmath>

#include "core/session/arguments.h"
#include "core/session/session_impl.h"

namespace dsgd {

Status Session::set_strategy(const std::string& name, const std::string& options) {
  auto operation = set_strategy(name, options, Mode::kWait);
  return operation.ok() ? operation.value()->status() : operation.status();
}

Result<std::shared_ptr<Operation>> Session::set_strategy(const std::string& name, const std::string& options,
                                                         Mode mode, const CallOptions& options_of_call) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  auto strategy = impl_->strategies.parse(name, options, impl_->config.text("algorithm"));
  if (!strategy.ok())
    return impl_->started ? impl_->refused("dsgd_strategy_set", strategy.status()) : strategy.status();
  Status status = impl_->writable("dsgd_strategy_set");
  if (!status.ok()) return status;
  if (!impl_->started) {
    impl_->strategy = strategy.value();
    const auto operation = std::make_shared<Operation>(impl_->next_id.fetch_add(1), "dsgd_strategy_set",
                                                       false, options_of_call.user_data);
    mode == Mode::kWait ? operation->end({})
                        : impl_->launch(operation, mode, [](auto done) { done(Status()); });
    return operation;
  }
  return impl_->launch_change(
      "dsgd_strategy_set", mode, options_of_call,
      [spec = strategy.value(), options_of_call](Engine& engine, auto done) {
        engine.set_strategy(spec, done, options_of_call);
      },
      [this, spec = strategy.value()] { impl_->strategy = spec; });
}

// All workers make such a call together, so the others are told of a mistake on this one, rather than kept
// waiting.
Status Session::Impl::refused(const char* call, Status why) {
  loop().post([this, call, why] { engine().refuse(call, why); });
  return why;
}

Status Session::Impl::check_model() const {
  if (model.replicas.empty())
    return Status(Code::kState, "there is no replica; call dsgd_replica_add before dsgd_start");
  for (const auto& parameter : model.parameters) {
    for (size_t r = 0; r < model.replicas.size(); ++r) {
      if (model.bindings[r][parameter->index].bound) continue;
      return Status(Code::kState, "parameter '" + parameter->name + "' has no buffers in replica " +
                                      std::to_string(r) + "; call dsgd_bind or dsgd_alloc before dsgd_start")
          .with_parameter(parameter->name);
    }
  }
  return check_buffers_apart();
}

Status Session::start() {
  auto operation = start(Mode::kWait);
  return operation.ok() ? operation.value()->status() : operation.status();
}

Result<std::shared_ptr<Operation>> Session::start(Mode mode, const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  if (Status status = impl_->writable("dsgd_start"); !status.ok()) return status;
  {
    std::lock_guard lock(impl_->model_mutex);
    if (impl_->started)
      return Status(Code::kState, "dsgd_start was called before; a session is started once");
    if (Status whole = impl_->check_model(); !whole.ok())
      return impl_->refused("dsgd_start", std::move(whole));
  }
  return impl_->launch_change(
      "dsgd_start", mode, options,
      [this, options](Engine& engine, auto done) { engine.start(impl_->strategy, done, options); },
      [this] {
        impl_->started = true;
        if (const std::string& devices = impl_->config.text("devices");
            !impl_->devices_taken && devices != "cpu") {
          impl_->log->warning(
              "devices = '" + devices +
              "' is unused: it applies only to replicas that are added without a device name");
        }
      });
}

// ---- marks; step_mutex is held

void Session::Impl::planned(const Status& status, const std::function<void(const Status&)>& done) {
  if (status.ok()) {
    std::lock_guard lock(step_mutex);
    if (marks.empty()) marks.assign(model.replicas.size(), std::vector<char>(model.parameters.size(), 0));
    buckets_of = engine().steps().buckets_of();
    incomplete.resize(engine().steps().plan().size());
    untold.reserve(model.parameters.size());
    unmarked.resize(model.parameters.size());
    count_marks();
  }
  done(status);
}

void Session::Impl::count_marks() {
  std::fill(incomplete.begin(), incomplete.end(), 0);
  for (size_t p = 0; p < unmarked.size(); ++p) {
    unmarked[p] = static_cast<uint32_t>(std::count_if(
        marks.begin(), marks.end(), [p](const auto& of_replica) { return of_replica[p] == 0; }));
    if (unmarked[p] == 0) continue;
    for (uint32_t bucket : buckets_of[p]) ++incomplete[bucket];
  }
}

void Session::Impl::clear_marks(bool absences) {
  for (auto& of_replica : marks) {
    for (char& mark : of_replica) {
      if (absences || mark == kReady) mark = kNotMarked;
    }
  }
  untold.clear();
  count_marks();
  for (StreamMarks& of_replica : model.stream_marks) {
    std::fill(of_replica.marked.begin(), of_replica.marked.end(), 0);
    for (StreamMarks::OfBucket& of_bucket : of_replica.buckets) of_bucket.streams.clear();
  }
  std::lock_guard lock(model.streams_mutex);
  for (StreamMarks& of_replica : model.stream_marks) of_replica.streams.clear();
}

namespace {
std::string gradient_text(const Parameter& parameter, size_t replica) {
  return "the gradient of parameter '" + parameter.name + "' in replica " + std::to_string(replica);
}
}  // namespace

// The step reads the gradients of a bucket after all work that a stream has when the bucket is complete. So
// one event serves all gradients of the bucket in a stream. The event is also recorded now: an invalid stream
// is reported to the caller and not remembered.
Status Session::Impl::note_stream(const Replica& replica, const Parameter& parameter, void* stream) {
  StreamMarks& of_replica = model.stream_marks[replica.index];
  if (device::is_default_stream(stream)) stream = nullptr;
  for (uint32_t bucket : buckets_of[parameter.index]) {
    auto& [streams, events] = of_replica.buckets[bucket];
    if (std::any_of(streams.begin(), streams.end(),
                    [stream](const auto& known) { return known.stream == stream; }))
      continue;
    if (events.size() == streams.size()) {
      auto made = replica.device->new_event();
      if (!made.ok()) return made.status();
      events.push_back(std::move(made).value());
    }
    if (Status status = replica.device->record_stream(*events[streams.size()], stream); !status.ok()) {
      return Status(status.code(), "the stream given for " + gradient_text(parameter, replica.index) +
                                       " cannot be used: " + status.message())
          .with_parameter(parameter.name);
    }
    streams.push_back({stream, parameter.index});
  }
  if (!stream) return {};  // the default stream always sees the new values
  std::lock_guard lock(model.streams_mutex);
  auto& streams = of_replica.streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  return {};
}

// The stream was valid when marked, so a failure here is fatal: the session fails.
Status Session::Impl::record_streams(uint32_t bucket) {
  for (size_t r = 0; r < model.replicas.size(); ++r) {
    if (model.replicas[r]->device->is_host()) continue;
    const StreamMarks::OfBucket& of_bucket = model.stream_marks[r].buckets[bucket];
    for (size_t s = 0; s < of_bucket.streams.size(); ++s) {
      const auto [stream, parameter] = of_bucket.streams[s];
      Status status = model.replicas[r]->device->record_stream(*of_bucket.marks[s], stream);
      if (status.ok()) continue;
      const Status why =
          Status(status.code(), "the stream in which " + gradient_text(*model.parameters[parameter], r) +
                                    " was marked can no longer be used; keep it until the step has ended: " +
                                    status.message())
              .with_parameter(model.parameters[parameter]->name);
      loop().post([this, why] { engine().stream_failed(why); });
      return why;
    }
  }
  return {};
}

// Marks all of them, or none if one cannot be marked.
Status Session::Impl::mark(const Replica& replica, std::span<Parameter* const> parameters, bool absent,
                           void* stream) {
  const size_t untold_before = untold.size();
  size_t marked = 0;
  const auto undo = [&] {
    for (; marked > 0; --marked) {
      const uint32_t index = parameters[marked - 1]->index;
      marks[replica.index][index] = kNotMarked;
      if (!replica.device->is_host()) model.stream_marks[replica.index].marked[index] = 0;
    }
    untold.resize(untold_before);
    count_marks();
  };
  try {
    Status status = mark_each(replica, parameters, absent, stream, &marked);
    if (!status.ok()) undo();
    return status;
  } catch (const std::bad_alloc&) {
    undo();
    throw;
  }
}

Status Session::Impl::mark_each(const Replica& replica, std::span<Parameter* const> parameters, bool absent,
                                void* stream, size_t* marked) {
  for (const Parameter* parameter : parameters) {
    char& mark = marks[replica.index][parameter->index];
    if (mark != kNotMarked) {
      return Status(Code::kState, gradient_text(*parameter, replica.index) + " was marked " +
                                      (mark == kAbsent ? "absent" : "ready") +
                                      " before in this step; mark each once")
          .with_parameter(parameter->name);
    }
    mark = absent ? kAbsent : kReady;
    ++*marked;
  }
  if (!replica.device->is_host()) {
    for (const Parameter* parameter : parameters) {
      if (Status status = note_stream(replica, *parameter, stream); !status.ok()) return status;
    }
  }
  std::vector<uint32_t> ended;  // buckets; only for these must the engine be woken
  for (const Parameter* parameter : parameters) {
    if (--unmarked[parameter->index] > 0) continue;
    if (in_step) untold.push_back(parameter->index);
    for (uint32_t bucket : buckets_of[parameter->index]) {
      if (--incomplete[bucket] == 0 && in_step) ended.push_back(bucket);
    }
  }
  for (uint32_t bucket : ended) {
    if (Status status = record_streams(bucket); !status.ok()) return status;
  }
  if (!replica.device->is_host()) {  // set before the engine is told, since the engine reads it from then on
    for (const Parameter* parameter : parameters)
      model.stream_marks[replica.index].marked[parameter->index] = 1;
  }
  if (ended.empty()) return {};
  tell(untold);
  untold.clear();
  return {};
}

UnmarkedGradients Session::Impl::unmarked_gradients() const {
  constexpr size_t kNamed = 3;
  UnmarkedGradients found;
  size_t count = 0;
  for (size_t p = 0; p < unmarked.size(); ++p) {
    for (size_t r = 0; r < marks.size(); ++r) {
      if (buckets_of[p].empty() || marks[r][p] != kNotMarked || ++count > kNamed) continue;
      const std::string& name = model.parameters[p]->name;
      if (count == 1) found.parameter = name;
      found.text += (count == 1 ? "'" : ", '") + name + "'" +
                    (marks.size() > 1 ? " of replica " + std::to_string(r) : "");
    }
  }
  if (count == 0) return found;
  if (count > kNamed) found.text += " and " + std::to_string(count - kNamed) + " more";
  found.text = (count == 1 ? "gradient " : "gradients ") + found.text +
               (count == 1 ? " was not marked" : " were not marked");
  return found;
}

// The session is closing, so nothing can be marked any more: the step fails on all workers.
void Session::Impl::leave_unmarked_step() {
  std::lock_guard lock(step_mutex);
  if (!in_step) return;
  const UnmarkedGradients unmarked = unmarked_gradients();
  if (unmarked.empty()) return;
  loop().post([this, unmarked] { engine().leave_step(unmarked); });
}

Status Session::Impl::no_step() const {
  if (!step_failure.ok()) return step_failure;
  return Status(Code::kState, "no step is in flight; call dsgd_step_begin first");
}

Status Session::Impl::flush() {
  for (uint32_t bucket = 0; bucket < incomplete.size(); ++bucket) {
    if (incomplete[bucket] == 0) continue;
    if (Status status = record_streams(bucket); !status.ok()) return status;
  }
  std::vector<uint32_t> rest = untold;
  for (uint32_t p = 0; p < unmarked.size(); ++p) {
    if (unmarked[p] > 0) rest.push_back(p);
  }
  if (!rest.empty()) tell(std::move(rest));
  untold.clear();
  mark_rest();
  return {};
}

// Parameters whose gradients are all marked.
void Session::Impl::tell(std::vector<uint32_t> complete) {
  Marked marked{{}, std::move(complete)};
  for (uint32_t p : marked.complete) {
    for (uint32_t r = 0; r < marks.size(); ++r) {
      if (marks[r][p] == kAbsent) marked.absent.emplace_back(r, p);
    }
  }
  loop().post([this, marked = std::move(marked)] { tell_engine(marked); });
}

void Session::Impl::mark_rest() {
  for (uint32_t p = 0; p < unmarked.size(); ++p) {
    for (auto& of_replica : marks) of_replica[p] = of_replica[p] ? of_replica[p] : 1;
    unmarked[p] = 0;
  }
  std::fill(incomplete.begin(), incomplete.end(), 0);
}

void Session::Impl::tell_engine(const Marked& marked) {
  for (const auto& [replica, parameter] : marked.absent) engine().mark_absent(replica, parameter);
  for (uint32_t parameter : marked.complete) engine().parameter_ready(parameter);
}

// ---- the step

Result<std::vector<double>> Session::Impl::split_weight(double weight) {
  Status checked = check_weight(weight);
  if (!checked.ok()) return checked;
  const size_t replicas = model.replicas.size();
  size_t own = 0;
  double sum = 0;
  for (double w : model.weights) {
    if (w >= 0) ++own, sum += w;
  }
  if (own == 0 || weight == 0) return std::vector<double>(replicas, weight / static_cast<double>(replicas));
  if (own < replicas) {
    return Status(Code::kInvalidArgument,
                  std::to_string(own) + " of " + std::to_string(replicas) +
                      " replicas have a weight of their own; set dsgd_replica_weight for all of "
                      "them or for none");
  }
  if (std::abs(sum - weight) > 1e-9 * std::max(sum, weight)) {
    return Status(Code::kInvalidArgument,
                  "the step's weight " + number_text(weight) + " is not the sum of the replicas' weights, " +
                      number_text(sum) + "; pass their sum, or 0 to contribute nothing");
  }
  return model.weights;
}

std::string Session::Impl::next_step_name() {
  std::lock_guard lock(step_mutex);
  return "step " + std::to_string(next_step);
}

Status Session::Impl::begin_step(double weight, bool blocking, const std::shared_ptr<Operation>& operation,
                                 const CallOptions& options) {
  if (!started) return Status(Code::kState, "a step needs dsgd_start first");
  std::unique_lock lock(step_mutex);
  if (in_step) return Status(Code::kState, "a step is in flight already; wait for its end first");
  if (Status status = unchanging("a step"); !status.ok()) return status;
  if (closing) return Status(Code::kClosed, "the session is closing, so no step can begin");
  auto weights = split_weight(weight);
  if (!weights.ok()) return weights.status();
  // Absences may have been marked before the step began.
  std::vector<std::vector<char>> absent(marks.size(), std::vector<char>(model.parameters.size(), 0));
  for (size_t r = 0; r < marks.size(); ++r) {
    for (size_t p = 0; p < marks[r].size(); ++p) absent[r][p] = marks[r][p] == kAbsent;
  }
  // Record the streams of buckets that are complete already; mark() records those of the others.
  for (uint32_t bucket = 0; bucket < incomplete.size() && !blocking; ++bucket) {
    if (incomplete[bucket] > 0) continue;
    if (Status status = record_streams(bucket); !status.ok()) return status;
  }
  Marked marked;
  untold.clear();
  for (uint32_t p = 0; p < unmarked.size(); ++p) {
    if (blocking || unmarked[p] == 0) marked.complete.push_back(p);
  }
  in_step = true;
  step_failure = {};
  step_operation = operation;
  if (blocking) {
    mark_rest();
    lock.unlock();
  }
  // An asynchronous step keeps the lock, so that marks of other threads are posted after the beginning of the
  // step.
  try {
    return post_step(operation, blocking, std::move(weights).value(), std::move(absent), std::move(marked),
                     options);
  } catch (const std::bad_alloc&) {  // the step has not begun
    if (blocking) lock.lock();
    in_step = false;
    step_operation.reset();
    clear_marks(false);
    throw;
  }
}

Status Session::Impl::post_step(const std::shared_ptr<Operation>& operation, bool blocking,
                                std::vector<double> weights, std::vector<std::vector<char>> absent,
                                Marked marked, const CallOptions& options) {
  auto task = [this, operation, blocking, options, weights = std::move(weights), absent = std::move(absent),
               marked = std::move(marked)] {
    if (operation->done()) return;  // ended by end_lost(); its caller has returned
    const bool stopping = stop.exchange(false);
    operation->set_waiting(waiting_for_next_call());
    engine().step_begin(
        weights, absent, stopping, blocking,
        [this, operation, blocking, stopping](const Status& status, const StepResult& result) {
          if (status.code() == Code::kMismatch && stopping) stop = true;  // no worker has seen it
          step_ended(operation, status, result, blocking);
        },
        options);
    tell_engine(marked);
  };
  if (blocking) {
    run_task(operation, std::move(task));
    return operation->status();
  }
  post_async(operation, std::move(task));
  return {};
}

void Session::Impl::step_ended(const std::shared_ptr<Operation>& operation, const Status& status,
                               const StepResult& result, bool blocking) {
  {
    std::lock_guard lock(step_mutex);
    in_step = false;
    step_failure = status;
    torn = engine().torn();
    if (status.ok()) ++next_step;
    step_operation.reset();
    clear_marks(status.code() != Code::kMismatch);  // after a mismatch the workers may repeat the step
  }
  operation->mutable_step_result() = result;
  if (blocking) {
    operation->end(status);
  } else {
    end_async(operation, status);
  }
}

Status Session::step(double weight, StepResult* result) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  auto operation = std::make_shared<Operation>(0, impl_->next_step_name(), true);
  Status status = impl_->begin_step(weight, true, operation);
  if (status.ok() && result) *result = operation->step_result();
  return status;
}

Result<std::shared_ptr<Operation>> Session::step_begin(double weight, const CallOptions& options) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  auto operation = std::make_shared<Operation>(impl_->next_id.fetch_add(1), impl_->next_step_name(), true,
                                               options.user_data);
  Status status = impl_->begin_step(weight, false, operation, options);
  if (!status.ok()) return status;
  return operation;
}

namespace {
Status no_streams(const Replica& replica) {
  return Status(Code::kInvalidArgument, "replica " + std::to_string(replica.index) +
                                            " is on the cpu, which has no streams; call without a stream");
}

Status check_trained(const Parameter& parameter) {
  if (parameter.trained) return {};
  return Status(Code::kInvalidArgument, "parameter '" + parameter.name + "' is untrained: it has no gradient")
      .with_parameter(parameter.name);
}
}  // namespace

Status Session::gradients_ready(Replica* replica, std::span<Parameter* const> parameters, void* stream) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  if (parameters.empty()) return {};
  const std::string& first = parameters.front()->name;
  if (stream && replica->device->is_host()) return no_streams(*replica).with_parameter(first);
  for (const Parameter* parameter : parameters) {
    if (Status status = check_trained(*parameter); !status.ok()) return status;
  }
  std::lock_guard lock(impl_->step_mutex);
  if (!impl_->in_step) {
    Status why = impl_->no_step();
    if (why.code() != Code::kState) return why;
    return Status(Code::kState,
                  "the gradient of parameter '" + first + "' cannot be marked: " + why.message())
        .with_parameter(first);
  }
  return impl_->mark(*replica, parameters, false, stream);
}

// The default stream comes after new values, so what waits for it does.
Status Session::stream_wait(Replica* replica, void* stream) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  device::Device& device = *replica->device;
  if (device.is_host()) return stream ? no_streams(*replica) : Status();
  if (!impl_->started) return {};  // there are no new values, and replicas may be added
  std::lock_guard lock(impl_->step_mutex);
  auto& mark = impl_->model.stream_marks[replica->index].values;
  if (!mark) {
    auto made = device.new_event();
    if (!made.ok()) return made.status();
    mark = std::move(made).value();
  }
  Status status = device.record_stream(*mark, nullptr);
  return status.ok() ? device.stream_wait(stream, *mark) : status;
}

Status Session::gradient_absent(Replica* replica, Parameter* parameter) {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  if (Status status = check_trained(*parameter); !status.ok()) return status;
  std::lock_guard lock(impl_->step_mutex);
  if (!impl_->started) return Status(Code::kState, "dsgd_gradient_absent needs dsgd_start first");
  // After a mismatch the host may repeat the step; the mark applies to the repetition.
  const Status& failed = impl_->step_failure;
  if (!impl_->in_step && !failed.ok() && failed.code() != Code::kMismatch) return failed;
  return impl_->mark(*replica, {&parameter, 1}, true, nullptr);
}

Status Session::step_flush() {
  Impl::Call call(*impl_);
  if (!call.status().ok()) return call.status();
  std::lock_guard lock(impl_->step_mutex);
  if (impl_->in_step) return impl_->flush();
  if (impl_->step_failure.ok() && impl_->next_step > 0) return {};  // its last mark has ended the step
  return impl_->no_step();
}

// Not an Impl::Call, which takes a lock: the signal may have come while this thread holds it.
Code Session::stop_request() noexcept {
  if (const Code life = impl_->environment->life(); life != Code::kOk) return life;
  if (impl_->closing) return Code::kClosed;
  impl_->stop = true;
  return Code::kOk;
}

}  // namespace dsgd
