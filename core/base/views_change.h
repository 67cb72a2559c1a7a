// Rules of min_workers, max_workers and rejoin_timeout.
#pragma once

#include <chrono>
#include <cstdint>

namespace dsgd {

// Returns `limit` (min_workers or max_workers), or num_workers if it is 0.
constexpr uint32_t or_all(uint32_t limit, uint32_t num_workers) { return limit ? limit : num_workers; }

// Says in messages when views change.
inline constexpr char kViewsChangeWhen[] =
    "min_workers or max_workers differs from num_workers, or rejoin_timeout is set";

// Returns whether the job can go on in another view: after a loss, or when workers join. 0 for min_workers or
// max_workers stands for num_workers.
constexpr bool views_change(int64_t num_workers, int64_t min_workers, int64_t max_workers,
                            std::chrono::nanoseconds rejoin_timeout) {
  return (min_workers != 0 && min_workers < num_workers) || max_workers > num_workers ||
         rejoin_timeout.count() > 0;
}

}  // namespace dsgd
