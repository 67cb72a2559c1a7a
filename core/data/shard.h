// Which samples a worker reads. A permutation of 0..samples-1 that is computed element by element (a Feistel
// network with cycle walking, Black & Rogaway 2002), so that no worker holds an index table. After seek(e, b)
// position p >= b of the permutation belongs to worker (p - b) mod W, until a ledger deals the rest out anew.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/data/ledger.h"

namespace dsgd {

// Permuted index at `position` < samples (0 for samples < 2); the same on every machine and in every version
// of the library.
uint64_t permuted_index(uint64_t position, uint64_t samples, uint64_t seed, uint64_t epoch);

class Shard {
 public:
  Shard(uint64_t samples, uint64_t seed, bool shuffle, uint32_t rank, uint32_t workers)
      : samples_(samples), seed_(seed), shuffle_(shuffle), rank_(rank), workers_(workers) {
    seek(0, 0);
  }
  // Among which passes are split from now on.
  void set_workers(uint32_t rank, uint32_t workers) { rank_ = rank, workers_ = workers; }
  void seek(uint64_t epoch, uint64_t position);  // position <= samples()
  // Goes on with this worker's part of the ledger, behind what it had drawn when the ledger was dealt.
  void take(const SampleLedger& ledger, uint64_t worker);
  uint64_t epoch() const { return epoch_; }
  // Of all workers, if each has drawn as many indices since they were dealt out as this one.
  uint64_t position() const;
  uint64_t begin() const { return begin_; }  // of the last seek()
  uint64_t drawn() const { return drawn_; }  // since then, by this worker
  bool same_data(uint64_t samples, uint64_t seed, bool shuffle) const {
    return samples_ == samples && seed_ == seed && shuffle_ == shuffle;
  }
  uint64_t seed() const { return seed_; }
  bool shuffle() const { return shuffle_; }
  size_t next(int64_t* indices, size_t max);
  uint64_t samples() const { return samples_; }
  uint64_t size() const { return samples_ > rank_ ? (samples_ - rank_ - 1) / workers_ + 1 : 0; }

 private:
  uint64_t samples_, seed_;
  bool shuffle_;
  uint64_t rank_, workers_, epoch_ = 0, begin_ = 0;
  // This worker's part, which begins with what it had drawn already; see SampleLedger.
  SampleLedger::Part part_;
  uint64_t tail_ = 0, slots_ = 1;
  uint64_t dealt_from_ = 0;  // samples that were in no part then, or were drawn
  uint64_t drawn_ = 0, end_ = 0;
  bool over_ = false;  // the host has been told that the epoch is over
};

}  // namespace dsgd
