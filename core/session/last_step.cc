#include "core/session/last_step.h"

#include <algorithm>

#include "core/base/while_alive.h"

namespace dsgd {

// The wait takes about a round trip. If one of the others is lost meanwhile, it takes until the head knows of
// the loss and those that are left have agreed on where they stand and have the step.
void LastStep::await(uint64_t steps, transport::Time deadline, std::function<void()> then) {
  awaited_ = Awaited{.steps = steps, .deadline = deadline, .then = std::move(then)};
  limit_wait();
}

void LastStep::hasten(transport::Time deadline) {
  if (!awaited_ || deadline >= awaited_->deadline) return;
  awaited_->deadline = deadline;
  limit_wait();
}

// Ends the wait if its time is over, else sets the timer. The time for answers counts from ask(). While the
// view changes, the deadline alone limits the wait, since the change has a deadline of its own.
void LastStep::limit_wait() {
  loop_.cancel(awaited_->timer);
  transport::Time due = awaited_->deadline;
  if (awaited_->asked_at != transport::Time{}) due = std::min(due, verdict_due_(awaited_->asked_at) + lease_);
  if (due == transport::kNever) return;
  if (due > loop_.now()) {  // see Member::verdict_due()
    awaited_->timer = loop_.schedule(due, if_alive(alive_, [this] {
                                       if (awaited_) limit_wait();
                                     }));
    return;
  }
  log_->warning(
      "dsgd_close: not all workers have confirmed the last step of this worker; they may repeat it if one is "
      "lost now");
  end_wait();
}

void LastStep::ask(Peers& peers, uint64_t steps) {
  if (!awaited_) return;
  awaited_->steps = steps;
  awaited_->asked_at = loop_.now();
  limit_wait();
  if (!awaited_) return;  // the time is over
  awaited_->missing.clear();
  for (int32_t other = 0; other < peers.size(); ++other) {
    if (other != peers.rank() && !peers.has_left(other)) awaited_->missing.push_back(other);
  }
  const std::vector<int32_t> missing = awaited_->missing;
  if (missing.empty()) return end_wait();
  const uint64_t ask = ++last_ask_;
  const transport::HasCompleted question{peers.members().view().view, peers.rank(), steps};
  for (int32_t other : missing) {
    peers.call(other, question, transport::kNever,
               if_alive(alive_, [this, &peers, other, ask](const Result<transport::Message>& answer) {
                 if (ask != last_ask_ || !awaited_ || !(answer.ok() || peers.has_left(other))) return;
                 std::erase(awaited_->missing, other);
                 if (awaited_->missing.empty()) end_wait();
               }));
  }
}

void LastStep::forget_answers() {
  ++last_ask_;
  if (!awaited_) return;
  awaited_->asked_at = {};
  awaited_->missing.clear();
  limit_wait();
}

void LastStep::end_wait() {
  if (!awaited_) return;
  loop_.cancel(awaited_->timer);
  awaited_steps_ = awaited_->steps;
  std::exchange(awaited_, std::nullopt)->then();
}

void LastStep::on_asked(int32_t rank, uint64_t steps, transport::Responder respond) {
  const Question earlier = std::exchange(questions_[rank], {steps, std::move(respond)});
  if (earlier.respond) earlier.respond(Status(Code::kState, "the same worker has asked again"));
}

void LastStep::answer_questions(uint64_t completed) {
  std::vector<transport::Responder> answered;
  std::erase_if(questions_, [&](auto& entry) {
    auto& [rank, question] = entry;
    if (question.steps > completed) return false;
    answered.push_back(std::move(question.respond));
    return true;
  });
  for (const auto& respond : answered) respond(transport::Message(transport::Empty{}));
}

void LastStep::reject_questions(const Status& why) {
  for (auto& [rank, question] : std::exchange(questions_, {})) question.respond(why);
}

}  // namespace dsgd
