#include "core/data/shard.h"

#include <bit>

#include "core/base/mix.h"

namespace dsgd {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

// A permutation of [0, samples). Its outputs are part of the interface: resumed and mixed-version jobs rely
// on them.
class Permutation {
 public:
  Permutation(uint64_t samples, uint64_t seed, uint64_t epoch) : samples_(samples) {
    const int bits = samples > 1 ? std::bit_width(samples - 1) : 0;
    rounds_ = bits <= kSmallBits ? kMostRounds : kMostRounds / 4;
    low_bits_ = bits / 2;
    low_mask_ = mask(low_bits_);
    high_mask_ = mask(bits - low_bits_);
    uint64_t state = finalize64(finalize64(seed + kGolden) + epoch);
    for (int round = 0; round < rounds_; ++round) keys_[round] = finalize64(state += kGolden);
  }

  // The network permutes the next power of two, less than twice as many; what falls outside is sent through
  // again until it falls inside, which keeps it a permutation.
  uint64_t operator()(uint64_t position) const {
    if (samples_ < 2) return 0;
    do position = network(position);
    while (position >= samples_);
    return position;
  }

 private:
  // Two inputs forget how they differed by a factor of 2^-(bits/2) in two rounds: halves of a few bits need
  // many rounds.
  static constexpr int kSmallBits = 10, kMostRounds = 32;

  static uint64_t mask(int bits) { return (uint64_t{1} << bits) - 1; }  // bits <= 32

  uint64_t network(uint64_t x) const {
    uint64_t low = x & low_mask_, high = x >> low_bits_;
    for (int round = 0; round < rounds_; round += 2) {
      high ^= finalize64(low ^ keys_[round]) & high_mask_;
      low ^= finalize64(high ^ keys_[round + 1]) & low_mask_;
    }
    return high << low_bits_ | low;
  }

  uint64_t samples_, low_mask_, high_mask_, keys_[kMostRounds];
  int rounds_, low_bits_;
};

}  // namespace

uint64_t permuted_index(uint64_t position, uint64_t samples, uint64_t seed, uint64_t epoch) {
  return Permutation(samples, seed, epoch)(position);
}

void Shard::seek(uint64_t epoch, uint64_t position) {
  epoch_ = epoch, position_ = position;
  left_ = share(samples_ - position);
}

size_t Shard::next(int64_t* indices, size_t max) {
  const Permutation permutation(samples_, seed_, epoch_);
  size_t count = 0;
  for (; count < max && left_ > 0; ++count, --left_) {
    const uint64_t own = position_ + rank_;
    indices[count] = static_cast<int64_t>(shuffle_ ? permutation(own) : own);
    position_ = samples_ - position_ > workers_ ? position_ + workers_ : samples_;  // no overflow near 2^64
  }
  if (count < max) position_ = samples_;  // the epoch is over
  return count;
}

}  // namespace dsgd
