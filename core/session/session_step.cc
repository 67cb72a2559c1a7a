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
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  auto strategy = impl_->find_strategy(name, options);
  if (!strategy.ok())
    return impl_->started ? impl_->reject_call("dsgd_strategy_set", strategy.status()) : strategy.status();
  DSGD_RETURN_IF_ERROR(impl_->check_model_writable("dsgd_strategy_set"));
  if (!impl_->started) {
    impl_->strategy = strategy.value();
    const auto operation = impl_->new_operation("dsgd_strategy_set", options_of_call);
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

Result<StrategySpec> Session::Impl::find_strategy(const std::string& name, const std::string& options) const {
  auto strategy = strategies.parse(name, options, config.text("algorithm"),
                                   static_cast<int32_t>(config.integer("copies")));
  const std::string& wire = config.text("wire");
  if (!strategy.ok() || !strategy.value().algorithm->schedules || wire == "fp32") return strategy;
  return Status(Code::kInvalidArgument,
                "algorithm '" + strategy.value().algorithm->name + "' cannot be used with wire = " + wire +
                    ": it sends partial sums, which would be rounded at every hop; use auto or direct, or "
                    "set wire to fp32")
      .with_parameter("algorithm");
}

// All workers make such a call together. Reports the rejected call to the other workers, so that they do not
// wait.
Status Session::Impl::reject_call(const char* call, Status why) {
  loop().post([this, call, why] { engine().reject_call(call, why); });
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
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(impl_->check_model_writable("dsgd_start"));
  {
    std::lock_guard lock(impl_->model_mutex);
    if (impl_->started)
      return Status(Code::kState, "dsgd_start was called before; a session is started once");
    if (Status whole = impl_->check_model(); !whole.ok())
      return impl_->reject_call("dsgd_start", std::move(whole));
  }
  return impl_->launch_change(
      "dsgd_start", mode, options,
      [this, options](Engine& engine, auto done) { engine.start(impl_->strategy, done, options); },
      [this] {
        impl_->started = true;
        {
          std::lock_guard lock(impl_->step_mutex);
          impl_->next_step =
              static_cast<int64_t>(impl_->engine().next_step());  // of a job that it has joined
        }
        if (const std::string& devices = impl_->config.text("devices");
            !impl_->devices_taken && devices != "cpu") {
          impl_->log->warning(
              "devices = '" + devices +
              "' is unused: it applies only to replicas that are added without a device name");
        }
      });
}

// ---- marks

Status Session::Impl::mark(const Replica& replica, std::span<Parameter* const> parameters, bool absent,
                           void* stream) {
  std::vector<uint32_t> complete;
  Status status = marks().mark(replica, parameters, absent, stream, &complete);
  if (!status.ok() || !in_step() || complete.empty()) return status;
  return tell_ready(std::move(complete), [&] { marks().unmark(replica, parameters); });
}

Status Session::Impl::tell_ready(std::vector<uint32_t> buckets, const std::function<void()>& undo) {
  if (Status status = record_streams(buckets); !status.ok()) {
    if (status.code() == Code::kState) undo();
    return status;
  }
  loop().post([this, buckets = std::move(buckets)] { engine().buckets_ready(buckets); });
  return {};
}

Status Session::Impl::record_streams(const std::vector<uint32_t>& buckets) {
  for (uint32_t bucket : buckets) {
    Status status = marks().record_streams(bucket);
    if (status.ok()) continue;
    // Code::kState: the host captures a graph, and can make the call again afterwards.
    if (status.code() != Code::kState) loop().post([this, status] { engine().stream_failed(status); });
    return status;
  }
  return {};
}

bool Session::Impl::in_unmarked_step() { return in_step() && !marks().unmarked().empty(); }

// The session is closing, so nothing can be marked any more: the step fails on all workers. The wait for the
// last step comes first: a step that is left tears the session.
void Session::Impl::leave_unmarked_step(bool may_wait) {
  std::unique_lock lock(step_mutex);
  if (!in_unmarked_step()) return;
  if (may_wait) {
    lock.unlock();
    await_last_step();
    lock.lock();
    if (!in_unmarked_step()) return;
  }
  loop().post([this, unmarked = marks().unmarked()] { engine().leave_step(unmarked); });
}

Status Session::Impl::no_step_error() const {
  if (!step_failure.ok()) return step_failure;
  return Status(Code::kState, "no step is in flight; call dsgd_step_begin first");
}

// ---- the step

Result<std::vector<double>> Session::Impl::split_weight(double weight) {
  DSGD_RETURN_IF_ERROR(check_weight(weight));
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
  if (in_step()) return Status(Code::kState, "a step is in flight already; wait for its end first");
  DSGD_RETURN_IF_ERROR(check_not_changing("a step"));
  if (is_closing()) return Status(Code::kClosed, "the session is closing, so no step can begin");
  if (last_save && !last_save->model_copied())
    return Status(Code::kState,
                  "dsgd_checkpoint_save has not copied the model yet; wait until it has returned");
  last_save.reset();
  auto weights = split_weight(weight);
  if (!weights.ok()) return weights.status();
  if (views_change) shards.begin_step();
  if (blocking) marks().mark_rest();
  std::vector<uint32_t> ready = marks().complete_buckets();  // absences may have been marked before
  if (!blocking) DSGD_RETURN_IF_ERROR(record_streams(ready));
  step_begun = true;
  step_failure = {};
  step_operation = operation;
  if (blocking) lock.unlock();
  // An asynchronous step keeps the lock, so that marks of other threads are posted after the beginning of the
  // step.
  auto task = [this, operation, blocking, options, weights = std::move(weights).value(),
               ready = std::move(ready)] {
    if (operation->done()) return;  // ended by end_left_open(); its caller has returned
    const bool stopping = stop.exchange(false);
    operation->set_waiting(waiting_for_next_call());
    engine().step_begin(
        weights, stopping, blocking,
        [this, operation, blocking, stopping](const Status& status, const StepResult& result) {
          const bool no_result = status.code() == Code::kMismatch || status.code() == Code::kNonFinite;
          if (no_result && stopping) stop = true;  // the next step reports it
          step_ended(operation, status, result, blocking);
        },
        options);
    engine().buckets_ready(ready);
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
    step_failure = status;
    torn = engine().torn();
    if (status.ok()) ++next_step;
    step_operation.reset();
    marks().clear(status.code() != Code::kMismatch);  // after a mismatch the workers may repeat the step
  }
  report(status);
  operation->mutable_step_result() = result;
  if (blocking) {
    operation->end(status);
  } else {
    end_async(operation, status);
  }
}

Status Session::step(double weight, StepResult* result) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  auto operation = std::make_shared<Operation>(0, impl_->next_step_name(), true);
  Status status = impl_->begin_step(weight, true, operation);
  if (status.ok() && result) *result = operation->step_result();
  return status;
}

Result<std::shared_ptr<Operation>> Session::step_begin(double weight, const CallOptions& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  auto operation = std::make_shared<Operation>(impl_->next_id.fetch_add(1), impl_->next_step_name(), true,
                                               options.user_data);
  DSGD_RETURN_IF_ERROR(impl_->begin_step(weight, false, operation, options));
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
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  if (parameters.empty()) return {};
  const std::string& first = parameters.front()->name;
  if (stream && replica->device->is_host()) return no_streams(*replica).with_parameter(first);
  for (const Parameter* parameter : parameters) DSGD_RETURN_IF_ERROR(check_trained(*parameter));
  std::lock_guard lock(impl_->step_mutex);
  if (!impl_->in_step()) {
    Status why = impl_->no_step_error();
    if (why.code() != Code::kState) return why;
    return Status(Code::kState,
                  "the gradient of parameter '" + first + "' cannot be marked: " + why.message())
        .with_parameter(first);
  }
  return impl_->mark(*replica, parameters, false, stream);
}

// The default stream waits for new values, so waiting for it is enough.
Status Session::stream_wait(Replica* replica, void* stream) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  device::Device& device = *replica->device;
  if (device.is_host()) return stream ? no_streams(*replica) : Status();
  if (!impl_->started) return {};  // there are no new values, and replicas may be added
  return impl_->marks().order_after_values(*replica, stream);
}

Status Session::gradient_absent(Replica* replica, Parameter* parameter) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(check_trained(*parameter));
  if (impl_->config.flag("early_update")) {
    return Status(Code::kState,
                  "parameter '" + parameter->name +
                      "': no gradient may be absent with early_update = 1; set early_update = 0 "
                      "on all workers, or give a gradient of zeros")
        .with_parameter(parameter->name);
  }
  std::lock_guard lock(impl_->step_mutex);
  if (!impl_->started) return Status(Code::kState, "dsgd_gradient_absent needs dsgd_start first");
  // After a mismatch, or gradients that were not finite, the session goes on; the mark applies to the next
  // step.
  const Status& failed = impl_->step_failure;
  const bool goes_on = failed.ok() || failed.code() == Code::kMismatch || failed.code() == Code::kNonFinite;
  if (!impl_->in_step() && !goes_on) return failed;
  return impl_->mark(*replica, {&parameter, 1}, true, nullptr);
}

Status Session::step_flush() {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  std::lock_guard lock(impl_->step_mutex);
  if (impl_->in_step()) {
    std::vector<uint32_t> rest = impl_->marks().mark_rest();
    return rest.empty() ? Status()
                        : impl_->tell_ready(std::move(rest), [this] { impl_->marks().unmark_rest(); });
  }
  if (impl_->step_failure.ok() && impl_->step_begun) return {};  // its last mark has ended the step
  return impl_->no_step_error();
}

// Not an Impl::HostCall, which takes a lock: the signal may have come while this thread holds it.
Code Session::stop_request() noexcept {
  if (const Code life = impl_->environment->life(); life != Code::kOk) return life;
  if (impl_->is_closing()) return Code::kClosed;
  impl_->stop = true;
  return Code::kOk;
}

}  // namespace dsgd
