#include "core/membership/head.h"

#include <algorithm>
#include <cstdint>
#include <list>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/membership/job.h"
#include "core/membership/scaling.h"
#include "core/membership/text.h"
#include "transport/schema/codec.h"

namespace dsgd {
namespace {

using transport::Responder;
using transport::ServerChannel;

constexpr size_t kStatusTextBytes = 4 << 20;  // of one answer
constexpr size_t kMostIdle = 64;  // control connections that hold no slot, beyond the number of workers

}  // namespace

struct Head::Impl {
  using Worker = WorkerTable::Worker;

  Impl(transport::Loop& loop, HeadOptions options, std::shared_ptr<Log> log, ViewStore* store)
      : job(std::make_shared<Job>(loop, std::move(options), std::move(log), store)),
        workers(job->workers),
        scaling(job->options) {}

  const std::shared_ptr<Job> job;
  WorkerTable& workers;
  Scaling scaling;
  // Control connections that have not asked to join, or were refused; the oldest first.
  std::list<ServerChannel*> idle;
  bool stood_down = false;

  // ---- connections

  Status on_open(ServerChannel& channel) {
    const transport::Hello& hello = channel.hello();
    const bool heartbeat = hello.role == transport::Role::kHeartbeat;
    if (heartbeat || !hello.job_nonce.empty()) {  // of a worker that has joined
      Status known = check_member(hello, channel.address());
      if (heartbeat || !known.ok()) return known;
    }
    idle.push_back(&channel);
    const size_t most =
        std::max<size_t>({job->options.num_workers, job->options.max_workers, workers.size()});
    if (idle.size() > most + kMostIdle) {
      ServerChannel* oldest = idle.front();
      idle.pop_front();
      oldest->close();
    }
    return {};
  }

  // `of_slots`: of the gathering, null where a slot is free.
  void add_to_idle(const std::vector<ServerChannel*>& of_slots) {
    for (ServerChannel* channel : of_slots)
      if (channel) idle.push_back(channel);
  }

  // Only a worker that has joined knows the job's nonce.
  Status check_member(const transport::Hello& hello, const std::string& from) {
    const bool known = workers.by_hello(hello, hello.rank) && hello.job_nonce == job->nonce();
    if (known) return {};
    Status why(Code::kState, "a connection from " + from + " claims to be rank " +
                                 std::to_string(hello.rank) + ", worker '" + printable(hello.worker_id) +
                                 "', which is not in the running job");
    job->refusals.note("they are of workers that are not in the job", "head: " + why.message());
    return why;
  }

  void on_channel_closed(ServerChannel& channel, const Status& why) {
    idle.remove(&channel);
    if (job->gathering->on_close(channel)) return job->end_if_done();
    for (Worker& worker : workers) {
      if (worker.control == &channel) {
        worker.control = nullptr;
        job->announcements.drop_watch(worker.index());
        if (worker.away) return job->end_if_done();
        return on_connection_lost(worker, "its connection", why);
      }
      if (worker.heartbeats.erase(&channel) > 0) {
        if (worker.heartbeats.empty()) on_connection_lost(worker, "its heartbeat connection", why);
        return;
      }
    }
  }

  // The worker's control connection or its last heartbeat connection has ended.
  void on_connection_lost(Worker& worker, const std::string& which, const Status& why) {
    if (worker.in_job()) job->detector->on_connection_lost(worker, which, why);
    job->end_if_done();
  }

  std::set<ServerChannel*> channels() const {
    std::set<ServerChannel*> all(idle.begin(), idle.end());
    for (const Worker& worker : workers) {
      all.insert(worker.control);
      all.insert(worker.heartbeats.begin(), worker.heartbeats.end());
    }
    all.insert(job->gathering->channels().begin(), job->gathering->channels().end());
    all.erase(nullptr);
    return all;
  }

  // ---- messages of workers and others, by kind

  void on(ServerChannel& channel, const transport::GatheringRequest&, const Responder& respond) {
    if (!job->is_gathering() && job->durability.is_storing())
      return respond(transport::Message(transport::GatheringReply{{}, -1, true}));
    job->gathering->on_request(channel, respond);
  }

  // ---- joining

  void on(ServerChannel& channel, transport::JoinRequest request, const Responder& respond) {
    if (!job->is_gathering()) return on_late_join(channel, std::move(request), respond);
    const auto [admitted, replaced] = job->gathering->on_join(channel, std::move(request), respond);
    if (admitted) idle.remove(&channel);
    if (replaced) idle.push_back(replaced);
    if (job->gathering->complete()) begin_job();
  }

  void begin_job() {
    const std::vector<ServerChannel*> channels = job->gathering->channels();
    std::vector<Gathering::Candidate> candidates = job->gathering->take_by_rank();
    if (candidates.empty()) return add_to_idle(channels);  // refused, since they cannot reach each other
    job->begin(std::move(candidates));
  }

  // A worker comes while the job runs. It becomes a learner, if the job may have one more worker.
  void on_late_join(ServerChannel& channel, transport::JoinRequest request, const Responder& respond) {
    if (Status wrong = check_control(channel, "to join"); !wrong.ok()) return respond(std::move(wrong));
    request.member.rank = -1;  // it gets the last one
    // Asks again: its answer was lost.
    Worker* const known = workers.by_request(request);
    Status refused = job->refusal_at_end(request.member);
    if (known && (refused.ok() || !known->learner)) return answer_join(*known, channel, respond);
    if (refused.ok()) refused = workers.check_join(request.member);
    if (refused.ok()) refused = job->gathering->check(request);
    if (!refused.ok()) return respond(std::move(refused));
    Worker& learner = workers.add(std::move(request.member), request.incarnation);
    learner.learner = true;
    job->detector->add_worker(learner.index());
    job->log->info("head: worker " + describe_candidate(learner.info) + " joins the running job");
    answer_join(learner, channel, respond);
    job->detector->schedule_check();
  }

  // Answers the join request of a worker of the running job, which does not watch for news yet: a learner, or
  // a worker whose answer was lost with an earlier head.
  void answer_join(Worker& worker, ServerChannel& channel, const Responder& respond) {
    take_control_channel(worker, channel);
    worker.away = true;
    transport::JoinReply reply = job->join_reply(worker);
    if (worker.learner) {
      job->announcements.begin_at_last(worker.index());
      reply.sequence = job->announcements.last();
    }
    job->answer_when_durable({worker.index()},
                             [respond, reply = std::move(reply)](size_t, const Status& stored) mutable {
                               stored.ok() ? respond(transport::Message(std::move(reply))) : respond(stored);
                             });
  }

  void on(ServerChannel& channel, const transport::Return& message, const Responder& respond) {
    if (Status wrong = check_control(channel, "to come back"); !wrong.ok()) return respond(std::move(wrong));
    const bool proved = channel.hello().job_nonce == job->nonce();
    Worker* const worker = proved ? workers.by_hello(channel.hello(), message.number) : nullptr;
    if (worker && !worker->is_forgotten() && worker->incarnation != message.incarnation)
      return respond(bad_message(describe_member(worker->info) + " was started again since it joined"));
    Result<Worker*> known = workers.check_sender(worker, message.number, message.view);
    if (!known.ok()) return respond(known.status());
    if (worker->lost) return respond(job->end_error());
    if (!worker->control) job->log->info("head: " + describe_member(worker->info) + " has come back");
    take_control_channel(*worker, channel);
    worker->away = true;
    respond(transport::Message(transport::Empty{}));
  }

  // Why this cannot become the control connection of a worker that asks `what` on it; OK: it can.
  Status check_control(const ServerChannel& channel, const std::string& what) {
    if (channel.hello().role != transport::Role::kControl)
      return bad_message(describe_sender(channel) + " asks " + what +
                         " on a connection that is not for control");
    if (const Worker* owner = workers.by_control(channel))
      return bad_message(describe_sender(channel) + " asks " + what + " on the control connection of " +
                         describe_member(owner->info));
    return {};
  }

  // Makes this the control connection of a worker of the running job, in place of an earlier one.
  void take_control_channel(Worker& worker, ServerChannel& channel) {
    idle.remove(&channel);
    worker.away = false;
    job->announcements.drop_watch(worker.index());
    if (ServerChannel* const before = std::exchange(worker.control, &channel)) before->close();
    job->detector->on_back(worker);
  }

  void on(ServerChannel& channel, const transport::Enter& enter, const Responder& respond) {
    Result<Worker*> known = workers.check_sender(workers.by_control(channel), enter.number, enter.view);
    if (!known.ok()) return respond(known.status());
    Worker& worker = *known.value();
    if (!worker.learner) return job->acknowledge(respond);  // repeated: the news of its view is on the way
    // With a rank: the head has answered, so the connection is not lost (is_lost_connection()).
    if (Status ending = job->refusal_at_end(worker.info); !ending.ok())
      return respond(std::move(ending).with_rank(worker.info.rank, worker.info.host));
    worker.learner = false;
    // members_in_view() orders by rank: the new member comes last.
    worker.info.rank = static_cast<int32_t>(workers.size());
    transport::WatchReply change = workers.members_in_view();
    worker.info.rank = rank_of(change.members, worker.info.worker_id);
    change.cause = Status(Code::kViewChanged, describe_member(worker.info) + " has joined the job")
                       .with_rank(worker.info.rank, worker.info.host);
    job->enter_view(std::move(change));
    job->acknowledge(respond);
  }

  // ---- reports

  void on(ServerChannel& channel, const transport::Renew& renew, const Responder& respond) {
    if (channel.hello().role != transport::Role::kHeartbeat)
      return respond(bad_message(describe_sender(channel) +
                                 " renews its lease on a connection that is not for heartbeats"));
    Result<Worker*> known =
        workers.check_sender(workers.by_hello(channel.hello(), renew.number), renew.number, renew.view);
    if (!known.ok()) return respond(known.status());
    Worker* worker = known.value();
    if (worker->lost) return respond(job->end_error());
    worker->heartbeats.insert(&channel);
    job->detector->on_renew(worker->index());
    respond(transport::Message(transport::RenewReply{job->durability.is_storing()}));
  }

  void on(ServerChannel& channel, const transport::Watch& watch, const Responder& respond) {
    Worker* worker = workers.by_control(channel);
    Result<Worker*> known =
        workers.check_sender(worker, worker ? worker->info.number : -1, worker ? worker->joined : 0);
    if (!known.ok()) return respond(known.status());
    worker->away = false;
    Status wrong = job->announcements.watch(worker->index(), watch.sequence, respond);
    if (!wrong.ok()) return respond(std::move(wrong));
    job->end_if_done();
  }

  void on(ServerChannel& channel, transport::Progress report, const Responder& respond) {
    Result<Worker*> known = workers.check_sender(workers.by_control(channel), report.number, report.view);
    if (!known.ok()) return respond(known.status());
    respond(transport::Message(transport::Empty{}));
    Worker& worker = *known.value();
    if (report.holds_state && !std::exchange(worker.holds_state, true)) job->durability.changed();
    job->detector->on_progress(worker.index(), std::move(report));
  }

  void on(ServerChannel& channel, const transport::Report& report, const Responder& respond) {
    Result<Worker*> known = workers.check_sender(workers.by_control(channel), report.number, report.view);
    if (!known.ok()) return respond(known.status());
    if (report.cause.ok())
      return respond(bad_message(describe_member(known.value()->info) + " reports no cause"));
    job->worker_failed(*known.value(), job->detector->cause_from(*known.value(), report.cause, ""));
    job->acknowledge(respond);
  }

  void on(ServerChannel& channel, const transport::ReportCut& cut, const Responder& respond) {
    Result<Worker*> known = workers.check_sender(workers.by_control(channel), cut.number, cut.view);
    if (!known.ok()) return respond(known.status());
    if (cut.cause.ok())
      return respond(bad_message(describe_member(known.value()->info) + " reports a cut without a cause"));
    if (cut.peer_number < 0 || cut.peer_number >= static_cast<int32_t>(workers.size()) ||
        cut.peer_number == cut.number)
      return respond(bad_message(describe_member(known.value()->info) +
                                 " reports that it cannot reach worker number " +
                                 std::to_string(cut.peer_number)));
    respond(transport::Message(transport::Empty{}));
    const Worker& peer = workers[static_cast<size_t>(cut.peer_number)];
    if (!job->is_running() || peer.lost) return;  // the reporter will hear of a view without the peer
    // The peer has left, but its last data did not arrive, or a step needs it as an owner. A view without it
    // needs none of that.
    if (peer.left && job->options.views_change())
      return job->remove_workers(
          {peer.index()},
          Status(Code::kWorkerLost, describe_member(peer.info) + " has closed its session, and " +
                                        describe_member(known.value()->info) +
                                        " waits for its last data: " + cut.cause.message())
              .with_rank(peer.info.rank, peer.info.host));
    job->detector->on_cut(*known.value(), cut.peer_number, cut.cause);
  }

  // ---- leaving

  void on(ServerChannel& channel, transport::Leave leave, const Responder& respond) {
    if (job->is_gathering() && job->gathering->holds(channel) && !leave.cause.ok()) {
      add_to_idle(job->gathering->channels());
      return job->abort(channel, leave.cause, respond);
    }
    const bool heartbeat = channel.hello().role == transport::Role::kHeartbeat;
    Worker* const sender =
        heartbeat ? workers.by_hello(channel.hello(), leave.number) : workers.by_control(channel);
    if (sender && leave.number < 0) {  // it has aborted before it learnt its number
      leave.number = sender->info.number;
      leave.view = workers.view();
      if (job->options.views_change() && is_host_failure(leave.cause))
        leave.cause = std::move(leave.cause).with_code(Code::kWorkerLost);
    }
    Result<Worker*> known = workers.check_sender(sender, leave.number, sender ? sender->joined : 0);
    if (!known.ok()) return respond(known.status());
    Worker& worker = *known.value();
    if (leave.view > workers.view()) return respond(workers.wrong_view(worker, leave.view));
    if (worker.left) return job->acknowledge(respond);
    worker.closed = leave.cause.ok() || leave.departure_call > 0;
    job->note_gone(worker);
    worker.learner ? learner_leaves(worker, leave, respond) : member_leaves(worker, leave, respond);
  }

  void learner_leaves(const Worker& worker, const transport::Leave& leave, const Responder& respond) {
    job->remove_workers({worker.index()},
                        leave.cause.ok() ? Status(Code::kClosed, describe_member(worker.info) + " has left")
                                         : job->detector->cause_from(worker, leave.cause, ""));
    job->acknowledge(respond);
  }

  void member_leaves(Worker& worker, const transport::Leave& leave, const Responder& respond) {
    const bool peer_waits_for_data =
        job->options.views_change() && job->detector->is_cut(worker.info.number);  // see ReportCut
    worker.left = true;
    job->detector->end_lease(worker.index());
    if (leave.cause.ok() && (leave.view != workers.view() || peer_waits_for_data)) {
      // The departure call may belong to an earlier view, so workers of this view may wait for the leaver.
      job->remove_workers({worker.index()},
                          Status(Code::kWorkerLost,
                                 describe_member(worker.info) + " has closed its session while the " +
                                     "workers of view " + std::to_string(workers.view()) + " waited for it")
                              .with_rank(worker.info.rank, worker.info.host));
    } else if (job->is_running() && leave.cause.ok()) {
      job->log->info("head: " + describe_member(worker.info) + " left in good order");
      transport::WatchReply reply;
      reply.left = worker.info.number;
      reply.departure_call = leave.departure_call;
      job->announce(std::move(reply));
    } else if (!leave.cause.ok()) {
      job->worker_failed(worker, job->detector->cause_from(worker, leave.cause,
                                                           describe_member(worker.info) + " left the job: "));
    }
    workers.is_host(worker.index()) ? job->hold_answer_to_host(respond) : job->acknowledge(respond);
    job->end_if_done();
  }

  // ---- status

  void on(ServerChannel&, const transport::ScaleRequest& request, const Responder& respond) {
    Status scaled = scaling.request(request.workers, status().state);
    if (!scaled.ok()) return respond(std::move(scaled));
    job->log->info("head: dsgd_job_scale asks for " + counted(request.workers, "worker"));
    respond(transport::Message(transport::Empty{}));
  }

  void on(ServerChannel&, const transport::StatusRequest&, const Responder& respond) {
    respond(transport::Message(status()));
  }

  transport::StatusReply status() const {
    transport::StatusReply reply = job->status();
    scaling.describe(&reply);
    // Cuts the texts when there are many workers, to bound the reply.
    const size_t most = std::min(transport::kMaxWaitBytes, kStatusTextBytes / (reply.workers.size() + 1));
    for (transport::WorkerStatus& one : reply.workers) {
      one.member.machine.clear();
      one.member.addresses.clear();
      one.progress.waiting = cut(one.progress.waiting, most);
    }
    return reply;
  }

  // Messages for which no overload stands above.
  void on(ServerChannel& channel, const auto&, const Responder& respond) {
    respond(bad_message(describe_sender(channel) + " sent the head a message that heads do not take"));
  }
};

Head::Head(transport::Loop& loop, HeadOptions options, std::shared_ptr<Log> log, ViewStore* store)
    : impl_(std::make_shared<Impl>(loop, std::move(options), std::move(log), store)) {}
Head::~Head() = default;

Status Head::on_open(ServerChannel& channel) { return impl_->on_open(channel); }

void Head::on_call(ServerChannel& channel, transport::Message request, Responder respond) {
  auto keep = impl_;
  if (impl_->stood_down) return channel.close();
  std::visit([&](auto& message) { impl_->on(channel, std::move(message), respond); }, request);
}

void Head::on_bulk_end(ServerChannel& channel, const transport::BulkHeader&,
                       std::unique_ptr<transport::BulkReceipt> receipt) {
  receipt->finish(bad_message(describe_sender(channel) + " sent bulk data to the head, which takes none"));
}

void Head::on_close(ServerChannel& channel, const Status& why) {
  auto keep = impl_;
  impl_->on_channel_closed(channel, why);
}

void Head::on_end(std::function<void(const Status&)> ended) { impl_->job->on_end(std::move(ended)); }
std::string Head::progress() const { return impl_->job->gathering->progress(); }
void Head::take_up(const transport::HeadRecord& earlier) { impl_->job->take_up(earlier); }
void Head::stand_down(const Status& why) {
  impl_->stood_down = true;
  impl_->job->stand_down(why, impl_->channels());
}
void Head::set_address(const std::string& address) { impl_->job->set_address(address); }
void Head::note_refused(const std::string& why) { impl_->job->gathering->note_refused(why); }

}  // namespace dsgd
