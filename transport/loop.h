// The loop: core's only source of time, threads and waiting. One implementation runs on libuv (transport/uv),
// one in virtual time (transport/sim). All protocol state of a session is touched on its loop only, so it
// needs no locks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <new>
#include <utility>

namespace dsgd::transport {

using Duration = std::chrono::nanoseconds;
// Since a fixed, arbitrary origin; goes on during suspend (CLOCK_BOOTTIME).
using Time = std::chrono::nanoseconds;
using Task = std::function<void()>;
using TimerId = uint64_t;  // 0 is never a timer
inline constexpr Time kNever = Time::max();

// Spinning of a caller that waits.
struct Spin {
  Duration duration{};  // time for which it polls before it sleeps
  bool yields = false;  // calls sched_yield() between two polls
};

class Loop {
 public:
  virtual ~Loop() = default;

  virtual Time now() const = 0;  // any thread

  // Runs the task on the loop, after those posted before it. Any thread. Tasks must not block and must not
  // throw.
  virtual void post(Task task) = 0;

  // Runs the task on the loop at or soon after `when`. Loop only; cancel of an id that has fired is harmless.
  virtual TimerId schedule(Time when, Task task) = 0;
  virtual void cancel(TimerId id) = 0;

  virtual bool on_loop() const = 0;  // is the calling thread the one that runs the loop now?

  // Blocks the calling thread (never the loop's own) until `done` is true or `deadline` has passed; returns
  // done. The waiting thread may drive the loop itself meanwhile, which saves two thread switches per call.
  // `done` must be set on the loop, by a task that then returns; no notification is needed.
  virtual bool wait(const std::atomic<bool>& done, Time deadline) = 0;

  // post(task) and wait(done, deadline) in one. Cheaper than the two calls: a caller that drives the loop
  // itself wakes no other thread for the task.
  virtual bool run(Task task, const std::atomic<bool>& done, Time deadline) {
    post(std::move(task));
    return wait(done, deadline);
  }

  // A hint, any thread: operations are in flight that must go on while no caller waits. Without it, an idle
  // loop may leave events alone for a millisecond after a caller has stopped driving it.
  virtual void set_busy(bool /*busy*/) {}
  // A hint, loop only.
  virtual void set_spin(const Spin& /*spin*/) {}

  // Sets the task that the loop runs when an allocation has failed in a turn of it, so that an event may be
  // lost. The task runs on the loop, and again after a while if it throws std::bad_alloc. Loop only.
  virtual void on_exhausted(Task /*then*/) {}

  // 64 random bits, from the system or from the simulation's seed. Any thread.
  virtual uint64_t random() = 0;
};

// Runs `work` on the loop. Returns when it has ended, even if it has thrown. Not from the loop.
template <typename Work>
void run_and_wait(Loop& loop, const Work& work) {
  std::atomic<bool> over{false};
  const auto task = [&work, &over] {
    struct End {
      std::atomic<bool>& over;
      ~End() { over.store(true, std::memory_order_release); }
    } end{over};
    work();
  };
  (void)loop.run(task, over, kNever);  // false: the process exits, and no thread drives the loop
}

}  // namespace dsgd::transport
