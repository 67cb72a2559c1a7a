#include "core/session/last_step.h"

#include <algorithm>
#include <string>

namespace dsgd {

// The others have completed it after about a round trip. If one of them is lost before, that takes until the
// head knows of the loss, and the others have agreed on where they stand and have the step.
void LastStep::await(uint64_t steps, transport::Time deadline, std::function<void()> then) {
  awaited_ = Awaited{.steps = steps, .deadline = deadline, .then = std::move(then)};
  limit_wait();
}

void LastStep::hasten(transport::Time deadline) {
  if (!awaited_ || deadline >= awaited_->deadline) return;
  awaited_->deadline = deadline;
  limit_wait();
}

// Ends the wait if its time is over, else sets the timer. A change of the view has a deadline of its own.
void LastStep::limit_wait() {
  loop_.cancel(awaited_->timer);
  transport::Time due = awaited_->deadline;
  if (awaited_->asked != transport::Time{}) due = std::min(due, verdict_due_(awaited_->asked) + lease_);
  if (due == transport::kNever) return;
  if (due > loop_.now()) {  // it becomes later while the head is lost
    awaited_->timer = loop_.schedule(due, [this, alive = std::weak_ptr(alive_)] {
      if (!alive.expired() && awaited_) limit_wait();
    });
    return;
  }
  log_->warning("dsgd_close does not know that all others have completed step " +
                std::to_string(awaited_->steps - 1) + "; if one is lost now, they may repeat it");
  end_wait();
}

void LastStep::ask(Peers& peers) {
  if (!awaited_) return;
  awaited_->asked = loop_.now();
  limit_wait();
  if (!awaited_) return;  // the time is over
  awaited_->missing.clear();
  for (int32_t other = 0; other < peers.size(); ++other) {
    if (other != peers.rank() && !peers.has_left(other)) awaited_->missing.push_back(other);
  }
  const std::vector<int32_t> missing = awaited_->missing;
  if (missing.empty()) return end_wait();
  const uint64_t ask = ++asks_;
  const transport::HasCompleted question{peers.members().view().view, peers.rank(), awaited_->steps};
  for (int32_t other : missing) {
    peers.call(
        other, question, transport::kNever,
        [this, &peers, other, ask, alive = std::weak_ptr(alive_)](const Result<transport::Message>& answer) {
          if (alive.expired() || ask != asks_) return;
          if (answer.ok() || peers.has_left(other)) on_answer(other);
        });
  }
}

void LastStep::on_answer(int32_t rank) {
  if (!awaited_) return;
  std::erase(awaited_->missing, rank);
  if (awaited_->missing.empty()) end_wait();
}

void LastStep::forget_answers() {
  ++asks_;
  if (!awaited_) return;
  awaited_->asked = {};
  limit_wait();
}

void LastStep::end_wait() {
  if (!awaited_) return;
  loop_.cancel(awaited_->timer);
  std::exchange(awaited_, std::nullopt)->then();
}

void LastStep::answer(uint64_t completed) {
  auto asked = std::exchange(asked_, {});
  for (auto& [steps, respond] : asked) {
    if (steps <= completed) {
      respond(transport::Message(transport::Empty{}));
    } else {
      asked_.emplace_back(steps, std::move(respond));
    }
  }
}

void LastStep::refuse(const Status& why) {
  for (auto& [steps, respond] : std::exchange(asked_, {})) respond(why);
}

}  // namespace dsgd
