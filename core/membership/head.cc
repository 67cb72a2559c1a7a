#include "core/membership/head.h"

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/address.h"
#include "core/base/describe.h"
#include "core/base/refusal_log.h"
#include "core/base/stopped.h"
#include "core/base/text.h"
#include "core/membership/leases.h"
#include "core/membership/rendezvous.h"
#include "core/membership/text.h"

namespace dsgd {
namespace {

using transport::MemberInfo;
using transport::Responder;
using transport::ServerChannel;
using transport::Time;

constexpr uint64_t kFirstView = 1;
constexpr size_t kMostIdle = 64;  // control connections that hold no place, beyond the number of workers

std::string random_bytes(transport::Loop& loop) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) {
    const uint64_t bits = loop.random();
    bytes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
  return bytes;
}

Status bad_message(const std::string& text) { return Status(Code::kInvalidArgument, text); }

}  // namespace

struct Head::Impl : std::enable_shared_from_this<Head::Impl> {
  enum class Phase { kGathering, kRunning, kBroken, kDone };

  struct Worker {
    MemberInfo info;
    ServerChannel* control = nullptr;  // null: closed
    // More than one after a cut or a pause, until the worker closes the others.
    std::set<ServerChannel*> heartbeats;
    bool left = false;  // sent Leave
    bool lost = false;
    uint64_t told = 0;        // news that it has confirmed
    uint64_t watch_from = 0;  // of the parked watch
    Responder watch;
    bool watches(const MemberInfo& other) const {
      return info.rank != other.rank && !left && !lost && control;
    }
  };

  Impl(transport::Loop& l, HeadOptions o, std::shared_ptr<Log> g)
      : loop(l),
        options(o),
        log(g ? std::move(g) : std::make_shared<Log>()),
        refusals(l, log),
        rendezvous(o.num_workers),
        leases(o.lease) {}

  transport::Loop& loop;
  const HeadOptions options;
  const std::shared_ptr<Log> log;
  RefusalLog refusals;

  Phase phase = Phase::kGathering;
  Rendezvous rendezvous;
  // Control connections of the workers in the rendezvous, by their places in `leases`; null: the place is
  // free.
  std::vector<ServerChannel*> places;
  size_t most_come = 0;  // workers that were in the rendezvous at once
  Leases leases;
  std::vector<Worker> workers;  // by rank
  std::string job_nonce;        // of the running job
  bool end_timer_set = false;   // all workers have left; the job ends a lease later at the latest
  // Workers that were told of the abort of a job that had not begun, until they disconnect.
  std::set<ServerChannel*> told;
  // Control connections that have not asked to join, or were refused; the oldest first.
  std::list<ServerChannel*> idle;
  int32_t head_rank = -1;
  std::vector<transport::WatchReply> news;  // news[i] has sequence i + 1
  Status cause;                             // what broke the job
  Responder host_leave;  // the answer to the Leave of the head's host, held back until the others know
  // Workers that cannot reach each other, the lower rank first, and why not, as the first of them said.
  std::map<std::pair<int32_t, int32_t>, std::string> cut_pairs;
  Time cut_reported{};
  Time next_check{};
  transport::TimerId check_timer = 0;
  transport::Duration last_stop{};  // length of the last stop of the head itself that check_leases noticed
  Time resumed{};                   // when it noticed it
  transport::TimerId gone_timer = 0;
  std::function<void(const Status&)> ended;

  // ---- finding

  Worker* by_control(const ServerChannel& channel) {
    for (Worker& w : workers) {
      if (w.control == &channel) return &w;
    }
    return nullptr;
  }

  // Of a heartbeat.
  Worker* by_heartbeat(const ServerChannel& channel, int32_t rank) {
    if (rank < 0 || static_cast<size_t>(rank) >= workers.size()) return nullptr;
    Worker& worker = workers[static_cast<size_t>(rank)];
    return channel.hello().worker_id == worker.info.worker_id ? &worker : nullptr;
  }

  // The worker that may speak for `rank` in `view`, or an error.
  Result<Worker*> speaker(Worker* worker, int32_t rank, uint64_t view) {
    if (phase == Phase::kGathering || worker == nullptr) {
      return Status(Code::kState, "this connection belongs to no worker of the job; it has to join first");
    }
    if (view != kFirstView) {
      return Status(Code::kState, "a message of view " + std::to_string(view) + " from " +
                                      describe_member(worker->info) + " is refused: the job is in view " +
                                      std::to_string(kFirstView));
    }
    if (rank != worker->info.rank) {
      return bad_message(describe_member(worker->info) + " speaks as rank " + std::to_string(rank));
    }
    return worker;
  }

  // ---- connections

  Status on_open(ServerChannel& channel) {
    const transport::Hello& hello = channel.hello();
    if (hello.role == transport::Role::kHeartbeat) return check_heartbeat(hello, channel.address());
    idle.push_back(&channel);
    if (idle.size() > options.num_workers + kMostIdle) {
      ServerChannel* oldest = idle.front();
      idle.pop_front();
      oldest->close();
    }
    return {};
  }

  // Only a worker that has joined knows the job's nonce.
  Status check_heartbeat(const transport::Hello& hello, const std::string& from) {
    const bool known = phase != Phase::kGathering && hello.rank >= 0 &&
                       static_cast<size_t>(hello.rank) < workers.size() &&
                       hello.worker_id == workers[static_cast<size_t>(hello.rank)].info.worker_id &&
                       hello.job_nonce == job_nonce;
    if (known) return {};
    Status why(Code::kState, "a heartbeat from " + from + " claims to be rank " + std::to_string(hello.rank) +
                                 ", worker '" + printable(hello.worker_id) +
                                 "', which is not in the running job");
    refusals.note("they are heartbeats of workers that are not in the job", "head: " + why.message());
    return why;
  }

  // ---- rendezvous

  void on_join(ServerChannel& channel, transport::JoinRequest request, const Responder& respond) {
    if (phase != Phase::kGathering) return respond(refusal(request.member));
    if (rendezvous.holds(channel)) {
      return respond(Status(
          Code::kState, "worker " + describe_candidate(request.member) + " joins twice on one connection"));
    }
    const MemberInfo member = request.member;
    Status refused;
    if (request.lease != options.lease) {  // a worker that renews less often would be lost
      refused = Status(Code::kMismatch, "worker " + describe_candidate(member) +
                                            " says lease = " + describe_duration(request.lease) +
                                            ", the head says lease = " + describe_duration(options.lease) +
                                            "; set `lease` to the same time everywhere")
                    .with_parameter("lease");
    }
    Rendezvous::Candidate candidate{std::move(request), &channel, respond}, replaced;
    if (refused.ok()) refused = rendezvous.admit(candidate, &replaced);
    if (!refused.ok()) {
      refusals.note("they may not join the job", "head: " + refused.message());
      rendezvous.note_refused(refused.message());
      return respond(std::move(refused));
    }
    idle.remove(&channel);
    take_place(replaced.channel, channel);
    if (replaced.channel) {
      idle.push_back(replaced.channel);
      replaced.respond(
          Status(Code::kExists, "worker id '" + member.worker_id +
                                    "' was taken over by a later join of the same process (host " +
                                    member.host + ", pid " + std::to_string(member.pid) +
                                    "); give each session its own `worker_id`"));
    }
    loop.cancel(std::exchange(gone_timer, 0));
    log_progress();
    if (rendezvous.complete()) complete();
  }

  // The error of workers that wait for others, with the rank of the first that is missing.
  Status waits(std::string text) const {
    const std::vector<int32_t> missing = rendezvous.missing();
    return Status(Code::kTimeout, std::move(text)).with_rank(missing.empty() ? -1 : missing.front());
  }

  // Workers that come again and again do not fill the log: each number of workers is logged once.
  void log_progress() {
    const size_t come = rendezvous.size();
    if (come > most_come) {
      most_come = come;
      log->info("head: " + rendezvous.progress());
    } else {
      refusals.note_event("a worker joined again, or after another one had gone",
                          "head: " + rendezvous.progress());
    }
  }

  Status refusal(const MemberInfo& late) const {
    const bool job_is_ending =
        phase != Phase::kRunning ||
        std::any_of(workers.begin(), workers.end(), [](const Worker& w) { return w.left; });
    // kUnreachable, so that the worker tries again: the next job may begin at this address.
    if (job_is_ending) {
      return Status(Code::kUnreachable, "worker " + describe_candidate(late) +
                                            " cannot join: the job at this head is ending" +
                                            (cause.ok() ? "" : " (" + cause.message() + ")") +
                                            "; a new one can begin when its head is gone");
    }
    for (const Worker& w : workers) {
      if (w.info.worker_id == late.worker_id) {
        return Status(Code::kExists,
                      "worker id '" + late.worker_id + "' is taken by rank " + std::to_string(w.info.rank) +
                          " on host " + w.info.host + " (pid " + std::to_string(w.info.pid) +
                          ") of this job, which has all its workers; start another job with a head of its "
                          "own, at another address");
      }
    }
    return Status(Code::kState,
                  "worker " + describe_candidate(late) + " comes too late: all " +
                      std::to_string(options.num_workers) +
                      " workers of the job have come; start another job with a head of its own, at another "
                      "address, or this job again with a larger `num_workers`");
  }

  void complete() {
    transport::JoinReply reply;
    reply.view = kFirstView;
    std::vector<Responder> waiting;
    if (Status apart = rendezvous.check_reachable(); !apart.ok()) {
      log->error("head: " + apart.message());
      rendezvous.note_refused(apart.message());
      std::vector<Rendezvous::Candidate> all = rendezvous.take_by_rank();
      places.clear();
      leases.begin(0, loop.now());
      for (Rendezvous::Candidate& c : all) c.respond(apart);
      await_another(all.front().request.member, "disconnected");
      return;
    }
    for (Rendezvous::Candidate& c : rendezvous.take_by_rank()) {
      Worker worker;
      worker.info = std::move(c.request.member);
      worker.control = c.channel;
      if (c.request.hosts_head) head_rank = worker.info.rank;
      reply.members.push_back(worker.info);
      workers.push_back(std::move(worker));
      waiting.push_back(std::move(c.respond));
    }
    reply.head_rank = head_rank;
    reply.job_nonce = job_nonce = random_bytes(loop);
    places.clear();
    leases.begin(workers.size(), loop.now());
    phase = Phase::kRunning;
    log->info(workers.size() == 1
                  ? "head: the only worker has come, the job begins"
                  : "head: all " + std::to_string(workers.size()) + " workers have come, the job begins");
    for (size_t rank = 0; rank < waiting.size(); ++rank) {
      reply.rank = static_cast<int32_t>(rank);
      waiting[rank](transport::Message(reply));
    }
    schedule_check();
  }

  // A worker that waits in the rendezvous has a lease there, which its Watch calls renew.
  // `replaced`: the connection that had its place before; null: none.
  void take_place(const ServerChannel* replaced, ServerChannel& channel) {
    auto place = std::find(places.begin(), places.end(), replaced);
    if (place == places.end()) place = places.insert(place, nullptr);
    *place = &channel;
    leases.hold(static_cast<size_t>(place - places.begin()), loop.now());
    if (check_timer == 0) schedule_check();
  }

  size_t place_of(const ServerChannel& channel) const {
    return static_cast<size_t>(std::find(places.begin(), places.end(), &channel) - places.begin());
  }

  // Returns false if the worker of this channel has no place.
  bool free_place(const ServerChannel& channel, MemberInfo* gone) {
    if (!rendezvous.remove(channel, gone)) return false;
    const size_t place = place_of(channel);
    places[place] = nullptr;
    leases.end(place);
    return true;
  }

  void check_places() {
    for (const size_t place : leases.check(loop.now(), next_check).lost) {
      ServerChannel* const channel = places[place];
      const std::string silence = describe_duration(leases.silence(place, loop.now())) + " (lease)";
      MemberInfo gone;
      free_place(*channel, &gone);
      refusals.note_event("a worker was silent before the job began",
                          "head: worker " + describe_candidate(gone) + " has been silent for " + silence +
                              " before the job began; its place is free again");
      channel->close();  // if it goes on, it joins again
      await_another(gone, "was silent for " + silence);
    }
    const bool waits = std::any_of(places.begin(), places.end(), [](const auto* channel) { return channel; });
    if (waits) schedule_check();
  }

  // ---- leases

  void schedule_check() {
    loop.cancel(check_timer);
    next_check = leases.next_check(loop.now());
    check_timer = loop.schedule(next_check, [weak = weak_from_this()] {
      auto self = weak.lock();
      if (!self) return;
      self->check_timer = 0;
      if (self->phase == Phase::kGathering) return self->check_places();
      self->check_leases();
    });
  }

  void check_leases() {
    if (phase != Phase::kRunning) return;
    const Time now = loop.now();
    const Leases::Verdict verdict = leases.check(now, next_check);
    if (verdict.late) {
      last_stop = now - next_check;
      resumed = now;
      log->warning("head: was itself stopped or suspended for " + describe_duration(last_stop) +
                   "; every worker gets one more lease");
    }
    if (verdict.lost.empty()) return schedule_check();
    for (const size_t rank : verdict.lost) workers[rank].lost = true;
    const size_t first = verdict.lost.front();
    const std::string silence =
        "no heartbeat for " + describe_duration(leases.silence(first, now)) + " (lease)";
    if (is_deaf(now)) {
      return break_job(head_at_fault(" hears no worker: " + silence + " from " + names(verdict.lost) +
                                     "; it is cut off, or all of them have stopped"));
    }
    const std::string others = names(std::span(verdict.lost).subspan(1));
    const ServerChannel* const control = workers[first].control;
    break_job(lost_worker(
        workers[first].info,
        silence + (control ? "; it joined from " + control->address() : std::string()) +
            "; it is stopped or suspended, or the network or a firewall cuts it off from the head" +
            (others.empty() ? "" : "; silent too: " + others)));
  }

  std::string names(std::span<const size_t> ranks) const {  // separated by commas
    std::string text;
    for (const size_t rank : ranks) text += (text.empty() ? "" : ", ") + describe_member(workers[rank].info);
    return text;
  }

  std::string head_name() const {
    return head_rank >= 0
               ? "the head, hosted by " + describe_member(workers[static_cast<size_t>(head_rank)].info) + ","
               : "the head";
  }

  // Returns how long the head itself did not run, if that was more than half a lease and ended less than a
  // lease ago; otherwise 0. Reports of workers may be read before check_leases notices the stop, so the
  // current delay counts, too.
  transport::Duration own_stop() const {
    const Time now = loop.now();
    if (was_stopped(next_check, now, options.lease)) return now - next_check;
    return now < resumed + options.lease ? last_stop : transport::Duration{};
  }

  Status head_at_fault(const std::string& why) const {
    return Status(Code::kWorkerLost, head_name() + why)
        .with_rank(head_rank, head_rank >= 0 ? workers[static_cast<size_t>(head_rank)].info.host : "");
  }

  Status stopped_head(transport::Duration stop, const std::string& consequence) const {
    return head_at_fault(" was itself stopped or suspended for " + describe_duration(stop) + " (lease " +
                         describe_duration(options.lease) + "); " + consequence);
  }

  // Workers on two or more other machines have all been silent for most of a lease, and no worker is on the
  // head's own machine: the head cannot hear them. One machine alone may have stopped, with all its workers.
  bool is_deaf(Time now) const {
    std::set<std::string> silent;  // machines
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      const Worker& worker = workers[rank];
      if (static_cast<int32_t>(rank) == head_rank || worker.left) continue;
      if (leases.silence(rank, now) <= options.lease * 3 / 4) return false;
      if (head_rank >= 0 && worker.info.machine == workers[static_cast<size_t>(head_rank)].info.machine)
        return false;
      if (worker.control && is_loopback(worker.control->address())) return false;
      silent.insert(worker.info.machine);
    }
    return silent.size() >= 2;
  }

  // Records that two workers cannot reach each other. decide_cut() follows after a quarter of a lease, in
  // which other pairs may be reported.
  void note_cut(const Worker& from, int32_t peer, const Status& cause) {
    if (cut_pairs.empty()) {
      cut_reported = loop.now();
      log->warning("head: " + describe_member(from.info) + " cannot reach " +
                   describe_member(workers[static_cast<size_t>(peer)].info) + ": " + cause.message());
      decide_cut_after(options.lease / 4);
    }
    cut_pairs.try_emplace(std::minmax(from.info.rank, peer), cause.message());
  }

  void decide_cut_after(transport::Duration wait) {
    loop.schedule(loop.now() + wait, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->decide_cut();
    });
  }

  bool has_renewed_since(Time when, int32_t rank) const {
    return loop.now() - leases.silence(static_cast<size_t>(rank), loop.now()) > when;
  }

  // Names the worker that is cut off. Candidates are the workers of pairs in which both are still in the job,
  // once both have renewed their leases since: neither is simply lost. The one in most pairs is named, pairs
  // with a departed worker included; of several, one that does not host the head, then the highest rank.
  void decide_cut() {
    if (phase != Phase::kRunning) return;
    std::set<int32_t> suspects;
    std::map<int32_t, int> cuts;  // by rank
    for (const auto& [pair, why] : cut_pairs) {
      const auto [low, high] = pair;
      ++cuts[low];
      ++cuts[high];
      if (has_left(low) || has_left(high)) continue;
      if (!has_renewed_since(cut_reported, low) || !has_renewed_since(cut_reported, high))
        return decide_cut_after(options.lease / 20);  // if it does not renew, check_leases() declares it lost
      suspects.insert({low, high});
    }
    if (suspects.empty()) {
      cut_pairs.clear();
      return;
    }
    const auto weight = [&](int32_t rank) { return std::tuple(cuts[rank], rank != head_rank, rank); };
    const int32_t cut_off = *std::max_element(suspects.begin(), suspects.end(),
                                              [&](int32_t a, int32_t b) { return weight(a) < weight(b); });
    break_job(cut_error(workers[static_cast<size_t>(cut_off)].info));
  }

  Status cut_error(const MemberInfo& cut_off) const {
    std::vector<size_t> others;
    std::string first_why;
    bool loopback = listens_on_loopback(cut_off);
    for (const auto& [pair, why] : cut_pairs) {
      const auto [low, high] = pair;
      const int32_t other = low == cut_off.rank ? high : low;
      if ((low != cut_off.rank && high != cut_off.rank) || has_left(other)) continue;
      if (others.empty()) first_why = why;
      others.push_back(static_cast<size_t>(other));
      loopback = loopback || listens_on_loopback(workers[static_cast<size_t>(other)].info);
    }
    return Status(Code::kWorkerLost, describe_member(cut_off) + " is cut off from " + names(others) +
                                         ", though the head reaches all of them (" + first_why +
                                         "); perhaps " + reason_for_cut(loopback))
        .with_rank(cut_off.rank, cut_off.host);
  }

  bool has_left(int32_t rank) const { return workers[static_cast<size_t>(rank)].left; }

  void on_renew(ServerChannel& channel, const transport::Renew& renew, const Responder& respond) {
    Result<Worker*> known = speaker(by_heartbeat(channel, renew.rank), renew.rank, renew.view);
    if (!known.ok()) return respond(known.status());
    Worker* worker = known.value();
    if (worker->lost) return respond(cause);
    worker->heartbeats.insert(&channel);
    leases.renew(static_cast<size_t>(renew.rank), loop.now());
    respond(transport::Message(transport::Empty{}));
  }

  // ---- news

  void publish(transport::WatchReply reply) {
    reply.sequence = news.size() + 1;
    reply.view = kFirstView;
    news.push_back(std::move(reply));
    for (Worker& w : workers) {
      if (w.watch && !w.left) answer_watch(w);
    }
  }

  void answer_watch(Worker& worker) {
    Responder respond = std::move(worker.watch);
    worker.watch = nullptr;
    respond(transport::Message(news[worker.watch_from]));
  }

  void on_watch(ServerChannel& channel, const transport::Watch& watch, const Responder& respond) {
    // Before the job begins there is no news: a Watch asks for the progress. By protocol the answer is an
    // error with kTimeout whose text is the progress (Joiner::ask_progress).
    if (phase == Phase::kGathering && rendezvous.holds(channel)) {
      leases.renew(place_of(channel), loop.now());
      return respond(waits(rendezvous.progress()));
    }
    Worker* worker = by_control(channel);
    Result<Worker*> known = speaker(worker, worker ? worker->info.rank : -1, kFirstView);
    if (!known.ok()) return respond(known.status());
    if (watch.sequence > news.size()) {
      return respond(bad_message(describe_member(worker->info) + " watches for news after " +
                                 std::to_string(watch.sequence) + ", the last is " +
                                 std::to_string(news.size())));
    }
    if (worker->watch) worker->watch(Status(Code::kState, "replaced by a later watch of the same worker"));
    worker->told = std::max(worker->told, watch.sequence);
    worker->watch_from = watch.sequence;
    worker->watch = respond;
    if (watch.sequence < news.size()) answer_watch(*worker);
    settle();
  }

  void break_job(Status why) {
    if (phase != Phase::kRunning) return;
    log->error("head: the job cannot go on: " + why.message());
    phase = Phase::kBroken;
    cause = why;
    transport::WatchReply reply;
    reply.news = std::move(why);
    publish(std::move(reply));
    end_after_lease();
    settle();
  }

  void on_report(ServerChannel& channel, const transport::Report& report, const Responder& respond) {
    Result<Worker*> known = speaker(by_control(channel), report.rank, report.view);
    if (!known.ok()) return respond(known.status());
    if (report.cause.ok())
      return respond(bad_message(describe_member(known.value()->info) + " reports no cause"));
    respond(transport::Message(transport::Empty{}));
    break_job(cause_from(known.value()->info, report.cause, ""));
  }

  void on_report_cut(ServerChannel& channel, const transport::ReportCut& cut, const Responder& respond) {
    Result<Worker*> known = speaker(by_control(channel), cut.rank, cut.view);
    if (!known.ok()) return respond(known.status());
    if (cut.cause.ok())
      return respond(bad_message(describe_member(known.value()->info) + " reports a cut without a cause"));
    if (cut.peer < 0 || cut.peer >= static_cast<int32_t>(workers.size()) || cut.peer == cut.rank)
      return respond(bad_message(describe_member(known.value()->info) +
                                 " reports that it cannot reach rank " + std::to_string(cut.peer)));
    respond(transport::Message(transport::Empty{}));
    if (phase == Phase::kRunning) note_cut(*known.value(), cut.peer, cut.cause);
  }

  // A worker reports that the head is lost, but the report arrived. So either the head was stopped, or only
  // the direction from the head to this worker is broken.
  Status cause_from(const MemberInfo& from, const Status& why, const std::string& prefix) const {
    if (why.code() != Code::kWorkerLost || why.rank() != head_rank || from.rank == head_rank)
      return relayed_cause(from, why, prefix);
    if (const auto stop = own_stop(); stop > transport::Duration{}) {
      return stopped_head(stop, describe_member(from) + " has given it up: " + why.message());
    }
    return lost_worker(from, "it does not hear the head, but the head hears it (" + why.message() +
                                 "); a firewall may be between them");
  }

  // A worker that waits for the job to begin aborts it: so all others that wait end, too.
  void abandon(ServerChannel& channel, const Status& why, const Responder& respond) {
    bool from_host = false;
    for (Rendezvous::Candidate& c : rendezvous.take_all()) {
      idle.push_back(c.channel);
      if (c.channel == &channel) {
        from_host = c.request.hosts_head;
      } else {
        told.insert(c.channel);
        c.respond(why);
      }
    }
    log->error("head: the job cannot begin: " + why.message());
    loop.cancel(std::exchange(gone_timer, 0));
    phase = Phase::kBroken;
    cause = why;
    end_after_lease();
    if (from_host) {
      host_leave = respond;
    } else {
      respond(transport::Message(transport::Empty{}));
    }
    settle();
  }

  void on_leave(ServerChannel& channel, transport::Leave leave, const Responder& respond) {
    if (phase == Phase::kGathering && rendezvous.holds(channel) && !leave.cause.ok())
      return abandon(channel, leave.cause, respond);
    const bool heartbeat = channel.hello().role == transport::Role::kHeartbeat;
    Worker* const sender = heartbeat ? by_heartbeat(channel, leave.rank) : by_control(channel);
    if (sender && leave.rank < 0) {  // it has aborted before it learnt its rank
      leave.rank = sender->info.rank;
      leave.view = kFirstView;
    }
    Result<Worker*> known = speaker(sender, leave.rank, leave.view);
    if (!known.ok()) return respond(known.status());
    Worker& worker = *known.value();
    if (worker.left) return respond(transport::Message(transport::Empty{}));
    worker.left = true;
    leases.end(static_cast<size_t>(leave.rank));
    if (phase == Phase::kRunning && leave.cause.ok()) {
      log->info("head: " + describe_member(worker.info) + " left in good order");
      transport::WatchReply reply;
      reply.left = worker.info.rank;
      reply.departure_call = leave.departure_call;
      publish(std::move(reply));
    } else if (!leave.cause.ok()) {
      break_job(cause_from(worker.info, leave.cause, describe_member(worker.info) + " left the job: "));
    }
    if (worker.info.rank == head_rank) {
      host_leave = respond;
    } else {
      respond(transport::Message(transport::Empty{}));
    }
    settle();
  }

  // ---- the end

  // After each change: answers the Leave of the head's host if all others know, and ends the job if it is
  // over.
  void settle() {
    if (host_leave) {
      const bool wait = !told.empty() || std::any_of(workers.begin(), workers.end(), [&](const Worker& w) {
        return w.watches(workers[static_cast<size_t>(head_rank)].info) && w.told < news.size();
      });
      if (!wait) {
        Responder respond = std::move(host_leave);
        host_leave = nullptr;
        respond(transport::Message(transport::Empty{}));
      }
    }
    if (phase != Phase::kRunning && phase != Phase::kBroken) return;
    const bool all_closed = told.empty() && std::all_of(workers.begin(), workers.end(),
                                                        [](const Worker& w) { return !w.control; });
    if (all_closed) return end();
    const bool all_left = std::all_of(workers.begin(), workers.end(), [](const Worker& w) { return w.left; });
    if (all_left && phase == Phase::kRunning && !end_timer_set) {
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
    log->info(cause.ok() ? "head: all workers have left, the job is over"
                         : "head: the job is over");  // its failure was logged before
    tell_end();
  }

  void tell_end() {
    if (phase != Phase::kDone || !ended) return;
    loop.post([weak = weak_from_this()] {
      auto self = weak.lock();
      if (!self || !self->ended) return;
      auto tell = std::move(self->ended);
      self->ended = nullptr;
      tell(self->cause);
    });
  }

  // `how` it has gone: "disconnected".
  void await_another(const MemberInfo& gone, const std::string& how) {
    if (options.init_timeout == transport::Duration{}) return;
    loop.cancel(gone_timer);
    gone_timer = loop.schedule(loop.now() + options.init_timeout, [weak = weak_from_this(), gone, how] {
      auto self = weak.lock();
      if (!self || self->phase != Phase::kGathering) return;
      self->cause = self->waits("worker " + describe_candidate(gone) + " " + how +
                                " before the job began, and no worker has joined for " +
                                describe_duration(self->options.init_timeout) +
                                " (init_timeout): " + self->rendezvous.progress());
      self->end();
    });
  }

  void on_channel_closed(ServerChannel& channel, const Status& why) {
    idle.remove(&channel);
    if (told.erase(&channel) > 0) return settle();
    MemberInfo gone;
    if (free_place(channel, &gone)) {
      refusals.note_event("a worker disconnected before the job began",
                          "head: worker " + describe_candidate(gone) +
                              " disconnected before the job began; its place is free again");
      return await_another(gone, "disconnected");
    }
    for (Worker& worker : workers) {
      if (worker.control == &channel) {
        worker.control = nullptr;
        worker.watch = nullptr;
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
    if (!worker.left && !worker.lost && phase == Phase::kRunning) {
      worker.lost = true;
      if (const auto stop = own_stop(); stop > transport::Duration{}) {
        break_job(stopped_head(
            stop, "meanwhile " + describe_member(worker.info) + " has closed " + which + " to it"));
        return settle();
      }
      break_job(lost_worker(worker.info,
                            why.ok() ? which + " to the head was closed without leaving the job"
                                     : which + " to the head broke (" + why.message() + ")",
                            code_of_break(why)));
    }
    settle();
  }
};

Head::Head(transport::Loop& loop, HeadOptions options, std::shared_ptr<Log> log)
    : impl_(std::make_shared<Impl>(loop, options, std::move(log))) {}
Head::~Head() = default;

Status Head::on_open(ServerChannel& channel) { return impl_->on_open(channel); }

void Head::on_call(ServerChannel& channel, transport::Message request, Responder respond) {
  auto keep = impl_;
  if (auto* join = std::get_if<transport::JoinRequest>(&request)) {
    impl_->on_join(channel, std::move(*join), respond);
  } else if (auto* watch = std::get_if<transport::Watch>(&request)) {
    impl_->on_watch(channel, *watch, respond);
  } else if (auto* renew = std::get_if<transport::Renew>(&request)) {
    impl_->on_renew(channel, *renew, respond);
  } else if (auto* leave = std::get_if<transport::Leave>(&request)) {
    impl_->on_leave(channel, *leave, respond);
  } else if (auto* report = std::get_if<transport::Report>(&request)) {
    impl_->on_report(channel, *report, respond);
  } else if (auto* cut = std::get_if<transport::ReportCut>(&request)) {
    impl_->on_report_cut(channel, *cut, respond);
  } else {
    respond(bad_message("worker '" + channel.hello().worker_id + "' at " + channel.address() +
                        " sent the head a message that heads do not take"));
  }
}

void Head::on_bulk_end(ServerChannel& channel, const transport::BulkHeader&,
                       std::unique_ptr<transport::BulkReceipt> receipt) {
  receipt->finish(bad_message("worker '" + channel.hello().worker_id + "' at " + channel.address() +
                              " sent bulk data to the head, which takes none"));
}

void Head::on_close(ServerChannel& channel, const Status& why) {
  auto keep = impl_;
  impl_->on_channel_closed(channel, why);
}

void Head::on_end(std::function<void(const Status&)> ended) {
  impl_->ended = std::move(ended);
  impl_->tell_end();
}

std::string Head::progress() const { return impl_->rendezvous.progress(); }
void Head::note_refused(const std::string& why) { impl_->rendezvous.note_refused(why); }

}  // namespace dsgd
