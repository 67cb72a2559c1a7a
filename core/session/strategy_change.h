// Changes of the strategy, and of the settings of parameters, after the start. In a change of the strategy
// the optimizer's state first goes from the owners of its ranges to every worker; then the new plan holds.
#pragma once

#include <cstddef>
#include <memory>

#include "core/session/engine_state.h"
#include "core/session/state_placement.h"

namespace dsgd {

class StrategyChange {
 public:
  using Done = EngineState::Done;

  StrategyChange(EngineState& state, StatePlacement& placement) : state_(state), placement_(placement) {}
  // dsgd_strategy_set, on all workers.
  void begin(const StrategySpec& strategy, Done done, const CallOptions& options);
  Status replan();  // the settings of parameters have changed

 private:
  void replace_plan(const Call& call, transport::Time deadline, std::shared_ptr<const Plan> plan,
                    Done replaced);
  void move_state(const std::shared_ptr<Call>& call, Done done);
  void agree_on_moved_state(const std::shared_ptr<Call>& call, const PreparedChange& change, Done agreed);
  void apply_in_view(const std::shared_ptr<Call>& call, const StrategySpec& strategy, const Done& done,
                     const Done& applied);
  void gather_state(const std::shared_ptr<Call>& call, std::shared_ptr<const Plan> plan, size_t index,
                    size_t tensor, Done done);

  EngineState& state_;
  StatePlacement& placement_;
};

}  // namespace dsgd
