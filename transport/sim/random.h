// The simulation's only source of chance: SplitMix64 (Steele, Lea, Flood 2014), small, fast, good enough to
// pick faults.
#pragma once

#include <cstdint>

#include "transport/loop.h"

namespace dsgd::transport {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return n == 0 ? 0 : next() % n; }  // the bias does not matter here
  bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1.0p-53 < p; }
  Duration between(Duration low, Duration high) {
    return high <= low ? low : low + Duration(below(static_cast<uint64_t>((high - low).count()) + 1));
  }

 private:
  uint64_t state_;
};

}  // namespace dsgd::transport
