// A number spread over all bits.
#pragma once

#include <cstdint>

namespace dsgd {

// splitmix64's finalizer (Steele et al. 2014)
inline constexpr uint64_t finalize64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

}  // namespace dsgd
