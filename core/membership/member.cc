#include "core/membership/member.h"

#include <utility>

#include "core/base/describe.h"
#include "core/membership/admission.h"
#include "core/membership/heartbeat.h"
#include "core/membership/joiner.h"
#include "core/membership/text.h"
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
  std::shared_ptr<Heartbeat> heartbeat;
  JoinReply view;

  bool host_left = false;  // news: the worker that hosts the head left in good order
  Status broken;
  std::vector<WatchReply> left;  // news of workers that left, which no callback has taken yet
  std::function<void(Result<JoinReply>)> tell_joined;
  std::function<void(const Status&)> tell_broken;
  std::function<void(int32_t, uint64_t)> tell_left;
  std::function<void()> tell_done;
  transport::TimerId leave_timer = 0;

  // Runs `f(impl)` from a task of the loop, if the member still exists.
  template <typename F>
  void later(F f) {
    loop.post([weak = weak_from_this(), f = std::move(f)]() mutable {
      if (auto self = weak.lock()) f(*self);
    });
  }

  // The channel may be calling us at this moment, so it is destroyed from a task of its own.
  void drop_channel(bool flush) {
    if (!channel) return;
    channel->close(flush);
    loop.post([keep = std::exchange(channel, nullptr)] {});
  }

  bool over() const { return phase == Phase::kLeaving || phase == Phase::kLeft; }

  // ---- joining

  void start() {
    phase = Phase::kJoining;
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
      if (auto tell = std::exchange(self.tell_joined, nullptr)) tell(why);
    });
  }

  void on_joined(Joiner::Joined joined) {
    channel = std::move(joined.channel);
    view = std::move(joined.view);
    phase = Phase::kJoined;
    start_heartbeat();
    watch(0);
    later([](Impl& self) {
      if (auto tell = std::exchange(self.tell_joined, nullptr)) tell(self.view);
    });
  }

  const transport::MemberInfo& member(int32_t rank) const { return view.members[static_cast<size_t>(rank)]; }
  std::string head_host() const { return view.head_rank >= 0 ? member(view.head_rank).host : std::string(); }

  void start_heartbeat() {
    HeartbeatOptions o;
    o.address = channel->address();  // a name would have to be resolved within the lease
    o.hello = options.hello;
    o.hello.role = transport::Role::kHeartbeat;
    o.hello.rank = view.rank;
    o.hello.view = view.view;
    o.hello.job_nonce = view.job_nonce;
    o.token = options.token;
    o.lease = options.lease;
    o.interval = options.heartbeat_interval;
    o.head_name = describe_head(options.head, view);
    o.head_rank = view.head_rank;
    o.head_host = head_host();
    o.own_name = describe_member(member(view.rank));
    o.own_host = member(view.rank).host;
    for (const transport::MemberInfo& peer : view.members) {
      // A worker of this machine answers even if the machine is cut off, one of the head's machine says
      // nothing new.
      const bool here = peer.machine == member(view.rank).machine;
      const bool with_head = view.head_rank >= 0 && peer.machine == member(view.head_rank).machine;
      if (!here && !with_head && !peer.addresses.empty()) o.peers.push_back(peer.addresses);
    }
    heartbeat = std::make_shared<Heartbeat>(heartbeat_network, std::move(o),
                                            [poster = poster, weak = weak_from_this()](const Status& why) {
                                              poster->post([weak, why] {
                                                if (auto self = weak.lock()) self->heartbeat_failed(why);
                                              });
                                            });
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
    tell_joined = nullptr;
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
    channel->call(request, transport::kNever, [weak = weak_from_this()](Result<Message> answer) {
      auto self = weak.lock();
      if (!self || self->over() || !self->channel) return;  // while leaving, only the answer to Leave matters
      if (!answer.ok())
        return self->head_lost("was lost: " + answer.status().message(), code_of_break(answer.status()));
      if (auto* news = std::get_if<WatchReply>(&answer.value())) self->on_news(*news);
    });
  }

  void on_news(const WatchReply& news) {
    watch(news.sequence);  // which also tells the head that we know
    if (!news.news.ok()) return break_down(news.news);
    if (news.left < 0 || news.left >= static_cast<int32_t>(view.members.size())) return;
    log->info(describe_member(member(news.left)) + " has left the job in good order");
    if (news.left == view.head_rank) host_left = true;
    left.push_back(news);
    give_left();
  }

  void give_left() {
    if (!tell_left) return;
    for (const WatchReply& news : std::exchange(left, {})) {
      later([rank = news.left, call = news.departure_call](Impl& self) {
        auto tell = self.tell_left;
        if (tell && !self.over()) tell(rank, call);
      });
    }
  }

  void heartbeat_failed(const Status& why) {
    if (host_left) return head_gone();
    report(why);  // it may hear this worker, though this worker does not hear it
    break_down(why);
  }

  void head_lost(const std::string& how, Code code = Code::kWorkerLost) {
    if (host_left) return head_gone();
    drop_channel(false);
    break_down(
        Status(code, describe_head(options.head, view) + " " + how).with_rank(view.head_rank, head_host()));
  }

  // The head has gone in good order, with the worker that hosted it.
  void head_gone() {
    if (phase != Phase::kJoined) return;
    drop_channel(false);
    phase = Phase::kHeadless;
    stop_heartbeat({});
    log->info(describe_head(options.head, view) +
              " has gone in good order; the workers that remain watch over each other");
  }

  void break_down(const Status& why) {
    if (phase != Phase::kJoined) return;
    phase = Phase::kBroken;
    broken = why;
    log->info("the job cannot go on: " + why.message());  // the session, which fails with it, logs the error
    stop_heartbeat({});
    give_broken();
  }

  void give_broken() {
    if (broken.ok() || !tell_broken) return;
    later([](Impl& self) {
      auto tell = std::exchange(self.tell_broken, nullptr);
      if (tell && !self.over()) tell(self.broken);
    });
  }

  bool has_head() const { return phase == Phase::kJoined && channel && !host_left; }

  void report(const Status& cause) {
    if (!cause.ok()) tell_head(transport::Report{view.rank, view.view, cause});
  }

  bool report_cut(int32_t peer, const Status& cause) {
    return tell_head(transport::ReportCut{view.rank, view.view, cause, peer});
  }

  // The answer says nothing: the head sends news to all workers.
  bool tell_head(const Message& message) {
    if (!has_head()) return false;
    channel->call(message, loop.now() + options.lease, [](const Result<Message>&) {});
    return true;
  }

  // ---- leaving

  void leave(const Status& cause, uint64_t departure_call, std::function<void()> done) {
    if (phase == Phase::kJoining) {
      join_failed(
          Status(Code::kClosed, "the session was closed while it waited for the head at " + options.head));
    }
    tell_done = std::move(done);
    if (phase == Phase::kLeaving) return;  // finish() follows
    if (!channel || phase == Phase::kLeft) return left_job();
    phase = Phase::kLeaving;
    send_leave(cause, departure_call, view.head_rank >= 0 && view.head_rank == view.rank);
  }

  // `host`: of the head.
  void send_leave(const Status& cause, uint64_t departure_call, bool host) {
    const transport::Time latest = loop.now() + (host ? Member::host_patience(options.lease) : options.lease);
    leave_timer = loop.schedule(latest, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->finish();
    });
    transport::Leave request;
    request.rank = view.rank;
    request.view = view.view;
    request.cause = cause;
    request.departure_call = departure_call;
    channel->call(request, latest, [weak = weak_from_this()](const Result<Message>&) {
      if (auto self = weak.lock()) self->left_job();
    });
    // After a cut, a new heartbeat connection may reach the head long before TCP sends again on this one. No
    // cut is between a head and its host.
    if (!heartbeat || host) return;
    heartbeat->leave(request, [poster = poster, weak = weak_from_this()] {
      poster->post([weak] {
        if (auto self = weak.lock(); self && self->phase == Phase::kLeaving) self->left_job();
      });
    });
  }

  // The head knows (or is gone): the heartbeat ends, then the connection.
  void left_job() {
    if (phase == Phase::kLeaving || phase == Phase::kHeadless || phase == Phase::kBroken ||
        phase == Phase::kIdle) {
      phase = Phase::kLeft;
    }
    stop_heartbeat([poster = poster, weak = weak_from_this()] {
      poster->post([weak] {
        if (auto self = weak.lock()) self->finish();
      });
    });
  }

  void finish() {
    phase = Phase::kLeft;
    loop.cancel(leave_timer);
    stop_heartbeat({});
    drop_channel(true);
    later([](Impl& self) {
      if (auto tell = std::exchange(self.tell_done, nullptr)) tell();
    });
  }

  void shut() {
    poster->close();
    if (joiner) joiner->stop();
    loop.cancel(leave_timer);
    phase = Phase::kLeft;
    tell_joined = nullptr;
    tell_broken = nullptr;
    tell_left = nullptr;
    tell_done = nullptr;
    stop_heartbeat({});
    channel.reset();
  }
};

Member::Member(transport::Network& network, transport::Network& heartbeat_network, MemberOptions options,
               std::shared_ptr<Log> log)
    : impl_(std::make_shared<Impl>(network, heartbeat_network, std::move(options), std::move(log))) {}

Member::~Member() { impl_->shut(); }

void Member::join(std::function<void(Result<JoinReply>)> joined) {
  impl_->tell_joined = std::move(joined);
  impl_->start();
}

void Member::on_broken(std::function<void(const Status&)> broken) {
  impl_->tell_broken = std::move(broken);
  impl_->give_broken();
}

void Member::on_left(std::function<void(int32_t rank, uint64_t departure_call)> left) {
  impl_->tell_left = std::move(left);
  impl_->give_left();
}

bool Member::has_head() const { return impl_->has_head(); }

void Member::report(const Status& cause) { impl_->report(cause); }

bool Member::report_cut(int32_t peer, const Status& cause) { return impl_->report_cut(peer, cause); }

void Member::abort_join(const Status& cause) { impl_->abort_join(cause); }

const std::string& Member::join_progress() const {
  static const std::string kNone;
  return impl_->joiner ? impl_->joiner->progress() : kNone;
}

void Member::leave(const Status& cause, uint64_t departure_call, std::function<void()> done) {
  impl_->leave(cause, departure_call, std::move(done));
}

}  // namespace dsgd
