// Posts tasks to a loop until close(). For threads that may outlive the loop.
#pragma once

#include <mutex>
#include <utility>

#include "transport/loop.h"

namespace dsgd::transport {

// Any thread.
class Poster {
 public:
  explicit Poster(Loop& loop) : loop_(&loop) {}
  void post(Task task) {
    std::lock_guard lock(mutex_);
    if (loop_) loop_->post(std::move(task));
  }
  // Before the loop ends. Tasks posted later are dropped.
  void close() {
    std::lock_guard lock(mutex_);
    loop_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Loop* loop_;
};

}  // namespace dsgd::transport
