// The end of a step that does not succeed: its limit, announced failures.

#include <chrono>
#include <string>
#include <utility>

#include "core/step/step.h"

namespace dsgd {
namespace {
// Without a mesh: time after the deadline of a step in which a late device reports itself, with a more
// specific text. Constant: a call returns within 100 ms after its deadline.
constexpr transport::Duration kGrace = std::chrono::milliseconds(80);
}  // namespace

// Whether the step waits for a view without a worker that has closed its session.
bool Step::waits_for_view(const Status& cause) const {
  return on_worker_left_ && cause.code() == Code::kWorkerLost && cause.rank() >= 0 &&
         cause.rank() != state_.rank();
}

void Step::operation_failed(const Status& cause) {
  if (!waits_for_view(cause)) return fail(cause);
  if (!std::exchange(progress_.waits, true)) on_worker_left_(cause);
}

void Step::cancel_timers() {
  for (transport::TimerId* timer : {&lost_worker_timer_, &deadline_timer_}) {
    if (*timer) loop_.cancel(std::exchange(*timer, 0));
  }
}

// The other workers do not know of the failure, and this worker's values may be wrong: the session fails.
// With early updates the step may have ended before its sums did.
void Step::device_failed(const Status& cause) {
  if (!done_ && !state_.path.updates_early) return;
  const Status why = Status(cause.code(), name() + ": " + cause.message())
                         .with_operation(name())
                         .with_parameter(cause.parameter());
  on_device_failure_(why);
}

// NCCL does not report which peer is missing. Waits for the head, or the exchange "all enqueued", to
// name it, then fails.
void Step::team_failed(const Status& cause) {
  const bool late = cause.code() == Code::kTimeout, lost = cause.code() == Code::kWorkerLost;
  if (!state_.mesh || !(late || lost)) return device_failed(cause);
  if (lost_worker_timer_) return;
  const transport::Duration timeout = late ? std::chrono::milliseconds(50) : state_.options.lease;
  lost_worker_timer_ = loop_.schedule(loop_.now() + timeout, [this, cause] {
    lost_worker_timer_ = 0;
    device_failed(cause);
  });
}

// Exchanges have deadlines of their own, but none begins for a bucket whose gradients are not all marked.
// Devices report their own deadline within the grace.
void Step::start_deadline_timer() {
  deadline_timer_ =
      loop_.schedule(state_.request.deadline + (state_.mesh ? transport::Duration() : kGrace), [this] {
        deadline_timer_ = 0;
        deadline_passed();
      });
}

void Step::deadline_passed() {
  if (state_.mesh && (state_.all_marked() || !state_.header_done))
    return;  // an exchange is late; its error names the workers
  const UnmarkedGradients unmarked = this->unmarked();
  const std::string who = state_.mesh ? state_.mesh->members().name(state_.mesh->peers.rank()) + ": " : "";
  const Status why =
      Status(Code::kTimeout,
             name() + " has not ended within " + state_.request.limit +
                 (unmarked.empty() ? "" : ": " + who + unmarked.text + UnmarkedGradients::kRemedy))
          .with_rank(state_.rank())
          .with_operation(name())
          .with_parameter(unmarked.parameter);
  announce_failure(why);
  fail(why);
}

void Step::leave(const UnmarkedGradients& unmarked) {
  if (!running()) return;
  const std::string who =
      state_.mesh ? state_.mesh->members().name(state_.rank()) : "rank " + std::to_string(state_.rank());
  const std::string text =
      who + " closed its session during " + name() + "; " + unmarked.text + UnmarkedGradients::kRemedy;
  const auto why = [&](Code code) {
    const std::string host = state_.mesh ? state_.mesh->members().host_of(state_.rank()) : "";
    return Status(code, text)
        .with_rank(state_.rank(), host)
        .with_operation(name())
        .with_parameter(unmarked.parameter);
  };
  announce_failure(why(Code::kWorkerLost));
  fail(why(Code::kClosed), why(Code::kWorkerLost));
}

// Tells the peers that this worker does not complete the operations that it has begun, nor begin those of the
// next bucket. A peer fails when it begins the first of them, or at once.
void Step::announce_failure(const Status& why) {
  if (!state_.mesh) return;
  if (!state_.header_done) state_.mesh->operations.announce_failure(state_.numbers.header(), why);
  buckets_.announce_failure(why);
}

void Step::abort(const Status& cause) {
  fail(cause);
  buckets_.team().fail(cause);
}

// `for_peers`: the answer to peers that still send data of this step.
void Step::fail(const Status& cause, const Status& for_peers) {
  cancel_timers();
  if (suspended_) done_ = std::exchange(suspended_, nullptr);
  if (done_) {
    devices_.note_step_skipped();
    trace_.failed();
    // A failure that all have agreed on came before any of the team's work.
    if (!progress_.agreed) buckets_.team().fail(cause);
    const Done done = std::exchange(done_, nullptr);
    buckets_.forget_held();
    if (state_.mesh) state_.mesh->operations.end_call(state_.request.call, for_peers);
    done(cause, state_.result);
  }
  waiter_.fail(cause);
}

void Step::close() {
  cancel_timers();
  waiter_.close();
  buckets_.team().close();
}

}  // namespace dsgd
