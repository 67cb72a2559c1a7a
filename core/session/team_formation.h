// Forms the teams of workers whose GPU gradients NCCL reduces: a part of the start. All workers exchange what
// they know of their GPUs, decide alike (team_decision.h), and join the communicators of their teams.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/session/engine_state.h"
#include "core/session/team_decision.h"
#include "core/step/teams.h"

namespace dsgd {

class TeamFormation {
 public:
  using Done = EngineState::Done;

  explicit TeamFormation(EngineState& state) : state_(state) {}
  // The GPUs of this worker's replicas, each once, in the order of the replicas.
  std::vector<std::shared_ptr<device::Device>> gpus() const;
  // For the strategy that training begins with. A later strategy may use the teams or not. `gpus_of`: number
  // of GPUs by rank.
  void form(const std::shared_ptr<Call>& call, const StrategySpec& strategy, std::vector<uint32_t> gpus_of,
            Done done);

 private:
  Result<device::Device::CommunicatorLibrary> communicator_library() const;
  Result<std::vector<GpusOfWorker>> read(const Calls::Parts& encoded,
                                         const std::vector<uint32_t>& gpus_of) const;
  void join(const std::shared_ptr<Call>& call, Teams teams, Done done);

  EngineState& state_;
};

}  // namespace dsgd
