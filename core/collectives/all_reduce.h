// The table of all-reduce algorithms. A row has the name of an algorithm and the function that makes its
// task, for a bucket of a step or for a call of the host.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/collectives/schedule.h"
#include "core/mesh/task.h"

namespace dsgd {

struct AllReducePlan {
  size_t count = 0;  // elements
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  std::byte* data = nullptr;  // in place
  // Turns the sums of a range of elements into results (a mean), once each; empty: sums are the results.
  std::function<void(size_t begin, size_t end)> finish;
};

struct AllReduceCall {
  Operations& operations;
  transport::BulkHeader shape;  // all fields but algorithm and tag
  AllReducePlan plan;
  Task::Done done;
  std::shared_ptr<const Group> group;
};

// Whether NCCL reduces gradients of GPUs.
enum class NcclUse : uint8_t { kNever, kWherePossible, kRequired };

struct AllReduceAlgorithm {
  std::string name;
  Result<std::unique_ptr<Task>> (*make)(const AllReduceAlgorithm& algorithm, AllReduceCall call) = nullptr;
  NcclUse nccl = NcclUse::kNever;
  std::shared_ptr<ScheduleAlgorithm> schedules = {};
  Algorithm code = Algorithm::kRegistered;  // of one that has schedules

  bool registered() const { return schedules && schedules->registered(); }
};

class AlgorithmChoice {  // a row of the table, shared; never null
 public:
  AlgorithmChoice();  // auto
  explicit AlgorithmChoice(std::shared_ptr<const AllReduceAlgorithm> row) : row_(std::move(row)) {}
  const AllReduceAlgorithm* operator->() const { return row_.get(); }
  const AllReduceAlgorithm& operator*() const { return *row_; }

 private:
  std::shared_ptr<const AllReduceAlgorithm> row_;
};

const std::vector<AlgorithmChoice>& built_in_all_reduces();
AlgorithmChoice registered_all_reduce(const std::string& name, ScheduleAlgorithm::Write write);

// `shape`: all fields but algorithm and tag. Fails only if a registered algorithm gives no valid schedule for
// this size.
Result<std::unique_ptr<Task>> make_all_reduce(Operations& operations, transport::BulkHeader shape,
                                              const AlgorithmChoice& choice, AllReducePlan plan,
                                              Task::Done done, std::shared_ptr<const Group> group = nullptr);

// Returns a Done that applies plan.finish to all elements before it calls `done`. For algorithms whose slices
// have no owner.
Task::Done finish_all(const AllReducePlan& plan, Task::Done done);

}  // namespace dsgd
