#include "core/collectives/all_reduce.h"

#include <utility>

#include "core/collectives/direct.h"
#include "core/collectives/mesh.h"
#include "core/collectives/ring.h"
#include "core/collectives/scheduled.h"

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
  if (choice.registered) return Algorithm::kScheduled;
  if (choice.name == "ring") return Algorithm::kRing;
  if (choice.name == "direct") return Algorithm::kDirect;
  return workers > kDirectWorkers ? Algorithm::kRing : Algorithm::kDirect;
}

Result<std::unique_ptr<Task>> make_all_reduce(Mesh& mesh, transport::BulkHeader shape, const AlgorithmChoice& choice,
                                              AllReducePlan plan, Task::Done done) {
  const Algorithm algorithm = algorithm_of(choice, mesh.size());
  shape.algorithm = static_cast<uint8_t>(algorithm);
  if (algorithm == Algorithm::kScheduled) {
    auto schedule = choice.registered->schedule(mesh.rank(), mesh.size(), plan.count);
    if (!schedule.ok()) return schedule.status();
    shape.tag = Scheduled::tag(mesh, *schedule.value());
    done = finish_all(plan, std::move(done));
    return std::unique_ptr<Task>(std::make_unique<Scheduled>(
        mesh, shape, ScheduledPlan{schedule.value(), plan.element, plan.data, std::move(plan.add)}, std::move(done)));
  }
  if (algorithm == Algorithm::kRing) {
    shape.tag = mesh.chunk_bytes();
    done = finish_all(plan, std::move(done));
    return std::unique_ptr<Task>(std::make_unique<Ring>(
        mesh, shape, RingPlan{plan.count, plan.element, plan.data, std::move(plan.add)}, std::move(done)));
  }
  DirectPlan direct;
  direct.bounds = balanced_slices(plan.count, mesh.size());
  direct.element = direct.result_element = plan.element;
  direct.data = direct.result = plan.data;
  direct.ordered = plan.ordered;
  direct.add = std::move(plan.add);
  direct.transform = std::move(plan.finish);
  shape.tag = Direct::tag(mesh, direct);
  return std::unique_ptr<Task>(std::make_unique<Direct>(mesh, shape, std::move(direct), false, std::move(done)));
}

}  // namespace dsgd
