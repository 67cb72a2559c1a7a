#include "core/membership/member.h"

#include <algorithm>
#include <utility>

#include "core/base/address.h"
#include "core/base/channels.h"
#include "core/base/describe.h"
#include "core/membership/admission.h"
#include "core/membership/member_impl.h"

namespace dsgd {

Member::Impl::Impl(transport::Network& n, transport::Network& h, MemberOptions o, std::shared_ptr<Log> g)
    : network(n),
      loop(n.loop()),
      heartbeat_network(h),
      options(std::move(o)),
      log(g ? std::move(g) : std::make_shared<Log>()),
      poster(std::make_shared<transport::Poster>(n.loop())) {
  options.hello.worker_id = options.join.member.worker_id;
  options.join.lease = options.lease;
  options.hello.library_version = library_version();
  options.hello.role = transport::Role::kControl;
  options.hello.rank = -1;
  options.hello.view = 0;
}

void Member::Impl::drop_channel(bool flush) {
  if (channel) close_in_callback(loop, std::exchange(channel, nullptr), flush);
}

// ---- joining

void Member::Impl::start() {
  phase = Phase::kJoining;
  options.join.incarnation = loop.random() | 1;
  joiner = std::make_shared<Joiner>(network, options, *log, [this](Result<Joiner::Joined> result) {
    result.ok() ? on_joined(std::move(result).value()) : join_failed(result.status());
  });
  joiner->start();
}

void Member::Impl::join_failed(const Status& why) {
  joiner->stop();
  phase = Phase::kLeft;
  later([why](Impl& self) {
    if (auto notify = std::exchange(self.notify_joined, nullptr)) notify(why);
  });
}

void Member::Impl::on_joined(Joiner::Joined joined) {
  channel = std::move(joined.channel);
  heads = split_addresses(options.head);
  heads[joined.head] = channel->address();  // a name would have to be resolved within the lease
  std::rotate(heads.begin(), heads.begin() + static_cast<std::ptrdiff_t>(joined.head), heads.end());
  views.begin(std::move(joined.view));
  phase = Phase::kJoined;
  start_heartbeat();
  received = views.first().sequence;
  watch(received);
  later([](Impl& self) {
    if (auto notify = std::exchange(self.notify_joined, nullptr)) notify(self.views.first());
  });
}

transport::Hello Member::Impl::hello_of(transport::Role role) const {
  transport::Hello hello = options.hello;
  hello.role = role;
  hello.rank = views.number();
  hello.view = views.first().view;
  hello.job_nonce = views.first().job_nonce;
  return hello;
}

void Member::Impl::start_heartbeat() {
  HeartbeatOptions o;
  o.addresses = heads;
  o.hello = hello_of(transport::Role::kHeartbeat);
  o.own_rank = views.first().rank;
  o.token = options.token;
  o.lease = options.lease;
  o.interval = options.heartbeat_interval;
  o.head_name = head_name();
  o.head_rank = views.first().head_rank;
  o.head_host = views.head_host();
  o.own_name = describe_member(views.own_at_join());
  o.own_host = views.own_at_join().host;
  o.peers = views.remote_peers();
  HeartbeatEvents events{on_loop([](Impl& self, const Status& why) { self.heartbeat_failed(why); })};
  if (views.first().durable) {
    events.head_lost = on_loop([](Impl& self, const Status& why) { self.head_silent(why); });
    events.head_answered = on_loop([](Impl& self) { self.head_answered(); });
  }
  heartbeat = std::make_shared<Heartbeat>(heartbeat_network, std::move(o), std::move(events));
  heartbeat->start();
}

void Member::Impl::stop_heartbeat(std::function<void()> stopped) {
  if (heartbeat) {
    std::exchange(heartbeat, nullptr)->stop(std::move(stopped));
  } else if (stopped) {
    stopped();
  }
}

void Member::Impl::abort_join(const Status& cause) {
  notify_joined = nullptr;
  if (phase == Phase::kJoined) return leave(cause, views.present().view, 0, nullptr);
  if (phase != Phase::kJoining) return;
  channel = joiner->give_up_channel();
  phase = channel ? Phase::kLeaving : Phase::kLeft;
  if (channel) send_leave(cause, views.present().view, 0, options.join.hosts_head);
}

// ---- leaving

void Member::Impl::leave(const Status& cause, uint64_t view, uint64_t departure_call,
                         std::function<void()> done) {
  if (phase == Phase::kJoining) {
    join_failed(
        Status(Code::kClosed, "the session was closed while it waited for the head at " + options.head));
  }
  notify_done = std::move(done);
  if (phase == Phase::kLeaving) return;  // finish() follows
  if ((!channel && !reconnector) || phase == Phase::kLeft) return left_job();
  phase = Phase::kLeaving;
  send_leave(cause, view, departure_call, views.hosts_head());
}

// `host`: of the head.
void Member::Impl::send_leave(const Status& cause, uint64_t view, uint64_t departure_call, bool host) {
  leave_until = loop.now() + (host ? Member::host_patience(options.lease) : options.lease);
  leave_timer = loop.schedule(leave_until, while_alive(weak_from_this(), [](Impl& self) { self.finish(); }));
  leaving.number = views.number();
  leaving.view = view;
  leaving.cause = cause;
  leaving.departure_call = departure_call;
  call_leave();
  // After a cut, a new heartbeat connection may reach the head long before TCP sends again on this one. No
  // cut is between a head and its host.
  if (!heartbeat || host) return;
  heartbeat->leave(leaving, on_loop([](Impl& self) {
                     if (self.phase == Phase::kLeaving) self.left_job();
                   }));
}

void Member::Impl::call_leave() {
  if (!channel) return;
  channel->call(
      leaving, leave_until,
      while_alive(weak_from_this(), [number = channel_number](Impl& self, const Result<Message>& answer) {
        if (!self.head_may_return(answer.status())) return self.left_job();
        if (self.phase == Phase::kLeaving && self.channel_number == number && self.channel)
          self.connection_lost(answer.status());
      }));
}

// The head knows (or is gone): the heartbeat ends, then the connection.
void Member::Impl::left_job() {
  stop_reconnector();
  phase = Phase::kLeft;
  stop_heartbeat(on_loop([](Impl& self) { self.finish(); }));
}

void Member::Impl::finish() {
  stop_reconnector();
  phase = Phase::kLeft;
  loop.cancel(leave_timer);
  stop_heartbeat({});
  drop_channel(true);
  later([](Impl& self) {
    if (auto notify = std::exchange(self.notify_done, nullptr)) notify();
  });
}

void Member::Impl::shut() {
  poster->close();
  if (joiner) joiner->stop();
  stop_reconnector();
  loop.cancel(leave_timer);
  phase = Phase::kLeft;
  notify_joined = nullptr;
  notify_broken = nullptr;
  notify_left = nullptr;
  notify_view = nullptr;
  notify_refused = nullptr;
  notify_done = nullptr;
  stop_heartbeat({});
  channel.reset();
}

// ---- the public calls

Member::Member(transport::Network& network, transport::Network& heartbeat_network, MemberOptions options,
               std::shared_ptr<Log> log)
    : impl_(std::make_shared<Impl>(network, heartbeat_network, std::move(options), std::move(log))) {}

Member::~Member() { impl_->shut(); }

void Member::join(std::function<void(Result<transport::JoinReply>)> joined) {
  impl_->notify_joined = std::move(joined);
  impl_->start();
}

void Member::on_broken(std::function<void(const Status&)> broken) {
  impl_->notify_broken = std::move(broken);
  impl_->deliver_broken();
}

void Member::on_left(std::function<void(int32_t rank, uint64_t departure_call)> left) {
  impl_->notify_left = std::move(left);
  impl_->deliver_left();
}

void Member::on_view(std::function<void(const transport::JoinReply& view, const Status& why)> changed) {
  impl_->notify_view = std::move(changed);
}

void Member::on_present_view(std::function<void()> changed) { impl_->notify_present = std::move(changed); }
transport::JoinReply Member::present_view() const { return impl_->views.present_with_learner(); }
void Member::enter(std::function<void(const Status&)> refused) { impl_->enter(std::move(refused)); }
bool Member::has_head() const { return impl_->has_head(); }

void Member::report_progress(transport::Progress progress) {
  progress.number = impl_->views.number();
  progress.view = impl_->views.first().view;
  impl_->send_to_head(progress);
}

transport::Time Member::verdict_due(transport::Time reported) const { return impl_->verdict_due(reported); }
void Member::report(const Status& cause) { impl_->report(cause); }

bool Member::report_cut(const std::string& peer_id, const Status& cause, bool silent) {
  return impl_->report_cut(peer_id, cause, silent);
}

void Member::abort_join(const Status& cause) { impl_->abort_join(cause); }

const std::string& Member::join_progress() const {
  static const std::string kNone;
  return impl_->joiner ? impl_->joiner->progress() : kNone;
}

void Member::leave(const Status& cause, uint64_t view, uint64_t departure_call, std::function<void()> done) {
  impl_->leave(cause, view, departure_call, std::move(done));
}

}  // namespace dsgd
