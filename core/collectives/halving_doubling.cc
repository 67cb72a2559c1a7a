#include "core/collectives/halving_doubling.h"

#include "core/collectives/direct.h"

namespace dsgd {

void generate_halving_doubling(int32_t rank, int32_t size, uint64_t count, uint64_t block,
                               std::vector<Transfer>* transfers) {
  int32_t power = 1, rounds = 0;
  while (2 * power <= size) power *= 2, ++rounds;
  const int32_t last = 2 * rounds + 1;
  const auto add = [&](TransferKind kind, int32_t round, int32_t peer, uint64_t begin, uint64_t end) {
    add_transfers(transfers, kind, round, peer, begin, end, block);
  };
  if (rank >= power) {
    add(TransferKind::kSend, 0, rank - power, 0, count);
    add(TransferKind::kCopy, last, rank - power, 0, count);
    return;
  }
  if (rank + power < size) add(TransferKind::kReduce, 0, rank + power, 0, count);
  const auto bounds = balanced_slices(count, power);
  int32_t first = 0;  // the slices [first, first + width) are this rank's
  for (int32_t round = 0, width = power / 2; round < rounds; ++round, width /= 2) {
    const bool upper = rank >> round & 1;
    const int32_t peer = rank ^ (1 << round), kept = first + (upper ? width : 0);
    const int32_t given = first + (upper ? 0 : width);
    add(TransferKind::kSend, round + 1, peer, bounds[given], bounds[given + width]);
    add(TransferKind::kReduce, round + 1, peer, bounds[kept], bounds[kept + width]);
    // The way back, in which the two exchange the sums of these halves.
    add(TransferKind::kSend, last - round - 1, peer, bounds[kept], bounds[kept + width]);
    add(TransferKind::kCopy, last - round - 1, peer, bounds[given], bounds[given + width]);
    first = kept;
  }
  if (rank + power < size) add(TransferKind::kSend, last, rank + power, 0, count);
}

}  // namespace dsgd
