// Which workers add up the gradients of their GPUs among themselves (by NCCL), before anything goes through host memory: those
// of a node, or those of all nodes. What such a team has added up is divided over its devices, so that each takes a part to the
// host and to the other teams: a hierarchical all-reduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/collectives/direct.h"

namespace dsgd {

// A worker's place in its team.
struct Seat {
  int32_t team = 0;                 // the lowest rank of its workers
  int32_t first = 0, devices = 1;   // ranks of this worker's devices in the communicator
  int32_t size = 1;                 // devices of the team; 1: a worker by itself, on whatever device
};

class Teams {
 public:
  Teams() = default;
  explicit Teams(std::vector<Seat> seats);  // by rank
  bool any() const { return any_; }              // is there a team of more than one device?
  bool everybody() const { return everybody_; }  // are all workers one team?
  const Seat& seat(int32_t rank) const { return seats_[static_cast<size_t>(rank)]; }

  // Elements of one device's part of a bucket; the last ones may be beyond its end.
  static size_t device_part(const Seat& seat, size_t elements);
  // What the k-th device of a worker has of a bucket.
  static Slice part(const Seat& seat, int32_t k, size_t elements);
  // By rank, of a bucket that all have a part of: what a worker takes to the host.
  std::vector<Slice> parts(size_t elements) const;
  // By rank: who adds up what between teams. Where teams are alike, only workers that have it; else everybody an equal part.
  std::vector<Slice> owners(size_t elements) const;

 private:
  std::vector<Seat> seats_;
  bool any_ = false, everybody_ = false;
  std::vector<std::vector<int32_t>> alike_;  // by team, if all are alike: its ranks
};

}  // namespace dsgd
