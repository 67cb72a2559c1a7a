// Copies of the state in a new view: of the values and the optimizer's state of the worker that has completed
// most steps, to workers that are a step behind. Learners fetch trained parameters and their state
// (state_fetcher.h), and copy the other parameters.
//
// A worker that is behind could instead fetch the sums of the step. But then every worker would have to keep
// them until the header of the next step is complete: twice the buffers, or one more round trip in each step.
// Losses are rare, so it copies values and optimizer state.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/objects/objects.h"
#include "core/session/engine_state.h"
#include "core/session/start.h"
#include "core/session/state_fetcher.h"
#include "core/session/view_decision.h"

namespace dsgd {

class StateCopier {
 public:
  // `fetcher`: of the engine, which sets and resets it. Null: this worker is no learner.
  StateCopier(EngineState& state, Objects& objects, const Start& start,
              const std::unique_ptr<StateFetcher>& fetcher)
      : state_(state), objects_(objects), start_(start), fetcher_(fetcher) {}
  // Copies state as decided; all workers of the view call it. Then calls `then`, unless another view comes or
  // this worker's settings differ. A failure fails the session.
  void copy(const std::shared_ptr<Call>& call, const ViewDecision& decision,
            const std::vector<transport::ViewReport>& reports, std::function<void()> then);

 private:
  struct Transfer;
  struct StateCopy;
  using SharedTransfer = std::shared_ptr<Transfer>;
  using SharedCopy = std::shared_ptr<StateCopy>;

  void name_difference(const SharedTransfer& transfer, std::shared_ptr<const Group> informed,
                       const transport::ViewReport& report);
  bool copies_state(const Transfer& transfer) const;
  void give(const SharedTransfer& transfer);
  void give_objects(const SharedTransfer& transfer, std::function<void()> then);
  void receive(const SharedTransfer& transfer, const std::vector<transport::ViewReport>& reports);
  void broadcast(const SharedTransfer& transfer, SharedCopy copy, std::function<void()> then);
  void apply(const SharedTransfer& transfer, SharedCopy copy, const transport::ViewReport& report);
  void end_step(const transport::ViewReport& report);
  void end_start(const transport::ViewReport& report);

  EngineState& state_;
  Objects& objects_;
  const Start& start_;
  const std::unique_ptr<StateFetcher>& fetcher_;
};

}  // namespace dsgd
