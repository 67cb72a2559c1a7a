#include "core/session/session.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "core/session/session_impl.h"

namespace dsgd {

namespace {

// Constants, since they follow from promises of dsgd.h: a call returns within 100 ms after its deadline, and
// dsgd_close may always take a second to leave in good order.
//
// A blocked caller waits for kSlack beyond a deadline, so that the protocol's own timers fire first: their
// messages say more.
constexpr transport::Duration kSlack = std::chrono::milliseconds(50);
constexpr transport::Duration kLeaving = std::chrono::seconds(1);
constexpr transport::Duration kLeavingFailed = std::chrono::milliseconds(500);
// Polling intervals; no promise depends on them.
constexpr transport::Duration kLookAgain =
    std::chrono::milliseconds(200);  // whether the head's address is free
constexpr transport::Duration kDrained = std::chrono::milliseconds(100);  // whether the process is exiting
constexpr transport::Duration kIdlePoll = std::chrono::milliseconds(1);   // whether operations have ended

Status closed_status() {
  return Status(Code::kClosed, "the session is closed; open a new one with dsgd_init");
}

}  // namespace

Session::Session() = default;

Result<std::shared_ptr<Session>> Session::open(const Config& config,
                                               std::unique_ptr<transport::Environment> environment,
                                               std::shared_ptr<Log> log, const Registered& registered) {
  auto session = make(config, std::move(environment), std::move(log), registered);
  if (!session.ok()) return session;
  auto joined = session.value()->join(Mode::kWait);
  if (!joined.ok()) return joined.status();
  if (!joined.value()->status().ok()) return joined.value()->status();
  return session;
}

Result<std::shared_ptr<Session>> Session::make(const Config& config,
                                               std::unique_ptr<transport::Environment> environment,
                                               std::shared_ptr<Log> log, const Registered& registered) {
  DSGD_RETURN_IF_ERROR(config.validate());
  for (const std::string& warning : config.warnings()) log->warning(warning);
  Config found = config;
  DSGD_RETURN_IF_ERROR(find_devices(found, registered, *log));
  auto session = std::shared_ptr<Session>(new Session());
  session->impl_ = std::make_unique<Impl>(found, std::move(environment), std::move(log), registered);
  Impl& impl = *session->impl_;
  impl.devices_found = config.text("devices") == "auto";
  auto algorithm = impl.strategies.algorithm(config.text("algorithm"));
  if (!algorithm.ok()) return algorithm.status();
  auto strategy = impl.find_strategy(config.text("strategy"), "");
  if (!strategy.ok()) return strategy.status();
  impl.strategy = strategy.value();
  DSGD_RETURN_IF_ERROR(Optimizer::make("sgd", "").into(&impl.model.optimizer));
  impl.model.loss_scale.configure(config.text("loss_scale"));
  if (auto notifier = impl.environment->new_notifier(); notifier.ok())
    impl.notifier = std::move(notifier).value();

  impl.worker =
      std::make_unique<Worker>(*impl.environment, impl.config, algorithm.value(), impl.model, impl.log);
  DSGD_RETURN_IF_ERROR(impl.worker->setup());
  impl.life = Impl::Life::kOpen;
  // Without files, calls on checkpoints fail.
  auto files = impl.environment->new_files();
  impl.engine().use_files(files.ok() ? std::move(files).value() : nullptr, &impl.shards);
  impl.worker->on_exhausted([&impl](const Status& why) { impl.end_left_open(why); });
  impl.engine().before_failure([&impl](const Status& why) {
    std::lock_guard lock(impl.failure_mutex);
    impl.failure = why;
  });
  return session;
}

Session::~Session() {
  if (!impl_) return;
  if (!impl_->environment->alive().ok()) {
    // In a forked child the threads and the state behind the locks are the parent's. The child's copy cannot
    // be destroyed.
    (void)impl_.release();
    return;
  }
  if (impl_->life != Impl::Life::kMaking) close(std::chrono::milliseconds(0));
  impl_->retired.release_all();
  for (const auto& replica : impl_->model.replicas) {
    for (Binding& binding : impl_->model.bindings[replica->index])
      if (binding.release) replica->device->release_after_work(std::move(binding.release));
  }
}

// ---- joining

Result<std::shared_ptr<Operation>> Session::join(Mode mode, const CallOptions& options) {
  Impl& impl = *impl_;
  auto call = std::make_shared<Impl::HostCall>(impl, Impl::HostCall::kAlways);
  if (!call->status().ok()) return call->status();
  const transport::Time deadline =
      impl.loop().now() + options.timeout_or(impl.config.duration("init_timeout"));
  const std::string limit = options.limit_or("init_timeout = " + impl.config.text("init_timeout"));
  const auto operation = impl.new_operation("dsgd_init", options);
  impl.join_operation = operation;
  impl.environment->limit_resolving(deadline);
  if (mode == Mode::kWait) {
    impl.join(deadline, limit);
    // The process exits, and no thread drives the loop any more.
    if (!operation->done()) operation->end(alive());
    return operation;
  }
  impl.post_async(operation, [] {});  // lists it; the thread below ends it
  const Status started =
      impl.environment->start_thread("dsgd-join", [&impl, deadline, limit, call]() mutable {
        impl.join(deadline, limit);
        call.reset();  // the session may be gone after it
      });
  if (!started.ok()) transport::run_and_wait(impl.loop(), [&] { impl.end_join(started); });
  return operation;
}

void Session::Impl::join(transport::Time deadline, const std::string& limit) {
  Status status;
  try {
    status = attempt_join(deadline, limit);
  } catch (const std::bad_alloc&) {
    status = engine().exhausted();
  }
  if (membership == Membership::kJoining) transport::run_and_wait(loop(), [&] { end_join(status); });
}

void Session::Impl::end_join(const Status& status) {
  if (membership != Membership::kJoining) return;
  if (status.ok()) {
    enter_view();
    worker->on_view([this] { enter_view(); });
  } else {
    std::lock_guard lock(failure_mutex);
    failure = status;
  }
  log->report(status.ok() ? WorkerReport{WorkerReport::Kind::kJoined}
                          : WorkerReport{WorkerReport::Kind::kFailed, status.rank()});
  membership = status.ok() ? Membership::kJoined : Membership::kFailed;
  environment->limit_resolving(transport::Time{});  // the thread that joins may be blocked
  const auto operation = std::exchange(join_operation, nullptr);
  if (!operation) return;  // joining had not begun
  end_async(operation, status);
  operation->end(status);  // where the caller is blocked
}

void Session::Impl::enter_view() {
  const transport::JoinReply& present = worker->view();
  const std::string& machine = present.members[static_cast<size_t>(present.rank)].machine;
  int32_t before = 0, local = 0;
  for (const transport::MemberInfo& member : present.members) {
    if (member.machine != machine) continue;
    if (member.rank < present.rank) ++before;
    ++local;
  }
  std::lock_guard lock(view_mutex);
  rank = present.rank;
  size = static_cast<int32_t>(present.members.size());
  local_rank = before, local_size = local;
  Roster roster{present.view, present.learner, static_cast<uint32_t>(present.rank), {}};
  for (const transport::MemberInfo& member : present.members)
    roster.workers.push_back(XXH3_64bits(member.worker_id.data(), member.worker_id.size()));
  shards.enter(std::move(roster));
  view = static_cast<int64_t>(present.view);
}

Result<Session::Impl::Place> Session::Impl::place_in_view() {
  for (;;) {
    {
      std::lock_guard lock(view_mutex);
      if (static_cast<uint64_t>(view) == engine().reported_view()) return Place{rank, size};
    }
    const Status admitted = block([this](const auto& done) { done(engine().admit_call()); });
    if (!admitted.ok()) return admitted;
  }
}

Status Session::Impl::joined() {
  switch (membership) {
    case Membership::kJoined:
      return {};
    case Membership::kJoining:
      return Status(Code::kState,
                    "the session is still joining its job; wait for the op of dsgd_init_begin first");
    default:
      std::lock_guard lock(failure_mutex);
      return failure;
  }
}

Status Session::joined() const { return impl_->joined(); }

Status Session::Impl::attempt_join(transport::Time deadline, const std::string& limit) {
  const auto in_words = [&](const Status& status) {
    return status.code() == Code::kTimeout ? join_timeout_error(limit, status.message()) : status;
  };
  if (const Status status = worker->prepare(); !status.ok()) return in_words(status);
  for (;;) {
    const transport::Time look_again = worker->may_host() ? loop().now() + kLookAgain : transport::kNever;
    auto joined = std::make_shared<Operation>(0, "dsgd_init", false);
    loop().run(
        [this, deadline, limit, look_again, joined] {
          if (membership != Membership::kJoining) return joined->end(failure);  // aborted or closed
          worker->join(
              deadline, limit,
              [this, joined](const Status& status) {
                if (status.ok()) end_join(status);
                if (!joined->done()) joined->end(status);
              },
              look_again);
        },
        joined->done_flag(), deadline + kSlack);
    if (!joined->done())
      return block([&](const auto& done) { done(join_timeout_error(limit, worker->join_progress())); });
    // The head's address has been released, by an earlier job's head for example; a waiting worker may take
    // it.
    if (joined->status().code() != Code::kUnreachable || !worker->may_host() || loop().now() >= deadline)
      return joined->status();
    if (const Status status = worker->retry_embed_head(); !status.ok()) return in_words(status);
  }
}

Status Session::Impl::join_timeout_error(const std::string& limit, const std::string& progress) {
  return Status(Code::kTimeout, "joining the job at " + config.text("head") + " did not end within " + limit +
                                    (progress.empty() ? "" : ": " + progress));
}

// ---- calls

Status Session::Impl::check_not_on_loop() {
  if (life == Life::kMaking || has_ended() || !loop().on_loop()) return {};
  return Status(Code::kState,
                "dsgd calls are not allowed inside a plug-in function or the log hook; call after it has "
                "returned");
}

Session::Impl::HostCall::HostCall(Impl& impl, Use use) : impl_(impl) {
  status_ = impl_.environment->alive();
  if (!status_.ok()) return;  // in a forked child the parent's locks may be held for ever
  std::lock_guard lock(impl_.call_mutex);
  status_ = impl_.check_not_on_loop();
  if (!status_.ok()) return;
  if (use == kAlways ? impl_.has_ended() : impl_.is_closing()) {
    status_ = closed_status();
    return;
  }
  if (use != kAlways && impl_.membership != Membership::kJoined) {
    status_ = impl_.joined();
    return;
  }
  if (use == kWork) {
    std::lock_guard failure_lock(impl_.failure_mutex);
    status_ = impl_.failure;
    if (!status_.ok()) return;
  }
  ++impl_.calls;
  counted_ = true;
}

Session::Impl::HostCall::~HostCall() {
  if (!counted_) return;
  std::lock_guard lock(impl_.call_mutex);
  if (--impl_.calls > 0 || !impl_.has_ended()) return;
  impl_.loop().post([&impl = impl_] { impl.drained = true; });
}

Status Session::alive() const { return impl_->environment->alive(); }
bool Session::closed() const { return impl_->is_closing(); }

Status Session::close(std::chrono::milliseconds timeout) {
  if (Status status = alive(); !status.ok()) return status;
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
      compare_last_values(now + half);
      leave_until = std::max(leave_until, loop().now() + half);
    }
  } while (!leave_job(left, may_wait));
  loop().wait(*left, leave_until);
  // A GPU may still copy pieces of collectives that have failed.
  auto copied = std::make_shared<std::atomic<bool>>(false);
  loop().run([this, copied] { engine().copies().when_idle([copied] { *copied = true; }); }, *copied,
             loop().now() + worker->lease() + kSlack);
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
  struct Wait {
    std::atomic<bool> done{false};
    Status status;
  };
  auto wait = std::make_shared<Wait>();
  const transport::Time until = std::max(close_until.load(), loop().now() + kLeaving);
  const bool ended = loop().run(
      [this, until, wait] {
        engine().await_last_step(until, [wait](const Status& status) {
          wait->status = status;
          wait->done = true;
        });
      },
      wait->done, until == transport::kNever ? until : until + kSlack);
  if (ended && closing_error.ok()) closing_error = wait->status;
}

void Session::Impl::compare_last_values(transport::Time until) {
  auto compared = std::make_shared<std::atomic<bool>>(false);
  loop().run(
      [this, until, compared] { engine().compare_last_values(until, [compared] { *compared = true; }); },
      *compared, transport::kNever);  // a pass over values on the host ends by itself
}

bool Session::Impl::has_failed() {
  std::lock_guard lock(failure_mutex);
  return !failure.ok();
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
  Impl::HostCall call(*impl_, Impl::HostCall::kAlways);
  if (!call.status().ok()) return call.status();
  const bool joined = impl_->membership == Impl::Membership::kJoined;
  const std::string host = impl_->environment->host_name();
  const std::string who =
      (joined ? "rank " + std::to_string(impl_->rank) : "a worker that had not joined yet") + " (host " +
      host + ", pid " + std::to_string(impl_->environment->process_id()) + ")";
  const Status cause =
      Status(Code::kAborted, who + " aborted the job: " + (reason.empty() ? "no reason given" : reason))
          .with_rank(joined ? rank() : -1, host);
  impl_->loop().post([impl = impl_.get(), cause] {
    if (impl->membership == Impl::Membership::kJoined) return impl->engine().fail(cause, true);
    impl->end_join(cause);
    impl->worker->abort_join(cause);
  });
  return {};
}

Status Session::abort(const std::shared_ptr<Operation>& operation, const std::string& reason) {
  if (operation->done()) return {};
  if (!operation->is_object_get()) return abort(reason);
  Impl::HostCall call(*impl_, Impl::HostCall::kAlways);
  if (!call.status().ok()) return call.status();
  const Status cause(Code::kAborted,
                     "the operation was aborted: " + (reason.empty() ? "no reason given" : reason));
  impl_->loop().post(
      [impl = impl_.get(), operation, cause] { impl->engine().cancel_get(operation->ticket(), cause); });
  return {};
}

int32_t Session::rank() const { return impl_->rank; }
int32_t Session::size() const { return impl_->size; }
int32_t Session::local_rank() const { return impl_->local_rank; }
int32_t Session::local_size() const { return impl_->local_size; }
int64_t Session::view() const { return impl_->view; }

SessionInfo Session::info() const {
  using State = SessionInfo::State;
  SessionInfo info;
  const auto membership = impl_->membership.load();
  if (membership == Impl::Membership::kJoined) {  // else the loop may be writing these
    info.rank = rank(), info.size = size(), info.local_rank = local_rank(), info.local_size = local_size();
    info.view = view();
  }
  const auto devices = impl_->config.devices(static_cast<uint32_t>(info.local_rank));
  if (devices.ok()) info.replicas = static_cast<int32_t>(devices.value().size());  // checked at the beginning
  std::lock_guard lock(impl_->step_mutex);
  info.steps = impl_->next_step;
  info.state = closed()                                  ? State::kClosed
               : impl_->has_failed()                     ? State::kFailed
               : membership != Impl::Membership::kJoined ? State::kJoining
               : impl_->torn                             ? State::kTorn
               : impl_->started                          ? State::kStarted
                                                         : State::kJoined;
  return info;
}

// ---- waiting and the queue

void Session::Impl::post_async(const std::shared_ptr<Operation>& operation, transport::Task task) {
  std::list<std::shared_ptr<Operation>> one{operation};
  std::lock_guard lock(queue_mutex);  // the loop ends the operation when it is listed
  loop().post(std::move(task));       // may throw; then it is not listed
  launched.splice(launched.end(), one);
  if (launched.size() == 1) loop().set_busy(true);
}

void Session::Impl::end_async(const std::shared_ptr<Operation>& operation, const Status& status) {
  std::lock_guard lock(queue_mutex);
  const auto at = std::find(launched.begin(), launched.end(), operation);
  if (at != launched.end()) end_launched(at, status);  // else it has ended
}

void Session::Impl::end_launched(std::list<std::shared_ptr<Operation>>::iterator at, const Status& status) {
  (*at)->end(status);
  queue.splice(queue.end(), launched, at);
  if (notifier) notifier->set();
  if (launched.empty()) loop().set_busy(false);
  for (std::atomic<bool>* waiter : queue_waiters) *waiter = true;
}

void Session::Impl::end_left_open(const Status& why) {
  {
    std::lock_guard lock(queue_mutex);
    for (const auto& operation : blocked) operation->end(why);
    while (!launched.empty()) end_launched(launched.begin(), why);
  }
  std::lock_guard lock(step_mutex);
  if (step_operation && step_operation->done()) step_operation.reset();
}

void Session::Impl::wake_queue() {
  transport::run_and_wait(loop(), [this] {
    std::lock_guard lock(queue_mutex);
    for (std::atomic<bool>* waiter : queue_waiters) *waiter = true;
  });
}

Status Session::wait(Operation& operation, std::chrono::milliseconds timeout) {
  if (operation.done()) return operation.status();
  Impl::HostCall call(*impl_, Impl::HostCall::kAlways);
  if (!call.status().ok()) return operation.done() ? operation.status() : call.status();
  const transport::Time deadline = timeout.count() < 0 ? transport::kNever : impl_->loop().now() + timeout;
  if (!impl_->loop().wait(operation.done_flag(), deadline)) {
    if (Status status = alive(); !status.ok()) return status;
    const auto waiting = std::make_shared<Status>();
    impl_->block([this, &operation, waiting](auto done) {
      if (impl_->join_operation.get() == &operation) {
        if (std::string progress = impl_->worker->join_progress(); !progress.empty())
          *waiting = Status(Code::kTimeout, progress);
      }
      if (operation.waiting()) *waiting = operation.waiting()();
      done(Status());
    });
    if (operation.done()) return operation.status();
    return Status(Code::kWaitTimeout, (operation.name().empty() ? "the operation" : operation.name()) +
                                          " has not ended after " + std::to_string(timeout.count()) + " ms" +
                                          (waiting->ok() ? "" : ": " + waiting->message()) +
                                          "; it goes on, and its buffers stay in use")
        .with_rank(waiting->rank(), waiting->host())
        .with_operation(operation.name())
        .with_parameter(waiting->parameter());
  }
  return operation.status();
}

Result<std::vector<std::shared_ptr<Operation>>> Session::queue_poll(size_t max,
                                                                    std::chrono::milliseconds timeout) {
  Impl::HostCall call(*impl_, Impl::HostCall::kAlways);
  if (Status status = alive(); !status.ok()) return status;
  if (call.status().code() == Code::kState) return call.status();
  const bool usable = call.status().ok();
  const transport::Time deadline =
      !usable || timeout.count() < 0 ? transport::kNever : impl_->loop().now() + timeout;
  for (;;) {
    std::atomic<bool> woken{false};
    std::list<std::atomic<bool>*>::iterator self;
    {
      std::lock_guard lock(impl_->queue_mutex);
      if (!impl_->queue.empty() && max > 0) {
        std::vector<std::shared_ptr<Operation>> ended;
        while (!impl_->queue.empty() && ended.size() < max) {
          ended.push_back(std::move(impl_->queue.front()));
          impl_->queue.pop_front();
        }
        if (impl_->queue.empty() && impl_->notifier) impl_->notifier->clear();
        return ended;
      }
      if (impl_->has_ended()) return closed_status();
      self = impl_->queue_waiters.insert(impl_->queue_waiters.end(), &woken);
    }
    const bool in_time = impl_->loop().wait(woken, deadline);
    std::lock_guard lock(impl_->queue_mutex);
    impl_->queue_waiters.erase(self);
    if (!in_time && impl_->queue.empty()) {
      return Status(Code::kWaitTimeout,
                    "no operation has ended within " + std::to_string(timeout.count()) + " ms");
    }
  }
}

int Session::queue_fd() const {
  return impl_->notifier ? impl_->notifier->fd() : static_cast<int>(Code::kUnsupported);
}

void Session::queue_forget(const Operation& operation) {
  std::lock_guard lock(impl_->queue_mutex);
  std::erase_if(impl_->queue, [&](const auto& ended) { return ended.get() == &operation; });
  if (impl_->queue.empty() && impl_->notifier) impl_->notifier->clear();
}

}  // namespace dsgd
