// The strategy `ps`, parameter servers: consistent hashing places key ranges on servers (hash_ring.h). The
// owner of a range divides, updates and gives out new values; it keeps the optimizer's state of the range.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "core/strategy/hash_ring.h"
#include "core/strategy/traits.h"

namespace dsgd {

inline Traits ps_traits() {
  return {
      .owner_gives = Traits::Gives::kValues, .key_ranges = true, .owners = [](const Placement& placement) {
        std::vector<int32_t> servers(static_cast<size_t>(std::min(placement.servers, placement.workers)));
        std::iota(servers.begin(), servers.end(), 0);
        return
            [ring = std::make_shared<const HashRing>(servers)](const OwnedRange& range) -> Result<int32_t> {
              return ring->owner(range_key(range.parameter, range.key_range));
            };
      }};
}

}  // namespace dsgd
