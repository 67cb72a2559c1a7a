#include "core/collectives/ring.h"

#include "core/collectives/direct.h"

namespace dsgd {

// Rounds 0 .. W-2 reduce: in round s a rank sends slice rank - s and adds slice rank - s - 1. It then owns
// the sum of slice rank + 1, and rounds W-1 .. 2W-3 pass the sums around the same way.
void generate_ring(int32_t rank, int32_t size, uint64_t count, uint64_t block,
                   std::vector<Transfer>* transfers) {
  const auto bounds = balanced_slices(count, size);
  const int32_t left = (rank + size - 1) % size, right = (rank + 1) % size;
  for (int32_t round = 0; round < 2 * (size - 1); ++round) {
    const int32_t out = (rank + 2 * size - round) % size, in = (rank + 2 * size - round - 1) % size;
    add_transfers(transfers, TransferKind::kSend, round, right, bounds[out], bounds[out + 1], block);
    add_transfers(transfers, round < size - 1 ? TransferKind::kReduce : TransferKind::kCopy, round, left,
                  bounds[in], bounds[in + 1], block);
  }
}

}  // namespace dsgd
