// Closing a session, in the order that README.md describes, and aborting its job.

#include <algorithm>
#include <atomic>
#include <chrono>

#include "core/base/describe.h"
#include "core/objects/objects.h"
#include "core/session/session_impl.h"

namespace dsgd {

namespace {

// Constants, since they follow from a promise of dsgd.h: dsgd_close may always take a second to leave in good
// order.
constexpr transport::Duration kLeaving = std::chrono::seconds(1);
constexpr transport::Duration kLeavingFailed = std::chrono::milliseconds(500);
// Polling intervals; no promise depends on them.
constexpr transport::Duration kDrained = std::chrono::milliseconds(100);  // whether the process is exiting
constexpr transport::Duration kIdlePoll = std::chrono::milliseconds(1);   // whether operations have ended

}  // namespace

Status Session::close(std::chrono::milliseconds timeout) {
  DSGD_RETURN_IF_ERROR(alive());
  Impl& impl = *impl_;
  {
    std::lock_guard lock(impl.call_mutex);
    if (impl.life == Impl::Life::kClosed) return impl.closing_error;
    DSGD_RETURN_IF_ERROR(impl.check_not_on_loop());
    impl.life = std::max(impl.life.load(), Impl::Life::kClosing);
    const transport::Time until = timeout.count() < 0 ? transport::kNever : impl.loop().now() + timeout;
    impl.close_until = std::min(impl.close_until.load(), until);  // also for a close() in progress
    impl.loop().post(
        [&impl] { impl.engine().hasten_last_step(std::max(impl.close_until.load(), impl.loop().now())); });
  }
  std::lock_guard closing(impl.close_mutex);
  if (impl.life == Impl::Life::kClosed) return impl.closing_error;
  impl.leave_unmarked_step(timeout.count() != 0);
  impl.leave(timeout.count() != 0);
  Status diverged;
  transport::run_and_wait(impl.loop(), [&] { diverged = impl.engine().divergence(); });
  if (!diverged.ok()) {
    impl.log->error(diverged.message());
    impl.report(diverged);
    impl.closing_error = diverged;
  }
  // The operations of waiting callers have ended. When the last caller has returned, the loop is no longer
  // used.
  {
    std::lock_guard lock(impl.call_mutex);
    impl.life = Impl::Life::kEnded;
    impl.drained = impl.calls == 0;
  }
  impl.wake_queue();
  while (!impl.loop().wait(impl.drained, impl.loop().now() + kDrained)) {
    if (!impl.environment->alive().ok()) break;
  }
  std::lock_guard lock(impl.call_mutex);  // the last caller has left post(), too
  impl.life = Impl::Life::kClosed;
  impl.worker.reset();
  return impl.closing_error;
}

// Another close() may bring the deadline forward at any time.
void Session::Impl::leave(bool may_wait) {
  transport::run_and_wait(loop(), [this] { end_join(closed_status()); });
  if (membership == Membership::kFailed) {  // at most an abort is left, which the head has to pass on
    auto left = std::make_shared<std::atomic<bool>>(false);
    const transport::Time until = loop().now() + kLeaving;
    leave_job(left, false);
    loop().wait(*left, until);
    return;
  }
  wait_until_idle();
  transport::Time idle_from = std::min(idle_since.load(), loop().now()), leave_until;
  auto left = std::make_shared<std::atomic<bool>>(false);
  do {
    const transport::Time begun = loop().now();
    if (may_wait) await_last_step();
    const transport::Time now = loop().now();
    idle_from += now - begun;  // this wait must not shorten the time for leaving
    // The head answers at once. A head in this worker answers when the others know that this worker leaves.
    leave_until = std::min(std::max(close_until.load(), now + kLeaving),
                           idle_from + Member::host_patience(worker->lease()));
    // After a failure the workers have nothing to agree on; only a head in this process must still tell the
    // others.
    if (has_failed() && !worker->hosts_head()) leave_until = std::min(leave_until, now + kLeavingFailed);
    if (may_wait) {
      // A pass over values in host memory takes its time; half of the limit stays for leaving.
      const transport::Duration half = (leave_until - now) / 2;
      // A GPU has this half to give its values. A pass over values on the host ends by itself.
      run_until(transport::kNever,
                [this, until = now + half](auto done) { engine().compare_last_values(until, done); });
      leave_until = std::max(leave_until, loop().now() + half);
    }
  } while (!leave_job(left, may_wait));
  loop().wait(*left, leave_until);
  // A GPU may still copy pieces of collectives that have failed.
  run_until(loop().now() + worker->lease() + kSlack,
            [this](auto done) { engine().buffer_copier().when_idle(done); });
}

// First waits for operations in flight, until the deadline, which another close() may bring forward. Then
// waits until all that ended operations have to send is sent, for a second whatever the deadline, since the
// peers' operations need it: messages may wait for a connection, and chunks for their turn. A peer that does
// not answer delays this and the leaving for one lease together. After a failure of the session no peer needs
// a message: the head tells them all.
void Session::Impl::wait_until_idle() {
  const transport::Time deadline = close_until;
  const transport::Time latest =
      deadline == transport::kNever ? deadline : std::max(deadline, loop().now() + kLeaving) + kSlack;
  loop().run([this] { poll_idle(); }, idle, latest);
  idle = true;  // stops the polling
}

void Session::Impl::poll_idle() {
  if (idle) return;
  const transport::Time now = loop().now();
  if (engine().idle()) idle_since = std::min(idle_since.load(), now);
  const transport::Time since = idle_since;
  const bool was_idle = since != transport::kNever;
  const bool may_leave =
      was_idle && (engine().all_sent() || !engine().failure().ok() || now - since >= worker->lease());
  const transport::Time until =
      was_idle ? std::max(close_until.load(), since + kLeaving) : close_until.load();
  if (may_leave || now >= until) {
    idle = true;
  } else {
    loop().schedule(now + kIdlePoll, [this] { poll_idle(); });
  }
}

void Session::Impl::await_last_step() {
  const transport::Time until = std::max(close_until.load(), loop().now() + kLeaving);
  const auto found = std::make_shared<Status>();
  const bool ended =
      run_until(until == transport::kNever ? until : until + kSlack, [this, until, found](auto done) {
        engine().await_last_step(until, [found, done](const Status& status) {
          *found = status;
          done();
        });
      });
  if (ended && closing_error.ok()) closing_error = *found;
}

bool Session::Impl::leave_job(const std::shared_ptr<std::atomic<bool>>& left, bool if_awaited) {
  bool leaves = false;
  transport::run_and_wait(loop(), [&] {
    leaves = !if_awaited || engine().has_awaited_last_step();
    if (!leaves) return;
    const Status cause = engine().failure();  // before leave() closes the engine
    worker->leave(cause, [left] { *left = true; });
  });
  return leaves;
}

Status Session::abort(const std::string& reason) {
  return impl_->fail_by_host("aborted the job", reason, "");
}

Status Session::fail(const std::string& reason) {
  return impl_->fail_by_host("failed", reason, kHostFailure);
}

Status Session::Impl::fail_by_host(const std::string& event, const std::string& reason,
                                   const std::string& operation) {
  HostCall call(*this, HostCall::kAlways);
  if (!call.status().ok()) return call.status();
  const bool joined = membership == Membership::kJoined;
  const std::string host = environment->host_name();
  const std::string who = (joined ? "rank " + std::to_string(rank) : "a worker that had not joined yet") +
                          " (host " + host + ", pid " + std::to_string(environment->process_id()) + ")";
  const Status cause =
      Status(Code::kAborted, who + " " + event + ": " + (reason.empty() ? "no reason given" : reason))
          .with_rank(joined ? rank.load() : -1, host)
          .with_operation(operation);
  loop().post([this, cause] {
    if (membership == Membership::kJoined) {
      const bool others_go_on = views_change && is_host_failure(cause);
      return engine().fail(others_go_on ? Status(cause).with_code(Code::kWorkerLost) : cause, true);
    }
    end_join(cause);
    worker->abort_join(cause);
  });
  return {};
}

Status Session::abort(const std::shared_ptr<Operation>& operation, const std::string& reason) {
  if (operation->done()) return {};
  if (operation->name() != Objects::kGet) return abort(reason);
  Impl::HostCall call(*impl_, Impl::HostCall::kAlways);
  if (!call.status().ok()) return call.status();
  const Status cause(Code::kAborted,
                     "the operation was aborted: " + (reason.empty() ? "no reason given" : reason));
  impl_->loop().post(
      [impl = impl_.get(), operation, cause] { impl->engine().cancel_get(operation->ticket(), cause); });
  return {};
}

}  // namespace dsgd
