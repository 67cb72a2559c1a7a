#include "transport/bounded_calls.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace dsgd::transport {

struct BoundedCalls::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> calls;
  uint64_t entered = 0, ended = 0;
  bool late = false;  // one that was awaited has not ended
  bool closing = false;
  std::thread thread;  // from the first call on

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
  std::thread thread = std::move(state_->thread);  // no other thread calls run() now
  if (!thread.joinable()) return;
  const bool cannot_join = late || thread.get_id() == std::this_thread::get_id();
  cannot_join ? thread.detach() : thread.join();
}

bool BoundedCalls::late() const {
  std::lock_guard lock(state_->mutex);
  return state_->late;
}

bool BoundedCalls::run(std::chrono::nanoseconds timeout, std::function<void()> call) {
  std::unique_lock lock(state_->mutex);
  if (!state_->thread.joinable()) {
    try {
      state_->thread = std::thread([state = state_] { state->work(); });
    } catch (const std::system_error&) {
      // Cannot start the thread: run the call here, without a time limit.
      lock.unlock();
      call();
      return true;
    }
  }
  state_->calls.push_back(std::move(call));
  const uint64_t mine = ++state_->entered;
  state_->changed.notify_all();
  if (state_->thread.get_id() == std::this_thread::get_id()) return true;
  if (state_->changed.wait_for(lock, timeout, [&] { return state_->ended >= mine; })) return true;
  state_->late = true;
  return false;
}

}  // namespace dsgd::transport
