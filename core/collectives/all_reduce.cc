#include "core/collectives/all_reduce.h"

#include <utility>

#include "core/collectives/direct.h"
#include "core/collectives/ring.h"
#include "core/collectives/scheduled.h"
#include "core/mesh/operations.h"

namespace dsgd {
namespace {

// Direct, and beyond 32 workers the ring, which sends fewer messages.
Result<std::unique_ptr<Task>> make_by_size(const AllReduceAlgorithm& algorithm, AllReduceCall call) {
  constexpr int32_t kDirectWorkers = 32;
  return (call.group->size() > kDirectWorkers ? make_ring_all_reduce : make_direct_all_reduce)(
      algorithm, std::move(call));
}

}  // namespace

const std::vector<AlgorithmChoice>& built_in_all_reduces() {
  static const auto* const kTable = new std::vector<AlgorithmChoice>([] {
    std::vector<AlgorithmChoice> rows;
    for (AllReduceAlgorithm row : {
             AllReduceAlgorithm{"auto", make_by_size, NcclUse::kWherePossible, true},
             AllReduceAlgorithm{"direct", make_direct_all_reduce},
             AllReduceAlgorithm{"nccl", make_by_size, NcclUse::kRequired},  // on the host as auto
             AllReduceAlgorithm{"ring", make_ring_all_reduce},
         }) {
      rows.emplace_back(std::make_shared<const AllReduceAlgorithm>(std::move(row)));
    }
    return rows;
  }());
  return *kTable;
}

AlgorithmChoice::AlgorithmChoice() : AlgorithmChoice(built_in_all_reduces().front()) {}

AlgorithmChoice registered_all_reduce(const std::string& name, ScheduleAlgorithm::Write write) {
  AllReduceAlgorithm row{name, make_scheduled_all_reduce};
  row.schedules = std::make_shared<ScheduleAlgorithm>(name, std::move(write));
  return AlgorithmChoice(std::make_shared<const AllReduceAlgorithm>(std::move(row)));
}

Task::Done finish_all(const AllReducePlan& plan, Task::Done done) {
  if (!plan.finish) return done;
  return [finish = plan.finish, count = plan.count, done = std::move(done)](const Status& status) {
    if (status.ok()) finish(0, count);
    done(status);
  };
}

Result<std::unique_ptr<Task>> make_all_reduce(Operations& operations, transport::BulkHeader shape,
                                              const AlgorithmChoice& choice, AllReducePlan plan,
                                              Task::Done done, std::shared_ptr<const Group> group) {
  if (!group) group = operations.peers().members().world();
  return choice->make(*choice, {operations, shape, std::move(plan), std::move(done), std::move(group)});
}

}  // namespace dsgd
