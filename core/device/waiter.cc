#include "core/device/waiter.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "transport/poster.h"

namespace dsgd::device {

namespace {
// A device that has failed does not notify: it is noticed within this time.
constexpr transport::Duration kPollInterval = std::chrono::milliseconds(20);
// Nothing notifies of the end of a capture, or of an event in a stream of the host's.
constexpr transport::Duration kRetryInterval = std::chrono::milliseconds(1);
}  // namespace

// Outlives the waiter, since a device may notify it at any time.
struct Waiter::Anchor {
  transport::Poster poster;
  Waiter* waiter;                      // touched on the loop only; null: nobody waits any more
  std::atomic<bool> notified = false;  // a poll is on its way

  static void post(const std::shared_ptr<Anchor>& anchor) {
    if (anchor->notified.exchange(true)) return;
    anchor->poster.post([anchor] {
      anchor->notified = false;
      if (anchor->waiter) anchor->waiter->poll();
    });
  }
};

Waiter::Waiter(transport::Loop& loop) : loop_(loop), anchor_(new Anchor{transport::Poster(loop), this}) {}

void Waiter::close() {
  if (!anchor_->waiter) return;
  waiting_.clear();
  attempts_.clear();
  if (timer_) loop_.cancel(std::exchange(timer_, 0));
  if (retry_) loop_.cancel(std::exchange(retry_, 0));
  anchor_->poster.close();
  anchor_->waiter = nullptr;
}

void Waiter::after(const std::string& name, WorkQueue& queue, DeviceEvent& event, transport::Time deadline,
                   std::function<void(const Status&)> then) {
  if (Status status = queue.record(event); !status.ok()) return then(status);
  auto done = event.done();
  if (!done.ok() || done.value()) return then(done.status());
  // Enqueued first, since the device may notify at once.
  waiting_.push_back({name, &event, deadline, std::move(then)});
  const auto enqueued = std::prev(waiting_.end());
  if (Status status = queue.notify([anchor = anchor_] { Anchor::post(anchor); }); !status.ok()) {
    auto failed = std::move(enqueued->then);
    waiting_.erase(enqueued);
    return failed(status);
  }
  schedule_poll();
}

void Waiter::when_done(const std::string& name, DeviceEvent& event, transport::Time deadline,
                       std::function<void(const Status&)> then) {
  auto done = event.done();
  if (!done.ok() || done.value()) return then(done.status());
  waiting_.push_back({name, &event, deadline, std::move(then), false});
  schedule_poll();
}

void Waiter::when_usable(transport::Time deadline, std::function<Status()> attempt,
                         std::function<void(const Status&)> then) {
  attempts_.push_back({deadline, std::move(attempt), std::move(then)});
  if (!retry_) try_attempts();
}

// `then` may make further attempts, fail all of them, or destroy this object.
void Waiter::try_attempts() {
  if (std::exchange(trying_, true)) return;
  const std::shared_ptr<Anchor> anchor = anchor_;
  while (anchor->waiter && !attempts_.empty()) {
    Status status = attempts_.front().attempt();
    if (status.code() == Code::kState && loop_.now() < attempts_.front().deadline) {
      retry_ = loop_.schedule(loop_.now() + kRetryInterval, [this] {
        retry_ = 0;
        try_attempts();
      });
      break;
    }
    if (status.code() == Code::kState)
      status = Status(Code::kTimeout, "the capture of a graph did not end in time: " + status.message());
    const auto then = std::move(attempts_.front().then);
    attempts_.pop_front();
    then(status);
  }
  if (anchor->waiter) trying_ = false;
}

void Waiter::fail(const Status& cause) {
  if (retry_) loop_.cancel(std::exchange(retry_, 0));
  const std::shared_ptr<Anchor> anchor = anchor_;
  for (const Attempt& attempt : std::exchange(attempts_, {})) {
    attempt.then(cause);
    if (!anchor->waiter) return;  // destroyed or closed by `then`
  }
  std::list<Ended> ended;
  for (Waiting& waiting : std::exchange(waiting_, {})) ended.push_back({std::move(waiting.then), cause});
  end(std::move(ended));
}

void Waiter::poll() {
  std::list<Ended> ended;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const auto at = next++;
    auto done = at->event->done();
    Status status = done.status();
    if (done.ok() && !done.value()) {
      if (loop_.now() < at->deadline) continue;
      status = Status(Code::kTimeout,
                      at->name +
                          " has not finished its enqueued work before the deadline; a stream of the host may "
                          "be blocked");
    }
    ended.push_back({std::move(at->then), std::move(status)});
    waiting_.erase(at);
  }
  end(std::move(ended));
}

void Waiter::end(std::list<Ended> ended) {
  if (waiting_.empty() && timer_) loop_.cancel(std::exchange(timer_, 0));
  const std::shared_ptr<Anchor> anchor = anchor_;
  for (const Ended& wait : ended) {
    if (!anchor->waiter) return;  // destroyed or closed by an earlier `then`
    wait.then(wait.status);
  }
}

void Waiter::schedule_poll() {
  const bool all_notify =
      std::all_of(waiting_.begin(), waiting_.end(), [](const Waiting& waiting) { return waiting.notifies; });
  const transport::Time at = loop_.now() + (all_notify ? kPollInterval : kRetryInterval);
  if (timer_ && poll_at_ <= at) return;
  if (timer_) loop_.cancel(timer_);
  poll_at_ = at;
  timer_ = loop_.schedule(at, [this, anchor = anchor_] {
    timer_ = 0;
    poll();
    if (anchor->waiter && !waiting_.empty()) schedule_poll();
  });
}

}  // namespace dsgd::device
