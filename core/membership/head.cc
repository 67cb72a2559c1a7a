#include "core/membership/head.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <list>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "core/base/describe.h"
#include "core/base/refusal_log.h"
#include "core/base/text.h"
#include "core/membership/announcements.h"
#include "core/membership/durability.h"
#include "core/membership/failure_detector.h"
#include "core/membership/gathering.h"
#include "core/membership/rendezvous.h"
#include "core/membership/scaling.h"
#include "core/membership/text.h"
#include "core/membership/worker_table.h"
#include "transport/authentication.h"
#include "transport/schema/codec.h"

namespace dsgd {
namespace {

using transport::MemberInfo;
using transport::Responder;
using transport::ServerChannel;

constexpr size_t kStatusTextBytes = 4 << 20;  // of one answer
constexpr size_t kMostIdle = 64;  // control connections that hold no slot, beyond the number of workers

std::string random_bytes(transport::Loop& loop) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) {
    const uint64_t bits = loop.random();
    bytes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
  return bytes;
}

// kState, so that the worker does not try again.
Status cannot_join(const Status& stored) {
  return Status(Code::kState, "the head cannot admit this worker: " + stored.message());
}

Status bad_message(const std::string& text) { return Status(Code::kInvalidArgument, text); }

std::string describe_sender(const ServerChannel& channel) {
  return "worker '" + printable(channel.hello().worker_id) + "' at " + channel.address();
}

}  // namespace

struct Head::Impl : std::enable_shared_from_this<Head::Impl> {
  enum class Phase { kGathering, kRunning, kBroken, kDone };

  using Worker = WorkerTable::Worker;

  Impl(transport::Loop& l, HeadOptions o, std::shared_ptr<Log> g, ViewStore* store)
      : loop(l),
        options(o.with_limits()),
        log(g ? std::move(g) : std::make_shared<Log>()),
        refusals(l, log),
        gathering(std::make_shared<Gathering>(l, options, log, refusals,
                                              [this](const Status& why) {
                                                cause = why;
                                                end();
                                              })),
        workers(options),
        announcements(workers),
        durability(store, [this] { return record(); }),
        detector(std::make_shared<FailureDetector>(
            l, options, log, workers, durability,
            FailureDetector::Events{
                [this](const std::vector<size_t>& lost, const Status& why) { remove_workers(lost, why); },
                [this](const Status& why) { break_job(why); }})),
        scaling(options) {
    durability.on_failure([this](const Status& why) { store_failed(why); });
  }

  transport::Loop& loop;
  const HeadOptions options;
  const std::shared_ptr<Log> log;
  RefusalLog refusals;

  Phase phase = Phase::kGathering;
  const std::shared_ptr<Gathering> gathering;
  WorkerTable workers;
  Announcements announcements;
  Durability durability;
  const std::shared_ptr<FailureDetector> detector;
  Scaling scaling;
  std::string job_nonce;       // of the running job
  bool last_closed = false;    // see HeadRecord
  bool end_timer_set = false;  // all workers have left; the job ends a lease later at the latest
  // Control connections that have not asked to join, or were refused; the oldest first.
  std::list<ServerChannel*> idle;
  Status cause;          // what broke the job
  Status end_news;       // the error with which the sessions of all members end; OK: the job goes on
  Responder host_leave;  // the answer to the Leave of the head's host, held back until the others know
  transport::TimerId rejoin_timer = 0;
  std::function<void(const Status&)> ended;
  std::string address;   // for the record
  bool removed = false;  // the record, at the end
  bool notified_end = false;
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
    const size_t most = std::max<size_t>({options.num_workers, options.max_workers, workers.size()});
    if (idle.size() > most + kMostIdle) {
      ServerChannel* oldest = idle.front();
      idle.pop_front();
      oldest->close();
    }
    return {};
  }

  // `of_slots`: of the rendezvous, null where a slot is free.
  void add_to_idle(const std::vector<ServerChannel*>& of_slots) {
    for (ServerChannel* channel : of_slots)
      if (channel) idle.push_back(channel);
  }

  // Only a worker that has joined knows the job's nonce.
  Status check_member(const transport::Hello& hello, const std::string& from) {
    const bool known = workers.by_hello(hello, hello.rank) && hello.job_nonce == job_nonce;
    if (known) return {};
    Status why(Code::kState, "a connection from " + from + " claims to be rank " +
                                 std::to_string(hello.rank) + ", worker '" + printable(hello.worker_id) +
                                 "', which is not in the running job");
    refusals.note("they are of workers that are not in the job", "head: " + why.message());
    return why;
  }

  void on_channel_closed(ServerChannel& channel, const Status& why) {
    idle.remove(&channel);
    if (gathering->on_close(channel)) return end_if_done();
    for (Worker& worker : workers) {
      if (worker.control == &channel) {
        worker.control = nullptr;
        announcements.drop_watch(worker.index());
        if (worker.away) return end_if_done();
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
    if (worker.in_job()) detector->on_connection_lost(worker, which, why);
    end_if_done();
  }

  // ---- joining

  void on_join(ServerChannel& channel, transport::JoinRequest request, const Responder& respond) {
    if (phase != Phase::kGathering) return on_late_join(channel, std::move(request), respond);
    const auto [admitted, replaced] = gathering->on_join(channel, std::move(request), respond);
    if (admitted) idle.remove(&channel);
    if (replaced) idle.push_back(replaced);
    if (gathering->complete()) begin();
  }

  void begin() {
    const std::vector<ServerChannel*> channels = gathering->channels();
    std::vector<Rendezvous::Candidate> come = gathering->take_by_rank();
    if (come.empty()) return add_to_idle(channels);  // refused, since they cannot reach each other
    std::vector<Responder> waiting;
    for (Rendezvous::Candidate& c : come) {
      Worker& worker = workers.add(std::move(c.request.member), c.request.incarnation);
      worker.control = c.channel;
      worker.away = true;
      worker.holds_state = true;
      if (c.request.hosts_head) workers.set_host(worker);
      waiting.push_back(std::move(c.respond));
    }
    job_nonce = random_bytes(loop);
    detector->begin();
    phase = Phase::kRunning;
    log->info(workers.size() == 1
                  ? "head: the only worker has come, the job begins"
                  : "head: all " + std::to_string(workers.size()) + " workers have joined, the job begins");
    std::vector<size_t> all(workers.size());
    std::iota(all.begin(), all.end(), 0);
    answer_when_durable(all, [this, waiting = std::move(waiting)](size_t index, const Status& stored) {
      stored.ok() ? waiting[index](transport::Message(join_reply(workers[index])))
                  : waiting[index](cannot_join(stored));
    });
    detector->schedule_check();
  }

  // A worker comes while the job runs. It becomes a learner, if the job may have one more worker.
  void on_late_join(ServerChannel& channel, transport::JoinRequest request, const Responder& respond) {
    if (Status wrong = check_control(channel, "to join"); !wrong.ok()) return respond(std::move(wrong));
    request.member.rank = -1;  // it gets the last one
    Worker* const known = workers.by_request(request);
    if (known && !known->learner) return answer_join(*known, channel, respond);
    Status refused = refusal_at_end(request.member);
    if (known && refused.ok()) return answer_join(*known, channel, respond);
    if (refused.ok()) refused = workers.check_join(request.member);
    if (refused.ok()) refused = gathering->check(request);
    if (!refused.ok()) return respond(std::move(refused));
    Worker& learner = workers.add(std::move(request.member), request.incarnation);
    learner.learner = true;
    detector->add_worker(learner.index());
    log->info("head: worker " + describe_candidate(learner.info) + " joins the running job");
    answer_join(learner, channel, respond);
    detector->schedule_check();
  }

  // Why no worker can join any more; OK: the job is not ending. kUnreachable, so that the worker tries again:
  // the next job may begin at this address. After on_end() the refusal is final: this head serves no other
  // job, and the host may keep it.
  Status refusal_at_end(const MemberInfo& late) const {
    if (phase == Phase::kRunning && !workers.is_ending(rejoin_timer != 0)) return {};
    const std::string failure = cause.ok() ? "" : " (" + cause.message() + ")";
    if (notified_end) {
      return Status(Code::kState, "worker " + describe_candidate(late) +
                                      " cannot join: the job at this head is over" + failure +
                                      "; start another head for a new job");
    }
    return Status(Code::kUnreachable, "worker " + describe_candidate(late) +
                                          " cannot join: the job at this head is ending" + failure +
                                          "; a new one can begin when its head is gone");
  }

  // Answers the join request of a worker of the running job, which does not watch for news yet: a learner, or
  // a worker whose answer was lost with an earlier head.
  void answer_join(Worker& worker, ServerChannel& channel, const Responder& respond) {
    take_control_channel(worker, channel);
    worker.away = true;
    transport::JoinReply reply = join_reply(worker);
    if (worker.learner) {
      announcements.begin_at_last(worker.index());
      reply.sequence = announcements.last();
    }
    answer_when_durable(
        {worker.index()}, [respond, reply = std::move(reply)](size_t, const Status& stored) mutable {
          stored.ok() ? respond(transport::Message(std::move(reply))) : respond(cannot_join(stored));
        });
  }

  transport::JoinReply join_reply(Worker& worker) {
    transport::JoinReply reply = workers.join_reply(worker);
    reply.job_nonce = job_nonce;
    reply.durable = durability.stores();
    return reply;
  }

  // Calls `answer` for each of these workers once the record has them. Their leases begin then, since they
  // do not renew before.
  void answer_when_durable(std::vector<size_t> indices, std::function<void(size_t, const Status&)> answer) {
    for (const size_t index : indices) detector->end_lease(index);
    durability.changed();
    durability.when_durable(
        [this, indices = std::move(indices), answer = std::move(answer)](const Status& stored) {
          for (const size_t index : indices) {
            Worker& worker = workers[index];
            if (worker.control) worker.away = false;
            if (worker.in_job()) detector->begin_lease(index);
            answer(index, stored);
          }
        });
  }

  void on_return(ServerChannel& channel, const transport::Return& message, const Responder& respond) {
    if (Status wrong = check_control(channel, "to come back"); !wrong.ok()) return respond(std::move(wrong));
    const bool proved = channel.hello().job_nonce == job_nonce;
    Worker* const worker = proved ? workers.by_hello(channel.hello(), message.number) : nullptr;
    if (worker && !worker->is_forgotten() && worker->incarnation != message.incarnation)
      return respond(bad_message(describe_member(worker->info) + " was started again since it joined"));
    Result<Worker*> known = workers.check_sender(worker, message.number, message.view);
    if (!known.ok()) return respond(known.status());
    if (worker->lost) return respond(end_news);
    if (!worker->control) log->info("head: " + describe_member(worker->info) + " has come back");
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
    announcements.drop_watch(worker.index());
    if (ServerChannel* const before = std::exchange(worker.control, &channel)) before->close();
    detector->on_back(worker);
  }

  void on_enter(ServerChannel& channel, const transport::Enter& enter, const Responder& respond) {
    Result<Worker*> known = workers.check_sender(workers.by_control(channel), enter.number, enter.view);
    if (!known.ok()) return respond(known.status());
    Worker& worker = *known.value();
    if (!worker.learner) return acknowledge(respond);  // it has not heard of the view yet
    // With a rank: the head has answered, so the connection is not lost (is_lost_connection()).
    if (Status ending = refusal_at_end(worker.info); !ending.ok())
      return respond(std::move(ending).with_rank(worker.info.rank, worker.info.host));
    worker.learner = false;
    worker.info.rank = std::numeric_limits<int32_t>::max();  // the last one
    transport::WatchReply change = workers.members_in_view();
    worker.info.rank = rank_of(change.members, worker.info.worker_id);
    change.news = Status(Code::kViewChanged, describe_member(worker.info) + " has joined the job")
                      .with_rank(worker.info.rank, worker.info.host);
    enter_view(std::move(change));
    acknowledge(respond);
  }

  // ---- reports

  void on_renew(ServerChannel& channel, const transport::Renew& renew, const Responder& respond) {
    if (channel.hello().role != transport::Role::kHeartbeat)
      return respond(bad_message(describe_sender(channel) +
                                 " renews its lease on a connection that is not for heartbeats"));
    Result<Worker*> known =
        workers.check_sender(workers.by_hello(channel.hello(), renew.number), renew.number, renew.view);
    if (!known.ok()) return respond(known.status());
    Worker* worker = known.value();
    if (worker->lost) return respond(end_news);
    worker->heartbeats.insert(&channel);
    detector->on_renew(worker->index());
    respond(transport::Message(transport::Empty{}));
  }

  void on_watch(ServerChannel& channel, const transport::Watch& watch, const Responder& respond) {
    Worker* worker = workers.by_control(channel);
    Result<Worker*> known =
        workers.check_sender(worker, worker ? worker->info.number : -1, worker ? worker->joined : 0);
    if (!known.ok()) return respond(known.status());
    worker->away = false;
    Status wrong = announcements.watch(worker->index(), watch.sequence, respond);
    if (!wrong.ok()) return respond(std::move(wrong));
    end_if_done();
  }

  void on_progress(ServerChannel& channel, transport::Progress report, const Responder& respond) {
    Result<Worker*> known = workers.check_sender(workers.by_control(channel), report.number, report.view);
    if (!known.ok()) return respond(known.status());
    respond(transport::Message(transport::Empty{}));
    Worker& worker = *known.value();
    if (report.holds_state && !std::exchange(worker.holds_state, true)) durability.changed();
    detector->on_progress(worker.index(), std::move(report));
  }

  void on_report(ServerChannel& channel, const transport::Report& report, const Responder& respond) {
    Result<Worker*> known = workers.check_sender(workers.by_control(channel), report.number, report.view);
    if (!known.ok()) return respond(known.status());
    if (report.cause.ok())
      return respond(bad_message(describe_member(known.value()->info) + " reports no cause"));
    worker_failed(*known.value(), detector->cause_from(*known.value(), report.cause, ""));
    acknowledge(respond);
  }

  void on_report_cut(ServerChannel& channel, const transport::ReportCut& cut, const Responder& respond) {
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
    if (phase != Phase::kRunning || peer.lost) return;  // the reporter will hear of a view without the peer
    // The peer has left, but its last data did not arrive, or a step needs it as an owner. A view without it
    // needs none of that.
    if (peer.left && options.views_change())
      return remove_workers(
          {peer.index()},
          Status(Code::kWorkerLost, describe_member(peer.info) + " has closed its session, and " +
                                        describe_member(known.value()->info) +
                                        " waits for its last data: " + cut.cause.message())
              .with_rank(peer.info.rank, peer.info.host));
    detector->on_cut(*known.value(), cut.peer_number, cut.cause);
  }

  // A worker's session has failed. A failure of all workers ends the job; otherwise the others go on without
  // it. A mismatch with a worker that joined later fails only that worker.
  void worker_failed(const Worker& worker, const Status& why) {
    const bool own = workers.joined_late(worker) && why.code() == Code::kMismatch;
    if (concerns_all_workers(why.code()) && !own && !worker.learner) return break_job(why);
    remove_workers({worker.index()}, why);
  }

  // Answers a message when all that it has changed is durable: if the head is lost before, the worker sends
  // it again.
  void acknowledge(const Responder& respond) {
    durability.when_durable([respond](const Status&) { respond(transport::Message(transport::Empty{})); });
  }

  // ---- leaving

  void on_leave(ServerChannel& channel, transport::Leave leave, const Responder& respond) {
    if (phase == Phase::kGathering && gathering->holds(channel) && !leave.cause.ok())
      return abandon(channel, leave.cause, respond);
    const bool heartbeat = channel.hello().role == transport::Role::kHeartbeat;
    Worker* const sender =
        heartbeat ? workers.by_hello(channel.hello(), leave.number) : workers.by_control(channel);
    if (sender && leave.number < 0) {  // it has aborted before it learnt its number
      leave.number = sender->info.number;
      leave.view = workers.view();
    }
    Result<Worker*> known = workers.check_sender(sender, leave.number, sender ? sender->joined : 0);
    if (!known.ok()) return respond(known.status());
    Worker& worker = *known.value();
    if (leave.view > workers.view()) return respond(workers.wrong_view(worker, leave.view));
    if (worker.left) return acknowledge(respond);
    worker.closed = leave.cause.ok() || leave.departure_call > 0;
    if (worker.holds_state) last_closed = worker.closed;
    if (worker.learner) {
      remove_workers({worker.index()}, leave.cause.ok()
                                           ? Status(Code::kClosed, describe_member(worker.info) + " has left")
                                           : detector->cause_from(worker, leave.cause, ""));
      return acknowledge(respond);
    }
    const bool awaited =
        options.views_change() && detector->is_cut(worker.info.number);  // see on_report_cut()
    worker.left = true;
    detector->end_lease(worker.index());
    if (leave.cause.ok() && (leave.view != workers.view() || awaited)) {
      // The departure call may belong to an earlier view, so workers of this view may wait for the leaver.
      remove_workers({worker.index()},
                     Status(Code::kWorkerLost, describe_member(worker.info) +
                                                   " has closed its session while the " + "workers of view " +
                                                   std::to_string(workers.view()) + " waited for it")
                         .with_rank(worker.info.rank, worker.info.host));
    } else if (phase == Phase::kRunning && leave.cause.ok()) {
      log->info("head: " + describe_member(worker.info) + " left in good order");
      transport::WatchReply reply;
      reply.left = worker.info.number;
      reply.departure_call = leave.departure_call;
      publish(std::move(reply));
    } else if (!leave.cause.ok()) {
      worker_failed(worker, detector->cause_from(worker, leave.cause,
                                                 describe_member(worker.info) + " left the job: "));
    }
    if (workers.is_host(worker.index())) {
      host_leave = respond;
    } else {
      acknowledge(respond);
    }
    end_if_done();
  }

  // A worker that waits for the job to begin aborts it: so all others that wait end, too.
  void abandon(ServerChannel& channel, const Status& why, const Responder& respond) {
    add_to_idle(gathering->channels());
    const bool from_host = gathering->abort(channel, why);
    log->error("head: the job cannot begin: " + why.message());
    phase = Phase::kBroken;
    cause = why;
    end_after_lease();
    if (from_host) {
      host_leave = respond;
    } else {
      respond(transport::Message(transport::Empty{}));
    }
    end_if_done();
  }

  // ---- views

  // Takes workers out of the job. The others go on in a new view, unless they are too few or the head ends
  // with the worker that hosts it. Learners are in no view.
  void remove_workers(const std::vector<size_t>& indices, const Status& why) {
    if (phase != Phase::kRunning || !durability.holds()) return;
    bool of_view = false;
    for (const size_t index : indices) {
      of_view |= !workers[index].learner;
      workers[index].lost = true;
      if (workers[index].holds_state) last_closed = workers[index].closed;
      detector->end_lease(index);
    }
    transport::WatchReply change = workers.members_in_view();
    if (of_view && is_over(change.members)) return end_without_learners(why);
    const bool head_stays = !workers.host() || change.head_rank >= 0;
    const bool too_few =
        change.members.size() < options.min_workers && options.rejoin_timeout == transport::Duration{};
    if (of_view && (change.members.empty() || too_few || !head_stays)) return break_job(why);
    for (const size_t index : indices) {
      workers[index].eviction = evicted(workers[index].info, why);
      announcements.end_watch(index, workers[index].eviction);
    }
    close_after_lease(indices);
    if (!of_view) {
      durability.changed();
      log->warning("head: " + why.message() + "; it was still joining");
      return end_if_done();
    }
    change.news = why;
    enter_view(std::move(change));
  }

  // The last worker with the job's state has closed its session in good order. `members`, which are left,
  // have joined meanwhile, and do not have it yet.
  bool is_over(const std::vector<MemberInfo>& members) const {
    return last_closed && std::none_of(members.begin(), members.end(), [this](const MemberInfo& member) {
             return workers[static_cast<size_t>(member.number)].holds_state;
           });
  }

  // The members that are left fail with this error, and the job ends well.
  void end_without_learners(const Status& why) {
    log->info("head: " + why.message() +
              "; the workers with the job's state are gone, and the last has left in good order");
    end_for_all(Status(Code::kWorkerLost,
                       "the other workers have closed their sessions while this one joined; start a new job")
                    .with_rank(why.rank(), why.host()));
  }

  // Closes the connections of evicted workers. Until then each may ask why it was evicted.
  void close_after_lease(const std::vector<size_t>& indices) {
    loop.schedule(loop.now() + options.lease, [weak = weak_from_this(), indices] {
      auto self = weak.lock();
      if (!self) return;
      for (const size_t index : indices) {
        const Worker& worker = self->workers[index];
        if (worker.control) worker.control->close();
        for (ServerChannel* heartbeat : worker.heartbeats) heartbeat->close();
      }
    });
  }

  void enter_view(transport::WatchReply change) {
    workers.enter_view(change.members);
    change.paused = change.members.size() < options.min_workers;
    log->warning("head: " + change.news.message() + "; the job " +
                 (change.paused ? "waits for others to join" : "goes on") + " in view " +
                 std::to_string(workers.view()) + " with " + counted(change.members.size(), "worker"));
    change.paused ? wait_for_others(change.news) : loop.cancel(std::exchange(rejoin_timer, 0));
    publish(std::move(change));
    end_if_done();
  }

  // Fewer than min_workers are left, because of `why`.
  void wait_for_others(const Status& why) {
    if (rejoin_timer != 0) return;
    rejoin_timer = loop.schedule(loop.now() + options.rejoin_timeout, [weak = weak_from_this(), why] {
      if (auto self = weak.lock()) self->give_up_waiting(why);
    });
  }

  void give_up_waiting(const Status& why) {
    rejoin_timer = 0;
    // Until a worker comes back to this head, head_timeout limits the wait (FailureDetector).
    if (detector->no_worker_back() && phase == Phase::kRunning &&
        options.rejoin_timeout > transport::Duration{})
      return wait_for_others(why);
    break_job(Status(why.code(), why.message() +
                                     "; fewer than min_workers = " + std::to_string(options.min_workers) +
                                     " were left, and within " + describe_duration(options.rejoin_timeout) +
                                     " (rejoin_timeout) not enough others have joined")
                  .with_rank(why.rank(), why.host()));
  }

  // ---- news

  void publish(transport::WatchReply reply) {
    reply.view = workers.view();
    const uint64_t sequence = announcements.add(std::move(reply));
    durability.changed();
    durability.when_durable([this, sequence](const Status&) { announcements.release(sequence); });
  }

  void break_job(Status why) {
    if (phase != Phase::kRunning) return;
    log->error("head: the job cannot go on: " + why.message());
    cause = std::move(why);
    end_for_all(cause);
  }

  // The sessions of all members fail with `why`.
  void end_for_all(const Status& why) {
    phase = Phase::kBroken;
    detector->stop();
    end_news = why;
    publish_end();
    end_after_lease();
    end_if_done();
  }

  void publish_end() {
    transport::WatchReply reply;
    reply.news = end_news;
    publish(std::move(reply));
  }

  // ---- the record

  transport::HeadRecord record() {
    transport::HeadRecord record;
    record.job = options.job;
    record.address = address;
    record.lease = options.lease;
    record.rejoin_timeout = options.rejoin_timeout;
    record.straggler_timeout = options.straggler_timeout;
    record.num_workers = options.num_workers;
    record.min_workers = options.min_workers;
    record.max_workers = options.max_workers;
    record.job_nonce = job_nonce;
    record.token_digest = transport::token_digest(options.token, job_nonce);
    record.paused = rejoin_timer != 0;
    record.last_closed = last_closed;
    record.ended_well = !end_news.ok() && cause.ok();
    workers.write(&record);
    announcements.write(&record);
    return record;
  }

  // Goes on with the job of an earlier head. Each worker has a lease to come back.
  void take_up(const transport::HeadRecord& record) {
    job_nonce = record.job_nonce;
    workers.read(record);
    announcements.read(record);
    end_news = announcements.cause();
    last_closed = record.last_closed;
    if (!record.ended_well) cause = end_news;
    const bool broken = !end_news.ok();
    phase = broken ? Phase::kBroken : Phase::kRunning;
    detector->take_up();
    if (broken) detector->stop();
    log->warning("head: resumed the job of an earlier head, in view " + std::to_string(workers.view()) +
                 "; each worker has " + describe_duration(options.lease) +
                 " (lease) to come back, and the first one " + describe_duration(options.head_timeout) +
                 " (head_timeout)");
    if (broken) end_after_lease();
    if (!broken && record.paused)
      wait_for_others(Status(Code::kWorkerLost, "workers were lost before the head came back"));
    detector->schedule_check();
    end_if_done();
  }

  // News that is not durable must never be sent.
  void store_failed(const Status& why) {
    announcements.drop_unreleased();
    if (phase == Phase::kBroken || phase == Phase::kDone) return publish_end();
    break_job(Status(why.code(),
                     "the head cannot keep its state (`head_state`), and ends the job: " + why.message()));
  }

  // ---- status

  void on_scale(const transport::ScaleRequest& request, const Responder& respond) {
    Status scaled = scaling.request(request.workers, status().state);
    if (!scaled.ok()) return respond(std::move(scaled));
    log->info("head: dsgd_job_scale asks for " + counted(request.workers, "worker"));
    respond(transport::Message(transport::Empty{}));
  }

  transport::StatusReply status() const {
    using State = transport::StatusReply::State;
    transport::StatusReply reply;
    reply.num_workers = options.num_workers;
    reply.min_workers = options.min_workers;
    reply.max_workers = options.max_workers;
    scaling.describe(&reply);
    reply.cause = cause;
    if (phase == Phase::kGathering) {
      gathering->describe(&reply);
    } else {
      reply.state = !cause.ok()                                ? State::kFailed
                    : !end_news.ok() || !workers.has_members() ? State::kEnding
                    : rejoin_timer                             ? State::kPaused
                                                               : State::kRunning;
      workers.describe(&reply);
      for (transport::WorkerStatus& one : reply.workers)
        detector->describe(workers[static_cast<size_t>(one.member.number)], &one);
    }
    // Cuts the texts when there are many workers, to bound the reply.
    const size_t most = std::min(transport::kMaxWaitBytes, kStatusTextBytes / (reply.workers.size() + 1));
    for (transport::WorkerStatus& one : reply.workers) {
      one.member.machine.clear();
      one.member.addresses.clear();
      one.progress.waiting = cut(one.progress.waiting, most);
    }
    return reply;
  }

  // ---- the end

  // After each change: answers the Leave of the head's host if all others know, and ends the job if it is
  // over.
  void end_if_done() {
    if (host_leave) {
      const bool wait =
          gathering->abort_is_pending() || std::any_of(workers.begin(), workers.end(), [&](const Worker& w) {
            return w.watches(*workers.host()) && !announcements.has_confirmed_all(w.index());
          });
      if (!wait) {
        Responder respond = std::move(host_leave);
        host_leave = nullptr;
        respond(transport::Message(transport::Empty{}));
      }
    }
    if (phase != Phase::kRunning && phase != Phase::kBroken) return;
    const bool all_closed =
        !gathering->abort_is_pending() &&
        std::all_of(workers.begin(), workers.end(), [](const Worker& w) { return !w.connects(); });
    if (all_closed) return end();
    if (!workers.has_members() && phase == Phase::kRunning && !end_timer_set) {
      end_timer_set = true;
      end_after_lease();
    }
  }

  void end_after_lease() {
    loop.schedule(loop.now() + options.lease, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->end();
    });
  }

  void end() {
    if (phase == Phase::kDone) return;
    phase = Phase::kDone;
    detector->stop();
    log->info(cause.ok() ? "head: all workers have left, the job is over"
                         : "head: the job is over");  // its failure was logged before
    durability.remove([this](const Status& status) {
      if (!status.ok()) log->warning("head: the record of the job was not removed: " + status.message());
      removed = true;
      notify_end();
    });
  }

  void notify_end() {
    if (!removed || !ended) return;
    loop.post([weak = weak_from_this()] {
      auto self = weak.lock();
      if (!self || !self->ended) return;
      auto notify = std::move(self->ended);
      self->ended = nullptr;
      self->notified_end = true;
      notify(self->cause);
    });
  }

  void stand_down(const Status& why) {
    stood_down = true;
    if (phase != Phase::kDone) {
      phase = Phase::kDone;
      cause = why;
      log->error("head: " + why.message());
      detector->stop();
      gathering->stop();
      for (ServerChannel* channel : channels()) channel->close();
    }
    removed = true;
    notify_end();
  }

  std::set<ServerChannel*> channels() const {
    std::set<ServerChannel*> all(idle.begin(), idle.end());
    for (const Worker& worker : workers) {
      all.insert(worker.control);
      all.insert(worker.heartbeats.begin(), worker.heartbeats.end());
    }
    all.insert(gathering->channels().begin(), gathering->channels().end());
    all.erase(nullptr);
    return all;
  }
};

Head::Head(transport::Loop& loop, HeadOptions options, std::shared_ptr<Log> log, ViewStore* store)
    : impl_(std::make_shared<Impl>(loop, std::move(options), std::move(log), store)) {}
Head::~Head() = default;

Status Head::on_open(ServerChannel& channel) { return impl_->on_open(channel); }

void Head::on_call(ServerChannel& channel, transport::Message request, Responder respond) {
  auto keep = impl_;
  if (impl_->stood_down) return channel.close();
  if (auto* join = std::get_if<transport::JoinRequest>(&request)) {
    impl_->on_join(channel, std::move(*join), respond);
  } else if (std::holds_alternative<transport::GatheringRequest>(request)) {
    impl_->gathering->on_request(channel, respond);
  } else if (auto* watch = std::get_if<transport::Watch>(&request)) {
    impl_->on_watch(channel, *watch, respond);
  } else if (auto* renew = std::get_if<transport::Renew>(&request)) {
    impl_->on_renew(channel, *renew, respond);
  } else if (auto* enter = std::get_if<transport::Enter>(&request)) {
    impl_->on_enter(channel, *enter, respond);
  } else if (auto* back = std::get_if<transport::Return>(&request)) {
    impl_->on_return(channel, *back, respond);
  } else if (auto* leave = std::get_if<transport::Leave>(&request)) {
    impl_->on_leave(channel, *leave, respond);
  } else if (auto* report = std::get_if<transport::Report>(&request)) {
    impl_->on_report(channel, *report, respond);
  } else if (auto* cut = std::get_if<transport::ReportCut>(&request)) {
    impl_->on_report_cut(channel, *cut, respond);
  } else if (auto* progress = std::get_if<transport::Progress>(&request)) {
    impl_->on_progress(channel, std::move(*progress), respond);
  } else if (std::holds_alternative<transport::StatusRequest>(request)) {
    respond(transport::Message(impl_->status()));
  } else if (auto* scale = std::get_if<transport::ScaleRequest>(&request)) {
    impl_->on_scale(*scale, respond);
  } else {
    respond(bad_message(describe_sender(channel) + " sent the head a message that heads do not take"));
  }
}

void Head::on_bulk_end(ServerChannel& channel, const transport::BulkHeader&,
                       std::unique_ptr<transport::BulkReceipt> receipt) {
  receipt->finish(bad_message(describe_sender(channel) + " sent bulk data to the head, which takes none"));
}

void Head::on_close(ServerChannel& channel, const Status& why) {
  auto keep = impl_;
  impl_->on_channel_closed(channel, why);
}

void Head::on_end(std::function<void(const Status&)> ended) {
  impl_->ended = std::move(ended);
  impl_->notify_end();
}

std::string Head::progress() const { return impl_->gathering->progress(); }
void Head::take_up(const transport::HeadRecord& earlier) { impl_->take_up(earlier); }
void Head::stand_down(const Status& why) { impl_->stand_down(why); }
void Head::set_address(const std::string& address) {
  impl_->address = address;
  impl_->detector->set_address(address);
}
void Head::note_refused(const std::string& why) { impl_->gathering->note_refused(why); }

}  // namespace dsgd
