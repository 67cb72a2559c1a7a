// The job of a head: its workers and views, what the head tells them, and the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/base/refusal_log.h"
#include "core/membership/announcements.h"
#include "core/membership/durability.h"
#include "core/membership/failure_detector.h"
#include "core/membership/gathering.h"
#include "core/membership/head_options.h"
#include "core/membership/view_store.h"
#include "core/membership/worker_table.h"
#include "transport/network.h"

namespace dsgd {

// On the head's loop.
class Job : public std::enable_shared_from_this<Job> {
 public:
  using Worker = WorkerTable::Worker;

  Job(transport::Loop& loop, HeadOptions options, std::shared_ptr<Log> log, ViewStore* store);

  const HeadOptions options;
  const std::shared_ptr<Log> log;
  RefusalLog refusals;
  const std::shared_ptr<Gathering> gathering;
  WorkerTable workers;
  Announcements announcements;
  Durability durability;
  const std::shared_ptr<FailureDetector> detector;

  bool is_gathering() const { return phase_ == Phase::kGathering; }
  bool is_running() const { return phase_ == Phase::kRunning; }
  bool is_over() const { return phase_ >= Phase::kOver; }
  const std::string& nonce() const { return nonce_; }
  // The error with which the sessions of all members end; OK: the job goes on.
  const Status& end_error() const { return end_error_; }
  transport::StatusReply status() const;

  // ---- joining
  void begin(std::vector<Gathering::Candidate> candidates);  // by rank
  // A worker that waits for the job to begin aborts it: so all others that wait end, too. `respond` answers
  // the one that aborts.
  void abort(const transport::ServerChannel& channel, const Status& why, const transport::Responder& respond);
  // Why no worker can join any more; OK: the job is not ending. kUnreachable, so that the worker tries again:
  // the next job may begin at this address. After on_end() the refusal is final: this head serves no other
  // job, and the host may keep it.
  Status refusal_at_end(const transport::MemberInfo& late) const;
  transport::JoinReply join_reply(Worker& worker);
  // Calls `answer` for each of these workers once the record has them. Their leases begin then, since they
  // do not renew before.
  void answer_when_durable(std::vector<size_t> indices, std::function<void(size_t, const Status&)> answer);

  // ---- changes
  // Answers a message when all that it has changed is durable: if the head is lost before, the worker sends
  // it again.
  void acknowledge(const transport::Responder& respond);
  // Tells all workers of a change.
  void announce(transport::WatchReply change);
  // Begins the next view, with `change.members`, because of `change.cause`.
  void enter_view(transport::WatchReply change);
  // Takes workers out of the job. The others go on in a new view, unless they are too few or the head ends
  // with the worker that hosts it. Learners are in no view.
  void remove_workers(const std::vector<size_t>& indices, const Status& why);
  // A worker's session has failed. A failure of all workers ends the job; otherwise the others go on without
  // it. A mismatch with a worker that joined later fails only that worker.
  void worker_failed(const Worker& worker, const Status& why);
  void note_gone(const Worker& worker);  // once, when it leaves or is lost

  // ---- the end
  // The head's host leaves: answers it when all others know.
  void hold_answer_to_host(const transport::Responder& respond) { host_leave_ = respond; }
  // After each change: answers the Leave of the head's host if all others know, and ends the job if it is
  // over.
  void end_if_done();
  // Another head may serve the job: ends it here. `channels`: all that are open.
  void stand_down(const Status& why, const std::set<transport::ServerChannel*>& channels);
  void on_end(std::function<void(const Status&)> ended);

  // ---- the record
  void set_address(const std::string& address);
  // Goes on with the job of an earlier head. Each worker has a lease to come back.
  void take_up(const transport::HeadRecord& record);

 private:
  // The end: fail_job() or end_without_state() -> end_sessions() (kBroken) -> end() when all connections have
  // ended, or a lease later (kOver) -> on_record_removed() (kRemoved) -> notify_end() (kReported). From
  // kRunning, end() also follows when all workers have left. abort() and init_timeout end a job that has not
  // begun; stand_down() ends one without removing the record.
  enum class Phase {
    kGathering,
    kRunning,
    kBroken,    // all sessions fail; the workers are told why
    kOver,      // the record is being removed
    kRemoved,   // on_end() is due
    kReported,  // on_end() was called
  };

  std::string reason_to_end(const transport::WatchReply& change) const;
  bool state_is_gone(const std::vector<transport::MemberInfo>& members) const;
  void end_without_state(const Status& why);
  void close_after_lease(const std::vector<size_t>& indices);
  void wait_for_others(const Status& why);
  void give_up_waiting(const Status& why);
  void fail_job(Status why);
  void end_sessions(const Status& why);
  void announce_end();
  void end_after_lease();
  void end();
  void on_record_removed();
  void notify_end();
  transport::HeadRecord record();
  void on_store_failed(const Status& why);

  transport::Loop& loop_;
  Phase phase_ = Phase::kGathering;
  std::string nonce_;           // of the running job
  bool last_closed_ = false;    // see HeadRecord
  bool end_timer_set_ = false;  // all workers have left; the job ends a lease later at the latest
  Status cause_;                // what broke the job
  Status end_error_;
  transport::Responder host_leave_;  // the answer to the Leave of the head's host, held back
  transport::TimerId rejoin_timer_ = 0;
  std::function<void(const Status&)> ended_;
  std::string address_;  // for the record
};

}  // namespace dsgd
