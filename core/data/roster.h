// The workers of a view, as the data shards see them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dsgd {

struct Roster {
  uint64_t view = 1;
  bool learner = false;  // this worker is none of them yet: it joins a running job
  uint32_t rank = 0;
  std::vector<uint64_t> workers = {0};  // identities, by rank
  uint64_t own() const { return workers[rank]; }
  uint32_t size() const { return static_cast<uint32_t>(workers.size()); }
};

inline bool has_worker(const std::vector<uint64_t>& workers, uint64_t worker) {
  return std::find(workers.begin(), workers.end(), worker) != workers.end();
}

}  // namespace dsgd
