#include "core/collectives/all_reduce.h"

#include <utility>

#include "core/collectives/direct.h"
#include "core/collectives/ring.h"
#include "core/collectives/scheduled.h"
#include "core/mesh/operations.h"
#include "core/reduce/kernels.h"

namespace dsgd {
namespace {

constexpr int32_t kDirectWorkers = 32;

// Where no slice has an owner, everybody finishes the whole.
Task::Done finish_all(const AllReducePlan& plan, Task::Done done) {
  if (!plan.finish) return done;
  return [finish = plan.finish, count = plan.count, done = std::move(done)](const Status& status) {
    if (status.ok()) finish(0, count);
    done(status);
  };
}

}  // namespace

Algorithm algorithm_of(const AlgorithmChoice& choice, int32_t workers) {
  if (choice.registered && workers > 1) return Algorithm::kScheduled;
  if (choice.name == "ring") return Algorithm::kRing;
  if (choice.name == "direct") return Algorithm::kDirect;
  return workers > kDirectWorkers ? Algorithm::kRing : Algorithm::kDirect;
}

Result<std::unique_ptr<Task>> make_all_reduce(Operations& operations, transport::BulkHeader shape,
                                              const AlgorithmChoice& choice, AllReducePlan plan,
                                              Task::Done done, std::shared_ptr<const Group> group) {
  if (!group) group = operations.peers().members().world();
  const Algorithm algorithm = algorithm_of(choice, group->size());
  shape.algorithm = static_cast<uint8_t>(algorithm);
  const size_t element = dtype_size(plan.dtype);
  // Only a registered algorithm may add the same two in either order on different workers.
  const auto add = [dtype = plan.dtype, reduction = plan.reduction,
                    symmetric = algorithm == Algorithm::kScheduled](void* destination, const void* source,
                                                                    size_t count) {
    (symmetric ? reduce_symmetric : reduce_into)(dtype, reduction, destination, source, count);
  };
  if (algorithm == Algorithm::kScheduled) {
    auto schedule = choice.registered->schedule(group->own_place, group->size(), plan.count);
    if (!schedule.ok()) return schedule.status();
    shape.tag = Scheduled::tag(operations, *schedule.value());
    done = finish_all(plan, std::move(done));
    return std::unique_ptr<Task>(std::make_unique<Scheduled>(
        operations, shape, ScheduledPlan{schedule.value(), element, plan.data, add}, std::move(done),
        std::move(group)));
  }
  if (algorithm == Algorithm::kRing) {
    shape.tag = operations.peers().chunk_bytes();
    done = finish_all(plan, std::move(done));
    return std::unique_ptr<Task>(std::make_unique<Ring>(
        operations, shape, RingPlan{plan.count, element, plan.data, add}, std::move(done), std::move(group)));
  }
  DirectPlan direct;
  direct.slices = slices_between(balanced_slices(plan.count, group->size()));
  direct.element = direct.result_element = element;
  direct.data = direct.result = plan.data;
  direct.ordered = is_floating(plan.dtype);
  direct.add = add;
  direct.transform = std::move(plan.finish);
  shape.tag = Direct::tag(operations, direct);
  return std::unique_ptr<Task>(std::make_unique<Direct>(operations, shape, std::move(direct), false,
                                                        std::move(done), std::move(group)));
}

}  // namespace dsgd
