#include "core/session/session.h"

#include <algorithm>

#include "core/session/session_impl.h"

namespace dsgd {

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
  DSGD_RETURN_IF_ERROR(impl.find_strategy(config.text("strategy"), "").into(&impl.strategy));
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
      if (binding.release) replica->device->release_in_order(std::move(binding.release));
  }
}

// ---- calls

Status Session::Impl::closed_status() {
  return Status(Code::kClosed, "the session is closed; open a new one with dsgd_init");
}

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

bool Session::Impl::has_failed() {
  std::lock_guard lock(failure_mutex);
  return !failure.ok();
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
    DSGD_RETURN_IF_ERROR(alive());
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
  DSGD_RETURN_IF_ERROR(alive());
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
      if (impl_->has_ended()) return Impl::closed_status();
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
