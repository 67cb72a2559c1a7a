// Chooses the algorithm of an all-reduce and makes its task, for a bucket of a step or for a call of the
// host.
#pragma once

#include <string>

#include "core/collectives/schedule.h"
#include "core/mesh/task.h"

namespace dsgd {

struct AlgorithmChoice {
  std::string name = "auto";                      // auto, direct, ring, nccl, or a registered one
  std::shared_ptr<ScheduleAlgorithm> registered;  // the registered algorithm of that name, else null
};

// Returns whether NCCL may reduce GPU gradients: with `auto` where possible, with `nccl` always (an error
// where it is impossible).
inline bool goes_by_nccl(const AlgorithmChoice& choice) {
  return choice.name == "auto" || choice.name == "nccl";
}

// Returns the algorithm for data on the host. auto: direct, and beyond 32 workers the ring, which sends fewer
// messages.
Algorithm algorithm_of(const AlgorithmChoice& choice, int32_t workers);

struct AllReducePlan {
  size_t count = 0;  // elements
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  std::byte* data = nullptr;  // in place
  // Turns the sums of a range of elements into results (a mean), once each; empty: sums are the results.
  std::function<void(size_t begin, size_t end)> finish;
};

// `shape`: all fields but algorithm and tag. Fails only if a registered algorithm gives no valid schedule for
// this size.
Result<std::unique_ptr<Task>> make_all_reduce(Operations& operations, transport::BulkHeader shape,
                                              const AlgorithmChoice& choice, AllReducePlan plan,
                                              Task::Done done, std::shared_ptr<const Group> group = nullptr);

}  // namespace dsgd
