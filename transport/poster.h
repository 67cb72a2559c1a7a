// Posts to a loop until that is about to end: for threads, and work of theirs, that outlive it.
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
  // The loop may end. What was posted and has not run will not.
  void close() {
    std::lock_guard lock(mutex_);
    loop_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Loop* loop_;
};

}  // namespace dsgd::transport
