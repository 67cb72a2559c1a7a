// Operations and the completion queue. Both work on after close, so that a host learns how each of its
// operations ended.
#include "capi/src/operation.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "capi/src/call.h"
#include "capi/src/session.h"
#include "capi/src/sized.h"
#include "capi/src/step_result.h"

namespace dsgd::capi {

OpTable::OpTable() : process_(getpid()) {}

dsgd_op* OpTable::find(const Operation& operation) {
  std::lock_guard lock(mutex_);
  const auto found = ops_.find(operation.id());
  if (found == ops_.end()) return nullptr;
  ++found->second->references;
  return found->second;
}

bool OpTable::forget(dsgd_op& op) {
  std::lock_guard lock(mutex_);
  if (--op.references > 0) return false;
  ops_.erase(op.operation->id());
  return true;
}

bool OpTable::forked() const { return process_ != getpid(); }

namespace {
constexpr size_t kOptionsFirstSize = 24;  // the smallest that is accepted
}

Result<CallOptions> read_options(const Call& call, const dsgd_op_options* options, Options allowed) {
  if (!options) return CallOptions{};
  DSGD_RETURN_IF_ERROR(check_sized(call, options, kOptionsFirstSize, "options", "dsgd_op_options_init"));
  const dsgd_op_options given = read_sized(options);
  if (given.timeout_ms != -1 && given.timeout_ms < 1)
    return call.invalid("the timeout is " + std::to_string(given.timeout_ms) + " ms; give at least 1 ms");
  if (given.channel >= DSGD_CHANNELS)
    return call.invalid("there is no channel " + std::to_string(static_cast<int32_t>(given.channel)) +
                        "; channels are 0 to " + std::to_string(DSGD_CHANNELS - 1));
  if (allowed == Options::kPlain && given.channel != 0)
    return call.invalid("the channel is " + std::to_string(given.channel) +
                        "; only collectives use channels other than 0");
  if (allowed != Options::kChannelAndStream && given.stream)
    return call.invalid("a stream is given; only collectives with data take one, leave it NULL");
  CallOptions read;
  if (given.timeout_ms > 0) read.timeout = std::chrono::milliseconds(given.timeout_ms);
  read.channel = given.channel;
  read.user_data = given.user_data;
  read.stream = given.stream;
  return read;
}

namespace {

// How an operation of a session that is gone has ended.
Status end_without_session(const Call& call, const Operation& operation) {
  if (operation.done()) return operation.status();
  return call.fail(Code::kClosed, operation.name() + " ended when its session was freed");
}

}  // namespace
}  // namespace dsgd::capi

using dsgd::Code;
using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::end_without_session;
using dsgd::capi::guard;
using dsgd::capi::is_handle;
using std::chrono::milliseconds;

extern "C" {

int32_t dsgd_op_options_init(dsgd_op_options* options, size_t struct_size) {
  return guard(__func__, nullptr, [&](const Call& call) -> Status {
    dsgd_op_options defaults{};
    defaults.timeout_ms = -1;
    return dsgd::capi::init_sized(call, options, struct_size, defaults, dsgd::capi::kOptionsFirstSize,
                                  "options");
  });
}

uint64_t dsgd_op_id(const dsgd_op* op) { return is_handle(op) ? op->operation->id() : 0; }
void* dsgd_op_user_data(const dsgd_op* op) { return is_handle(op) ? op->operation->user_data() : nullptr; }

int32_t dsgd_op_wait(dsgd_op* op, int32_t timeout_ms, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(op));
    DSGD_RETURN_IF_ERROR(call.wait_time(timeout_ms));
    if (op->operation->done()) return op->operation->status();
    const auto session = op->session.lock();
    if (!session) return end_without_session(call, *op->operation);
    return session->wait(*op->operation, milliseconds(timeout_ms));
  });
}

int32_t dsgd_op_test(dsgd_op* op, int32_t* done, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(op));
    DSGD_RETURN_IF_ERROR(call.not_null(done, "done"));
    const bool ended = op->operation->done();
    *done = ended || op->session.expired() ? 1 : 0;
    if (ended) return op->operation->status();
    return *done ? end_without_session(call, *op->operation) : Status();
  });
}

int32_t dsgd_op_abort(dsgd_op* op, const char* reason, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(op));
    const auto session = op->session.lock();
    return session ? session->abort(op->operation, reason ? reason : "") : Status();
  });
}

int32_t dsgd_op_step_result(const dsgd_op* op, dsgd_step_result* result, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(op));
    DSGD_RETURN_IF_ERROR(dsgd::capi::check_step_result(call, result));
    const dsgd::Operation& operation = *op->operation;
    if (!operation.is_step())
      return call.invalid("the op is " + operation.name() + ", not a step; only steps have a step result");
    if (!operation.done())
      return call.fail(Code::kState, operation.name() + " has not ended yet; wait for the op first");
    if (!operation.status().ok()) return operation.status();
    dsgd::capi::write_step_result(result, operation.step_result());
    return {};
  });
}

void dsgd_op_free(dsgd_op* op) {
  if (!is_handle(op)) return;
  // In a forked child the locks may be held by threads that do not exist there.
  if (!op->table->forked()) {
    if (!op->table->forget(*op)) return;
    guard(__func__, nullptr, [&](const Call&) -> Status {
      if (const auto session = op->session.lock()) session->queue_forget(*op->operation);
      return {};
    });
  }
  if (op->invalidate() && op->release()) delete op;
}

int32_t dsgd_queue_poll(dsgd_session* session, dsgd_op** ops, size_t max, int32_t timeout_ms, size_t* count,
                        dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(session));
    DSGD_RETURN_IF_ERROR(call.not_null(ops, "ops"));
    DSGD_RETURN_IF_ERROR(call.wait_time(timeout_ms));
    DSGD_RETURN_IF_ERROR(call.not_null(count, "count"));
    if (max == 0) return call.invalid("argument 'max' is 0; give the room in 'ops', at least 1");
    const auto deadline = std::chrono::steady_clock::now() + milliseconds(timeout_ms);
    for (milliseconds left(timeout_ms);;) {
      auto ended = session->core->queue_poll(max, left);
      if (!ended.ok()) return ended.status();
      size_t filled = 0;
      for (const auto& operation : ended.value())
        if (dsgd_op* op = session->ops->find(*operation)) ops[filled++] = op;
      if (filled > 0) {
        *count = filled;
        return {};
      }
      // The host has freed the handles of all ops that ended. Wait for others.
      if (timeout_ms >= 0) {
        left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
        left = std::max(left, milliseconds(0));
        if (ended.value().empty() && left.count() == 0)
          return call.fail(Code::kWaitTimeout,
                           "no operation ended within " + std::to_string(timeout_ms) + " ms");
      }
    }
  });
}

int32_t dsgd_queue_fd(const dsgd_session* session) {
  return dsgd::capi::guard_number<int32_t>(__func__, [&](const Call& call, int32_t* fd) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(session));
    if (session->core->closed()) return call.closed_error();
    *fd = session->core->queue_fd();
    return {};
  });
}

}  // extern "C"
