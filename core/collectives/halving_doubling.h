// All-reduce by recursive halving and doubling (Rabenseifner 2004; Thakur, Rabenseifner & Gropp 2005). In
// each of log2(W) rounds a worker exchanges half of its range with a partner and adds what it receives; the
// distance of the partner doubles from round to round, so the largest exchanges are those with the nearest
// ranks. The sums return the same way. If W is a power of two, a worker sends as many bytes as in the ring,
// in 2 log2(W) rounds instead of 2(W-1). Else let P be the largest power of two below W: each rank from P on
// sends all its data to rank - P before the first round and receives the sums after the last one. The order
// of summation is fixed, so the same run gives the same bits.
#pragma once

#include "core/collectives/schedule.h"

namespace dsgd {

void generate_halving_doubling(int32_t rank, int32_t size, uint64_t count, uint64_t block,
                               std::vector<Transfer>* transfers);

}  // namespace dsgd
