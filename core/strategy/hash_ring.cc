#include "core/strategy/hash_ring.h"

#include <algorithm>

namespace dsgd {

HashRing::HashRing(const std::vector<int32_t>& servers, int virtual_nodes) {
  points_.reserve(servers.size() * virtual_nodes);
  for (int32_t server : servers) {
    for (int node = 0; node < virtual_nodes; ++node) {
      points_.emplace_back(mix64(mix64(0x73657276 + static_cast<uint64_t>(server)) + node), server);
    }
  }
  std::sort(points_.begin(), points_.end());
}

int32_t HashRing::owner(uint64_t key) const {
  auto it = std::lower_bound(points_.begin(), points_.end(), std::make_pair(key, INT32_MIN));
  return (it == points_.end() ? points_.front() : *it).second;
}

}  // namespace dsgd
