#include "core/session/last_values.h"

#include <string>
#include <utility>

#include "core/step/divergence.h"

namespace dsgd {

void LastValues::set_own(int32_t rank, uint64_t steps, std::vector<uint64_t> digests) {
  rank_ = rank;
  steps_ = steps;
  own_ = std::move(digests);
  compare();
}

// Each goodbye that comes may show that another rank is the one that differs.
void LastValues::compare() {
  if (own_.empty()) return;
  std::map<int32_t, std::vector<uint64_t>> digests = {{rank_, own_}};
  for (const auto& [rank, goodbye] : goodbyes_) {
    if (goodbye.steps == steps_) digests[rank] = goodbye.digests;
  }
  divergence_ = find_divergence(model_, digests, "dsgd_close after step " + std::to_string(steps_ - 1));
}

}  // namespace dsgd
