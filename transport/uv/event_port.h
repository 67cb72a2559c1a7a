// KJ's event loop on libuv's. The thread that drives the loop calls wait() or poll() and then runs KJ's
// events.
#pragma once

#include <kj/async.h>
#include <kj/exception.h>
#include <uv.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "transport/loop.h"
#include "transport/uv/guard.h"

namespace dsgd::transport::uv {

// Work that waits until the loop is about to look at the outside world again, or to be batched with the next
// message.
class Flushable {
 public:
  virtual void flush() = 0;
  virtual void flush_held() = 0;

 protected:
  ~Flushable() = default;
};

class UvEventPort final : public kj::EventPort {
 public:
  UvEventPort();
  ~UvEventPort() noexcept(false);
  bool good() const { return error_ == 0; }  // false: no more descriptors or memory; see error()
  int error() const { return error_; }

  uv_loop_t* loop() { return &loop_; }

  // kj::EventPort. wait() polls without sleeping for the spin time, then sleeps; poll() never sleeps. Both
  // return whether wake() was called since they last said so. Not to be called from a uv callback: uv_run is
  // not reentrant.
  bool wait() override;
  bool poll() override;
  void wake() const override;  // any thread; costs a system call only when none is under way
  // The driver asks the KJ loop itself whether it is runnable, so this notice is not needed.
  void setRunnable(bool) override {}

  // The next wait() returns after `timeout` at the latest.
  void set_alarm(Duration timeout);
  void clear_alarm();
  void set_spin(const Spin& spin) { spin_ = spin; }

  void alert() { alerted_ = true; }  // something happened: stop spinning

  // ---- Out of memory. Work for a task, a socket or KJ runs in guarded() or noted(), which record an
  // allocation failure. The driver asks take_exhausted() for it once per turn.
  void note_exhausted() { exhausted_ = true; }
  // Runs `work` and catches its exceptions: none may pass through libuv, and some of KJ's come from
  // destructors. False: there was one.
  template <typename Work>
  bool guarded(Work&& work) {
    try {
      work();
      return true;
    } catch (const std::bad_alloc&) {
      note_exhausted();
    } catch (const kj::Exception& exception) {
      if (is_exhaustion(exception)) note_exhausted();
    } catch (const std::exception&) {
    }
    return false;
  }
  // Runs `work` of a function that KJ calls. Records std::bad_alloc and rethrows it to KJ, which continues.
  template <typename Work>
  auto noted(Work&& work) -> decltype(work()) {
    try {
      return work();
    } catch (const std::bad_alloc&) {
      note_exhausted();
      throw;
    }
  }
  bool exhausted() const { return exhausted_; }  // since the last take_exhausted()
  bool take_exhausted() { return std::exchange(exhausted_, false); }

  void flush_later(Flushable* item) { dirty_.push_back(item); }
  void hold(Flushable* item);  // flush_held() follows after kHold
  void forget(Flushable* item);
  void flush();  // may make KJ's loop runnable: the driver looks at that afterwards
  // When flush() has to be called again for what is held, from now; kNever: nothing is.
  Duration held_for() const;

  // Closes what is left and checks that libuv agrees that nothing is: 0, or libuv's error.
  int shut_down();

 private:
  bool take_woken() { return woken_.exchange(false); }

  uv_loop_t loop_;
  uv_async_t* async_ = nullptr;  // handles live on the heap until libuv has closed them
  uv_timer_t* alarm_ = nullptr;
  bool alarm_set_ = false;
  int error_ = 0;
  bool down_ = false;
  bool alerted_ = false;
  bool exhausted_ = false;
  Spin spin_;
  // Yielding gave the processor away for long: a program that computes wants it. A thread that sleeps instead
  // gets the processor back as soon as its event has come.
  static constexpr Duration kTimeSlice = std::chrono::milliseconds(1),
                            kCrowded = std::chrono::milliseconds(100);
  std::chrono::steady_clock::time_point spins_again_{};
  mutable std::atomic<bool> woken_{false};    // for KJ's executor
  mutable std::atomic<bool> pending_{false};  // an uv_async_send has not been seen by the loop yet
  static constexpr Duration kHold = std::chrono::milliseconds(1);
  std::vector<Flushable*> dirty_, held_;
  std::chrono::steady_clock::time_point hold_ends_{};  // of the first of held_
};

}  // namespace dsgd::transport::uv
