// dsgd_session and what it owns: the handles of its parameters and replicas.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "capi/src/call.h"
#include "capi/src/handle.h"
#include "capi/src/log.h"
#include "capi/src/operation.h"
#include "core/session/session.h"
#include "dsgd/dsgd.h"

struct dsgd_parameter : dsgd::capi::HandleOf<dsgd_parameter> {
  static constexpr const char* kName = "dsgd_parameter";
  dsgd_parameter(dsgd_session* session, dsgd::Parameter* core) : session(session), core(core) {}

  dsgd_session* const session;
  dsgd::Parameter* const core;
};

struct dsgd_replica : dsgd::capi::HandleOf<dsgd_replica> {
  static constexpr const char* kName = "dsgd_replica";
  dsgd_replica(dsgd_session* session, dsgd::Replica* core) : session(session), core(core) {}

  dsgd_session* const session;
  dsgd::Replica* const core;
};

namespace dsgd::capi {
uint64_t next_session_id();  // unique in the process; from 1
}

struct dsgd_session : dsgd::capi::HandleOf<dsgd_session, dsgd::capi::CountedHandle> {
  static constexpr const char* kName = "dsgd_session";
  explicit dsgd_session(std::unique_ptr<dsgd::transport::Notifier> log_notifier)
      : log(std::make_shared<dsgd::capi::LogQueue>(std::move(log_notifier))) {}
  ~dsgd_session() {
    core.reset();  // first: its operations use the members below
  }

  const uint64_t id = dsgd::capi::next_session_id();
  const std::shared_ptr<dsgd::capi::LogQueue> log;
  const std::shared_ptr<dsgd::capi::OpTable> ops = std::make_shared<dsgd::capi::OpTable>();
  std::shared_ptr<dsgd::Session> core;

  std::mutex mutex;  // guards the members below; never held while core is called
  std::vector<std::unique_ptr<dsgd_parameter>> parameters;
  std::vector<std::unique_ptr<dsgd_replica>> replicas;
};

namespace dsgd::capi {

// Fields of dsgd_op_options that a call accepts besides timeout_ms and user_data. kPlain: none.
enum class Options { kPlain, kChannel, kChannelAndStream };

// Checks the options of a call; NULL gives the defaults.
Result<CallOptions> read_options(const Call& call, const dsgd_op_options* options, Options allowed);

// The end of every function that starts work: with `op` NULL it waits for the end, else it hands the handle
// out. start(mode) begins the operation.
template <typename Start>
Status run_operation(dsgd_session* session, dsgd_op** op, Start&& start) {
  if (op) {
    auto started =
        session->ops->start(session->ops, session->core, [&] { return start(Session::Mode::kQueue); });
    if (!started.ok()) return started.status();
    *op = started.value();
    return {};
  }
  Result<std::shared_ptr<Operation>> operation = start(Session::Mode::kWait);
  return operation.ok() ? operation.value()->status() : operation.status();
}
// Reads the options, too: start(mode, options).
template <typename Start>
Status run_operation(const Call& call, dsgd_session* session, const dsgd_op_options* options, dsgd_op** op,
                     Start&& start, Options allowed = Options::kPlain) {
  const Result<CallOptions> given = read_options(call, options, allowed);
  if (!given.ok()) return given.status();
  return run_operation(session, op, [&](Session::Mode mode) { return start(mode, given.value()); });
}

}  // namespace dsgd::capi
