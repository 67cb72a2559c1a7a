// The log of one session on the host's side: records go to the hook, or else into a queue of bounded length.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "capi/src/handle.h"
#include "core/base/log.h"
#include "core/config/config.h"
#include "dsgd/dsgd.h"
#include "transport/base/status.h"
#include "transport/network.h"

struct dsgd_log_record : dsgd::capi::HandleOf<dsgd_log_record> {
  static constexpr const char* kName = "dsgd_log_record";
  // Made as the record is: it takes the time of now.
  dsgd_log_record(const dsgd::LogRecord& record, uint64_t session);

  const int32_t level;
  const std::string message;
  const int64_t time_ns;
  const uint64_t session;
  const int32_t rank;
};

namespace dsgd::capi {

struct LogHook {
  dsgd_log_function function = nullptr;
  void* user = nullptr;
};

class LogQueue {
 public:
  static constexpr size_t kCapacity = 1024;  // the newest are kept
  explicit LogQueue(std::unique_ptr<transport::Notifier> notifier) : notifier_(std::move(notifier)) {}

  void push(std::unique_ptr<dsgd_log_record> record);
  // Oldest first. timeout < 0: until one comes or the queue is closed. Code::kWaitTimeout, Code::kClosed.
  Result<std::unique_ptr<dsgd_log_record>> pop(std::chrono::milliseconds timeout);
  void close();                               // pop returns what is left, then Code::kClosed
  int fd() const { return notifier_->fd(); }  // readable while the queue is not empty

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<dsgd_log_record>> records_;
  bool closed_ = false;
  const std::unique_ptr<transport::Notifier> notifier_;
};

// A log with the threshold of `config`. Records go to the hook if there is one, else to the queue and, as
// `log_to` says, to standard error. A head has no queue, and 0 as its session.
std::shared_ptr<Log> make_log(const Config& config, LogHook hook, std::shared_ptr<LogQueue> queue,
                              uint64_t session);

}  // namespace dsgd::capi
