#include "core/membership/gathering.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/describe.h"
#include "core/base/views_change.h"
#include "core/base/while_alive.h"

namespace dsgd {
namespace {

using transport::MemberInfo;
using transport::Responder;
using transport::ServerChannel;

}  // namespace

Gathering::Gathering(transport::Loop& loop, const HeadOptions& options, std::shared_ptr<Log> log,
                     RefusalLog& refusals, std::function<void(const Status&)> timed_out)
    : loop_(loop),
      options_(options),
      log_(std::move(log)),
      refusals_(refusals),
      timed_out_(std::move(timed_out)),
      rendezvous_(options.num_workers),
      leases_(options.lease) {}

// The settings that must be equal everywhere; num_workers is the rendezvous's.
Status Gathering::check_settings(const transport::JoinRequest& request) const {
  const auto differs = [&](const std::string& key, const std::string& theirs, const std::string& own,
                           const std::string& what) {
    return Status(Code::kMismatch, "worker " + describe_candidate(request.member) + " says " + key + " = " +
                                       theirs + ", the head says " + key + " = " + own + "; set `" + key +
                                       "` to the same " + what + " everywhere")
        .with_parameter(key);
  };
  if (request.lease != options_.lease) {  // a worker that renews less often would be lost
    return differs("lease", describe_duration(request.lease), describe_duration(options_.lease), "time");
  }
  if (request.num_workers != options_.num_workers) return {};
  if (request.rejoin_timeout != options_.rejoin_timeout) {
    return differs("rejoin_timeout", describe_duration(request.rejoin_timeout),
                   describe_duration(options_.rejoin_timeout), "time");
  }
  const uint32_t least = or_all(request.min_workers, request.num_workers),
                 most = or_all(request.max_workers, request.num_workers);
  if (least != options_.min_workers)
    return differs("min_workers", std::to_string(least), std::to_string(options_.min_workers), "number");
  if (most != options_.max_workers)
    return differs("max_workers", std::to_string(most), std::to_string(options_.max_workers), "number");
  if (request.straggler_timeout != options_.straggler_timeout)
    return differs("straggler_timeout", describe_duration(request.straggler_timeout),
                   describe_duration(options_.straggler_timeout), "time");
  return {};
}

Status Gathering::check(const transport::JoinRequest& request) const {
  if (Status differs = check_settings(request); !differs.ok()) return differs;
  return rendezvous_.check(request);
}

Gathering::Admitted Gathering::on_join(ServerChannel& channel, transport::JoinRequest request,
                                       const Responder& respond) {
  if (rendezvous_.holds(channel)) {
    respond(Status(Code::kState,
                   "worker " + describe_candidate(request.member) + " joins twice on one connection"));
    return {};
  }
  const MemberInfo member = request.member;
  Status refused = check_settings(request);
  Candidate candidate{std::move(request), &channel, respond}, replaced;
  if (refused.ok()) refused = rendezvous_.admit(candidate, &replaced);
  if (!refused.ok()) {
    refusals_.note("they may not join the job", "head: " + refused.message());
    rendezvous_.note_refused(refused.message());
    respond(std::move(refused));
    return {};
  }
  take_slot(replaced.channel, channel);
  if (replaced.channel) {
    replaced.respond(Status(Code::kExists, "worker id '" + member.worker_id +
                                               "' was taken over by a later join of the same process (host " +
                                               member.host + ", pid " + std::to_string(member.pid) +
                                               "); give each session its own `worker_id`"));
  }
  loop_.cancel(std::exchange(gone_timer_, 0));
  log_progress();
  return {true, replaced.channel};
}

void Gathering::on_request(const ServerChannel& channel, const Responder& respond) {
  if (!rendezvous_.holds(channel))
    return respond(Status(Code::kState, "this worker does not wait for the job to begin"));
  leases_.renew(slot_of(channel), loop_.now());
  respond(transport::Message(transport::GatheringReply{rendezvous_.progress(), first_missing()}));
}

bool Gathering::on_close(const ServerChannel& channel) {
  if (aborted_.erase(&channel) > 0) return true;
  MemberInfo gone;
  if (!free_slot(channel, &gone)) return false;
  const std::string what = "worker " + describe_candidate(gone) + " disconnected before the job began";
  refusals_.note_event("a worker disconnected before the job began",
                       "head: " + what + "; its place is free again");
  await_another(what);
  return true;
}

std::vector<Gathering::Candidate> Gathering::take_by_rank() {
  const Status apart = rendezvous_.check_reachable();
  std::vector<Candidate> all = rendezvous_.take_by_rank();
  free_all_slots();
  if (apart.ok()) {
    over_ = true;
    return all;
  }
  log_->error("head: " + apart.message());
  rendezvous_.note_refused(apart.message());
  for (Candidate& c : all) c.respond(apart);
  await_another(apart.message());
  return {};
}

bool Gathering::abort(const ServerChannel& channel, const Status& why) {
  over_ = true;
  free_all_slots();
  bool from_host = false;
  for (Candidate& c : rendezvous_.take_all()) {
    if (c.channel == &channel) {
      from_host = c.request.hosts_head;
    } else {
      aborted_.insert(c.channel);
      c.respond(why);
    }
  }
  return from_host;
}

int32_t Gathering::first_missing() const {
  const std::vector<int32_t> missing = rendezvous_.missing();
  return missing.empty() ? -1 : missing.front();
}

// Workers that come again and again do not fill the log: each number of workers is logged once.
void Gathering::log_progress() {
  const size_t come = rendezvous_.size();
  if (come > most_come_) {
    most_come_ = come;
    log_->info("head: " + rendezvous_.progress());
  } else {
    refusals_.note_event("a worker joined again, or after another one had gone",
                         "head: " + rendezvous_.progress());
  }
}

void Gathering::describe(transport::StatusReply* reply) const {
  reply->missing = rendezvous_.missing();
  reply->refused = rendezvous_.last_refusal();
  for (const Candidate& candidate : rendezvous_.candidates()) {
    transport::WorkerStatus& one = reply->workers.emplace_back();
    one.member = candidate.request.member;
    one.silence = leases_.silence(slot_of(*candidate.channel), loop_.now());
  }
}

// `replaced`: the connection that had its slot before; null: none.
void Gathering::take_slot(const ServerChannel* replaced, ServerChannel& channel) {
  auto slot = std::find(slots_.begin(), slots_.end(), replaced);
  if (slot == slots_.end()) slot = slots_.insert(slot, nullptr);
  *slot = &channel;
  leases_.begin(static_cast<size_t>(slot - slots_.begin()), loop_.now());
  if (check_timer_ == 0) schedule_check();
}

size_t Gathering::slot_of(const ServerChannel& channel) const {
  return static_cast<size_t>(std::find(slots_.begin(), slots_.end(), &channel) - slots_.begin());
}

// Returns false if the worker of this channel is not in the rendezvous.
bool Gathering::free_slot(const ServerChannel& channel, MemberInfo* gone) {
  if (!rendezvous_.remove(channel, gone)) return false;
  const size_t slot = slot_of(channel);
  slots_[slot] = nullptr;
  leases_.end(slot);
  return true;
}

void Gathering::free_all_slots() {
  slots_.clear();
  leases_.reset(0, loop_.now());
}

void Gathering::schedule_check() {
  loop_.cancel(check_timer_);
  next_check_ = leases_.next_check(loop_.now());
  check_timer_ = loop_.schedule(next_check_, while_alive(weak_from_this(), [](Gathering& self) {
                                  if (self.over_) return;
                                  self.check_timer_ = 0;
                                  self.check_slots();
                                }));
}

void Gathering::check_slots() {
  for (const size_t slot : leases_.check(loop_.now(), next_check_).lost) {
    ServerChannel* const channel = slots_[slot];
    const std::string silence = describe_duration(leases_.silence(slot, loop_.now())) + " (lease)";
    MemberInfo gone;
    free_slot(*channel, &gone);
    refusals_.note_event("a worker was silent before the job began",
                         "head: worker " + describe_candidate(gone) + " has been silent for " + silence +
                             " before the job began; its place is free again");
    channel->close();  // if it goes on, it joins again
    await_another("worker " + describe_candidate(gone) + " was silent for " + silence +
                  " before the job began");
  }
  const bool waits = std::any_of(slots_.begin(), slots_.end(), [](const auto* channel) { return channel; });
  if (waits) schedule_check();
}

// `why`: the places of workers that had come are free again.
void Gathering::await_another(const std::string& why) {
  if (options_.init_timeout == transport::Duration{}) return;
  loop_.cancel(gone_timer_);
  gone_timer_ = loop_.schedule(
      loop_.now() + options_.init_timeout, while_alive(weak_from_this(), [why](Gathering& self) {
        if (self.over_) return;
        self.over_ = true;
        self.timed_out_(Status(Code::kTimeout, why + "; no worker has joined for " +
                                                   describe_duration(self.options_.init_timeout) +
                                                   " (init_timeout): " + self.rendezvous_.progress())
                            .with_rank(self.first_missing()));
      }));
}

}  // namespace dsgd
