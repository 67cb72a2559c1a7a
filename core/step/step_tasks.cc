#include "core/step/step_tasks.h"

#include <utility>

#include "core/collectives/exchange.h"

namespace dsgd {

Task* StepTasks::add(std::unique_ptr<Task> task) {
  task->rename(state_.name());
  task->set_limit(state_.request.limit);
  return state_.mesh->operations.add(std::move(task), state_.request.deadline);
}

void StepTasks::exchange(uint64_t operation, Kind kind, DType dtype, size_t count,
                         std::vector<std::byte> mine,
                         std::function<void(const std::vector<std::vector<std::byte>>&)> then) {
  const auto gathered = [this, then = std::move(then)](const Status& status, const auto& all) {
    if (!step_.runs()) return;
    status.ok() ? then(all) : step_.fail(status);
  };
  add(std::make_unique<Exchange>(state_.mesh->operations,
                                 shape_of(operation, kind, dtype, Algorithm::kOneHop, count), std::move(mine),
                                 gathered, group_.workers()));
}

Status StepTasks::all_reduce(uint64_t operation, AllReducePlan plan, Task::Done done) {
  auto shape = shape_of(operation, Kind::kBucket, plan.dtype, Algorithm::kDirect, plan.count);
  shape.reduction = static_cast<uint8_t>(plan.reduction);
  auto task = make_all_reduce(state_.mesh->operations, shape, state_.strategy.algorithm, std::move(plan),
                              std::move(done), group_.workers());
  if (!task.ok()) return task.status();
  add(std::move(task).value());
  return {};
}

}  // namespace dsgd
