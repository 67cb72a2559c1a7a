// The strategy `ps`, parameter servers: consistent hashing places key ranges on servers (hash_ring.h). The
// owner of a range divides, updates and gives out new values; it keeps the optimizer's state of the range.
// With copies=r the next r-1 servers of the ring keep the same state, which they compute from the owner's
// mean.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "core/strategy/hash_ring.h"
#include "core/strategy/traits.h"

namespace dsgd {

inline Traits ps_traits() {
  return {.owner_gives = Traits::Gives::kValues,
          .key_ranges = true,
          .takes_copies = true,
          .owners = [](const Placement& placement) {
            const auto count = static_cast<size_t>(std::min(placement.servers, placement.workers));
            std::vector<int32_t> servers(count);
            std::iota(servers.begin(), servers.end(), 0);
            if (!placement.numbers.empty()) std::copy_n(placement.numbers.begin(), count, servers.begin());
            std::map<int32_t, int32_t> ranks;
            for (size_t rank = 0; rank < count; ++rank) ranks[servers[rank]] = static_cast<int32_t>(rank);
            return [ring = std::make_shared<const HashRing>(servers), ranks = std::move(ranks),
                    copies = static_cast<size_t>(placement.copies)](
                       const OwnedRange& range) -> Result<std::vector<int32_t>> {
              std::vector<int32_t> owners =
                  ring->servers_of(range_key(range.parameter, range.key_range), copies);
              for (int32_t& owner : owners) owner = ranks.at(owner);
              return owners;
            };
          }};
}

}  // namespace dsgd
