// The list at the door: workers that wait for the job to be complete. Pure data; the head owns it.
#pragma once

#include <cstdint>
#include <string>
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

  // Takes a worker in, or says why not (its `respond` is then untouched). The same worker (id, host, machine
  // and pid) takes the place it holds already: its connection broke, and it asks again before the head has
  // seen that. `replaced` is then what the place held.
  Status admit(Candidate& candidate, Candidate* replaced);
  // The channel is gone: the place of its worker is free again. Null when it held none.
  bool remove(const transport::ServerChannel& channel, transport::MemberInfo* gone);

  bool holds(const transport::ServerChannel& channel) const;
  // Why the workers that have come cannot reach each other: one listens where only its own machine reaches it.
  Status check_reachable() const;
  bool complete() const { return candidates_.size() == num_workers_; }
  // Once complete: everybody by rank, with request.member.rank set. Who asked for a rank has it; the others
  // have the free ranks in the order of their ids.
  std::vector<Candidate> take_by_rank();

  std::string progress() const;
  void note_refused(const std::string& why);  // part of the progress, since it may be why others wait

 private:
  Status check(const transport::JoinRequest& request) const;

  const uint32_t num_workers_;
  size_t refused_ = 0;
  std::string last_refusal_;
  std::vector<Candidate> candidates_;  // in the order of their coming; few enough to search
};

}  // namespace dsgd
