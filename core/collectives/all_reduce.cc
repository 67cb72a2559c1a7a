#include "core/collectives/all_reduce.h"

#include <algorithm>
#include <utility>

#include "core/collectives/direct.h"
#include "core/collectives/exchange.h"
#include "core/collectives/halving_doubling.h"
#include "core/collectives/ring.h"
#include "core/collectives/scheduled.h"
#include "core/mesh/operations.h"

namespace dsgd {
namespace {

AllReduceAlgorithm generated(const char* name, Algorithm code, Generator generate) {
  return {name, make_scheduled_all_reduce, NcclUse::kNever, std::make_shared<ScheduleAlgorithm>(generate),
          code};
}

const AllReduceAlgorithm& ring() {
  static const auto* const kRow = new AllReduceAlgorithm(generated("ring", Algorithm::kRing, generate_ring));
  return *kRow;
}

// In one hop each worker sends its data W-1 times, instead of at most twice; up to kOneHopBytes the saved
// round is worth that. A bucket takes two rounds all the same: in one, a worker that comes late would
// complete a step with data of others that have given it up meanwhile. Beyond 32 workers the ring sends fewer
// messages than direct.
Result<std::unique_ptr<Task>> make_by_size(const AllReduceAlgorithm& algorithm, AllReduceCall call) {
  constexpr size_t kOneHopBytes = 128 << 10;
  constexpr int32_t kDirectWorkers = 32;
  const size_t nbytes = call.plan.count * dtype_size(call.plan.dtype);
  const size_t others = static_cast<size_t>(call.group->size()) - 1;
  const bool is_bucket = call.shape.kind == static_cast<uint8_t>(Kind::kBucket);
  if (!is_bucket && nbytes <= transport::kSmallBytes && nbytes * others <= kOneHopBytes)
    return make_one_hop_all_reduce(std::move(call));
  if (call.group->size() > kDirectWorkers) return make_scheduled_all_reduce(ring(), std::move(call));
  return make_direct_all_reduce(algorithm, std::move(call));
}

}  // namespace

const std::vector<AlgorithmChoice>& built_in_all_reduces() {
  static const auto* const kTable = new std::vector<AlgorithmChoice>([] {
    std::vector<AlgorithmChoice> rows;
    for (AllReduceAlgorithm row : {
             AllReduceAlgorithm{"auto", make_by_size, NcclUse::kWherePossible},
             AllReduceAlgorithm{"direct", make_direct_all_reduce},
             generated("halving_doubling", Algorithm::kHalvingDoubling, generate_halving_doubling),
             AllReduceAlgorithm{"nccl", make_by_size, NcclUse::kRequired},  // on the host as auto
             ring(),
         }) {
      rows.emplace_back(std::make_shared<const AllReduceAlgorithm>(std::move(row)));
    }
    return rows;
  }());
  return *kTable;
}

AlgorithmChoice::AlgorithmChoice()
    : AlgorithmChoice(*std::find_if(built_in_all_reduces().begin(), built_in_all_reduces().end(),
                                    [](const AlgorithmChoice& row) { return row->name == "auto"; })) {}

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
  AllReduceCall call{operations, shape, std::move(plan), std::move(done), std::move(group)};
  if (call.plan.count == 0) return make_one_hop_all_reduce(std::move(call));  // workers only compare the call
  return choice->make(*choice, std::move(call));
}

}  // namespace dsgd
