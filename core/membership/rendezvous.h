// The workers that wait for the job to begin. Pure data; the head owns it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "transport/network.h"

namespace dsgd {

class Rendezvous {
 public:
  struct Candidate {
    transport::JoinRequest request;
    transport::ServerChannel* channel = nullptr;
    transport::Responder respond;
  };

  explicit Rendezvous(uint32_t num_workers) : num_workers_(num_workers) {}

  // Whether a worker may ask to join: its id, num_workers, and the rank that it asks for.
  Status check(const transport::JoinRequest& request) const;
  // Admits a worker, or returns why not (its `respond` is then untouched). The same worker (id, host, machine
  // and pid) replaces its own entry: its connection broke, and it asks again before the head has seen that.
  // `replaced` is then the old entry.
  Status admit(Candidate& candidate, Candidate* replaced);
  // Removes the worker of this channel and gives it in `gone`. Returns false if the channel has no place.
  bool remove(const transport::ServerChannel& channel, transport::MemberInfo* gone);

  bool holds(const transport::ServerChannel& channel) const;
  // Returns an error if a worker listens where only its own machine reaches it, and another is on a different
  // machine.
  Status check_reachable() const;
  size_t size() const { return candidates_.size(); }
  const std::vector<Candidate>& candidates() const { return candidates_; }
  const std::string& last_refusal() const { return last_refusal_; }  // empty: none
  bool complete() const { return candidates_.size() == num_workers_; }
  // Once complete: removes and returns all workers by rank, with request.member.rank set. A worker that asked
  // for a rank has it; the others have the free ranks in the order of their ids.
  std::vector<Candidate> take_by_rank();

  std::vector<Candidate> take_all() { return std::exchange(candidates_, {}); }

  std::string progress() const;
  // Ranks that have not come; none if a worker has come that did not ask for a rank.
  std::vector<int32_t> missing() const;
  void note_refused(const std::string& why);  // shown in progress(): it may be why others wait

 private:
  const uint32_t num_workers_;
  size_t refused_ = 0;
  std::string last_refusal_;
  std::vector<Candidate> candidates_;  // in the order of arrival; few enough to search
};

}  // namespace dsgd
