#include "core/membership/job.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/base/while_alive.h"
#include "core/membership/text.h"
#include "transport/authentication.h"

namespace dsgd {
namespace {

using transport::MemberInfo;
using transport::Responder;
using transport::ServerChannel;

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

}  // namespace

Job::Job(transport::Loop& l, HeadOptions o, std::shared_ptr<Log> g, ViewStore* store)
    : options(o.with_limits()),
      log(g ? std::move(g) : std::make_shared<Log>()),
      refusals(l, log),
      gathering(std::make_shared<Gathering>(l, options, log, refusals,
                                            [this](const Status& why) {
                                              cause_ = why;
                                              end();
                                            })),
      workers(options),
      announcements(workers),
      durability(store, [this] { return record(); }),
      detector(std::make_shared<FailureDetector>(
          l, options, log, workers, durability,
          FailureDetector::Events{
              [this](const std::vector<size_t>& lost, const Status& why) { remove_workers(lost, why); },
              [this](const Status& why) { fail_job(why); }})),
      loop_(l) {
  durability.on_failure([this](const Status& why) { on_store_failed(why); });
}

transport::StatusReply Job::status() const {
  using State = transport::StatusReply::State;
  transport::StatusReply reply;
  reply.num_workers = options.num_workers;
  reply.min_workers = options.min_workers;
  reply.max_workers = options.max_workers;
  reply.cause = cause_;
  if (is_gathering()) {
    gathering->describe(&reply);
    return reply;
  }
  reply.state = !cause_.ok()                                 ? State::kFailed
                : !end_error_.ok() || !workers.has_members() ? State::kEnding
                : rejoin_timer_                              ? State::kPaused
                                                             : State::kRunning;
  workers.describe(&reply);
  for (transport::WorkerStatus& one : reply.workers)
    detector->describe(workers[static_cast<size_t>(one.member.number)], &one);
  return reply;
}

// ---- joining

void Job::begin(std::vector<Gathering::Candidate> candidates) {
  std::vector<Responder> waiting;
  for (Gathering::Candidate& c : candidates) {
    Worker& worker = workers.add(std::move(c.request.member), c.request.incarnation);
    worker.control = c.channel;
    worker.away = true;
    worker.holds_state = true;
    if (c.request.hosts_head) workers.set_host(worker);
    waiting.push_back(std::move(c.respond));
  }
  nonce_ = random_bytes(loop_);
  detector->begin();
  phase_ = Phase::kRunning;
  log->info(workers.size() == 1
                ? "head: the only worker has come, the job begins"
                : "head: all " + std::to_string(workers.size()) + " workers have joined, the job begins");
  std::vector<size_t> all(workers.size());
  std::iota(all.begin(), all.end(), 0);
  answer_when_durable(all, [this, waiting = std::move(waiting)](size_t index, const Status& stored) {
    stored.ok() ? waiting[index](transport::Message(join_reply(workers[index]))) : waiting[index](stored);
  });
  detector->schedule_check();
}

void Job::abort(const ServerChannel& channel, const Status& why, const Responder& respond) {
  const bool from_host = gathering->abort(channel, why);
  log->error("head: the job cannot begin: " + why.message());
  phase_ = Phase::kBroken;
  cause_ = why;
  end_after_lease();
  from_host ? hold_answer_to_host(respond) : respond(transport::Message(transport::Empty{}));
  end_if_done();
}

Status Job::refusal_at_end(const MemberInfo& late) const {
  if (is_running() && !workers.is_ending(rejoin_timer_ != 0)) return {};
  const std::string failure = cause_.ok() ? "" : " (" + cause_.message() + ")";
  const std::string refused = "worker " + describe_candidate(late) + " cannot join: the job at this head is ";
  if (phase_ == Phase::kReported)
    return Status(Code::kState, refused + "over" + failure + "; start another head for a new job");
  return Status(Code::kUnreachable,
                refused + "ending" + failure + "; a new one can begin when its head is gone");
}

transport::JoinReply Job::join_reply(Worker& worker) {
  transport::JoinReply reply = workers.join_reply(worker);
  reply.job_nonce = nonce_;
  reply.durable = durability.stores();
  return reply;
}

void Job::answer_when_durable(std::vector<size_t> indices,
                              std::function<void(size_t, const Status&)> answer) {
  for (const size_t index : indices) detector->end_lease(index);
  durability.changed();
  durability.when_durable(
      [this, indices = std::move(indices), answer = std::move(answer)](const Status& stored) {
        for (const size_t index : indices) {
          Worker& worker = workers[index];
          if (worker.control) worker.away = false;
          if (worker.in_job()) detector->begin_lease(index);
          answer(index, stored.ok() ? stored : cannot_join(stored));
        }
      });
}

// ---- changes

void Job::acknowledge(const Responder& respond) {
  durability.when_durable([respond](const Status&) { respond(transport::Message(transport::Empty{})); });
}

void Job::announce(transport::WatchReply change) {
  change.view = workers.view();
  const uint64_t sequence = announcements.add(std::move(change));
  durability.changed();
  durability.when_durable([this, sequence](const Status&) { announcements.release(sequence); });
}

void Job::enter_view(transport::WatchReply change) {
  workers.enter_view(change.members);
  change.paused = change.members.size() < options.min_workers;
  log->warning("head: " + change.cause.message() + "; the job " +
               (change.paused ? "waits for others to join" : "goes on") + " in view " +
               std::to_string(workers.view()) + " with " + counted(change.members.size(), "worker"));
  change.paused ? wait_for_others(change.cause) : loop_.cancel(std::exchange(rejoin_timer_, 0));
  announce(std::move(change));
  end_if_done();
}

void Job::remove_workers(const std::vector<size_t>& indices, const Status& why) {
  if (!is_running() || !durability.holds()) return;
  bool view_changes = false;
  for (const size_t index : indices) {
    view_changes |= !workers[index].learner;
    workers[index].lost = true;
    if (!workers[index].left) note_gone(workers[index]);
    detector->end_lease(index);
  }
  transport::WatchReply change = workers.members_in_view();
  if (view_changes && state_is_gone(change.members)) return end_without_state(why);
  const std::string reason = view_changes ? reason_to_end(change) : "";
  if (!reason.empty()) return fail_job(options.views_change() ? append_to_message(why, reason) : why);
  for (const size_t index : indices) {
    workers[index].eviction = evicted(workers[index].info, why);
    announcements.end_watch(index, workers[index].eviction);
  }
  close_after_lease(indices);
  if (!view_changes) {
    durability.changed();
    log->warning("head: " + why.message() + "; it was still joining");
    return end_if_done();
  }
  change.cause = why;
  enter_view(std::move(change));
}

// Returns why the job ends with the members of `change`; empty if it goes on.
std::string Job::reason_to_end(const transport::WatchReply& change) const {
  const size_t left = change.members.size();
  if (left == 0) return "no worker is left";
  if (workers.host() && change.head_rank < 0)
    return describe_member(*workers.host()) + " hosted the head, and the job cannot go on without a head";
  if (left >= options.min_workers || options.rejoin_timeout > transport::Duration{}) return {};
  return counted(left, "worker") + (left == 1 ? " is" : " are") +
         " left, fewer than min_workers = " + std::to_string(options.min_workers) +
         "; lower `min_workers`, or set `rejoin_timeout` to wait for others";
}

void Job::worker_failed(const Worker& worker, const Status& why) {
  const bool own = workers.joined_late(worker) && why.code() == Code::kMismatch;
  if (concerns_all_workers(why.code()) && !own && !worker.learner) return fail_job(why);
  remove_workers({worker.index()}, why);
}

void Job::note_gone(const Worker& worker) {
  if (worker.holds_state) last_closed_ = worker.closed;
}

// Returns whether the last worker with the job's state has closed its session in good order, and `members`,
// which are left, have joined meanwhile and do not have it yet.
bool Job::state_is_gone(const std::vector<MemberInfo>& members) const {
  return last_closed_ && std::none_of(members.begin(), members.end(), [this](const MemberInfo& member) {
           return workers[static_cast<size_t>(member.number)].holds_state;
         });
}

// The members that are left fail with this error, and the job ends well.
void Job::end_without_state(const Status& why) {
  log->info("head: " + why.message() +
            "; the workers with the job's state are gone, and the last has left in good order");
  end_sessions(Status(Code::kWorkerLost,
                      "the other workers have closed their sessions while this one joined; start a new job")
                   .with_rank(why.rank(), why.host()));
}

// Closes the connections of evicted workers. Until then each may ask why it was evicted.
void Job::close_after_lease(const std::vector<size_t>& indices) {
  loop_.schedule(loop_.now() + options.lease, while_alive(weak_from_this(), [indices](Job& self) {
                   for (const size_t index : indices) {
                     const Worker& worker = self.workers[index];
                     if (worker.control) worker.control->close();
                     for (ServerChannel* heartbeat : worker.heartbeats) heartbeat->close();
                   }
                 }));
}

// Fewer than min_workers are left, because of `why`.
void Job::wait_for_others(const Status& why) {
  if (rejoin_timer_ != 0) return;
  rejoin_timer_ =
      loop_.schedule(loop_.now() + options.rejoin_timeout,
                     while_alive(weak_from_this(), [why](Job& self) { self.give_up_waiting(why); }));
}

void Job::give_up_waiting(const Status& why) {
  rejoin_timer_ = 0;
  // Until a worker comes back to this head, head_timeout limits the wait (FailureDetector).
  if (detector->no_worker_back() && is_running() && options.rejoin_timeout > transport::Duration{})
    return wait_for_others(why);
  fail_job(append_to_message(why, "fewer than min_workers = " + std::to_string(options.min_workers) +
                                      " were left, and within " + describe_duration(options.rejoin_timeout) +
                                      " (rejoin_timeout) not enough others have joined"));
}

// ---- the record

void Job::set_address(const std::string& address) {
  address_ = address;
  detector->set_address(address);
}

transport::HeadRecord Job::record() {
  transport::HeadRecord record;
  record.job = options.job;
  record.address = address_;
  record.lease = options.lease;
  record.rejoin_timeout = options.rejoin_timeout;
  record.straggler_timeout = options.straggler_timeout;
  record.num_workers = options.num_workers;
  record.min_workers = options.min_workers;
  record.max_workers = options.max_workers;
  record.job_nonce = nonce_;
  record.token_digest = transport::token_digest(options.token, nonce_);
  record.paused = rejoin_timer_ != 0;
  record.last_closed = last_closed_;
  record.ended_well = !end_error_.ok() && cause_.ok();
  workers.write(&record);
  announcements.write(&record);
  return record;
}

void Job::take_up(const transport::HeadRecord& record) {
  nonce_ = record.job_nonce;
  workers.read(record);
  announcements.read(record);
  end_error_ = announcements.cause();
  last_closed_ = record.last_closed;
  if (!record.ended_well) cause_ = end_error_;
  const bool broken = !end_error_.ok();
  phase_ = broken ? Phase::kBroken : Phase::kRunning;
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

// An announcement that is not durable must never be sent.
void Job::on_store_failed(const Status& why) {
  announcements.drop_unreleased();
  if (phase_ >= Phase::kBroken) return announce_end();
  fail_job(Status(why.code(),
                  "the head cannot keep its state (`head_state`), and ends the job: " + why.message()));
}

}  // namespace dsgd
