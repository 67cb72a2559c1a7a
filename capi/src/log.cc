#include "capi/src/log.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "capi/src/call.h"
#include "capi/src/session.h"

dsgd_log_record::dsgd_log_record(const dsgd::LogRecord& record, uint64_t session)
    : level(static_cast<int32_t>(record.level)),
      message(record.message),
      time_ns(std::chrono::duration_cast<std::chrono::nanoseconds>(
                  std::chrono::system_clock::now().time_since_epoch())
                  .count()),
      session(session),
      rank(record.rank) {}

namespace dsgd::capi {

void LogQueue::push(std::unique_ptr<dsgd_log_record> record) {
  {
    std::lock_guard lock(mutex_);
    if (records_.size() == kCapacity) records_.pop_front();
    records_.push_back(std::move(record));
    if (records_.size() == 1) notifier_->set();
  }
  changed_.notify_one();
}

Result<std::unique_ptr<dsgd_log_record>> LogQueue::pop(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto something = [this] { return !records_.empty() || closed_; };
  if (timeout.count() < 0) {
    changed_.wait(lock, something);
  } else {
    changed_.wait_for(lock, timeout, something);
  }
  if (!records_.empty()) {
    auto record = std::move(records_.front());
    records_.pop_front();
    if (records_.empty()) notifier_->clear();
    return record;
  }
  if (closed_)
    return Status(Code::kClosed, "dsgd_log_poll: the session is closed and its log queue is empty");
  return Status(Code::kWaitTimeout,
                "dsgd_log_poll: no log record came within " + std::to_string(timeout.count()) + " ms");
}

void LogQueue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

namespace {

// One system call per record, so that lines of several processes do not mix.
void write_to_stderr(LogLevel level, const std::string& message) {
  const std::string line =
      std::string("dsgd: ") + kLogLevelNames[static_cast<int>(level)] + ": " + message + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

std::shared_ptr<Log> make_log(const Config& config, LogHook hook, std::shared_ptr<LogQueue> queue,
                              uint64_t session) {
  const auto* const name =
      std::find(std::begin(kLogLevelNames), std::end(kLogLevelNames), config.text("log_level"));
  const auto threshold = static_cast<LogLevel>(name - kLogLevelNames);
  if (hook.function) {
    return std::make_shared<Log>(threshold, [hook, session](const LogRecord& made) {
      const dsgd_log_record record(made, session);
      hook.function(&record, hook.user);
    });
  }
  const bool to_stderr = config.text("log_to") == "stderr";
  if (!queue && !to_stderr) return std::make_shared<Log>();
  return std::make_shared<Log>(threshold, [queue, to_stderr, session](const LogRecord& made) {
    if (to_stderr) write_to_stderr(made.level, made.message);
    if (queue) queue->push(std::make_unique<dsgd_log_record>(made, session));
  });
}

}  // namespace dsgd::capi

using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::guard_number;
using dsgd::capi::is_handle;

extern "C" {

int32_t dsgd_log_poll(dsgd_session* session, int32_t timeout_ms, dsgd_log_record** record,
                      dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(session));
    DSGD_RETURN_IF_ERROR(call.wait_time(timeout_ms));
    DSGD_RETURN_IF_ERROR(call.not_null(record, "record"));
    auto popped = session->log->pop(std::chrono::milliseconds(timeout_ms));
    if (!popped.ok()) return popped.status();
    *record = std::move(popped).value().release();
    return {};
  });
}

int32_t dsgd_log_fd(const dsgd_session* session) {
  return guard_number<int32_t>(__func__, [&](const Call& call, int32_t* fd) -> Status {
    DSGD_RETURN_IF_ERROR(call.local(session));
    *fd = session->log->fd();
    return {};
  });
}

int32_t dsgd_log_record_level(const dsgd_log_record* record) {
  return is_handle(record) ? record->level : static_cast<int32_t>(DSGD_ERR_INVALID_ARGUMENT);
}

const char* dsgd_log_record_message(const dsgd_log_record* record) {
  return is_handle(record) ? record->message.c_str() : "";
}

int64_t dsgd_log_record_time_ns(const dsgd_log_record* record) {
  return is_handle(record) ? record->time_ns : 0;
}

uint64_t dsgd_log_record_session(const dsgd_log_record* record) {
  return is_handle(record) ? record->session : 0;
}

int32_t dsgd_log_record_rank(const dsgd_log_record* record) { return is_handle(record) ? record->rank : -1; }

void dsgd_log_record_free(dsgd_log_record* record) { dsgd::capi::free_handle(record); }

}  // extern "C"
