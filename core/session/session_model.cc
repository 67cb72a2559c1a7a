// Parameters, replicas, buffers, optimizer settings.

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/text.h"
#include "core/checkpoint/safetensors.h"
#include "core/reduce/value_digest.h"
#include "core/session/arguments.h"
#include "core/session/session_impl.h"
#include "transport/base/utf8.h"

namespace dsgd {

Status Session::Impl::check_model_writable(const char* what) {
  std::lock_guard lock(step_mutex);
  return check_not_in_step(what);
}

Status Session::Impl::check_not_in_step(const char* what) const {
  if (!in_step()) return check_not_changing(what);
  return Status(Code::kState,
                std::string(what) + " is called while a step is in flight; wait for its end first");
}

Status Session::Impl::check_not_changing(const char* what) const {
  if (!changing) return {};
  return Status(Code::kState, std::string(what) + " is called while " + changing +
                                  " is in progress; wait for its op first");
}

Result<Parameter*> Session::add_parameter(const std::string& name, DType dtype,
                                          std::span<const int64_t> shape, bool trained) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(impl_->check_model_writable("dsgd_parameter_add"));
  std::lock_guard lock(impl_->model_mutex);
  Model& model = impl_->model;
  auto bad = [&](Code code, const std::string& text) {
    return Status(code, "parameter '" + printable(name) + "': " + text).with_parameter(name);
  };
  if (impl_->started) return bad(Code::kState, "the session has started; add parameters before dsgd_start");
  DSGD_RETURN_IF_ERROR(check_name("parameter", name));
  if (name.find(' ') != name.npos || has_control_character(name)) {
    return bad(Code::kInvalidArgument, "the name has a space or control character; give one without");
  }
  if (impl_->parameter_names.count(name) > 0)
    return bad(Code::kExists, "the name is taken; give each parameter one of its own");
  if (trained && !is_floating(dtype)) {
    return bad(Code::kInvalidArgument,
               std::string("trained parameters are float32, float64, float16 or bfloat16, not ") +
                   dtype_name(dtype) + "; add it with DSGD_UNTRAINED");
  }
  if (shape.size() > kMaxDimensions)
    return Status(Code::kInvalidArgument, "dsgd_parameter_add: ndim is " + std::to_string(shape.size()) +
                                              "; a parameter has at most " + std::to_string(kMaxDimensions) +
                                              " dimensions");
  for (int64_t dimension : shape) {
    if (dimension < 0) {
      return bad(Code::kInvalidArgument, "dimension " + std::to_string(dimension) + " is negative");
    }
  }
  uint64_t count = 0;
  if (!checkpoint::count_elements(shape, &count))
    return bad(Code::kInvalidArgument, "the shape has more than 2^46 elements");
  auto parameter = std::make_unique<Parameter>();
  parameter->index = static_cast<uint32_t>(model.parameters.size());
  parameter->name = name;
  parameter->dtype = dtype;
  parameter->shape.assign(shape.begin(), shape.end());
  parameter->count = count;
  parameter->trained = trained;
  model.parameters.push_back(std::move(parameter));
  model.settings.emplace_back();
  for (auto& bindings : model.bindings) bindings.emplace_back();
  impl_->parameter_names.insert(model.parameters.back()->name);
  return model.parameters.back().get();
}

namespace {
Status check_settings(const Parameter& parameter, const ParameterSettings& settings, double period,
                      bool reproducible) {
  const auto bad = [&](Code code, const std::string& text) {
    return Status(code, "parameter '" + parameter.name + "': " + text).with_parameter(parameter.name);
  };
  const ParameterSettings defaults;
  if (!parameter.trained && (settings.rate != defaults.rate || settings.decay != defaults.decay ||
                             settings.frozen != defaults.frozen)) {
    return bad(Code::kInvalidArgument,
               "rate, decay and frozen apply to trained parameters only; leave them out");
  }
  const UntrainedSync sync = settings.sync;
  if (period != std::floor(period))
    return bad(Code::kInvalidArgument,
               "sync_period = " + number_text(period) + " is not a number of steps; give a whole number");
  if (sync == UntrainedSync::kNone)
    return period == 1 ? Status() : bad(Code::kInvalidArgument, "sync_period needs sync=mean or sync=first");
  if (parameter.trained) {
    return bad(Code::kInvalidArgument, "sync applies to untrained parameters only; leave it out");
  }
  if (sync != UntrainedSync::kMean) return {};
  if (!is_floating(parameter.dtype)) {
    return bad(Code::kInvalidArgument, std::string("sync=mean needs a floating-point dtype, not ") +
                                           dtype_name(parameter.dtype) + "; use sync=first");
  }
  if (reproducible) {
    return bad(Code::kUnsupported,
               "sync=mean is not reproducible: its result depends on how replicas are split among workers, "
               "and reproducible=1 is set; use sync=first");
  }
  return {};
}
}  // namespace

Status Session::set_parameter(Parameter* parameter, const std::string& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  auto words = Options::parse(options, "parameter '" + parameter->name + "'");
  if (!words.ok()) return words.status();
  ParameterSettings settings = impl_->model.settings[parameter->index];
  constexpr double kMax = std::numeric_limits<double>::max();
  words->number("rate", &settings.rate, 0, kMax);
  words->number("decay", &settings.decay, 0, kMax);
  words->flag("frozen", &settings.frozen);
  std::string sync;
  words->choice("sync", &sync, {"none", "mean", "first"});
  if (!sync.empty())
    settings.sync = sync == "mean"    ? UntrainedSync::kMean
                    : sync == "first" ? UntrainedSync::kFirst
                                      : UntrainedSync::kNone;
  double period = settings.sync == UntrainedSync::kNone ? 1 : static_cast<double>(settings.sync_period);
  words->number("sync_period", &period, 1, 1e9);
  DSGD_RETURN_IF_ERROR(words->finish());
  settings.sync_period = static_cast<uint64_t>(period);
  DSGD_RETURN_IF_ERROR(check_settings(*parameter, settings, period, impl_->config.flag("reproducible")));
  DSGD_RETURN_IF_ERROR(impl_->check_model_writable("dsgd_parameter_set"));
  std::lock_guard lock(impl_->model_mutex);
  const auto swap = [&] { std::swap(impl_->model.settings[parameter->index], settings); };
  if (!impl_->started) {
    swap();
    return {};
  }
  return impl_->block([&](auto done) {  // the loop may read the settings for a worker that joins
    swap();
    const Status status = impl_->engine().replan();
    if (!status.ok()) swap();  // nothing has changed
    done(status);
  });
}

Result<Replica*> Session::add_replica(const std::string& device) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(impl_->check_model_writable("dsgd_replica_add"));
  std::lock_guard lock(impl_->model_mutex);
  Model& model = impl_->model;
  if (impl_->started) return Status(Code::kState, "the session has started; add replicas before dsgd_start");
  // Their weights travel in the step's header, which is one small message.
  constexpr size_t kMostReplicas = 1024;
  if (model.replicas.size() == kMostReplicas) {
    return Status(Code::kLimit,
                  "this worker has " + std::to_string(kMostReplicas) + " replicas; no more can be added");
  }
  std::string name = device;
  if (name.empty()) {
    auto devices = impl_->config.devices(static_cast<uint32_t>(impl_->local_rank));
    if (!devices.ok()) return devices.status();
    const size_t index = model.replicas.size();
    if (index >= devices.value().size()) {
      const std::string& listed = impl_->config.text("devices");
      return Status(Code::kInvalidArgument,
                    impl_->devices_found
                        ? "devices = 'auto' found only '" + listed + "', so replica " +
                              std::to_string(index) + " has no device; name its device"
                        : "replica " + std::to_string(index) + " has no entry in devices = '" + listed +
                              "'; name its device or lengthen the list")
          .with_parameter("devices");
    }
    name = devices.value()[index];
    impl_->devices_taken = true;
  }
  auto replica = std::make_unique<Replica>();
  DSGD_RETURN_IF_ERROR(impl_->device(name).into(&replica->device));
  replica->index = static_cast<uint32_t>(model.replicas.size());
  model.replicas.push_back(std::move(replica));
  model.weights.push_back(-1);
  model.bindings.emplace_back(model.parameters.size());
  return model.replicas.back().get();
}

Status Session::set_replica_weight(Replica* replica, double weight) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  if (!(weight < 0)) {
    DSGD_RETURN_IF_ERROR(check_weight(weight));
  }
  std::lock_guard lock(impl_->step_mutex);
  DSGD_RETURN_IF_ERROR(impl_->check_not_in_step("dsgd_replica_weight"));
  impl_->model.weights[replica->index] = weight < 0 ? -1 : weight;
  return {};
}

Status Session::bind(Replica* replica, Parameter* parameter, void* value, size_t value_nbytes, void* gradient,
                     size_t gradient_nbytes, std::function<void()> release, bool read_only_gradient) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  auto bad = [&](const std::string& text) {
    return Status(Code::kInvalidArgument, "binding parameter '" + parameter->name + "' in replica " +
                                              std::to_string(replica->index) + ": " + text)
        .with_parameter(parameter->name);
  };
  const size_t nbytes = parameter->nbytes(), align = dtype_size(parameter->dtype);
  auto check = [&](const char* which, const void* data, size_t given) -> Status {
    if (given != nbytes) {
      return bad(std::string("the ") + which + " has " + std::to_string(given) + " bytes, " +
                 std::to_string(nbytes) + " are needed (" + std::to_string(parameter->count) + " of " +
                 dtype_name(parameter->dtype) + ")");
    }
    if (reinterpret_cast<uintptr_t>(data) % align != 0) {
      return bad(std::string("the ") + which + " is not aligned to " + std::to_string(align) + " bytes");
    }
    if (!replica->device->is_host()) {
      const Status there = replica->device->check(data, nbytes);
      return there.ok() ? there : bad(std::string("the ") + which + ": " + there.message());
    }
    const auto there = impl_->locate(data, nbytes);
    if (!there.ok()) return bad(std::string("the ") + which + " is " + there.status().message());
    if (there.value().empty()) return {};
    return bad(std::string("the ") + which + " is memory of " + there.value() +
               ", but its replica is on the cpu; give host memory, or add the replica on that device");
  };
  DSGD_RETURN_IF_ERROR(check("value", value, value_nbytes));
  if (parameter->trained) {
    DSGD_RETURN_IF_ERROR(check("gradient", gradient, gradient_nbytes));
    const auto at = [](const void* data) { return reinterpret_cast<uintptr_t>(data); };
    if (nbytes > 0 && at(value) < at(gradient) + nbytes && at(gradient) < at(value) + nbytes) {
      return bad("value and gradient share memory; give each a buffer of its own");
    }
  } else if (gradient || gradient_nbytes) {
    return bad("an untrained parameter has no gradient; give none");
  }
  DSGD_RETURN_IF_ERROR(impl_->check_model_writable("dsgd_bind"));
  std::lock_guard lock(impl_->model_mutex);
  if (read_only_gradient && impl_->model.optimizer->is_none())
    return Status(Code::kInvalidArgument,
                  "dsgd_bind_dlpack: the gradient tensor of parameter '" + parameter->name +
                      "' is read-only; with optimizer 'none' the mean is written into it");
  Binding& binding = impl_->model.bindings[replica->index][parameter->index];
  Binding other{static_cast<std::byte*>(value),
                static_cast<std::byte*>(gradient),
                true,
                std::move(release),
                binding.memory,
                read_only_gradient};
  const auto swap = [&] { std::swap(binding, other); };
  // The loop may read the values for a worker that joins.
  impl_->started ? transport::run_and_wait(impl_->loop(), swap) : swap();
  if (other.release) impl_->release_when_unused(*replica, other.release);
  return {};
}

void Session::Impl::release_when_unused(const Replica& replica, const std::function<void()>& release) {
  if (replica.device->is_host()) return release();
  retired.add(replica.device, release);
  loop().post(
      [this] { retired.release_unused([this](auto done) { engine().when_devices_done(std::move(done)); }); });
}

Status Session::Impl::check_buffers_apart() const {
  struct Range {
    uintptr_t begin, end;
    const Parameter* parameter;
    size_t replica;
    const char* what;
    std::string name() const {
      return std::string("the ") + what + " of parameter '" + parameter->name + "' in replica " +
             std::to_string(replica);
    }
  };
  std::vector<Range> ranges;
  for (size_t r = 0; r < model.bindings.size(); ++r) {
    for (size_t p = 0; p < model.parameters.size(); ++p) {
      const Parameter& parameter = *model.parameters[p];
      const Binding& binding = model.bindings[r][p];
      for (const auto& [data, what] :
           {std::pair(binding.value, "value"), std::pair(binding.gradient, "gradient")}) {
        const auto begin = reinterpret_cast<uintptr_t>(data);
        if (data && parameter.nbytes() > 0)
          ranges.push_back({begin, begin + parameter.nbytes(), &parameter, r, what});
      }
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    const Range &a = ranges[i - 1], &b = ranges[i];
    if (a.end <= b.begin) continue;
    return Status(Code::kInvalidArgument,
                  a.name() + " and " + b.name() +
                      " share memory; give each a buffer of its own, and tensors that are one "
                      "(tied weights) a single parameter")
        .with_parameter(b.parameter->name);
  }
  return {};
}

Result<std::shared_ptr<TensorMemory>> Session::alloc(Replica* replica, Parameter* parameter) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  std::shared_ptr<TensorMemory> memory = allocated(replica, parameter);
  if (!memory) {
    auto made = TensorMemory::make(*replica->device, parameter->nbytes(), parameter->trained);
    if (!made.ok()) {
      return Status(made.status().code(), "parameter '" + parameter->name + "': " + made.status().message())
          .with_parameter(parameter->name);
    }
    memory = std::move(made).value();
  }
  DSGD_RETURN_IF_ERROR(bind(replica, parameter, memory->value, memory->nbytes, memory->gradient,
                            parameter->trained ? memory->nbytes : 0, {}));
  std::lock_guard lock(impl_->model_mutex);
  auto& known = impl_->model.bindings[replica->index][parameter->index].memory;
  if (!known) impl_->allocated.add(memory->nbytes * (parameter->trained ? 2 : 1));
  known = memory;
  return memory;
}

std::shared_ptr<TensorMemory> Session::allocated(const Replica* replica, const Parameter* parameter) {
  std::lock_guard lock(impl_->model_mutex);
  return impl_->model.bindings[replica->index][parameter->index].memory;
}

Status Session::set_optimizer(const std::string& name, const std::string& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(impl_->check_model_writable("dsgd_optimizer_set"));
  if (impl_->started) {
    return Status(Code::kState,
                  "dsgd_optimizer_set comes before dsgd_start; use dsgd_learning_rate_set between steps");
  }
  auto optimizer = Optimizer::make(name, options);
  if (!optimizer.ok()) return optimizer.status();
  std::lock_guard lock(impl_->model_mutex);
  Model& model = impl_->model;
  const bool writes_gradients = optimizer.value()->is_none();
  for (const auto& bindings : model.bindings) {
    for (size_t p = 0; p < bindings.size(); ++p) {
      if (writes_gradients && bindings[p].read_only_gradient)
        return Status(
            Code::kInvalidArgument,
            "dsgd_optimizer_set: optimizer 'none' writes the mean into the gradients, but the gradient "
            "bound to parameter '" +
                model.parameters[p]->name + "' is a read-only tensor; bind a writable one");
    }
  }
  model.optimizer = std::move(optimizer).value();
  return {};
}

Status Session::set_learning_rate(double rate) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  if (!std::isfinite(rate) || rate < 0) {
    return Status(Code::kInvalidArgument, "dsgd_learning_rate_set: rate is " + number_text(rate) +
                                              "; a learning rate is finite and not negative");
  }
  DSGD_RETURN_IF_ERROR(impl_->check_model_writable("dsgd_learning_rate_set"));
  impl_->model.optimizer->set_learning_rate(rate);
  return {};
}

double Session::loss_scale() const { return impl_->model.loss_scale.factor(); }

Result<uint64_t> Session::digest() {
  Impl::HostCall call(*impl_, Impl::HostCall::kRead);
  if (!call.status().ok()) return call.status();
  DSGD_RETURN_IF_ERROR(impl_->check_model_writable("dsgd_digest"));
  std::lock_guard lock(impl_->model_mutex);
  const Model& model = impl_->model;
  if (model.replicas.empty())
    return Status(Code::kState, "there is no replica yet; call dsgd_replica_add first");
  for (size_t p = 0; p < model.parameters.size(); ++p) {
    if (model.bindings[0][p].bound) continue;
    return Status(Code::kState, "parameter '" + model.parameters[p]->name +
                                    "' has no buffers in replica 0; call dsgd_bind or dsgd_alloc first")
        .with_parameter(model.parameters[p]->name);
  }
  ValueDigest digest;
  Status read;
  for (size_t p = 0; p < model.parameters.size() && read.ok(); ++p) {
    const DType dtype = model.parameters[p]->dtype;
    read = impl_->read(*model.replicas[0], model.bindings[0][p].value, model.parameters[p]->nbytes(),
                       [&digest, dtype](const void* data, size_t nbytes) {
                         digest.add(dtype, data, nbytes / dtype_size(dtype));
                       });
  }
  if (!read.ok()) return read;
  return digest.result();
}

}  // namespace dsgd
