// The strategy `simple`: rank 0 owns everything. It adds all gradients, divides, and gives out the mean;
// every worker updates.
#pragma once

#include "core/strategy/traits.h"

namespace dsgd {

inline Traits simple_traits() { return {.owner_gives = Traits::Gives::kMean}; }

}  // namespace dsgd
