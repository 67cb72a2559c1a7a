// Which algorithm an all-reduce takes, and its task: for a bucket of a step as for a call of the host's.
#pragma once

#include <string>

#include "core/collectives/schedule.h"
#include "core/collectives/task.h"

namespace dsgd {

struct AlgorithmChoice {
  std::string name = "auto";                      // auto, direct, ring, nccl, or a registered one
  std::shared_ptr<ScheduleAlgorithm> registered;  // which is this
};

// May devices add up among themselves what they can, before the host has it? That is all that `nccl` says beyond `auto`: it is
// an error where they cannot.
inline bool goes_by_nccl(const AlgorithmChoice& choice) { return choice.name == "auto" || choice.name == "nccl"; }

// Of what is on the host. auto: direct, and beyond 32 workers the ring, whose fewer messages win there.
Algorithm algorithm_of(const AlgorithmChoice& choice, int32_t workers);

struct AllReducePlan {
  size_t count = 0;  // elements
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  std::byte* data = nullptr;  // in place
  // Turns the sums of a range of elements into results (a mean), once each; empty: sums are the results.
  std::function<void(size_t begin, size_t end)> finish;
};

// `shape`: all but algorithm and tag. Fails only where a registered algorithm is wrong for this size.
Result<std::unique_ptr<Task>> make_all_reduce(Mesh& mesh, transport::BulkHeader shape, const AlgorithmChoice& choice,
                                              AllReducePlan plan, Task::Done done, std::shared_ptr<const Group> group = nullptr);

}  // namespace dsgd
