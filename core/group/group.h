// The workers that carry out an operation together. A worker's place is its index in the group, in the order
// of ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace dsgd {

struct Group {
  std::vector<int32_t> ranks;  // by place, ascending
  int32_t own_place = 0;       // of this worker

  Group(std::vector<int32_t> members, int32_t own_rank) : ranks(std::move(members)) {
    own_place = place_of(own_rank);
  }
  int32_t size() const { return static_cast<int32_t>(ranks.size()); }
  int32_t place_of(int32_t rank) const {  // -1 if the rank is not in the group
    const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
    return at != ranks.end() && *at == rank ? static_cast<int32_t>(at - ranks.begin()) : -1;
  }
};

}  // namespace dsgd
