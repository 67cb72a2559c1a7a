// A worker's side of the membership.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "core/base/log.h"
#include "transport/network.h"

namespace dsgd {

struct MemberOptions {
  std::string head;        // address to dial
  transport::Hello hello;  // job; Member fills in role, rank, view, worker id, version and job nonce
  std::string token;
  transport::JoinRequest join;
  // Deadline of the join: refused dials are tried again until then (the head may not be up yet).
  transport::Time deadline{};
  // After this time a failed dial ends the join with kUnreachable, so that the worker can try to host the
  // head.
  transport::Time look_again = transport::kNever;
  std::optional<transport::Time> began = {};  // start of the first attempt, for messages
  std::string limit = "init_timeout";         // the setting that the deadline comes from, for messages
  std::string rank_origin = {};               // see Config::rank_origin()
  transport::Duration lease{};
  transport::Duration heartbeat_interval{};
};

// All callbacks come from a task of the session's loop, never from within a call of this class, and never
// after its destruction; each may destroy the member. Both networks outlive it.
class Member {
 public:
  Member(transport::Network& network, transport::Network& heartbeat_network, MemberOptions options,
         std::shared_ptr<Log> log);
  ~Member();  // on the loop
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Loop only. `joined` is called once. Unauthorized, exists, mismatch end the attempt at once; an
  // unreachable head is tried again (after 10 ms, doubling to 500 ms, with jitter) until the deadline; the
  // error then says what the last attempt met. While waiting in the rendezvous a broken control connection
  // also counts as an attempt to repeat.
  void join(std::function<void(Result<transport::JoinReply>)> joined);
  // After joined: the job cannot go on (another worker lost, aborted; the head lost; our own lease ran out).
  // Once. When the head is lost and was hosted by a worker, the status names that worker's rank. Called on
  // the session's loop.
  void on_broken(std::function<void(const Status&)> broken);
  // Reports that `rank` closed its session in good order. Steps from call `departure_call` on go on without
  // it; 0: none can. If that worker hosted the head, the job has no head from then on, and the workers watch
  // over each other. This is not a failure: all of them may be closing.
  void on_left(std::function<void(int32_t rank, uint64_t departure_call)> left);

  // Tells the head that the job broke.
  void report(const Status& cause);
  // Tells the head that this worker cannot reach a peer. `cause`: why not; it does not name the two. The head
  // then decides which of the two is cut off, and says so by on_broken. Returns whether there is a head that
  // may decide.
  bool report_cut(int32_t peer, const Status& cause);
  bool has_head() const;  // it has joined, and the head is not known to be lost or closed
  // Ends a join under way because of `cause`; `joined` is not called. The head is told, and tells the other
  // workers. The head's answer is what leave() then waits for.
  void abort_join(const Status& cause);
  const std::string& join_progress() const;  // "2 of 4 workers have come: ..."; empty: not known
  // The longest time that leave() takes on the worker that hosts the head. Longer than a lease: the head must
  // still notice workers that were lost when its host began to leave. The 100 ms are those of dsgd_close's
  // promise.
  static transport::Duration host_patience(transport::Duration lease) {
    return lease + std::chrono::milliseconds(100);
  }
  // Leaves; a join under way ends with kClosed. `departure_call`: the first call that this worker does not
  // make; the head passes it on. `done` is called within a lease. When this worker hosts the head, it is
  // called after the other workers have learnt of it, within host_patience; only then may the head be
  // destroyed.
  void leave(const Status& cause, uint64_t departure_call, std::function<void()> done);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace dsgd
