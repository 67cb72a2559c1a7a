// Adds the operations of a step to the mesh, under the step's name, limit and deadline. They are operations
// of the step's workers (step_group.h), unless the task has a group of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/collectives/all_reduce.h"
#include "core/mesh/task.h"
#include "core/step/step_group.h"
#include "core/step/step_in_flight.h"
#include "core/step/step_state.h"

namespace dsgd {

class StepTasks {
 public:
  StepTasks(StepState& state, const StepGroup& group, const StepInFlight& step)
      : state_(state), group_(group), step_(step) {}
  // Returns null if the task ended at once.
  Task* add(std::unique_ptr<Task> task);
  // Exchanges small data in one hop; `then` gets the bytes of each worker, by index. It is not called once
  // the step has ended. A failure fails the step.
  void exchange(uint64_t operation, Kind kind, DType dtype, size_t count, std::vector<std::byte> mine,
                std::function<void(const std::vector<std::vector<std::byte>>&)> then);
  // Reduces over the workers by the strategy's algorithm, and calls `done`, also when the step has ended.
  // Returns a failure, and does not call `done`, if the algorithm has no schedule for this size.
  Status all_reduce(uint64_t operation, AllReducePlan plan, Task::Done done);

 private:
  StepState& state_;
  const StepGroup& group_;
  const StepInFlight& step_;
};

}  // namespace dsgd
