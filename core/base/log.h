// Log records of one session, and its reports to the program that started the worker. Sink and reporter are
// set once, before other threads exist. The sink is called under a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace dsgd {

enum class LogLevel : int32_t { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };
inline constexpr const char* kLogLevelNames[] = {"error", "warning", "info", "debug"};

struct LogRecord {
  LogLevel level;
  const std::string& message;
  int32_t rank;  // of the worker whose log it is; -1: not known yet, or a head's
};

// A change of state that is reported to the supervisor, the program that started this worker (the key
// `supervisor`).
struct WorkerReport {
  enum class Kind { kDialing, kWaiting, kJoined, kFailed, kRecovered };
  Kind kind;
  int32_t cause = -1;  // of kFailed: the rank that the failure names, -1: none
  // Of kDialing: why the head could not be reached; empty: no attempt has failed yet. Of kWaiting: "2 of 4
  // workers have joined: ...".
  std::string text = {};
};

class Log {
 public:
  using Sink = std::function<void(const LogRecord&)>;
  using Reporter = std::function<void(const WorkerReport&)>;
  Log() = default;  // drops everything
  Log(LogLevel threshold, Sink sink) : threshold_(threshold), sink_(std::move(sink)) {}

  void set_rank(int32_t rank) { rank_ = rank; }
  void set_reporter(Reporter reporter) { reporter_ = std::move(reporter); }
  bool has_reporter() const { return static_cast<bool>(reporter_); }
  // Any thread.
  void report(const WorkerReport& report) const {
    if (reporter_) reporter_(report);
  }
  // A call, or the session, has failed because of this rank; -1: none is known. If the host exits because of
  // it, the supervisor names that rank. Any thread.
  void report_failure(int32_t rank) {
    failed_ = true;
    report({WorkerReport::Kind::kFailed, rank});
  }
  // A call has succeeded, so the host goes on after the failures that were reported. Any thread.
  void report_success() {
    if (failed_ && failed_.exchange(false)) report({WorkerReport::Kind::kRecovered});
  }
  bool enabled(LogLevel level) const { return sink_ && level <= threshold_; }
  void write(LogLevel level, const std::string& message) {
    if (!enabled(level)) return;
    std::lock_guard lock(mutex_);
    sink_({level, message, rank_});
  }
  void error(const std::string& message) { write(LogLevel::kError, message); }
  void warning(const std::string& message) { write(LogLevel::kWarning, message); }
  void info(const std::string& message) { write(LogLevel::kInfo, message); }
  void debug(const std::string& message) { write(LogLevel::kDebug, message); }

 private:
  std::atomic<bool> failed_{false};  // and no success was reported since
  LogLevel threshold_ = LogLevel::kError;
  Sink sink_;
  Reporter reporter_;
  std::atomic<int32_t> rank_{-1};
  std::mutex mutex_;
};

}  // namespace dsgd
