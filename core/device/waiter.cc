#include "core/device/waiter.h"

#include <atomic>
#include <utility>

#include "transport/poster.h"

namespace dsgd::device {

namespace {
constexpr transport::Duration kLook = std::chrono::milliseconds(20);
}

// Outlives the waiter, since devices ring when they please.
struct Waiter::Bell {
  transport::Poster poster;
  Waiter* waiter;                  // touched on the loop only; null: nobody waits any more
  std::atomic<bool> rung = false;  // a look is on its way

  static void ring(const std::shared_ptr<Bell>& bell) {
    if (bell->rung.exchange(true)) return;
    bell->poster.post([bell] {
      bell->rung = false;
      if (bell->waiter) bell->waiter->look();
    });
  }
};

Waiter::Waiter(transport::Loop& loop) : loop_(loop), bell_(new Bell{transport::Poster(loop), this}) {}

void Waiter::close() {
  if (!bell_->waiter) return;
  waiting_.clear();
  if (timer_) loop_.cancel(std::exchange(timer_, 0));
  bell_->poster.close();
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
