// Which samples a worker reads. A permutation of 0..samples-1 that is computed element by element (a Feistel
// network with cycle walking, Black & Rogaway 2002), so that no worker holds an index table. After seek(e, b)
// position p >= b of the permutation belongs to worker (p - b) mod W.
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
      : samples_(samples), seed_(seed), shuffle_(shuffle), rank_(rank), workers_(workers), left_(size()) {}
  void seek(uint64_t epoch, uint64_t position);  // position <= samples()
  uint64_t position() const { return position_; }
  size_t next(int64_t* indices, size_t max);
  uint64_t samples() const { return samples_; }
  uint64_t size() const { return share(samples_); }

 private:
  // How many of `samples` positions are this worker's.
  uint64_t share(uint64_t samples) const {
    return samples > rank_ ? (samples - rank_ - 1) / workers_ + 1 : 0;
  }

  uint64_t samples_, seed_;
  bool shuffle_;
  uint64_t rank_, workers_, epoch_ = 0;
  uint64_t position_ = 0;  // of all workers, if each has drawn as many indices since seek() as this one
  uint64_t left_;          // indices of this worker that are not drawn yet
};

}  // namespace dsgd
