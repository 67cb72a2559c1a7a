#include "core/membership/failure_detector.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "core/base/address.h"
#include "core/base/describe.h"
#include "core/base/stopped.h"
#include "core/base/while_alive.h"
#include "core/membership/text.h"

namespace dsgd {
namespace {

using transport::Duration;
using transport::MemberInfo;
using transport::Time;

}  // namespace

FailureDetector::FailureDetector(transport::Loop& loop, const HeadOptions& options, std::shared_ptr<Log> log,
                                 const WorkerTable& workers, const Durability& durability, Events events)
    : loop_(loop),
      options_(options),
      log_(std::move(log)),
      workers_(workers),
      durability_(durability),
      events_(std::move(events)),
      leases_(options.lease),
      progress_(options.lease),
      cut_pairs_(workers, leases_) {}

void FailureDetector::begin() {
  leases_.reset(workers_.size(), loop_.now());
  progress_.begin(workers_.size());
  for (const WorkerTable::Worker& w : workers_)
    if (!w.in_job()) leases_.end(w.index());
  running_ = true;
}

void FailureDetector::take_up() {
  no_worker_back_ = true;
  taken_up_ = loop_.now();
  begin();
}

void FailureDetector::add_worker(size_t worker) {
  begin_lease(worker);
  progress_.add();
}

void FailureDetector::on_renew(size_t worker) {
  patience_end_ = {};
  no_worker_back_ = false;
  leases_.renew(worker, loop_.now());
}

void FailureDetector::on_back(const WorkerTable::Worker& worker) {
  no_worker_back_ = false;
  if (worker.in_job()) leases_.renew(worker.index(), loop_.now());
}

void FailureDetector::describe(const WorkerTable::Worker& worker, transport::WorkerStatus* status) const {
  if (worker.in_job()) status->silence = leases_.silence(worker.index(), loop_.now());
  progress_.describe(worker.index(), loop_.now(), status);
}

// ---- leases

void FailureDetector::schedule_check() {
  loop_.cancel(check_timer_);
  next_check_ = leases_.next_check(loop_.now());
  check_timer_ = loop_.schedule(next_check_, while_alive(weak_from_this(), [](FailureDetector& self) {
                                  self.check_timer_ = 0;
                                  self.check_leases();
                                }));
}

void FailureDetector::check_leases() {
  if (!decides()) return;
  const Time now = loop_.now();
  const Leases::Verdict verdict = leases_.check(now, next_check_);
  if (verdict.late) {
    last_stop_ = now - next_check_;
    resumed_ = now;
    log_->warning("head: was itself stopped or suspended for " + describe_duration(last_stop_) +
                  "; every worker gets one more lease");
  }
  if (verdict.lost.empty()) return schedule_check();
  const size_t first = verdict.lost.front();
  const std::string silence =
      "no heartbeat for " + describe_duration(leases_.silence(first, now)) + " (lease)";
  if (no_worker_back_ || receives_nothing(now)) {
    if (give_time(silence)) return schedule_check();
    if (no_worker_back_)
      return events_.head_lost(
          head_at_fault(" goes on with the job of an earlier head, but no worker has come back "
                        "for " +
                        describe_duration(now - taken_up_) +
                        " (head_timeout = " + describe_duration(options_.head_timeout) +
                        "); either all have ended, or they cannot reach it at " + address_));
    return events_.head_lost(head_at_fault(" receives no heartbeat: " + silence + " from " +
                                           workers_.names(verdict.lost) +
                                           "; it is cut off, or all of them have stopped"));
  }
  const std::string others = workers_.names(std::span(verdict.lost).subspan(1));
  const transport::ServerChannel* const control = workers_[first].control;
  events_.lost(
      verdict.lost,
      lost_worker(workers_[first].info,
                  silence + (control ? "; it joined from " + control->address() : std::string()) +
                      "; it is stopped or suspended, or the network or a firewall cuts it off from the head" +
                      (others.empty() ? "" : "; silent too: " + others)));
  schedule_check();
}

// With a store, workers train on while the head receives nothing, so it gives them time to come back. Perhaps
// they cannot reach it, and another head that they reach can still take up the record. Returns whether they
// have more time.
bool FailureDetector::give_time(const std::string& silence) {
  const Time now = loop_.now();
  if (!durability_.stores() || (patience_end_ != Time{} && now >= patience_end_)) return false;
  if (patience_end_ == Time{}) {
    patience_end_ = now + options_.head_timeout;
    log_->warning("head: " + silence + " from any worker; waits for the workers for " +
                  describe_duration(options_.head_timeout) + " (head_timeout)");
  }
  for (const WorkerTable::Worker& w : workers_)
    if (w.in_job()) leases_.extend(w.index(), now);
  return true;
}

// Workers on two or more other machines have all been silent for most of a lease, and no worker is on the
// head's own machine: the head is cut off. One machine alone may have stopped, with all its workers.
bool FailureDetector::receives_nothing(Time now) const {
  std::set<std::string> silent;  // machines
  for (const WorkerTable::Worker& worker : workers_) {
    if (workers_.is_host(worker.index()) || !worker.in_job()) continue;
    if (leases_.silence(worker.index(), now) <= options_.lease * 3 / 4) return false;
    if (workers_.host() && worker.info.machine == workers_.host()->machine) return false;
    if (worker.control && is_loopback(worker.control->address())) return false;
    silent.insert(worker.info.machine);
  }
  return silent.size() >= 2;
}

void FailureDetector::on_connection_lost(const WorkerTable::Worker& worker, const std::string& which,
                                         const Status& why) {
  if (!running_) return;
  const auto stop = own_stop();
  events_.lost({worker.index()},
               stop > Duration{}
                   ? stopped_head(stop, "meanwhile " + describe_member(worker.info) + " has closed " + which +
                                            " to it")
                   : lost_worker(worker.info,
                                 why.ok() ? which + " to the head was closed without leaving the job"
                                          : which + " to the head broke (" + why.message() + ")",
                                 code_of_break(why)));
}

// ---- the head itself

Status FailureDetector::cause_from(const WorkerTable::Worker& sender, const Status& why,
                                   const std::string& prefix) const {
  const MemberInfo& from = sender.info;
  const int32_t head_rank = workers_.host() ? workers_.host()->rank : -1;
  // A host failure has the rank of the sender, maybe in an earlier view.
  const bool names_head = why.code() == Code::kWorkerLost && why.rank() == head_rank && !is_host_failure(why);
  if (!names_head || workers_.is_host(sender.index())) return relayed_cause(from, why, prefix);
  if (const auto stop = own_stop(); stop > Duration{}) {
    return stopped_head(stop, describe_member(from) + " no longer waits for it: " + why.message());
  }
  return lost_worker(from, "the head receives its messages, but it does not receive the head's (" +
                               why.message() + "); a firewall may be between them");
}

// Returns how long the head itself did not run, if that was more than half a lease and ended less than a
// lease ago; otherwise 0. Reports of workers may be read before check_leases notices the stop, so the current
// delay counts, too.
Duration FailureDetector::own_stop() const {
  const Time now = loop_.now();
  if (was_stopped(next_check_, now, options_.lease)) return now - next_check_;
  return now < resumed_ + options_.lease ? last_stop_ : Duration{};
}

Status FailureDetector::head_at_fault(const std::string& why) const {
  const MemberInfo* const host = workers_.host();
  if (!host) return Status(Code::kWorkerLost, "the head" + why);
  return Status(Code::kWorkerLost, "the head, hosted by " + describe_member(*host) + "," + why)
      .with_rank(host->rank, host->host);
}

Status FailureDetector::stopped_head(Duration stop, const std::string& consequence) const {
  return head_at_fault(" was itself stopped or suspended for " + describe_duration(stop) + " (lease " +
                       describe_duration(options_.lease) + "); " + consequence);
}

// ---- workers that cannot reach each other

// decide_cut() follows after a quarter of a lease, in which other pairs may be reported.
void FailureDetector::on_cut(const WorkerTable::Worker& worker, int32_t peer_number, const Status& why) {
  if (!cut_pairs_.note(worker.info.number, peer_number, why.message(), loop_.now())) return;
  log_->warning("head: " + describe_member(worker.info) + " cannot reach " +
                describe_member(workers_[static_cast<size_t>(peer_number)].info) + ": " + why.message());
  decide_cut_after(options_.lease / 4);
}

void FailureDetector::decide_cut_after(Duration wait) {
  loop_.schedule(loop_.now() + wait,
                 while_alive(weak_from_this(), [](FailureDetector& self) { self.decide_cut(); }));
}

void FailureDetector::decide_cut() {
  if (!decides()) return;
  const CutPairs::Verdict verdict = cut_pairs_.decide(loop_.now());
  // If it does not renew, check_leases() declares it lost.
  if (verdict.waits) return decide_cut_after(options_.lease / 20);
  if (verdict.why.ok()) return;
  events_.lost({verdict.cut_off}, verdict.why);
  decide_cut();  // of pairs without that worker, which may be left
}

// ---- stragglers

void FailureDetector::on_progress(size_t worker, transport::Progress report) {
  progress_.note(worker, std::move(report), loop_.now());
  if (running_ && options_.straggler_timeout > Duration{}) find_stragglers();
}

void FailureDetector::find_stragglers() {
  std::vector<ProgressTable::Member> members;
  for (const WorkerTable::Worker& worker : workers_)
    if (worker.in_view()) members.push_back({worker.index(), worker.info.rank});
  const auto found = progress_.stragglers(members, workers_.view(), options_.straggler_timeout,
                                          options_.min_workers, loop_.now());
  const auto is_host = [&](const auto& one) { return workers_.is_host(one.worker); };
  if (found.empty() || std::any_of(found.begin(), found.end(), is_host))
    return;  // do not evict: the job would end with the head's host
  std::vector<size_t> indices;
  for (const auto& one : found) indices.push_back(one.worker);
  events_.lost(indices, straggler_error(found.front(), workers_.names(std::span(indices).subspan(1))));
}

// `others`: names of further stragglers.
Status FailureDetector::straggler_error(const ProgressTable::Straggler& straggler,
                                        const std::string& others) const {
  transport::WorkerStatus waiter;
  progress_.describe(straggler.waiter, loop_.now(), &waiter);
  const MemberInfo& info = workers_[straggler.worker].info;
  return Status(Code::kWorkerLost,
                describe_member(info) + " kept the other workers waiting for " +
                    describe_duration(straggler.waited) +
                    " (straggler_timeout = " + describe_duration(options_.straggler_timeout) + ")" +
                    (waiter.progress.operation.empty() ? "" : " in " + waiter.progress.operation) +
                    ": its program does not make the call, or is stopped" +
                    (others.empty() ? "" : "; so did " + others))
      .with_rank(info.rank, info.host);
}

}  // namespace dsgd
