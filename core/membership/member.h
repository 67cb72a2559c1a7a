// A worker's side of the membership.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/log.h"
#include "transport/network.h"

namespace dsgd {

struct MemberOptions {
  std::string head;        // addresses to dial, of which one serves (split_addresses())
  transport::Hello hello;  // job; Member fills in role, rank, view, worker id, version and job nonce
  std::string token;
  transport::JoinRequest join;
  // Deadline of the join. Until then, addresses that cannot be reached are dialled again (the head may not be
  // up yet).
  transport::Time deadline{};
  // From this time on a failed dial ends the join with kUnreachable, so that the worker can try to host the
  // head.
  transport::Time try_hosting_at = transport::kNever;
  std::optional<transport::Time> began = {};  // start of the first attempt, for messages
  std::string limit = "init_timeout";         // the setting that the deadline comes from, for messages
  std::string rank_origin = {};               // see Config::rank_origin()
  transport::Duration lease{};
  transport::Duration heartbeat_interval{};
  transport::Duration head_timeout{};  // how long a head whose record is durable may be lost
};

// If the head's record is durable (JoinReply::durable), the worker dials a lost head again, for head_timeout
// at most, and the head that answers goes on with the job. Meanwhile messages to the head wait.
//
// All callbacks come from a task of the session's loop, never from within a call of this class, and never
// after its destruction; each may destroy the member. Both networks outlive it.
class Member {
 public:
  Member(transport::Network& network, transport::Network& heartbeat_network, MemberOptions options,
         std::shared_ptr<Log> log);
  ~Member();  // on the loop
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Loop only. `joined` is called once. The head's refusal of the request (is_final(), such as kUnauthorized
  // or kExists) ends the join at once. A refused connection ends it only if all addresses refuse. An
  // unreachable head, or a connection that breaks in the rendezvous, is tried again until the deadline (after
  // 10 ms, doubling to 500 ms, with jitter); the error then names the failure of the last attempt.
  void join(std::function<void(Result<transport::JoinReply>)> joined);
  // `broken` is called once after joining, when the job cannot go on (a worker was lost or aborted, or the
  // head is lost), or goes on without this worker (its own lease is over). If a worker hosted the lost head,
  // the status names that worker's rank.
  void on_broken(std::function<void(const Status&)> broken);
  // Reports that `rank` closed its session in good order. Steps from call `departure_call` on go on without
  // it; 0: none can. If that worker hosted the head, the job has no head from then on, and the workers
  // probe each other. This is not a failure: all of them may be closing.
  void on_left(std::function<void(int32_t rank, uint64_t departure_call)> left);

  // For a learner, after joined: the view that the head has last published, without workers that have left,
  // and with this one as the last.
  transport::JoinReply present_view() const;
  // For a learner: `changed` is called when present_view() has changed. Only on_view reports the view in
  // which this worker takes part.
  void on_present_view(std::function<void()> changed);
  // For a learner (JoinReply::learner): asks the head for a view with this worker, which on_view then
  // reports. `refused`, with why not, is called otherwise, unless the job breaks.
  void enter(std::function<void(const Status&)> refused);

  // Reports that the job goes on in a new view, of which this worker is a member, because of `why`. Ranks are
  // those of the new view from then on, in on_left, too.
  void on_view(std::function<void(const transport::JoinReply& view, const Status& why)> changed);

  // Tells the head how far this worker is, if there is a head. Fills in number and view.
  void report_progress(transport::Progress progress);
  // Tells the head that the job broke.
  void report(const Status& cause);
  // Tells the head that this worker cannot reach the worker with this id. `cause`: why not; it does not name
  // the two. The head then decides which of the two is cut off, and says so by on_broken. A head that comes
  // back is told again, unless the peer is `silent`: then it may answer by that time, and the caller reports
  // it again if it does not. Returns whether there is a head that may decide.
  bool report_cut(const std::string& peer_id, const Status& cause, bool silent = false);
  bool has_head() const;  // it has joined, and the head is not known to be lost for good, or closed
  // When the head's verdict on a report of that time is due. It becomes later while the head is lost
  // or stores the job's record.
  transport::Time verdict_due(transport::Time reported) const;
  // Ends a join under way because of `cause`; `joined` is not called. The head is told, and tells the other
  // workers. The head's answer is what leave() then waits for.
  void abort_join(const Status& cause);
  const std::string& join_progress() const;  // "2 of 4 workers have joined: ..."; empty: not known
  // The longest time that leave() takes on the worker that hosts the head. Longer than a lease: the head must
  // still notice workers that were lost when its host began to leave. The 100 ms are those of dsgd_close's
  // promise.
  static transport::Duration host_patience(transport::Duration lease) {
    return lease + std::chrono::milliseconds(100);
  }
  // Leaves; a join under way ends with kClosed. `view`: the one that this worker has entered last; the head
  // may have published another one meanwhile, whose workers wait for this one. `departure_call`: the first
  // call that this worker does not make; the head passes it on. `done` is called within a lease. When this
  // worker hosts the head, it is called after the other workers have learnt of it, within host_patience; only
  // then may the head be destroyed.
  void leave(const Status& cause, uint64_t view, uint64_t departure_call, std::function<void()> done);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace dsgd
