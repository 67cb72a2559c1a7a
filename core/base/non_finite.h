// NaN and infinity among the elements of a gradient.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/half.h"

namespace dsgd {

// How many elements are not finite, and the index of the first of them.
struct NonFinite {
  uint64_t count = 0, first = ~uint64_t{0};

  // `part` begins at element `begin`.
  void add(const NonFinite& part, uint64_t begin) {
    if (part.count == 0) return;
    count += part.count;
    first = std::min(first, begin + part.first);
  }
};

// The difference of an infinity or a NaN to itself is NaN.
template <typename T>
DSGD_CONVERT bool is_finite(T value) {
  return value - value == 0;
}

}  // namespace dsgd
