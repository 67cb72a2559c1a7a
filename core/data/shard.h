// Which samples a worker reads. A permutation of 0..samples-1 that is computed element by element (a Feistel
// network with cycle walking, Black & Rogaway 2002), so that no worker holds an index table; position p of
// the permutation belongs to worker p mod W.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/base/status.h"

namespace dsgd {

// Permuted index at `position` < samples (0 for samples < 2); the same on every machine and in every version
// of the library.
uint64_t permuted_index(uint64_t position, uint64_t samples, uint64_t seed, uint64_t epoch);

class Shard {
 public:
  Shard(uint64_t samples, uint64_t seed, bool shuffle, uint32_t rank, uint32_t workers)
      : samples_(samples), seed_(seed), shuffle_(shuffle), rank_(rank), workers_(workers), position_(rank) {}
  void set_epoch(uint64_t epoch) { epoch_ = epoch, position_ = rank_; }
  size_t next(int64_t* indices, size_t max);
  uint64_t size() const { return samples_ > rank_ ? (samples_ - rank_ - 1) / workers_ + 1 : 0; }

 private:
  uint64_t samples_, seed_;
  bool shuffle_;
  uint64_t rank_, workers_, epoch_ = 0, position_;
};

}  // namespace dsgd
