// A head that runs outside the workers.
#include <memory>

#include "capi/src/call.h"
#include "capi/src/config.h"
#include "core/session/session.h"
#include "transport/uv/environment.h"

struct dsgd_head : dsgd::capi::Handle {
  static constexpr uint64_t kTag = dsgd::capi::tag_of("head    ");
  static constexpr const char* kName = "dsgd_head";
  explicit dsgd_head(std::unique_ptr<dsgd::HeadProcess> core) : Handle(kTag), core(std::move(core)) {}

  const std::unique_ptr<dsgd::HeadProcess> core;
};

using dsgd::Code;
using dsgd::Config;
using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::is_handle;

extern "C" {

int32_t dsgd_head_start(const dsgd_config* config, dsgd_head** head, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    if (config) DSGD_RETURN_IF_ERROR(call.handle(config, "config"));
    DSGD_RETURN_IF_ERROR(call.given(head, "head"));
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

void dsgd_head_free(dsgd_head* head) { dsgd::capi::free_handle(head); }

}  // extern "C"
