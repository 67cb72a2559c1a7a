#include "core/membership/member.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/base/address.h"
#include "core/base/describe.h"
#include "core/base/retry.h"
#include "core/base/views_change.h"
#include "core/membership/admission.h"
#include "core/membership/head_reconnector.h"
#include "core/membership/heartbeat.h"
#include "core/membership/joiner.h"
#include "core/membership/member_views.h"
#include "core/membership/text.h"
#include "core/membership/while_alive.h"
#include "transport/poster.h"

namespace dsgd {
namespace {

using transport::ClientChannel;
using transport::JoinReply;
using transport::Message;
using transport::WatchReply;

}  // namespace

struct Member::Impl : std::enable_shared_from_this<Member::Impl> {
  enum class Phase {
    kIdle,
    kJoining,  // dialling, waiting to dial again, or in the rendezvous
    kJoined,
    kHeadless,  // the worker that hosts the head has left in good order, and the head with it
    kBroken,
    kLeaving,
    kLeft,  // also: the join failed
  };

  Impl(transport::Network& n, transport::Network& h, MemberOptions o, std::shared_ptr<Log> g)
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

  transport::Network& network;
  transport::Loop& loop;
  transport::Network& heartbeat_network;
  MemberOptions options;
  const std::shared_ptr<Log> log;
  // From the heartbeat's thread back to the loop; closed when the member ends.
  const std::shared_ptr<transport::Poster> poster;

  Phase phase = Phase::kIdle;
  std::shared_ptr<Joiner> joiner;
  std::shared_ptr<ClientChannel> channel;  // control, once joined; shared only so that a task may hold it
  uint64_t connection = 0;                 // number of the channel
  // Addresses of the heads; the one that this worker joined is first, and numeric.
  std::vector<std::string> heads;
  std::shared_ptr<HeadReconnector> reconnector;  // null: the head is not lost
  bool reconnect_again = false;                  // once the reconnector has ended
  Status head_loss;                              // why it counts as lost, while there is a reconnector
  bool loss_logged = false;                      // the loss of the head was logged, so its return is, too
  transport::Time came_back{};                   // the head, last
  std::shared_ptr<Heartbeat> heartbeat;
  MemberViews views;
  Status broken;
  std::vector<WatchReply> left;  // news of workers that left, with present ranks, which no callback has taken
  std::function<void(Result<JoinReply>)> notify_joined;
  std::function<void(const Status&)> notify_broken;
  std::function<void(int32_t, uint64_t)> notify_left;
  std::function<void(const JoinReply&, const Status&)> notify_view;
  std::function<void()> notify_present;
  std::function<void()> notify_done;
  std::function<void(const Status&)> notify_refused;  // of enter()
  transport::TimerId leave_timer = 0;
  uint64_t received = 0;  // sequence of the last news
  // For a head that comes back: a report that no head has answered; and the peers in the present view with
  // which a connection has ended, by number, with why.
  std::optional<transport::Report> unanswered;
  std::map<int32_t, Status> cuts;
  transport::Leave leaving;
  transport::Time leave_until{};

  // Runs `f(impl)` from a task of the loop, if the member still exists.
  template <typename F>
  void later(F f) {
    loop.post(while_alive(weak_from_this(), std::move(f)));
  }

  // Returns a callback for the heartbeat's thread, which runs `f(impl, ...)` on the loop.
  template <typename F>
  auto on_loop(F f) {
    return [poster = poster, weak = weak_from_this(), f](const auto&... arguments) {
      poster->post([=] { while_alive(weak, f)(arguments...); });
    };
  }

  // The channel may be calling us at this moment, so it is destroyed from a task of its own.
  void drop_channel(bool flush) {
    if (!channel) return;
    channel->close(flush);
    loop.post([keep = std::exchange(channel, nullptr)] {});
  }

  std::string head_name() const { return describe_head(options.head, views.present()); }

  bool over() const { return phase == Phase::kLeaving || phase == Phase::kLeft; }

  // ---- joining

  void start() {
    phase = Phase::kJoining;
    options.join.incarnation = loop.random() | 1;
    joiner = std::make_shared<Joiner>(network, options, *log, [this](Result<Joiner::Joined> result) {
      if (result.ok()) {
        on_joined(std::move(result).value());
      } else {
        join_failed(result.status());
      }
    });
    joiner->start();
  }

  void join_failed(const Status& why) {
    joiner->stop();
    phase = Phase::kLeft;
    later([why](Impl& self) {
      if (auto notify = std::exchange(self.notify_joined, nullptr)) notify(why);
    });
  }

  void on_joined(Joiner::Joined joined) {
    channel = std::move(joined.channel);
    heads = split_addresses(options.head);
    heads[joined.head] = channel->address();  // a name would have to be resolved within the lease
    std::rotate(heads.begin(), heads.begin() + static_cast<std::ptrdiff_t>(joined.head), heads.end());
    views.join(std::move(joined.view));
    phase = Phase::kJoined;
    start_heartbeat();
    received = views.joined().sequence;
    watch(received);
    later([](Impl& self) {
      if (auto notify = std::exchange(self.notify_joined, nullptr)) notify(self.views.joined());
    });
  }

  transport::Hello hello_of(transport::Role role) const {
    transport::Hello hello = options.hello;
    hello.role = role;
    hello.rank = views.number();
    hello.view = views.joined().view;
    hello.job_nonce = views.joined().job_nonce;
    return hello;
  }

  void start_heartbeat() {
    HeartbeatOptions o;
    o.addresses = heads;
    o.hello = hello_of(transport::Role::kHeartbeat);
    o.own_rank = views.joined().rank;
    o.token = options.token;
    o.lease = options.lease;
    o.interval = options.heartbeat_interval;
    o.head_name = head_name();
    o.head_rank = views.joined().head_rank;
    o.head_host = views.head_host();
    o.own_name = describe_member(views.joiner());
    o.own_host = views.joiner().host;
    o.peers = views.remote_peers();
    HeartbeatEvents events{on_loop([](Impl& self, const Status& why) { self.heartbeat_failed(why); })};
    if (views.joined().durable) {
      events.head_lost = on_loop([](Impl& self, const Status& why) { self.head_silent(why); });
      events.head_answered = on_loop([](Impl& self) { self.head_answered(); });
    }
    heartbeat = std::make_shared<Heartbeat>(heartbeat_network, std::move(o), std::move(events));
    heartbeat->start();
  }

  void stop_heartbeat(std::function<void()> stopped) {
    if (heartbeat) {
      std::exchange(heartbeat, nullptr)->stop(std::move(stopped));
    } else if (stopped) {
      stopped();
    }
  }

  void abort_join(const Status& cause) {
    notify_joined = nullptr;
    if (phase == Phase::kJoined) return leave(cause, 0, nullptr);
    if (phase != Phase::kJoining) return;
    channel = joiner->give_up_channel();
    phase = channel ? Phase::kLeaving : Phase::kLeft;
    if (channel) send_leave(cause, 0, options.join.hosts_head);
  }

  // ---- joined

  void watch(uint64_t sequence) {
    transport::Watch request;
    request.sequence = sequence;
    channel->call(request, transport::kNever,
                  while_alive(weak_from_this(), [of = connection](Impl& self, const Result<Message>& answer) {
                    if (self.over() || !self.channel)
                      return;  // while leaving, only the answer to Leave matters
                    if (self.connection != of) return;
                    if (answer.status().code() == Code::kEvicted) return self.break_down(answer.status());
                    if (self.may_return(answer.status())) return self.connection_lost(answer.status());
                    if (!answer.ok())
                      return self.head_lost("was lost: " + answer.status().message(),
                                            code_of_break(answer.status()));
                    if (auto* news = std::get_if<WatchReply>(&answer.value())) self.on_news(*news);
                  }));
  }

  void on_news(const WatchReply& news) {
    received = news.sequence;
    watch(received);  // which also confirms this news
    if (!news.members.empty()) return change_view(news);
    if (!news.news.ok()) return break_down(news.news);
    const int32_t rank = views.note_left(news.left);
    if (rank < 0) return;
    if (views.present().learner) return present_changed();
    log->info(describe_member(views.present().members[static_cast<size_t>(rank)]) +
              " has left the job in good order");
    left.push_back(news);
    left.back().left = rank;
    deliver_left();
  }

  void change_view(const WatchReply& news) {
    if (!views.change(news)) {
      return break_down(Status(Code::kInternal, describe_head(options.head, views.joined()) +
                                                    " published view " + std::to_string(news.view) +
                                                    ", which this worker cannot take part in"));
    }
    std::erase_if(cuts, [&](const auto& cut) {
      return std::none_of(views.present().members.begin(), views.present().members.end(),
                          [&](const transport::MemberInfo& m) { return m.number == cut.first; });
    });
    if (views.present().learner) return present_changed();
    notify_refused = nullptr;
    later([next = views.present(), why = news.news](Impl& self) {
      auto notify = self.notify_view;
      if (notify && !self.over()) notify(next, why);
    });
  }

  void present_changed() {
    later([](Impl& self) {
      if (self.notify_present && self.views.present().learner && !self.over()) self.notify_present();
    });
  }

  void deliver_left() {
    if (!notify_left) return;
    for (const WatchReply& news : std::exchange(left, {})) {
      later([rank = news.left, call = news.departure_call](Impl& self) {
        auto notify = self.notify_left;
        if (notify && !self.over()) notify(rank, call);
      });
    }
  }

  // The heartbeat knows the ranks of the view in which this worker joined.
  void heartbeat_failed(Status why) {
    if (views.host_left()) return head_gone();
    const JoinReply& view = views.joined();
    const bool own_lease =
        why.code() == Code::kWorkerLost && why.rank() == view.rank && view.rank != view.head_rank;
    if (why.code() == Code::kWorkerLost && why.rank() >= 0 &&
        why.rank() < static_cast<int32_t>(view.members.size())) {
      const transport::MemberInfo& named = view.members[static_cast<size_t>(why.rank())];
      why = std::move(why).with_rank(rank_of(views.present().members, named.worker_id), named.host);
    }
    report(why);  // the head may receive it, although this worker receives nothing from the head
    // The others go on without a worker whose lease is over.
    break_down(own_lease && views_change() ? evicted(views.own(), why) : why);
  }

  void head_lost(const std::string& how, Code code = Code::kWorkerLost) {
    if (views.host_left()) return head_gone();
    drop_channel(false);
    break_down(Status(code, head_name() + " " + how).with_rank(views.present().head_rank, views.head_host()));
  }

  // The head has gone in good order, with the worker that hosted it.
  void head_gone() {
    if (phase != Phase::kJoined) return;
    drop_channel(false);
    phase = Phase::kHeadless;
    stop_heartbeat({});
    log->info(describe_head(options.head, views.joined()) +
              " has left in good order; the remaining workers now probe each other");
    refuse_entry();
  }

  // ---- a head that comes back

  // Whether this error of a call is the loss of a head that may come back.
  bool may_return(const Status& why) const {
    return views.joined().durable && !views.host_left() && is_lost_connection(why);
  }

  void connection_lost(const Status& why) {
    drop_channel(false);
    head_silent(Status(Code::kWorkerLost, head_name() + " was lost: " + why.message()));
  }

  // A head that is only silent keeps its connection until another one has replaced it: to the head, the end
  // of the connection would be the loss of this worker.
  void head_silent(Status why) {
    if (reconnector || (phase != Phase::kJoined && phase != Phase::kLeaving)) return;
    if (phase == Phase::kJoined) {
      loss_logged = true;
      log->warning(why.message() + "; training goes on, and the head is dialled again for " +
                   describe_duration(options.head_timeout) + " (head_timeout)");
    }
    await_head(std::move(why));
  }

  // The head has answered on a later heartbeat connection: perhaps it is another head than the one to which
  // the control connection leads, which may be silent for ever.
  void head_answered() {
    if (phase != Phase::kJoined && phase != Phase::kLeaving) return;
    if (reconnector) {
      reconnect_again = true;
      return;
    }
    await_head(Status(Code::kWorkerLost, head_name() + " does not answer on its earlier connection"));
  }

  void await_head(Status why) {
    head_loss = std::move(why);
    HeadReconnector::Options o;
    o.addresses = heads;
    o.hello = hello_of(transport::Role::kControl);
    o.token = options.token;
    o.request = {views.number(), views.joined().view, options.join.incarnation};
    o.lease = options.lease;
    o.deadline = loop.now() + options.head_timeout;
    reconnector = std::make_shared<HeadReconnector>(
        network, std::move(o), [this](Result<HeadReconnector::Channel> back) {
          reconnector = nullptr;
          back.ok() ? come_back(std::move(back).value()) : no_return(back.status());
        });
    reconnector->start();
  }

  void come_back(HeadReconnector::Channel back) {
    drop_channel(false);
    channel = std::move(back);
    ++connection;
    came_back = loop.now();
    if (phase == Phase::kLeaving) return call_leave();
    if (std::exchange(loss_logged, false)) log->info(head_name() + " has come back");
    if (heartbeat) heartbeat->begin_lease();  // the head may fall silent before it answers there
    watch(received);
    if (unanswered) call_report();
    if (notify_refused) call_enter();
    for (const auto& [peer, why] : cuts)
      send_to_head(transport::ReportCut{views.number(), views.joined().view, why, peer});
    if (std::exchange(reconnect_again, false)) head_answered();
  }

  void no_return(const Status& why) {
    if (phase == Phase::kLeaving) return left_job();
    if (why.code() == Code::kEvicted) return break_down(why);
    if (!is_lost_connection(why)) {  // a head that knows the job
      return break_down(
          Status(Code::kWorkerLost, head_name() + " has come back, and refuses this worker: " + why.message())
              .with_rank(why.rank(), why.host()));
    }
    heartbeat_failed(Status(head_loss.code(), head_loss.message() + "; it has not come back within " +
                                                  describe_duration(options.head_timeout) +
                                                  " (head_timeout): " + why.message())
                         .with_rank(head_loss.rank(), head_loss.host()));
  }

  void call_report() {
    if (!channel) return;
    channel->call(*unanswered, transport::kNever,
                  while_alive(weak_from_this(), [](Impl& self, const Result<Message>& answer) {
                    if (!self.may_return(answer.status())) self.unanswered.reset();
                  }));
  }

  // A head decides within a lease, which may begin with the report. If it is lost before, the worker notices
  // that within another one. A head that has come back gives each worker a lease first. A quarter of a lease
  // is for messages and the head's second look.
  transport::Time verdict_due(transport::Time reported) const {
    if (!views.joined().durable) return reported + 5 * options.lease / 4;
    if (reconnector) return loop.now() + options.lease;
    return std::max(reported + 9 * options.lease / 4, came_back + 13 * options.lease / 4);
  }

  void stop_reconnector() {
    reconnect_again = false;
    if (reconnector) std::exchange(reconnector, nullptr)->stop();
  }

  void break_down(const Status& why) {
    if (phase != Phase::kJoined) return;
    stop_reconnector();
    phase = Phase::kBroken;
    broken = why;
    log->info("the job cannot go on: " +
              broken.message());  // the session, which fails with it, logs the error
    stop_heartbeat({});
    deliver_broken();
  }

  void deliver_broken() {
    if (broken.ok() || !notify_broken) return;
    later([](Impl& self) {
      auto notify = std::exchange(self.notify_broken, nullptr);
      if (notify && !self.over()) notify(self.broken);
    });
  }

  bool views_change() const {
    const transport::JoinRequest& join = options.join;
    return dsgd::views_change(join.num_workers, join.min_workers, join.max_workers, join.rejoin_timeout);
  }

  bool has_head() const { return phase == Phase::kJoined && (channel || reconnector) && !views.host_left(); }

  void report(const Status& cause) {
    if (cause.ok() || !has_head()) return;
    transport::Report message{views.number(), views.joined().view, cause};
    if (!views.joined().durable) return void(send_to_head(message));
    if (unanswered) return;  // only the first cause counts
    unanswered = std::move(message);
    call_report();
  }

  bool report_cut(const std::string& peer_id, const Status& cause, bool silent) {
    const int32_t rank = rank_of(views.present().members, peer_id);
    if (rank < 0) return has_head();  // the head has already decided
    const int32_t peer = views.present().members[static_cast<size_t>(rank)].number;
    if (views.joined().durable && !silent) cuts.emplace(peer, cause);
    return send_to_head(transport::ReportCut{views.number(), views.joined().view, cause, peer});
  }

  void enter(std::function<void(const Status&)> refused) {
    notify_refused = std::move(refused);
    if (has_head()) return call_enter();
    refuse_entry();
  }

  void refuse(const Status& why) {
    if (auto notify = std::exchange(notify_refused, nullptr)) notify(why);
  }

  // The head has gone. A learner whose Enter it has not answered enters no view.
  void refuse_entry() {
    later([](Impl& self) {
      self.refuse(
          Status(Code::kUnreachable, self.head_name() + " has gone, so this worker cannot join the job"));
    });
  }

  // If the connection ends, the Watch call in flight reports it.
  void call_enter() {
    if (!channel) return;
    channel->call(transport::Enter{views.number(), views.joined().view}, transport::kNever,
                  while_alive(weak_from_this(), [](Impl& self, const Result<Message>& answer) {
                    if (answer.ok() || !self.has_head() || self.may_return(answer.status())) return;
                    self.refuse(answer.status());
                  }));
  }

  // Ignores the answer: what follows from the message comes as news.
  bool send_to_head(const Message& message) {
    if (!has_head()) return false;
    if (channel) channel->call(message, loop.now() + options.lease, [](const Result<Message>&) {});
    return true;
  }

  // ---- leaving

  void leave(const Status& cause, uint64_t departure_call, std::function<void()> done) {
    if (phase == Phase::kJoining) {
      join_failed(
          Status(Code::kClosed, "the session was closed while it waited for the head at " + options.head));
    }
    notify_done = std::move(done);
    if (phase == Phase::kLeaving) return;  // finish() follows
    if ((!channel && !reconnector) || phase == Phase::kLeft) return left_job();
    phase = Phase::kLeaving;
    send_leave(cause, departure_call, views.hosts_head());
  }

  // `host`: of the head.
  void send_leave(const Status& cause, uint64_t departure_call, bool host) {
    leave_until = loop.now() + (host ? Member::host_patience(options.lease) : options.lease);
    leave_timer =
        loop.schedule(leave_until, while_alive(weak_from_this(), [](Impl& self) { self.finish(); }));
    leaving.number = views.number();
    leaving.view = views.present().view;
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

  void call_leave() {
    if (!channel) return;
    channel->call(leaving, leave_until,
                  while_alive(weak_from_this(), [of = connection](Impl& self, const Result<Message>& answer) {
                    if (!self.may_return(answer.status())) return self.left_job();
                    if (self.phase == Phase::kLeaving && self.connection == of && self.channel)
                      self.connection_lost(answer.status());
                  }));
  }

  // The head knows (or is gone): the heartbeat ends, then the connection.
  void left_job() {
    stop_reconnector();
    if (phase == Phase::kLeaving || phase == Phase::kHeadless || phase == Phase::kBroken ||
        phase == Phase::kIdle) {
      phase = Phase::kLeft;
    }
    stop_heartbeat(on_loop([](Impl& self) { self.finish(); }));
  }

  void finish() {
    stop_reconnector();
    phase = Phase::kLeft;
    loop.cancel(leave_timer);
    stop_heartbeat({});
    drop_channel(true);
    later([](Impl& self) {
      if (auto notify = std::exchange(self.notify_done, nullptr)) notify();
    });
  }

  void shut() {
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
};

Member::Member(transport::Network& network, transport::Network& heartbeat_network, MemberOptions options,
               std::shared_ptr<Log> log)
    : impl_(std::make_shared<Impl>(network, heartbeat_network, std::move(options), std::move(log))) {}

Member::~Member() { impl_->shut(); }

void Member::join(std::function<void(Result<JoinReply>)> joined) {
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

void Member::on_view(std::function<void(const JoinReply& view, const Status& why)> changed) {
  impl_->notify_view = std::move(changed);
}

void Member::on_present_view(std::function<void()> changed) { impl_->notify_present = std::move(changed); }

JoinReply Member::present_view() const { return impl_->views.present_with_learner(); }

void Member::enter(std::function<void(const Status&)> refused) { impl_->enter(std::move(refused)); }

bool Member::has_head() const { return impl_->has_head(); }

void Member::report_progress(transport::Progress progress) {
  progress.number = impl_->views.number();
  progress.view = impl_->views.joined().view;
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

void Member::leave(const Status& cause, uint64_t departure_call, std::function<void()> done) {
  impl_->leave(cause, departure_call, std::move(done));
}

}  // namespace dsgd
