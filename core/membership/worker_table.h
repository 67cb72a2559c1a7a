// The workers of the running job, and which of them are in the present view. Pure data; the head owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/membership/head_options.h"
#include "transport/network.h"

namespace dsgd {

class WorkerTable {
 public:
  struct Worker : transport::HeadRecord::Worker {
    transport::ServerChannel* control = nullptr;  // null: closed
    // More than one after a cut or a pause, until the worker closes the others.
    std::set<transport::ServerChannel*> heartbeats;
    // The head expects it to dial, so the end of `control` is no loss: after a takeover until it comes back,
    // from Return to Watch, and until its request to join is answered.
    bool away = false;
    size_t index() const { return static_cast<size_t>(info.number); }
    bool in_job() const { return !left && !lost; }
    bool is_forgotten() const { return info.worker_id.empty(); }  // lost, and not in the record
    bool in_view() const { return in_job() && !learner; }
    bool connects() const { return control || (away && in_job()); }  // or is expected to
    bool watches(const transport::MemberInfo& other) const {
      return info.worker_id != other.worker_id && in_job() && control;
    }
  };

  explicit WorkerTable(const HeadOptions& options) : options_(options) {}

  // One more worker, with the next number.
  Worker& add(transport::MemberInfo info, uint64_t incarnation);
  void set_host(const Worker& worker) { host_ = worker.info.number; }

  size_t size() const { return workers_.size(); }
  Worker& operator[](size_t index) { return workers_[index]; }
  const Worker& operator[](size_t index) const { return workers_[index]; }
  auto begin() { return workers_.begin(); }
  auto begin() const { return workers_.begin(); }
  auto end() { return workers_.end(); }
  auto end() const { return workers_.end(); }

  // The worker that hosts the head; null: the head runs by itself.
  const transport::MemberInfo* host() const {
    return host_ >= 0 ? &workers_[static_cast<size_t>(host_)].info : nullptr;
  }
  bool is_host(size_t index) const { return static_cast<int32_t>(index) == host_; }
  bool joined_late(const Worker& worker) const;              // the job was running
  std::string names(std::span<const size_t> indices) const;  // as messages name them, separated by commas

  // ---- which worker a message comes from; null: none
  Worker* by_control(const transport::ServerChannel& channel);
  // Returns the worker with this number, if the connection's hello has its id; else null. For heartbeats, and
  // for workers that dial again.
  Worker* by_hello(const transport::Hello& hello, int32_t number);
  // The worker of this request, which the head has admitted. It asks again because the answer was lost, with
  // an earlier head.
  Worker* by_request(const transport::JoinRequest& request);
  // Returns the worker of a connection if it may send a message with this number and view; else an error.
  Result<Worker*> check_sender(Worker* worker, int32_t number, uint64_t in_view) const;
  Status wrong_view(const Worker& worker, uint64_t in_view) const;

  // ---- views
  uint64_t view() const { return view_; }
  bool has_members() const;  // of the present view
  // `members` and `head_rank` of a view of those that are in it now, with their ranks there.
  transport::WatchReply members_in_view() const;
  // The answer to the join of this worker. A learner begins with the present view, the others with the first
  // one.
  transport::JoinReply join_reply(Worker& worker);
  void enter_view(const std::vector<transport::MemberInfo>& members);

  // Why this worker cannot join the running job.
  Status check_join(const transport::MemberInfo& late) const;
  // Returns whether no worker may join any more. This is so when the worker that hosts the head has left.
  // When another worker has left, it is so if views do not change, if no member is left, or if the view with
  // the new worker would have fewer than min_workers. A job that waits for others (rejoin_timeout) is not
  // ending while its view has a member.
  bool is_ending(bool waits) const;

  // The view, and the workers that are not forgotten.
  void describe(transport::StatusReply* reply) const;

  // ---- the record
  void write(transport::HeadRecord* record) const;
  // All workers that were not lost are away.
  void read(const transport::HeadRecord& record);

 private:
  bool is_spare(const Worker& worker) const;

  static constexpr uint64_t kFirstView = 1;

  const HeadOptions& options_;
  std::vector<Worker> workers_;  // by number
  int32_t host_ = -1;            // -1: none
  uint64_t view_ = kFirstView;
};

}  // namespace dsgd
