// Joining the job, and this worker's place in the present view.

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <chrono>
#include <new>
#include <utility>

#include "core/session/session_impl.h"

namespace dsgd {

namespace {

// How often a waiting worker tries whether the head's address is free. No promise depends on it.
constexpr transport::Duration kTryHostingEvery = std::chrono::milliseconds(200);

}  // namespace

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
    const transport::Time try_hosting_at =
        worker->may_host() ? loop().now() + kTryHostingEvery : transport::kNever;
    auto joined = std::make_shared<Operation>(0, "dsgd_init", false);
    loop().run(
        [this, deadline, limit, try_hosting_at, joined] {
          if (membership != Membership::kJoining) return joined->end(failure);  // aborted or closed
          worker->join(
              deadline, limit,
              [this, joined](const Status& status) {
                if (status.ok()) end_join(status);
                if (!joined->done()) joined->end(status);
              },
              try_hosting_at);
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

}  // namespace dsgd
