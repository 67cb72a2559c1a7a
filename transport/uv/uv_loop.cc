#include "transport/uv/uv_loop.h"

#include <sys/random.h>
#include <time.h>

#include <optional>
#include <random>

#include "transport/uv/at_exit.h"
#include "transport/uv/guard.h"

namespace dsgd::transport::uv {

namespace {

constexpr Duration kLinger = std::chrono::milliseconds(1);
constexpr int kRoundsBeforeDeepSleep = 8;
constexpr Duration kExhaustedPause = std::chrono::milliseconds(10);

std::atomic<uint64_t> unclean{0};

}  // namespace

uint64_t UvLoop::unclean_shutdowns() { return unclean.load(); }

Result<std::unique_ptr<UvLoop>> UvLoop::start(const std::string& thread_name) {
  std::unique_ptr<UvLoop> loop(new UvLoop);
  loop->port_ = std::make_unique<UvEventPort>();
  if (!loop->port_->good()) {
    return Status(Code::kLimit, "cannot make an event loop: " + errno_text(-loop->port_->error()) +
                                    "; raise the limit of open files (ulimit -n)");
  }
  loop->kj_ = std::make_unique<kj::EventLoop>(*loop->port_);
  DSGD_RETURN_IF_ERROR(start_thread(
                           thread_name, [raw = loop.get()] { raw->thread_main(); }, "a communication thread")
                           .into(&loop->thread_));
  rest_at_exit(loop.get());
  return loop;
}

void UvLoop::stop() {
  if (!thread_.joinable()) return;
  forget_at_exit(this);
  {
    std::lock_guard lock(mutex_);  // kept over wake(): the thread ends the port once it has the lock
    stop_ = true;
    wake_thread();
    port_->wake();
  }
  thread_.join();
  if (resting_) {
    // The process exits: KJ's and libuv's objects are abandoned, not destroyed (at_exit.h).
    (void)kj_.release();
    (void)port_.release();
  }
}

Time boot_time() {
  timespec ts;
  clock_gettime(CLOCK_BOOTTIME, &ts);
  return std::chrono::seconds(ts.tv_sec) + std::chrono::nanoseconds(ts.tv_nsec);
}

Time UvLoop::now() const { return boot_time(); }

bool UvLoop::on_loop() const {
  return driver_id_.load(std::memory_order_relaxed) == std::this_thread::get_id();
}

uint64_t UvLoop::random() {
  uint64_t bits;
  if (getrandom(&bits, sizeof bits, 0) == sizeof bits) return bits;
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

void UvLoop::set_busy(bool busy) {
  if (busy_.exchange(busy) || !busy) return;
  std::lock_guard lock(mutex_);
  if (driver_ == Driver::kNone && !next_driver()) wake_thread();
}

void UvLoop::post(Task task) {
  const bool ours = on_loop();
  bool sleeping = false;
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
    if (ours) return;  // the driver looks before it sleeps
    if (driver_ == Driver::kNone) {
      if (!next_driver()) wake_thread();
    } else {
      sleeping = true;
    }
  }
  if (sleeping) port_->wake();
}

bool UvLoop::run(Task task, const std::atomic<bool>& done, Time deadline) {
  if (done.load(std::memory_order_acquire) || now() >= deadline) {
    post(std::move(task));
    return done.load(std::memory_order_acquire);
  }
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
  }
  return wait(done, deadline);  // takes the role over, or makes sure that someone has it and is awake
}

TimerId UvLoop::schedule(Time when, Task task) {
  const TimerId id = ++next_timer_;
  timer_times_.emplace(id, when);
  timers_.emplace(std::make_pair(when, id), std::move(task));
  return id;
}

void UvLoop::cancel(TimerId id) {
  auto it = timer_times_.find(id);
  if (it == timer_times_.end()) return;
  auto node = timers_.extract({it->second, id});  // the task dies last: its destructor may come back here
  timer_times_.erase(it);
}

// ---- callers

bool UvLoop::wait(const std::atomic<bool>& done, Time deadline) {
  bool may_drive = true;
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool finished = done.load(std::memory_order_acquire);
    if (finished || resting_ || now() >= deadline) {
      if (driver_ == Driver::kNone) hand_over();
      return finished;
    }
    if (driver_ == Driver::kNone && may_drive && !stop_) {
      take_role(Driver::kCaller);
      lock.unlock();
      may_drive = drive(done, deadline);
      lock.lock();
      give_up_role();
      continue;
    }
    wait_passively(lock, done, deadline, may_drive);
  }
}

void UvLoop::wait_passively(std::unique_lock<std::mutex>& lock, const std::atomic<bool>& done, Time deadline,
                            bool may_drive) {
  Waiter self{&done, may_drive, {}, nullptr};  // linked, not kept in a list: waiting needs no memory
  Waiter** last = &waiters_;
  while (*last) last = &(*last)->next;
  *last = &self;
  waiting_.fetch_add(1);
  if (driver_ == Driver::kNone) {
    wake_thread();
  } else {
    // The communication thread gives way to a caller; a caller that drives must look at `done` of this one.
    if (may_drive && driver_ == Driver::kThread) yield_wanted_.store(true);
    port_->wake();
  }
  if (deadline == kNever) {
    self.wake.wait(lock);
  } else {
    self.wake.wait_for(lock, std::min<Duration>(deadline - now(), std::chrono::hours(1)));
  }
  Waiter** link = &waiters_;
  while (*link != &self) link = &(*link)->next;
  *link = self.next;
  waiting_.fetch_sub(1);
}

void UvLoop::take_role(Driver driver) {
  driver_ = driver;
  driver_id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

void UvLoop::give_up_role() {
  driver_id_.store({}, std::memory_order_relaxed);
  driver_ = Driver::kNone;
  rested_.notify_all();
  last_drive_ = now();
}

UvLoop::Waiter* UvLoop::next_driver() const {
  Waiter* waiter = waiters_;
  while (waiter && !waiter->may_drive) waiter = waiter->next;
  return waiter;
}

// The role is free. Wakes the first waiter that may drive; if there is none, and work is left, the thread.
void UvLoop::hand_over() {
  if (Waiter* next = next_driver()) return next->wake.notify_one();
  if (waiters_ || busy_.load() || !posted_.empty() || stop_) {
    wake_thread();
  } else if (thread_sleeps_untimed_) {
    thread_sleeps_untimed_ = false;  // it begins to watch the clock again
    thread_wake_.notify_one();
  }
}

void UvLoop::wake_thread() {
  thread_woken_ = true;
  thread_sleeps_untimed_ = false;
  thread_wake_.notify_one();
}

DSGD_REAL_STACK bool UvLoop::drive(const std::atomic<bool>& done, Time deadline) {
  DefaultFloats floats;
  QuietKj quiet;
  std::optional<kj::WaitScope> scope;
  try {
    scope.emplace(*kj_);
  } catch (const kj::Exception&) {
    return false;  // KJ allows one loop per thread, and this thread has its own
  }
  port_->set_spin(spin_);
  for (;;) {
    work();
    if (resting_.load()) break;
    if (done.load(std::memory_order_acquire) || now() >= deadline) {
      // Calls that end at once, one after the other, keep the communication thread away. So one of them looks
      // at the sockets every kLinger.
      if (now() - polled_ >= kLinger) {
        port_->flush();
        poll();
      }
      work();  // also for what the last tasks have posted, or the communication thread would be woken for it
      break;
    }
    sleep_or_poll(deadline);
  }
  port_->set_spin({});
  return true;
}

// ---- the process exits

void UvLoop::begin_rest() {
  std::lock_guard lock(mutex_);
  resting_ = true;
  for (Waiter* waiter = waiters_; waiter; waiter = waiter->next) waiter->wake.notify_one();
  wake_thread();
  port_->wake();
}

void UvLoop::await_rest(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  rested_.wait_until(lock, until, [this] { return driver_ == Driver::kNone || on_loop(); });
}

// ---- the communication thread

DSGD_REAL_STACK void UvLoop::thread_main() {
  set_default_floats();
  QuietKj quiet;
  int rounds = 0;
  std::unique_lock lock(mutex_);
  thread_woken_ = true;
  while (!resting_ && !(stop_ && driver_ == Driver::kNone)) {
    if (thread_shall_drive()) {
      thread_woken_ = false;
      rounds = 0;
      take_role(Driver::kThread);
      lock.unlock();
      drive_until_yield();
      lock.lock();
      give_up_role();
      yield_wanted_.store(false);
      if (!stop_) hand_over();
      continue;
    }
    thread_woken_ = false;
    if (driver_ == Driver::kCaller && ++rounds >= kRoundsBeforeDeepSleep) {
      thread_sleeps_untimed_ = true;
      thread_wake_.wait(lock, [this] { return !thread_sleeps_untimed_ || stop_; });
      rounds = 0;
    } else {
      thread_wake_.wait_for(lock, kLinger);
    }
  }
  if (resting_) return thread_wake_.wait(lock, [this] { return stop_; });
  take_role(Driver::kThread);
  lock.unlock();
  shut_down();
}

bool UvLoop::thread_shall_drive() const {
  if (driver_ != Driver::kNone || next_driver()) return false;
  return thread_woken_ || busy_.load() || last_drive_ == Time::min() || now() - last_drive_ >= kLinger;
}

// Drops tasks that have not run, with a KJ loop in force for what they hold, and closes the loop.
void UvLoop::shut_down() {
  {
    kj::WaitScope scope(*kj_);
    std::vector<Task> dropped;
    {
      std::lock_guard lock(mutex_);
      dropped.swap(posted_);
    }
    dropped.clear();
    timers_.clear();
    timer_times_.clear();
    run_kj();
  }
  kj_.reset();
  if (port_->shut_down() != 0) unclean.fetch_add(1);
}

void UvLoop::drive_until_yield() {
  kj::WaitScope scope(*kj_);
  for (;;) {
    work();
    if (yield_wanted_.load()) return;
    {
      std::lock_guard lock(mutex_);
      if (stop_ || resting_) return;
    }
    sleep_or_poll(kNever);
  }
}

// ---- the driver's work

// By contract a task throws nothing but std::bad_alloc.
void UvLoop::run_task(Task& task) {
  port_->guarded(task);
  task = nullptr;  // what it holds goes before the next one runs
}

void UvLoop::work() {
  tell_exhausted();  // first: an event may be lost, and later tasks could draw wrong conclusions from that
  run_posted();
  run_timers();
  run_kj();
  tell_exhausted();
  tell_waiters();
}

void UvLoop::tell_exhausted() {
  if (port_->take_exhausted() && exhausted_then_) port_->guarded(exhausted_then_);
}

void UvLoop::run_posted() {
  {
    std::lock_guard lock(mutex_);
    running_.swap(posted_);
  }
  for (Task& task : running_) run_task(task);
  running_.clear();
}

void UvLoop::run_timers() {
  if (timers_.empty()) return;
  const Time time = now();
  while (!timers_.empty() && timers_.begin()->first.first <= time) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    run_task(node.mapped());
  }
}

void UvLoop::run_kj() {
  // An exception here comes from a destructor, or from KJ's own work; the loop itself is intact.
  while (kj_->isRunnable()) port_->guarded([this] { kj_->run(); });
}

void UvLoop::tell_waiters() {
  if (waiting_.load() == 0) return;
  std::lock_guard lock(mutex_);
  for (Waiter* waiter = waiters_; waiter; waiter = waiter->next) {
    if (waiter->done->load(std::memory_order_acquire)) waiter->wake.notify_one();
  }
}

void UvLoop::poll() {
  port_->poll();
  polled_ = now();
}

void UvLoop::sleep_or_poll(Time until) {
  port_->flush();
  bool more = kj_->isRunnable();
  if (!more) {
    std::lock_guard lock(mutex_);
    more = !posted_.empty();
  }
  if (more) return poll();
  if (port_->exhausted()) until = std::min(until, now() + kExhaustedPause);
  if (!timers_.empty()) until = std::min(until, timers_.begin()->first.first);
  if (const Duration held = port_->held_for(); held != kNever) until = std::min(until, now() + held);
  until == kNever ? port_->clear_alarm() : port_->set_alarm(until - now());
  port_->wait();
  polled_ = now();
}

}  // namespace dsgd::transport::uv
