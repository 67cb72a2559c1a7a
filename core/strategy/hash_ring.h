// Consistent hashing with virtual nodes (Karger et al. 1997); it finds the server that owns a key. When one
// of k servers joins or leaves, about 1/k of the keys move, and only to or from that server. Copies of a key
// lie on the servers that follow its owner, so the first of them becomes the owner when the owner leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/mix.h"

namespace dsgd {

// splitmix64.
inline constexpr uint64_t mix64(uint64_t value) { return finalize64(value + 0x9e3779b97f4a7c15ull); }
inline uint64_t range_key(uint32_t parameter, uint64_t range) {
  return mix64(mix64(parameter + 1) ^ (range * 0x9e3779b97f4a7c15ull));
}

class HashRing {
 public:
  explicit HashRing(const std::vector<int32_t>& servers, int virtual_nodes = 256);
  int32_t owner(uint64_t key) const { return servers_of(key, 1).front(); }
  // Returns the owner of a key and the next distinct servers of the ring: `count` in all, or all there are.
  std::vector<int32_t> servers_of(uint64_t key, size_t count) const;

 private:
  std::vector<std::pair<uint64_t, int32_t>> points_;  // sorted
  size_t servers_;
};

}  // namespace dsgd
