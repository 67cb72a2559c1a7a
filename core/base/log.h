// Log records of one session. The sink is set once, before other threads exist, and called under a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace dsgd {

enum class LogLevel : int32_t { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

struct LogRecord {
  LogLevel level;
  const std::string& message;
  int32_t rank;  // of the worker whose log it is; -1: not known yet, or a head's
};

class Log {
 public:
  using Sink = std::function<void(const LogRecord&)>;
  Log() = default;  // drops everything
  Log(LogLevel threshold, Sink sink) : threshold_(threshold), sink_(std::move(sink)) {}

  void set_rank(int32_t rank) { rank_ = rank; }
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
  LogLevel threshold_ = LogLevel::kError;
  Sink sink_;
  std::atomic<int32_t> rank_{-1};
  std::mutex mutex_;
};

}  // namespace dsgd
