// Teams. A team is the workers whose GPUs form one NCCL communicator, which reduces their gradients before
// anything goes through host memory: the workers of a node, or of all nodes. A team's sums are divided over
// its devices; each copies a part to the host and exchanges it with the other teams: a hierarchical
// all-reduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/collectives/direct.h"

namespace dsgd {

// The position of a worker's devices in its team.
struct TeamMember {
  int32_t team = 0;                // the lowest rank of its workers
  int32_t first = 0, devices = 1;  // its devices have the communicator's ranks [first, first + devices)
  int32_t size = 1;                // devices of the team; 1: the worker is in no team
};

class Teams {
 public:
  Teams() = default;
  explicit Teams(std::vector<TeamMember> members);  // by rank
  bool any() const { return any_; }                 // a team has more than one device
  bool one_team() const { return one_team_; }       // all workers are one team
  const TeamMember& member(int32_t rank) const { return members_[static_cast<size_t>(rank)]; }

  // Elements of one device's part of a bucket; the last ones may be beyond its end.
  static size_t device_part(const TeamMember& member, size_t elements);
  // The part of a bucket on the k-th device of a worker.
  static Slice part(const TeamMember& member, int32_t k, size_t elements);
  // By rank: the part of a bucket that each worker copies to the host.
  std::vector<Slice> parts(size_t elements) const;
  // By rank: the slice that each worker reduces between teams. If all teams have the same layout, a worker
  // reduces only elements that it holds; else slices are equal.
  std::vector<Slice> owners(size_t elements) const;

 private:
  std::vector<TeamMember> members_;
  bool any_ = false, one_team_ = false;
  std::vector<std::vector<int32_t>> alike_;  // by team, if all are alike: its ranks
};

}  // namespace dsgd
