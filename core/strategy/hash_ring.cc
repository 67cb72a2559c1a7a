#include "core/strategy/hash_ring.h"

#include <algorithm>

namespace dsgd {

HashRing::HashRing(const std::vector<int32_t>& servers, int virtual_nodes) : servers_(servers.size()) {
  points_.reserve(servers.size() * virtual_nodes);
  for (int32_t server : servers) {
    for (int node = 0; node < virtual_nodes; ++node) {
      points_.emplace_back(mix64(mix64(0x73657276 + static_cast<uint64_t>(server)) + node), server);
    }
  }
  std::sort(points_.begin(), points_.end());
}

std::vector<int32_t> HashRing::servers_of(uint64_t key, size_t count) const {
  std::vector<int32_t> found;
  auto at = std::lower_bound(points_.begin(), points_.end(), std::make_pair(key, INT32_MIN));
  for (count = std::min(count, servers_); found.size() < count; ++at) {
    if (at == points_.end()) at = points_.begin();
    if (std::find(found.begin(), found.end(), at->second) == found.end()) found.push_back(at->second);
  }
  return found;
}

}  // namespace dsgd
