// The head before the job begins: which workers have joined, and how long it waits for others.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/base/refusal_log.h"
#include "core/membership/head_options.h"
#include "core/membership/leases.h"
#include "core/membership/rendezvous.h"
#include "transport/network.h"

namespace dsgd {

// A worker that waits has a lease, which its GatheringRequests renew. It loses its place when the lease ends.
class Gathering : public std::enable_shared_from_this<Gathering> {
 public:
  using Candidate = Rendezvous::Candidate;

  // `timed_out` is called once, when a worker has left and no other has joined within init_timeout. It gets
  // the reason.
  Gathering(transport::Loop& loop, const HeadOptions& options, std::shared_ptr<Log> log, RefusalLog& refusals,
            std::function<void(const Status&)> timed_out);

  struct Admitted {
    bool admitted = false;                         // else the call is answered with an error
    transport::ServerChannel* replaced = nullptr;  // the connection that had this worker's place before
  };
  Admitted on_join(transport::ServerChannel& channel, transport::JoinRequest request,
                   const transport::Responder& respond);
  // A worker asks how many have come, which renews its lease.
  void on_request(const transport::ServerChannel& channel, const transport::Responder& respond);
  // Returns whether the connection was that of a waiting worker, or of one that is being told of an abort.
  bool on_close(const transport::ServerChannel& channel);

  bool holds(const transport::ServerChannel& channel) const { return rendezvous_.holds(channel); }
  bool complete() const { return rendezvous_.complete(); }
  // Once complete: ends the gathering, and returns the workers by rank. None: they cannot reach each other,
  // are refused, and may come again.
  std::vector<Candidate> take_by_rank();
  // Ends the gathering: the worker of this connection aborts the job, so all others that wait end, too.
  // Returns whether it hosts the head.
  bool abort(const transport::ServerChannel& channel, const Status& why);
  // Workers to which the abort was sent have not disconnected yet.
  bool abort_is_pending() const { return !aborted_.empty(); }
  // Ends the gathering. Connections that have a place keep it.
  void stop() { over_ = true; }

  // Whether a worker may ask to join this job, now or when it runs.
  Status check(const transport::JoinRequest& request) const;
  std::string progress() const { return rendezvous_.progress(); }
  void note_refused(const std::string& why) { rendezvous_.note_refused(why); }  // shown in progress()
  void describe(transport::StatusReply* reply) const;
  // Of the workers that have a place; null: free places.
  const std::vector<transport::ServerChannel*>& channels() const { return slots_; }

 private:
  Status check_settings(const transport::JoinRequest& request) const;
  int32_t first_missing() const;  // rank; -1: not known
  void log_progress();
  void take_slot(const transport::ServerChannel* replaced, transport::ServerChannel& channel);
  size_t slot_of(const transport::ServerChannel& channel) const;
  bool free_slot(const transport::ServerChannel& channel, transport::MemberInfo* gone);
  void free_all_slots();
  void schedule_check();
  void check_slots();
  void await_another(const std::string& why);

  transport::Loop& loop_;
  const HeadOptions& options_;
  const std::shared_ptr<Log> log_;
  RefusalLog& refusals_;
  const std::function<void(const Status&)> timed_out_;
  Rendezvous rendezvous_;
  // Control connections of the workers in the rendezvous, by their slots in `leases_`; null: the slot is
  // free.
  std::vector<transport::ServerChannel*> slots_;
  Leases leases_;
  size_t most_come_ = 0;  // workers that were in the rendezvous at once
  transport::Time next_check_{};
  transport::TimerId check_timer_ = 0, gone_timer_ = 0;
  std::set<const transport::ServerChannel*> aborted_;  // of the workers to which the abort was sent
  bool over_ = false;
};

}  // namespace dsgd
