#include "core/membership/worker_table.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/describe.h"

namespace dsgd {
namespace {

using transport::JoinRequest;
using transport::MemberInfo;

constexpr size_t kLostInRecord = 64;  // of the workers that joined the running job; the newest

Status evicted_earlier(size_t number) {
  return Status(Code::kEvicted, "this worker, number " + std::to_string(number) +
                                    " of the job, was evicted from it before the head was started again; its "
                                    "values are out of date, and it can only join another job");
}

}  // namespace

WorkerTable::Worker& WorkerTable::add(MemberInfo info, uint64_t incarnation) {
  Worker& worker = workers_.emplace_back();
  worker.info = std::move(info);
  worker.info.number = static_cast<int32_t>(workers_.size() - 1);
  worker.joined = view_;
  worker.incarnation = incarnation;
  return worker;
}

bool WorkerTable::joined_late(const Worker& worker) const {
  return worker.info.number >= static_cast<int32_t>(options_.num_workers);
}

std::string WorkerTable::names(std::span<const size_t> indices) const {
  std::string text;
  for (const size_t index : indices)
    text += (text.empty() ? "" : ", ") + describe_member(workers_[index].info);
  return text;
}

WorkerTable::Worker* WorkerTable::by_control(const transport::ServerChannel& channel) {
  for (Worker& w : workers_) {
    if (w.control == &channel) return &w;
  }
  return nullptr;
}

WorkerTable::Worker* WorkerTable::by_hello(const transport::Hello& hello, int32_t number) {
  if (number < 0 || static_cast<size_t>(number) >= workers_.size()) return nullptr;
  Worker& worker = workers_[static_cast<size_t>(number)];
  return worker.is_forgotten() || hello.worker_id == worker.info.worker_id ? &worker : nullptr;
}

WorkerTable::Worker* WorkerTable::by_request(const JoinRequest& request) {
  for (Worker& w : workers_) {
    const bool same = request.incarnation != 0 && w.incarnation == request.incarnation &&
                      w.info.worker_id == request.member.worker_id;
    if (same && w.in_job() && (w.learner || !joined_late(w))) return &w;
  }
  return nullptr;
}

Result<WorkerTable::Worker*> WorkerTable::check_sender(Worker* worker, int32_t number,
                                                       uint64_t in_view) const {
  if (worker == nullptr) {
    return Status(Code::kState, "this connection belongs to no worker of the job; it has to join first");
  }
  if (worker->is_forgotten()) return worker->eviction;
  if (in_view != worker->joined) return wrong_view(*worker, in_view);
  if (number != worker->info.number) {
    return Status(Code::kInvalidArgument, "a message on the connection of " + describe_member(worker->info) +
                                              " names worker number " + std::to_string(number) +
                                              " as its sender");
  }
  if (!worker->eviction.ok()) return worker->eviction;
  return worker;
}

Status WorkerTable::wrong_view(const Worker& worker, uint64_t in_view) const {
  return Status(Code::kState, "a message of view " + std::to_string(in_view) + " from " +
                                  describe_member(worker.info) + " is refused: it joined in view " +
                                  std::to_string(worker.joined) + ", and the job is in view " +
                                  std::to_string(view_));
}

bool WorkerTable::has_members() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.in_view(); });
}

transport::WatchReply WorkerTable::members_in_view() const {
  transport::WatchReply change;
  for (const Worker& worker : workers_) {
    if (!worker.in_view()) continue;
    change.members.push_back(worker.info);
  }
  // In the order of the earlier view.
  std::stable_sort(change.members.begin(), change.members.end(),
                   [](const MemberInfo& a, const MemberInfo& b) { return a.rank < b.rank; });
  for (size_t rank = 0; rank < change.members.size(); ++rank) {
    change.members[rank].rank = static_cast<int32_t>(rank);
    if (change.members[rank].number == host_) change.head_rank = static_cast<int32_t>(rank);
  }
  return change;
}

transport::JoinReply WorkerTable::join_reply(Worker& worker) {
  transport::JoinReply reply;
  if (worker.learner) {
    worker.joined = reply.view = view_;
    reply.learner = true;
    transport::WatchReply present = members_in_view();
    reply.members = std::move(present.members);
    reply.head_rank = present.head_rank;
    worker.info.rank = reply.rank = static_cast<int32_t>(reply.members.size());
    reply.members.push_back(worker.info);
    return reply;
  }
  reply.view = kFirstView;
  reply.rank = worker.info.number;
  reply.head_rank = host_;
  for (size_t i = 0; i < options_.num_workers; ++i) {
    reply.members.push_back(workers_[i].info);
    reply.members.back().rank = workers_[i].info.number;
  }
  return reply;
}

void WorkerTable::enter_view(const std::vector<MemberInfo>& members) {
  ++view_;
  for (Worker& worker : workers_) {
    if (worker.in_view()) worker.info.rank = rank_of(members, worker.info.worker_id);
  }
}

bool WorkerTable::is_ending(bool waits) const {
  if (host_ >= 0 && workers_[static_cast<size_t>(host_)].left) return true;
  const bool some_left =
      std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.left; });
  const auto in_view =
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.in_view(); });
  if (!options_.views_change()) return some_left;
  return some_left && (in_view == 0 || (!waits && in_view + 1 < static_cast<int64_t>(options_.min_workers)));
}

Status WorkerTable::check_join(const MemberInfo& late) const {
  for (const Worker& w : workers_) {
    if (w.info.worker_id != late.worker_id) continue;
    return Status(
        Code::kExists,
        "worker id '" + late.worker_id + "' is taken by rank " + std::to_string(w.info.rank) + " on host " +
            w.info.host + " (pid " + std::to_string(w.info.pid) + ") of this job, which " +
            (options_.views_change() ? std::string(w.lost ? "was lost" : "is still in it") +
                                           "; give the new worker another `worker_id`, or none"
                                     : "has all its workers; start another job with a head of its own, at "
                                       "another address"));
  }
  if (options_.views_change()) {
    const auto present =
        std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.in_job(); });
    if (present < static_cast<int64_t>(options_.max_workers)) return {};
    // kUnreachable makes the joiner retry: a place may become free.
    return Status(Code::kUnreachable, "worker " + describe_candidate(late) +
                                          " cannot join yet: the job has max_workers = " +
                                          std::to_string(options_.max_workers) + " workers");
  }
  return Status(Code::kState,
                "worker " + describe_candidate(late) + " cannot join: the job has all " +
                    std::to_string(options_.num_workers) +
                    " workers and is running; start it again with a larger `num_workers`, set "
                    "`max_workers` to let workers join a "
                    "running job, or start another job with a head of its own, at another address");
}

void WorkerTable::describe(transport::StatusReply* reply) const {
  using State = transport::WorkerStatus::State;
  reply->view = view_;
  if (host()) reply->head_rank = host()->rank;
  for (const Worker& worker : workers_) {
    if (worker.is_forgotten()) continue;
    transport::WorkerStatus& one = reply->workers.emplace_back();
    one.member = worker.info;
    one.state = worker.closed                ? State::kLeft
                : worker.lost || worker.left ? State::kLost
                : worker.learner             ? State::kJoining
                                             : State::kRunning;
    if (worker.learner) one.member.rank = -1;
  }
}

void WorkerTable::write(transport::HeadRecord* record) const {
  record->view = view_;
  record->joined = static_cast<uint32_t>(workers_.size());
  size_t others =
      std::count_if(workers_.begin(), workers_.end(), [&](const Worker& w) { return is_spare(w); });
  for (const Worker& w : workers_) {
    if (is_spare(w) && others-- > kLostInRecord) continue;
    record->workers.push_back(w);
  }
}

// Returns whether the record may leave out this worker, since it was lost. The workers with which the job
// began stay in the record: the reply to a repeated join request lists them.
bool WorkerTable::is_spare(const Worker& worker) const {
  return worker.lost && !worker.left && joined_late(worker);
}

void WorkerTable::read(const transport::HeadRecord& record) {
  view_ = record.view;
  workers_.resize(record.joined);
  for (size_t i = 0; i < workers_.size(); ++i) {
    workers_[i].info.number = static_cast<int32_t>(i);
    workers_[i].lost = true;
    workers_[i].eviction = evicted_earlier(i);
  }
  for (const transport::HeadRecord::Worker& known : record.workers) {
    Worker& w = workers_[static_cast<size_t>(known.info.number)];
    static_cast<transport::HeadRecord::Worker&>(w) = known;
    w.away = true;
  }
}

}  // namespace dsgd
