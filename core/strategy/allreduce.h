// The strategy `allreduce`: no worker owns anything. Every worker gets the sum of all gradients by an
// all-reduce (core/collectives), divides it and updates.
#pragma once

#include "core/strategy/traits.h"

namespace dsgd {

inline Traits allreduce_traits() { return {.owner_gives = Traits::Gives::kSum, .takes_algorithm = true}; }

}  // namespace dsgd
