#include "transport/uv/event_port.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "transport/uv/fd.h"

namespace dsgd::transport::uv {

namespace {

// A loop takes up to seven: epoll, two eventfds, and two pipes for signals, one of which belongs to the
// process.
constexpr int kLoopDescriptors = 8;

// libuv aborts the process when the first loop ever made finds no descriptor for its signal pipe.
int look_for_descriptors() {
  std::array<Fd, kLoopDescriptors> probes;
  for (Fd& probe : probes) {
    probe = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!probe) return -errno;
  }
  return 0;
}

void delete_async(uv_handle_t* handle) { delete reinterpret_cast<uv_async_t*>(handle); }
void delete_timer(uv_handle_t* handle) { delete reinterpret_cast<uv_timer_t*>(handle); }

}  // namespace

UvEventPort::UvEventPort() {
  const StandardStreams held;
  error_ = look_for_descriptors();
  if (error_ == 0) error_ = uv_loop_init(&loop_);
  if (error_ != 0) {
    down_ = true;
    return;
  }
  async_ = new uv_async_t;
  error_ = uv_async_init(&loop_, async_, [](uv_async_t* handle) {
    auto* port = static_cast<UvEventPort*>(handle->data);
    port->pending_.store(false);
    port->alerted_ = true;
  });
  if (error_ != 0) {
    delete async_;
    async_ = nullptr;
    uv_loop_close(&loop_);
    down_ = true;
    return;
  }
  async_->data = this;  // stays referenced: a loop without sockets must sleep too, not return at once
  alarm_ = new uv_timer_t;
  uv_timer_init(&loop_, alarm_);
  alarm_->data = this;
}

UvEventPort::~UvEventPort() noexcept(false) { shut_down(); }

bool UvEventPort::wait() {
  flush();
  auto now = std::chrono::steady_clock::now();
  if (spin_.duration > Duration::zero() && now >= spins_again_) {
    alerted_ = false;
    const auto end = now + spin_.duration;
    do {
      uv_run(&loop_, UV_RUN_NOWAIT);
      if (alerted_) return take_woken();
      if (spin_.yields) sched_yield();
      const auto looked = std::exchange(now, std::chrono::steady_clock::now());
      if (spin_.yields && now - looked > kTimeSlice) spins_again_ = now + kCrowded;
    } while (now < end);
  }
  uv_run(&loop_, UV_RUN_ONCE);
  return take_woken();
}

bool UvEventPort::poll() {
  flush();
  uv_run(&loop_, UV_RUN_NOWAIT);
  return take_woken();
}

void UvEventPort::wake() const {
  woken_.store(true);
  if (!pending_.exchange(true)) uv_async_send(async_);
}

void UvEventPort::set_alarm(Duration timeout) {
  // libuv counts milliseconds from its cached "now".
  uv_update_time(&loop_);
  const int64_t ns = std::max<int64_t>(timeout.count(), 0);
  const uint64_t ms = static_cast<uint64_t>(ns / 1'000'000 + (ns % 1'000'000 != 0));
  uv_timer_start(
      alarm_,
      [](uv_timer_t* timer) {
        auto* port = static_cast<UvEventPort*>(timer->data);
        port->alarm_set_ = false;
        port->alerted_ = true;
        // libuv runs due timers before it sleeps, too, and would then sleep for ever.
        uv_stop(&port->loop_);
      },
      ms, 0);
  alarm_set_ = true;
}

void UvEventPort::clear_alarm() {
  if (!alarm_set_) return;
  uv_timer_stop(alarm_);
  alarm_set_ = false;
}

void UvEventPort::forget(Flushable* item) {
  std::erase(dirty_, item);
  std::erase(held_, item);
}

void UvEventPort::hold(Flushable* item) {
  if (held_.empty()) hold_ends_ = std::chrono::steady_clock::now() + kHold;
  held_.push_back(item);
}

Duration UvEventPort::held_for() const {
  if (held_.empty()) return kNever;
  return std::max<Duration>(Duration::zero(), hold_ends_ - std::chrono::steady_clock::now());
}

void UvEventPort::flush() {
  if (held_for() == Duration::zero()) {
    for (size_t count = held_.size(); count > 0 && !held_.empty(); --count) {
      Flushable* item = held_.back();
      held_.pop_back();
      guarded([item] { item->flush_held(); });
    }
  }
  while (!dirty_.empty()) {
    Flushable* item = dirty_.back();
    dirty_.pop_back();
    guarded([item] { item->flush(); });
  }
}

int UvEventPort::shut_down() {
  if (down_) return error_;
  down_ = true;
  uv_close(reinterpret_cast<uv_handle_t*>(async_), delete_async);
  uv_close(reinterpret_cast<uv_handle_t*>(alarm_), delete_timer);
  uv_run(&loop_, UV_RUN_DEFAULT);  // runs the close callbacks, and ends when no handle is left
  error_ = uv_loop_close(&loop_);
  return error_;
}

}  // namespace dsgd::transport::uv
