// Optimizer, strategy, start and the step.
#include <limits>
#include <string>
#include <vector>

#include "capi/src/call.h"
#include "capi/src/session.h"
#include "capi/src/sized.h"
#include "capi/src/step_result.h"

namespace dsgd::capi {
namespace {

constexpr size_t kStepResultFirstSize = 56;  // the smallest that is accepted
constexpr const char* kStepResultInit = "dsgd_step_result_init";

}  // namespace

Status check_step_result(const Call& call, const dsgd_step_result* result) {
  return check_sized(call, result, kStepResultFirstSize, "result", kStepResultInit);
}

void write_step_result(dsgd_step_result* target, const StepResult& result) {
  dsgd_step_result copy{};
  copy.step = result.step;
  copy.view = result.view;
  copy.size = result.size;
  copy.applied = result.applied;
  copy.all_done = result.all_done;
  copy.stop = result.stop;
  copy.weight = result.weight;
  copy.gradient_norm = result.gradient_norm;
  copy.nonfinite = result.nonfinite;
  copy.nonfinite_rank = result.nonfinite_rank;
  copy.skipped = result.skipped;
  write_sized(target, copy);
}

}  // namespace dsgd::capi

using dsgd::CallOptions;
using dsgd::Session;
using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::guard_open;
using dsgd::capi::run_operation;

extern "C" {

int32_t dsgd_step_result_init(dsgd_step_result* result, size_t struct_size) {
  return guard(__func__, nullptr, [&](const Call& call) -> Status {
    dsgd_step_result defaults{};
    defaults.gradient_norm = std::numeric_limits<double>::quiet_NaN();
    defaults.nonfinite_rank = -1;
    return init_sized(call, result, struct_size, defaults, dsgd::capi::kStepResultFirstSize, "result");
  });
}

int32_t dsgd_optimizer_set(dsgd_session* session, const char* name, const char* options, dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.not_empty(name, "name"));
    return session->core->set_optimizer(name, options ? options : "");
  });
}

int32_t dsgd_learning_rate_set(dsgd_session* session, double rate, dsgd_error** error) {
  return guard_open(__func__, error, session,
                    [&](const Call&) -> Status { return session->core->set_learning_rate(rate); });
}

int32_t dsgd_strategy_set(dsgd_session* session, const char* name, const char* options,
                          const dsgd_op_options* op_options, dsgd_op** op, dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.not_empty(name, "name"));
    return run_operation(call, session, op_options, op, [&](Session::Mode mode, const CallOptions& given) {
      return session->core->set_strategy(name, options ? options : "", mode, given);
    });
  });
}

int32_t dsgd_start(dsgd_session* session, const dsgd_op_options* options, dsgd_op** op, dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    return run_operation(call, session, options, op, [&](Session::Mode mode, const CallOptions& given) {
      return session->core->start(mode, given);
    });
  });
}

int32_t dsgd_step(dsgd_session* session, double weight, dsgd_step_result* result, dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    if (result) DSGD_RETURN_IF_ERROR(dsgd::capi::check_step_result(call, result));
    dsgd::StepResult stepped;
    DSGD_RETURN_IF_ERROR(session->core->step(weight, &stepped));
    if (result) dsgd::capi::write_step_result(result, stepped);
    return {};
  });
}

int32_t dsgd_step_begin(dsgd_session* session, double weight, const dsgd_op_options* options, dsgd_op** op,
                        dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.not_null(op, "op"));
    return run_operation(call, session, options, op, [&](Session::Mode, const CallOptions& given) {
      return session->core->step_begin(weight, given);
    });
  });
}

int32_t dsgd_gradient_ready(dsgd_replica* replica, dsgd_parameter* parameter, void* stream,
                            dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.open(replica, parameter));
    return replica->session->core->gradients_ready(replica->core, {&parameter->core, 1}, stream);
  });
}

int32_t dsgd_gradients_ready(dsgd_replica* replica, dsgd_parameter* const* parameters, size_t count,
                             void* stream, dsgd_error** error) {
  return guard_open(__func__, error, replica, [&](const Call& call) -> Status {
    if (count > 0) DSGD_RETURN_IF_ERROR(call.not_null(parameters, "parameters"));
    std::vector<dsgd::Parameter*> cores;
    for (size_t i = 0; i < count; ++i) {
      DSGD_RETURN_IF_ERROR(call.handle(parameters[i], ("parameters[" + std::to_string(i) + "]").c_str()));
      DSGD_RETURN_IF_ERROR(call.open(replica, parameters[i]));
      cores.push_back(parameters[i]->core);
    }
    return replica->session->core->gradients_ready(replica->core, cores, stream);
  });
}

int32_t dsgd_stream_wait(dsgd_replica* replica, void* stream, dsgd_error** error) {
  return guard_open(__func__, error, replica, [&](const Call&) -> Status {
    return replica->session->core->stream_wait(replica->core, stream);
  });
}

int32_t dsgd_gradient_absent(dsgd_replica* replica, dsgd_parameter* parameter, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.open(replica, parameter));
    return replica->session->core->gradient_absent(replica->core, parameter->core);
  });
}

int32_t dsgd_step_flush(dsgd_session* session, dsgd_error** error) {
  return guard_open(__func__, error, session,
                    [&](const Call&) -> Status { return session->core->step_flush(); });
}

int32_t dsgd_stop_request(dsgd_session* session, dsgd_error** error) {
  // A signal handler may call this: no lock is taken, and without an error argument no memory is allocated.
  if (!dsgd::capi::is_handle(session)) {
    if (!error) return DSGD_ERR_INVALID_ARGUMENT;
  } else if (const dsgd::Code code = session->core->stop_request(); code == dsgd::Code::kOk || !error) {
    return static_cast<int32_t>(code);
  }
  return guard(__func__, error, [&](const Call& call) -> Status { return call.open(session); });
}

int32_t dsgd_digest(dsgd_session* session, uint64_t* digest, dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.not_null(digest, "digest"));
    auto value = session->core->digest();
    if (!value.ok()) return value.status();
    *digest = value.value();
    return {};
  });
}

}  // extern "C"
