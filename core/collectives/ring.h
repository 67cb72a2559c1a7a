// Ring all-reduce (Patarasuk & Yuan 2009), pipelined by blocks: 2(W-1) rounds, each worker sends 2(W-1)/W of
// the data to its right neighbour only. The order of summation is fixed by the ring, so the same run gives
// the same bits.
#pragma once

#include "core/collectives/schedule.h"

namespace dsgd {

void generate_ring(int32_t rank, int32_t size, uint64_t count, uint64_t block,
                   std::vector<Transfer>* transfers);

}  // namespace dsgd
