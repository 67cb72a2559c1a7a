// A head that runs outside the workers.
#include <memory>

#include "capi/src/call.h"
#include "capi/src/config.h"
#include "core/session/head_process.h"
#include "core/session/job_status.h"
#include "transport/uv/environment.h"

struct dsgd_head : dsgd::capi::HandleOf<dsgd_head> {
  static constexpr const char* kName = "dsgd_head";
  explicit dsgd_head(std::unique_ptr<dsgd::HeadProcess> core) : core(std::move(core)) {}

  const std::unique_ptr<dsgd::HeadProcess> core;
};

using dsgd::Config;
using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::is_handle;

namespace {

dsgd::transport::Duration time_to_ask(const Config& config, int32_t timeout_ms) {
  return timeout_ms < 0 ? config.duration("init_timeout") : std::chrono::milliseconds(timeout_ms);
}

}  // namespace

extern "C" {

int32_t dsgd_head_start(const dsgd_config* config, dsgd_head** head, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    if (config) DSGD_RETURN_IF_ERROR(call.handle(config, "config"));
    DSGD_RETURN_IF_ERROR(call.not_null(head, "head"));
    const Config values = config ? config->values : dsgd::capi::environment_config();
    DSGD_RETURN_IF_ERROR(values.validate(true));
    // A head has no log queue: without a hook its records have nowhere to go.
    auto log = dsgd::capi::make_log(values, config ? config->hook : dsgd::capi::LogHook{}, nullptr, 0);
    auto started = dsgd::HeadProcess::start(values, dsgd::transport::make_uv_environment(), std::move(log));
    if (!started.ok()) return started.status();
    *head = new dsgd_head(std::move(started).value());
    return {};
  });
}

const char* dsgd_head_address(const dsgd_head* head) {
  return is_handle(head) ? head->core->address().c_str() : "";
}

int32_t dsgd_head_wait(dsgd_head* head, int32_t timeout_ms, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(head, "head"));
    DSGD_RETURN_IF_ERROR(call.wait_time(timeout_ms));
    DSGD_RETURN_IF_ERROR(call.alive(head->core->alive(), "head"));
    return head->core->wait(std::chrono::milliseconds(timeout_ms));
  });
}

int32_t dsgd_job_status(const dsgd_config* config, int32_t timeout_ms, char** text, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    if (config) DSGD_RETURN_IF_ERROR(call.handle(config, "config"));
    DSGD_RETURN_IF_ERROR(call.wait_time(timeout_ms));
    DSGD_RETURN_IF_ERROR(call.not_null(text, "text"));
    const Config values = config ? config->values : dsgd::capi::environment_config();
    const auto environment = dsgd::transport::make_uv_environment();
    const auto status = dsgd::job_status(values, *environment, time_to_ask(values, timeout_ms));
    if (!status.ok()) return status.status();
    *text = dsgd::capi::copy_text(status.value());
    return {};
  });
}

int32_t dsgd_job_scale(const dsgd_config* config, int32_t workers, int32_t timeout_ms, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    if (config) DSGD_RETURN_IF_ERROR(call.handle(config, "config"));
    if (workers < 1) return call.invalid("workers is " + std::to_string(workers) + "; a job has at least 1");
    DSGD_RETURN_IF_ERROR(call.wait_time(timeout_ms));
    const Config values = config ? config->values : dsgd::capi::environment_config();
    const auto environment = dsgd::transport::make_uv_environment();
    return dsgd::scale_job(values, *environment, time_to_ask(values, timeout_ms),
                           static_cast<uint32_t>(workers));
  });
}

void dsgd_head_free(dsgd_head* head) { dsgd::capi::free_handle(head); }

}  // extern "C"
