// The log of one session on the host's side: records go to the hook, or else into a queue of bounded length.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "capi/src/handle.h"
#include "core/base/log.h"
#include "core/config/config.h"
#include "dsgd/dsgd.h"
#include "transport/base/status.h"

struct dsgd_log_record : dsgd::capi::Handle {
  static constexpr uint64_t kTag = dsgd::capi::tag_of("record  ");
  static constexpr const char* kName = "dsgd_log_record";
  dsgd_log_record(int32_t level, std::string message)
      : Handle(kTag), level(level), message(std::move(message)) {}

  const int32_t level;
  const std::string message;
};

namespace dsgd::capi {

struct LogHook {
  dsgd_log_function function = nullptr;
  void* user = nullptr;
};

class LogQueue {
 public:
  static constexpr size_t kCapacity = 1024;  // the newest are kept

  void push(int32_t level, const std::string& message);
  // Oldest first. timeout < 0: until one comes or the queue is closed. Code::kWaitTimeout, Code::kClosed.
  Result<std::unique_ptr<dsgd_log_record>> pop(std::chrono::milliseconds timeout);
  void close();  // pop returns what is left, then Code::kClosed

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<dsgd_log_record>> records_;
  bool closed_ = false;
};

// A log with the threshold of `config`. Records go to the hook if there is one, else to the queue (null: a
// head's log) and, as `log_to` says, to standard error.
std::shared_ptr<Log> make_log(const Config& config, LogHook hook, std::shared_ptr<LogQueue> queue);

}  // namespace dsgd::capi
