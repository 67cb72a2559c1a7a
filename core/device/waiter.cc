#include "core/device/waiter.h"

#include <mutex>
#include <utility>

namespace dsgd::device {

namespace {
constexpr transport::Duration kLook = std::chrono::milliseconds(20);
}

// Outlives the waiter, since devices ring when they please.
struct Waiter::Bell {
  std::mutex mutex;
  transport::Loop* loop;  // null: nobody waits any more
  Waiter* waiter;         // touched on the loop only
  bool rung = false;      // a look is on its way

  static void ring(const std::shared_ptr<Bell>& bell) {
    std::lock_guard lock(bell->mutex);
    if (!bell->loop || std::exchange(bell->rung, true)) return;
    bell->loop->post([bell] {
      {
        std::lock_guard lock(bell->mutex);
        bell->rung = false;
      }
      if (bell->waiter) bell->waiter->look();
    });
  }
};

Waiter::Waiter(transport::Loop& loop) : loop_(loop), bell_(std::make_shared<Bell>()) {
  bell_->loop = &loop;
  bell_->waiter = this;
}

void Waiter::close() {
  std::lock_guard lock(bell_->mutex);
  if (!bell_->loop) return;
  waiting_.clear();
  if (timer_) loop_.cancel(std::exchange(timer_, 0));
  bell_->loop = nullptr;
  bell_->waiter = nullptr;
}

void Waiter::after(const std::string& name, WorkQueue& queue, Mark& mark, transport::Time deadline,
                   std::function<void(const Status&)> then) {
  if (Status status = queue.record(mark); !status.ok()) return then(status);
  auto done = mark.done();
  if (!done.ok() || done.value()) return then(done.status());
  // Entered first, since the device may ring at once.
  waiting_.push_back({name, &mark, deadline, std::move(then)});
  const auto entered = std::prev(waiting_.end());
  if (Status status = queue.notify([bell = bell_] { Bell::ring(bell); }); !status.ok()) {
    auto failed = std::move(entered->then);
    waiting_.erase(entered);
    return failed(status);
  }
  look_later();
}

void Waiter::fail(const Status& cause) {
  const std::list<Status> how(waiting_.size(), cause);
  end(std::exchange(waiting_, {}), how);
}

void Waiter::look() {
  std::list<Waiting> over;
  std::list<Status> how;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const auto at = next++;
    auto done = at->mark->done();
    Status status = done.status();
    if (done.ok() && !done.value()) {
      if (loop_.now() < at->deadline) continue;
      status = Status(Code::kTimeout, at->name + " has not done in time what was entered into it; what the host has entered into "
                                                 "its streams before may not end");
    }
    how.push_back(std::move(status));
    over.splice(over.end(), waiting_, at);
  }
  end(std::move(over), std::move(how));
}

void Waiter::end(std::list<Waiting> over, std::list<Status> how) {
  if (waiting_.empty() && timer_) loop_.cancel(std::exchange(timer_, 0));
  const std::shared_ptr<Bell> bell = bell_;
  for (Waiting& waiting : over) {
    if (!bell->waiter) return;  // destroyed by what was called
    const auto then = std::move(waiting.then);
    const Status status = std::move(how.front());
    how.pop_front();
    then(status);
  }
}

void Waiter::look_later() {
  if (timer_) return;
  timer_ = loop_.schedule(loop_.now() + kLook, [this, bell = bell_] {
    timer_ = 0;
    look();
    if (bell->waiter && !waiting_.empty()) look_later();
  });
}

}  // namespace dsgd::device
