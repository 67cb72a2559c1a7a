// The loop of one network: libuv's events, KJ's, posted tasks and timers, driven by one thread at a time.
//
// One thread at a time drives the loop. Normally it is the communication thread. A caller that blocks in
// wait() drives instead, so its own system calls read the answer and no thread switch is needed. The
// communication thread resumes one millisecond after the last caller, or at once when a task is posted or
// set_busy(true) is called.
#pragma once

#include <kj/async.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "transport/base/status.h"
#include "transport/loop.h"
#include "transport/uv/event_port.h"

namespace dsgd::transport::uv {

Time boot_time();  // of CLOCK_BOOTTIME: the time of every UvLoop

class UvLoop final : public Loop {
 public:
  static Result<std::unique_ptr<UvLoop>> start(const std::string& thread_name);
  ~UvLoop() override { stop(); }
  // Ends the thread; posted tasks that have not run are dropped. No caller may be waiting. All handles on the
  // port must have been given up.
  void stop();

  Time now() const override;
  void post(Task task) override;
  TimerId schedule(Time when, Task task) override;
  void cancel(TimerId id) override;
  bool on_loop() const override;
  bool wait(const std::atomic<bool>& done, Time deadline) override;
  bool run(Task task, const std::atomic<bool>& done, Time deadline) override;
  void set_busy(bool busy) override;
  void set_spin(const Spin& spin) override { spin_ = spin; }
  void on_exhausted(Task then) override { exhausted_then_ = std::move(then); }
  uint64_t random() override;

  UvEventPort& port() { return *port_; }

  // The process exits (at_exit.h). No thread drives the loop from now on, except that the current driver
  // finishes its task. await_rest() waits for that; any thread. A loop whose task called exit() is at rest
  // already.
  void begin_rest();
  void await_rest(std::chrono::steady_clock::time_point until);

  // Loops whose handles were not all closed at their end: a defect. For tests.
  static uint64_t unclean_shutdowns();

 private:
  struct Waiter {
    const std::atomic<bool>* done;
    bool may_drive;
    std::condition_variable wake;
    Waiter* next;
  };
  enum class Driver { kNone, kThread, kCaller };

  UvLoop() = default;
  void thread_main();
  void drive_until_yield();
  bool drive(const std::atomic<bool>& done, Time deadline);  // false: this thread has a KJ loop of its own
  void wait_passively(std::unique_lock<std::mutex>& lock, const std::atomic<bool>& done, Time deadline,
                      bool may_drive);
  // With the lock:
  void take_role(Driver driver);
  void give_up_role();
  void hand_over();
  Waiter* next_driver() const;  // the first waiter that may drive; null: none
  bool thread_shall_drive() const;
  void wake_thread();

  void shut_down();
  void work();  // posted tasks, due timers, KJ's events, then those who wait; throws nothing
  void run_task(Task& task);
  void run_posted();
  void run_timers();
  void run_kj();
  void tell_exhausted();
  void tell_waiters();
  void poll();  // the sockets, without waiting
  void sleep_or_poll(Time until);

  std::unique_ptr<UvEventPort> port_;  // outlives kj_
  std::unique_ptr<kj::EventLoop> kj_;
  std::thread thread_;

  mutable std::mutex mutex_;  // all of this block
  std::condition_variable thread_wake_;
  std::vector<Task> posted_;
  Driver driver_ = Driver::kNone;
  Waiter* waiters_ = nullptr;      // the first of them; in the order in which they came
  Time last_drive_ = Time::min();  // when the role was last given up
  bool thread_woken_ = false;      // the thread shall drive now, not a millisecond later
  bool thread_sleeps_untimed_ = false;
  bool stop_ = false;
  std::condition_variable rested_;

  std::atomic<std::thread::id> driver_id_{};
  std::atomic<int> waiting_{0};            // how many waiters there are
  std::atomic<bool> yield_wanted_{false};  // the thread shall give the role to a waiter
  std::atomic<bool> busy_{false};
  std::atomic<bool> resting_{false};

  // The driver's.
  Time polled_{};  // when it last looked at the sockets
  Spin spin_;
  std::vector<Task> running_;
  std::map<std::pair<Time, TimerId>, Task> timers_;
  std::unordered_map<TimerId, Time> timer_times_;
  TimerId next_timer_ = 0;
  Task exhausted_then_;
};

}  // namespace dsgd::transport::uv
