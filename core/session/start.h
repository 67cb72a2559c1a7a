// dsgd_start: all workers compare what must be equal, agree on the GPUs that NCCL reduces over, and begin
// with the values of one of them. A worker that joins a running job fetches the state instead
// (state_fetcher.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/session/engine_state.h"
#include "core/session/state_placement.h"
#include "core/session/team_formation.h"

namespace dsgd {

class Start {
 public:
  using Done = EngineState::Done;

  Start(EngineState& state, StatePlacement& placement)
      : state_(state), placement_(placement), teams_(state) {}
  // The start is pending from now on, until end(). run() follows, unless this worker joins a running job and
  // fetches the state of the others.
  void begin(const StrategySpec& strategy, Done done, const CallOptions& options) {
    pending_ = Pending{strategy, options, std::move(done)};
  }
  bool pending() const { return pending_.has_value(); }
  // Of the pending start.
  const StrategySpec& strategy() const { return pending_->strategy; }
  const CallOptions& options() const { return pending_->options; }
  uint64_t call() const { return pending_ ? pending_->call : 0; }  // 0: none is pending, or it has none yet
  // Returns the signature that this worker reports in a new view, without the learning rate. This worker has
  // started, or its start is pending.
  std::string present_signature() const;
  // Runs the pending start with all workers of the view; again in each view that begins before it has ended.
  void run();
  // The rank whose values all workers begin with.
  void set_source(int32_t rank) { source_ = rank; }
  void end(const Status& status);  // the pending start, if there is one

 private:
  using SharedCall = std::shared_ptr<Call>;
  struct Pending {
    StrategySpec strategy;
    CallOptions options;
    Done done;
    uint64_t call = 0;
  };
  struct Own {  // of this worker, in run()
    std::string signature;
    Status unusable;  // why this worker's plan cannot be used
    std::shared_ptr<const Plan> plan;
  };

  void on_headers(const SharedCall& call, const Own& mine, const Calls::Parts& encoded, const Done& done);
  void compare_signatures(const SharedCall& call, std::string mine, size_t length, Done done);
  void on_differences(const Calls::Parts& differences, const Done& done);
  void form_teams(const SharedCall& call, std::shared_ptr<const Plan> plan, std::vector<uint32_t> gpus_of,
                  const Done& done);
  void give_values(const SharedCall& call, std::shared_ptr<const Plan> plan, Done done);

  EngineState& state_;
  StatePlacement& placement_;
  TeamFormation teams_;
  std::optional<Pending> pending_;
  int32_t source_ = 0;
};

}  // namespace dsgd
