#include "core/data/shard.h"

#include <algorithm>
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
    rounds_ = bits <= kSmallBits ? kMaxRounds : kMaxRounds / 4;
    low_bits_ = bits / 2;
    low_mask_ = mask(low_bits_);
    high_mask_ = mask(bits - low_bits_);
    uint64_t state = finalize64(finalize64(seed + kGolden) + epoch);
    for (int round = 0; round < rounds_; ++round) keys_[round] = finalize64(state += kGolden);
  }

  // The network permutes [0, P), where P < 2 * samples is the next power of two. Outputs that are not below
  // `samples` go through it again (cycle walking), so the whole remains a permutation.
  uint64_t operator()(uint64_t position) const {
    if (samples_ < 2) return 0;
    do position = network(position);
    while (position >= samples_);
    return position;
  }

 private:
  // Every two rounds reduce the correlation between the outputs of two inputs by a factor of 2^-(bits/2), so
  // halves of a few bits need many rounds.
  static constexpr int kSmallBits = 10, kMaxRounds = 32;

  static uint64_t mask(int bits) { return (uint64_t{1} << bits) - 1; }  // bits <= 32

  uint64_t network(uint64_t x) const {
    uint64_t low = x & low_mask_, high = x >> low_bits_;
    for (int round = 0; round < rounds_; round += 2) {
      high ^= finalize64(low ^ keys_[round]) & high_mask_;
      low ^= finalize64(high ^ keys_[round + 1]) & low_mask_;
    }
    return high << low_bits_ | low;
  }

  uint64_t samples_, low_mask_, high_mask_, keys_[kMaxRounds];
  int rounds_, low_bits_;
};

}  // namespace

uint64_t permuted_index(uint64_t position, uint64_t samples, uint64_t seed, uint64_t epoch) {
  return Permutation(samples, seed, epoch)(position);
}

void Shard::seek(uint64_t epoch, uint64_t position) {
  epoch_ = epoch, begin_ = tail_ = dealt_from_ = position;
  slots_ = workers_;
  part_ = {0, static_cast<uint32_t>(rank_), 0, 0, 0, {}};
  drawn_ = 0;
  end_ = samples_ - position > rank_ ? (samples_ - position - rank_ - 1) / workers_ + 1 : 0;
  over_ = false;
}

void Shard::take(const SampleLedger& ledger, uint64_t worker) {
  const SampleLedger::Part* part = find_part(ledger, worker);
  epoch_ = ledger.epoch, begin_ = ledger.begin, tail_ = ledger.tail;
  slots_ = ledger.slots;
  part_ = part ? *part : SampleLedger::Part{};
  drawn_ = part_.held;
  end_ = part ? end_of(ledger, *part) : 0;
  dealt_from_ = samples_ - dealt_samples(ledger);
  over_ = false;
}

uint64_t Shard::position() const {
  const uint64_t turns = drawn_ - part_.held, left = samples_ - dealt_from_;
  if (over_ || slots_ == 0 || turns > left / slots_) return samples_;
  return std::min(samples_, dealt_from_ + turns * slots_);
}

size_t Shard::next(int64_t* indices, size_t max) {
  const Permutation permutation(samples_, seed_, epoch_);
  size_t count = 0;
  const auto draw = [&](const SampleRun& run, uint64_t skipped) {
    for (; count < max && skipped < run.count; ++count, ++skipped, ++drawn_) {
      const uint64_t own = run.first + skipped * run.stride;
      indices[count] = static_cast<int64_t>(shuffle_ ? permutation(own) : own);
    }
  };
  uint64_t at = part_.base;  // what this worker has drawn before the run
  for (const SampleRun& run : part_.runs) {
    if (drawn_ < at + run.count) draw(run, drawn_ - at);
    at += run.count;
  }
  if (drawn_ < end_) draw({tail_ + part_.slot + part_.taken * slots_, slots_, end_ - at}, drawn_ - at);
  if (count < max) over_ = true;
  return count;
}

}  // namespace dsgd
