// All-reduces written down as schedules, for tests of whatever carries schedules out. Each calls
// add(kind, round, peer, begin, count) for the transfers of one rank, kind 0 to send, 1 to add, 2 to copy
// what comes.
#pragma once

#include <cstdint>

namespace dsgd_test {

enum { kSend = 0, kReduce = 1, kCopy = 2 };

// Reduce-scatter and all-gather around a ring.
template <typename Add>
void ring_schedule(int32_t rank, int32_t size, uint64_t count, Add add) {
  const auto slice = [&](int32_t kind, int32_t round, int32_t peer, int32_t index) {
    const uint64_t i = static_cast<uint64_t>((index % size + size) % size), n = static_cast<uint64_t>(size);
    const uint64_t begin = count * i / n, end = count * (i + 1) / n;
    if (end > begin) add(kind, round, peer, begin, end - begin);
  };
  const int32_t left = (rank + size - 1) % size, right = (rank + 1) % size;
  for (int32_t round = 0; round < 2 * (size - 1); ++round) {
    const bool reducing = round < size - 1;
    slice(kSend, round, right, rank - round);
    slice(reducing ? kReduce : kCopy, round, left, rank - round - 1);
  }
}

// Recursive doubling: everybody has everything at each moment, so what is sent is overwritten while it
// travels. Ranks above the largest power of two add theirs to another's first, and get the result last.
template <typename Add>
void doubling_schedule(int32_t rank, int32_t size, uint64_t count, Add add) {
  int32_t power = 1, rounds = 0;
  while (2 * power <= size) power *= 2, ++rounds;
  const int32_t last = rounds + 1;
  if (rank >= power) {
    add(kSend, 0, rank - power, uint64_t{0}, count);
    add(kCopy, last, rank - power, uint64_t{0}, count);
    return;
  }
  if (rank + power < size) add(kReduce, 0, rank + power, uint64_t{0}, count);
  for (int32_t round = 0; round < rounds; ++round) {
    const int32_t peer = rank ^ (1 << round);
    add(kSend, round + 1, peer, uint64_t{0}, count);
    add(kReduce, round + 1, peer, uint64_t{0}, count);
  }
  if (rank + power < size) add(kSend, last, rank + power, uint64_t{0}, count);
}

// Up a binomial tree to rank 0 and down again, in blocks that follow each other.
template <typename Add>
void tree_schedule(int32_t rank, int32_t size, uint64_t count, Add add) {
  int32_t levels = 0;
  while ((1 << levels) < size) ++levels;
  constexpr uint64_t kBlocks = 3;
  for (uint64_t block = 0; block < kBlocks; ++block) {
    const uint64_t begin = count * block / kBlocks, length = count * (block + 1) / kBlocks - begin;
    if (length == 0) continue;
    const int32_t first = static_cast<int32_t>(block);
    for (int32_t level = 0; level < levels; ++level) {
      const int32_t bit = 1 << level, up = first + level, down = first + 2 * levels - 1 - level;
      if (rank % bit != 0) continue;
      if (rank & bit) {
        add(kSend, up, rank - bit, begin, length);
        add(kCopy, down, rank - bit, begin, length);
      } else if (rank + bit < size) {
        add(kReduce, up, rank + bit, begin, length);
        add(kSend, down, rank + bit, begin, length);
      }
    }
  }
}

}  // namespace dsgd_test
