#include "core/device/bounded_calls.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <system_error>
#include <utility>

namespace dsgd::device {

struct BoundedCalls::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> calls;
  uint64_t entered = 0, ended = 0;
  bool late = false;  // one that was awaited has not ended
  bool closing = false;

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return closing || !calls.empty(); });
      if (calls.empty()) return;
      std::function<void()> call = std::move(calls.front());
      calls.pop_front();
      lock.unlock();
      call();
      call = nullptr;  // what it holds may end here, too
      lock.lock();
      ++ended;
      if (ended == entered) late = false;
      changed.notify_all();
    }
  }
};

BoundedCalls::BoundedCalls() : state_(std::make_shared<State>()) {}

BoundedCalls::~BoundedCalls() {
  bool late;
  {
    std::lock_guard lock(state_->mutex);
    state_->closing = true;
    late = state_->late;
    state_->changed.notify_all();
  }
  if (!thread_.joinable()) return;
  if (late || thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

bool BoundedCalls::late() const {
  std::lock_guard lock(state_->mutex);
  return state_->late;
}

bool BoundedCalls::run(std::chrono::nanoseconds patience, std::function<void()> call) {
  std::unique_lock lock(state_->mutex);
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([state = state_] { state->work(); });
    } catch (const std::system_error&) {  // then unbounded
      lock.unlock();
      call();
      return true;
    }
  }
  state_->calls.push_back(std::move(call));
  const uint64_t mine = ++state_->entered;
  state_->changed.notify_all();
  if (thread_.get_id() == std::this_thread::get_id()) return true;
  if (state_->late) return false;
  if (state_->changed.wait_for(lock, patience, [&] { return state_->ended >= mine; })) return true;
  state_->late = true;
  return false;
}

}  // namespace dsgd::device
