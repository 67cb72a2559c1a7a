// The workers that carry out an operation together. A worker's index is its position in `ranks`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace dsgd {

// Returns the index of `value` in ascending `sorted`; -1 if it is not in it.
inline int32_t index_in(const std::vector<int32_t>& sorted, int32_t value) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), value);
  return at != sorted.end() && *at == value ? static_cast<int32_t>(at - sorted.begin()) : -1;
}

struct Group {
  std::vector<int32_t> ranks;  // ascending
  int32_t own_index = 0;       // of this worker

  Group(std::vector<int32_t> members, int32_t own_rank) : ranks(std::move(members)) {
    own_index = index_of(own_rank);
  }
  int32_t size() const { return static_cast<int32_t>(ranks.size()); }
  int32_t index_of(int32_t rank) const { return index_in(ranks, rank); }  // -1: not in the group
};

}  // namespace dsgd
