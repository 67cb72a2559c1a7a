// Joining and leaving a job.
#include "capi/src/session.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "capi/src/backends.h"
#include "capi/src/call.h"
#include "capi/src/config.h"
#include "capi/src/reporter.h"
#include "capi/src/sized.h"
#include "transport/uv/environment.h"

using dsgd::Config;
using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::guard_number;
using dsgd::capi::run_operation;

uint64_t dsgd::capi::next_session_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

namespace {

constexpr size_t kSessionInfoFirstSize = 56;  // the smallest that is accepted

// A number of an open session.
template <typename Number, typename Read>
Number session_number(const char* function, const dsgd_session* session, Read&& read) {
  return guard_number<Number>(function, [&](const Call& call, Number* number) -> Status {
    DSGD_RETURN_IF_ERROR(call.open(session));
    *number = read(*session->core);
    return {};
  });
}

// Gives the caller a malloc'ed copy of a text.
template <typename Make>
int32_t session_text(const char* function, const dsgd_session* session, char** text, dsgd_error** error,
                     Make&& make) {
  return guard(function, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(session));
    DSGD_RETURN_IF_ERROR(call.not_null(text, "text"));
    const dsgd::Result<std::string> made = make(*session->core);
    if (!made.ok()) return made.status();
    *text = dsgd::capi::copy_text(made.value());
    return {};
  });
}

}  // namespace

extern "C" {

int32_t dsgd_init(const dsgd_config* config, dsgd_session** session, dsgd_error** error) {
  return dsgd_init_begin(config, nullptr, session, nullptr, error);
}

int32_t dsgd_init_begin(const dsgd_config* config, const dsgd_op_options* options, dsgd_session** session,
                        dsgd_op** op, dsgd_error** error) {
  return guard(op ? __func__ : "dsgd_init", error, [&](const Call& call) -> Status {
    if (config) DSGD_RETURN_IF_ERROR(call.handle(config, "config"));
    DSGD_RETURN_IF_ERROR(call.not_null(session, "session"));
    Config values = config ? config->values : dsgd::capi::environment_config();
    const auto launcher = values.apply_launcher();
    DSGD_RETURN_IF_ERROR(launcher.status());
    DSGD_RETURN_IF_ERROR(values.validate());
    auto environment = dsgd::transport::make_uv_environment();
    auto notifier = environment->new_notifier();
    DSGD_RETURN_IF_ERROR(notifier.status());
    auto made = std::make_unique<dsgd_session>(std::move(notifier).value());
    auto log =
        dsgd::capi::make_log(values, config ? config->hook : dsgd::capi::LogHook{}, made->log, made->id);
    if (auto reporter = dsgd::capi::make_reporter(values)) log->set_reporter(std::move(reporter));
    if (const auto& [text, warning] = launcher.value(); !text.empty())
      warning ? log->warning(text) : log->info(text);
    dsgd::Registered registered = config ? config->registered : dsgd::Registered{};
    registered.backends.emplace("cuda", dsgd::capi::load_cuda);
    registered.locate = dsgd::capi::locate;
    DSGD_RETURN_IF_ERROR(
        dsgd::Session::make(values, std::move(environment), std::move(log), registered).into(&made->core));
    DSGD_RETURN_IF_ERROR(run_operation(call, made.get(), options, op,
                                       [&](dsgd::Session::Mode mode, const dsgd::CallOptions& given) {
                                         return made->core->join(mode, given);
                                       }));
    *session = made.release();
    return {};
  });
}

int32_t dsgd_close(dsgd_session* session, int32_t timeout_ms, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(session));
    DSGD_RETURN_IF_ERROR(call.wait_time(timeout_ms));
    Status status = session->core->close(std::chrono::milliseconds(timeout_ms));
    if (session->core->closed()) session->log->close();
    return status;
  });
}

void dsgd_session_free(dsgd_session* session) {
  // Other threads may be in calls on the session: these end now. A plug-in function cannot free its session.
  if (dsgd_close(session, 0, nullptr) == DSGD_ERR_STATE) return;
  if (dsgd::capi::is_handle(session) && session->invalidate() && session->release()) delete session;
}

int32_t dsgd_finalize(dsgd_session* session) {
  if (!session) return DSGD_OK;
  const int32_t status = dsgd_close(session, -1, nullptr);
  dsgd_session_free(session);
  return status;
}

int32_t dsgd_abort(dsgd_session* session, const char* reason, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(session));
    return session->core->abort(reason ? reason : "");
  });
}

int32_t dsgd_fail(dsgd_session* session, const char* reason, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(session));
    return session->core->fail(reason ? reason : "");
  });
}

int32_t dsgd_rank(const dsgd_session* session) {
  return session_number<int32_t>(__func__, session, [](dsgd::Session& core) { return core.rank(); });
}
int32_t dsgd_size(const dsgd_session* session) {
  return session_number<int32_t>(__func__, session, [](dsgd::Session& core) { return core.size(); });
}
int32_t dsgd_local_rank(const dsgd_session* session) {
  return session_number<int32_t>(__func__, session, [](dsgd::Session& core) { return core.local_rank(); });
}
int32_t dsgd_local_size(const dsgd_session* session) {
  return session_number<int32_t>(__func__, session, [](dsgd::Session& core) { return core.local_size(); });
}
int64_t dsgd_view(const dsgd_session* session) {
  return session_number<int64_t>(__func__, session, [](dsgd::Session& core) { return core.view(); });
}

int32_t dsgd_session_info_init(dsgd_session_info* info, size_t struct_size) {
  return guard(__func__, nullptr, [&](const Call& call) -> Status {
    dsgd_session_info defaults{};
    defaults.size = defaults.local_size = defaults.replicas = 1;
    return dsgd::capi::init_sized(call, info, struct_size, defaults, kSessionInfoFirstSize, "info");
  });
}

int32_t dsgd_session_info_read(const dsgd_session* session, dsgd_session_info* info, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(session));
    DSGD_RETURN_IF_ERROR(
        dsgd::capi::check_sized(call, info, kSessionInfoFirstSize, "info", "dsgd_session_info_init"));
    const dsgd::SessionInfo core = session->core->info();
    dsgd_session_info copy{};
    copy.id = session->id;
    copy.view = core.view;
    copy.steps = core.steps;
    copy.state = static_cast<int32_t>(core.state);
    copy.rank = core.rank;
    copy.size = core.size;
    copy.local_rank = core.local_rank;
    copy.local_size = core.local_size;
    copy.replicas = core.replicas;
    dsgd::capi::write_sized(info, copy);
    return {};
  });
}

int32_t dsgd_metrics(const dsgd_session* session, char** text, dsgd_error** error) {
  return session_text(__func__, session, text, error,
                      [](const dsgd::Session& core) { return core.metrics(); });
}

int32_t dsgd_trace(const dsgd_session* session, char** text, dsgd_error** error) {
  return session_text(__func__, session, text, error, [](const dsgd::Session& core) {
    return core.trace(std::chrono::system_clock::now().time_since_epoch());
  });
}

void dsgd_text_free(char* text) { free(text); }

double dsgd_loss_scale(const dsgd_session* session) {
  return session_number<double>(__func__, session, [](dsgd::Session& core) { return core.loss_scale(); });
}

}  // extern "C"
