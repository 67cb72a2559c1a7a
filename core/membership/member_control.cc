// The control connection of a worker that has joined: news, the loss of the head and its return, messages to
// it.

#include <algorithm>
#include <utility>

#include "core/base/describe.h"
#include "core/base/retry.h"
#include "core/base/views_change.h"
#include "core/membership/member_impl.h"

namespace dsgd {

// ---- news

void Member::Impl::watch(uint64_t sequence) {
  transport::Watch request;
  request.sequence = sequence;
  channel->call(
      request, transport::kNever,
      while_alive(weak_from_this(), [number = channel_number](Impl& self, const Result<Message>& answer) {
        // While leaving, only the answer to Leave matters.
        if (self.over() || !self.channel || self.channel_number != number) return;
        if (answer.status().code() == Code::kEvicted) return self.break_down(answer.status());
        if (self.head_may_return(answer.status())) return self.connection_lost(answer.status());
        if (!answer.ok())
          return self.head_lost("was lost: " + answer.status().message(), code_of_break(answer.status()));
        if (auto* news = std::get_if<WatchReply>(&answer.value())) self.on_news(*news);
      }));
}

void Member::Impl::on_news(const WatchReply& news) {
  received = news.sequence;
  watch(received);  // which also confirms this news
  if (!news.members.empty()) return change_view(news);
  if (!news.cause.ok()) return break_down(news.cause);
  const int32_t rank = views.note_left(news.left);
  if (rank < 0) return;
  if (views.present().learner) return present_changed();
  log->info(describe_member(views.present().members[static_cast<size_t>(rank)]) +
            " has left the job in good order");
  undelivered_left.push_back(news);
  undelivered_left.back().left = rank;
  deliver_left();
}

void Member::Impl::change_view(const WatchReply& news) {
  if (!views.change(news)) {
    return break_down(Status(Code::kInternal, describe_head(options.head, views.first()) +
                                                  " published view " + std::to_string(news.view) +
                                                  ", which this worker cannot take part in"));
  }
  std::erase_if(cuts, [&](const auto& cut) {
    return std::none_of(views.present().members.begin(), views.present().members.end(),
                        [&](const transport::MemberInfo& m) { return m.number == cut.first; });
  });
  if (views.present().learner) return present_changed();
  notify_refused = nullptr;
  later([next = views.present(), why = news.cause](Impl& self) {
    auto notify = self.notify_view;
    if (notify && !self.over()) notify(next, why);
  });
}

void Member::Impl::present_changed() {
  later([](Impl& self) {
    if (self.notify_present && self.views.present().learner && !self.over()) self.notify_present();
  });
}

void Member::Impl::deliver_left() {
  if (!notify_left) return;
  for (const WatchReply& news : std::exchange(undelivered_left, {})) {
    later([rank = news.left, call = news.departure_call](Impl& self) {
      auto notify = self.notify_left;
      if (notify && !self.over()) notify(rank, call);
    });
  }
}

// ---- the loss of the head

// The heartbeat knows the ranks of the view in which this worker joined.
void Member::Impl::heartbeat_failed(Status why) {
  if (views.host_left()) return on_head_left();
  const JoinReply& view = views.first();
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

// To a worker that was stopped for longer than a lease and is no longer in the view, the head has closed the
// connection.
void Member::Impl::head_lost(const std::string& how, Code code) {
  if (views.host_left()) return on_head_left();
  drop_channel(false);
  const Status lost =
      Status(code, head_name() + " " + how).with_rank(views.present().head_rank, views.head_host());
  if (!heartbeat) return break_down(lost);
  heartbeat->check_stop(on_loop([lost](Impl& self, const Status& stopped) {
    stopped.ok() ? self.break_down(lost) : self.heartbeat_failed(stopped);
  }));
}

// The head has gone in good order, with the worker that hosted it.
void Member::Impl::on_head_left() {
  if (phase != Phase::kJoined) return;
  drop_channel(false);
  phase = Phase::kHeadless;
  stop_heartbeat({});
  log->info(describe_head(options.head, views.first()) +
            " has left in good order; the remaining workers now probe each other");
  refuse_entry();
}

// ---- a head that comes back

// Whether this error of a call is the loss of a head that may come back.
bool Member::Impl::head_may_return(const Status& why) const {
  return views.first().durable && !views.host_left() && is_lost_connection(why);
}

void Member::Impl::connection_lost(const Status& why) {
  drop_channel(false);
  head_silent(Status(Code::kWorkerLost, head_name() + " was lost: " + why.message()));
}

// A head that is only silent keeps its connection until another one has replaced it: to the head, the end
// of the connection would be the loss of this worker.
void Member::Impl::head_silent(Status why) {
  if (reconnector || (phase != Phase::kJoined && phase != Phase::kLeaving)) return;
  if (phase == Phase::kJoined) {
    loss_logged = true;
    log->warning(why.message() + "; training goes on, and the head is dialled again for " +
                 describe_duration(options.head_timeout) + " (head_timeout)");
  }
  start_reconnector(std::move(why));
}

// The head has answered on a later heartbeat connection: perhaps it is another head than the one to which
// the control connection leads, which may be silent for ever.
void Member::Impl::head_answered() {
  if (phase != Phase::kJoined && phase != Phase::kLeaving) return;
  if (reconnector) {
    reconnect_again = true;
    return;
  }
  start_reconnector(Status(Code::kWorkerLost, head_name() + " does not answer on its earlier connection"));
}

void Member::Impl::start_reconnector(Status why) {
  head_loss = std::move(why);
  HeadReconnector::Options o;
  o.addresses = heads;
  o.hello = hello_of(transport::Role::kControl);
  o.token = options.token;
  o.request = {views.number(), views.first().view, options.join.incarnation};
  o.lease = options.lease;
  o.deadline = loop.now() + options.head_timeout;
  reconnector =
      std::make_shared<HeadReconnector>(network, std::move(o), [this](Result<HeadReconnector::Channel> back) {
        reconnector = nullptr;
        back.ok() ? on_reconnected(std::move(back).value()) : on_reconnect_failed(back.status());
      });
  reconnector->start();
}

void Member::Impl::on_reconnected(HeadReconnector::Channel back) {
  drop_channel(false);
  channel = std::move(back);
  ++channel_number;
  head_back_at = loop.now();
  if (phase == Phase::kLeaving) return call_leave();
  if (std::exchange(loss_logged, false)) log->info(head_name() + " has come back");
  if (heartbeat) heartbeat->begin_lease();  // the head may fall silent before it answers there
  watch(received);
  if (unanswered_report) call_report();
  if (notify_refused) call_enter();
  for (const auto& [peer, why] : cuts)
    send_to_head(transport::ReportCut{views.number(), views.first().view, why, peer});
  if (std::exchange(reconnect_again, false)) head_answered();
}

void Member::Impl::on_reconnect_failed(const Status& why) {
  if (phase == Phase::kLeaving) return left_job();
  if (why.code() == Code::kEvicted) return break_down(why);
  if (!is_lost_connection(why)) {  // a head that knows the job
    return break_down(
        Status(Code::kWorkerLost, head_name() + " has come back, and refuses this worker: " + why.message())
            .with_rank(why.rank(), why.host()));
  }
  heartbeat_failed(append_to_message(head_loss, "it has not come back within " +
                                                    describe_duration(options.head_timeout) +
                                                    " (head_timeout): " + why.message()));
}

void Member::Impl::call_report() {
  if (!channel) return;
  channel->call(*unanswered_report, transport::kNever,
                while_alive(weak_from_this(), [](Impl& self, const Result<Message>& answer) {
                  if (!self.head_may_return(answer.status())) self.unanswered_report.reset();
                }));
}

// A head decides within a lease, which may begin with the report. If it is lost before, the worker notices
// that within another one. A head that has come back gives each worker a lease first. A quarter of a lease
// is for messages and the head's second look. While the head stores the job's record, its verdict may wait
// for that.
transport::Time Member::Impl::verdict_due(transport::Time reported) const {
  if (!views.first().durable) return reported + 5 * options.lease / 4;
  if (reconnector) return loop.now() + options.lease;
  const transport::Time stored_at = heartbeat ? heartbeat->stored_at() : transport::Time{};
  return std::max({reported + 9 * options.lease / 4, head_back_at + 13 * options.lease / 4,
                   stored_at + 5 * options.lease / 4});
}

void Member::Impl::stop_reconnector() {
  reconnect_again = false;
  if (reconnector) std::exchange(reconnector, nullptr)->stop();
}

void Member::Impl::break_down(const Status& why) {
  if (phase != Phase::kJoined) return;
  stop_reconnector();
  phase = Phase::kBroken;
  break_cause = why;
  // The session, which fails with it, logs the error.
  log->info("the job cannot go on: " + break_cause.message());
  stop_heartbeat({});
  deliver_broken();
}

void Member::Impl::deliver_broken() {
  if (break_cause.ok() || !notify_broken) return;
  later([](Impl& self) {
    auto notify = std::exchange(self.notify_broken, nullptr);
    if (notify && !self.over()) notify(self.break_cause);
  });
}

bool Member::Impl::views_change() const {
  const transport::JoinRequest& join = options.join;
  return dsgd::views_change(join.num_workers, join.min_workers, join.max_workers, join.rejoin_timeout);
}

// ---- messages to the head

void Member::Impl::report(const Status& cause) {
  if (cause.ok() || !has_head()) return;
  transport::Report message{views.number(), views.first().view, cause};
  if (!views.first().durable) return void(send_to_head(message));
  if (unanswered_report) return;  // only the first cause counts
  unanswered_report = std::move(message);
  call_report();
}

bool Member::Impl::report_cut(const std::string& peer_id, const Status& cause, bool silent) {
  const int32_t rank = rank_of(views.present().members, peer_id);
  if (rank < 0) return has_head();  // the head has already decided
  const int32_t peer = views.present().members[static_cast<size_t>(rank)].number;
  if (views.first().durable && !silent) cuts.emplace(peer, cause);
  return send_to_head(transport::ReportCut{views.number(), views.first().view, cause, peer});
}

void Member::Impl::enter(std::function<void(const Status&)> refused) {
  notify_refused = std::move(refused);
  if (has_head()) return call_enter();
  refuse_entry();
}

void Member::Impl::refuse(const Status& why) {
  if (auto notify = std::exchange(notify_refused, nullptr)) notify(why);
}

// The head has gone. A learner whose Enter it has not answered enters no view.
void Member::Impl::refuse_entry() {
  later([](Impl& self) {
    self.refuse(
        Status(Code::kUnreachable, self.head_name() + " has gone, so this worker cannot join the job"));
  });
}

// If the connection ends, the Watch call in flight reports it.
void Member::Impl::call_enter() {
  if (!channel) return;
  channel->call(transport::Enter{views.number(), views.first().view}, transport::kNever,
                while_alive(weak_from_this(), [](Impl& self, const Result<Message>& answer) {
                  if (answer.ok() || !self.has_head() || self.head_may_return(answer.status())) return;
                  self.refuse(answer.status());
                }));
}

// Ignores the answer: what follows from the message comes as news.
bool Member::Impl::send_to_head(const Message& message) {
  if (!has_head()) return false;
  if (channel) channel->call(message, loop.now() + options.lease, [](const Result<Message>&) {});
  return true;
}

}  // namespace dsgd
