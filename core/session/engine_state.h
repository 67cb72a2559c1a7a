// The state that the parts of an engine share: the model, its step, the calls of all workers, and how far
// this worker is. The engine (engine.h) owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/base/refusal_log.h"
#include "core/data/shard_list.h"
#include "core/mesh/mesh.h"
#include "core/model/model.h"
#include "core/session/calls.h"
#include "core/session/engine_options.h"
#include "core/session/operation.h"
#include "core/session/stall_watch.h"
#include "core/session/state_giver.h"
#include "core/step/staging_queue.h"
#include "core/step/step.h"
#include "core/strategy/plan.h"

namespace dsgd {

// Values on the host, by parameter: replica 0's own buffers, or copies where a replica is on another device.
using HostValues = std::vector<std::shared_ptr<void>>;

// A change of the strategy, or a load of a checkpoint, in the second phase of a two-phase commit: this worker
// has told the others that it can apply the change, and does not know yet whether all of them can. If the
// view changes now, some may have applied it. The reports of the new view decide (ViewDecision).
struct PreparedChange {
  using Done = std::function<void(const Status&)>;
  Call call;                        // that all workers make
  std::function<void(Done)> apply;  // ends the host's call unless it has ended, then calls its argument
  Done end;                         // ends the host's call without the change
};

// How this worker stands in its view. Another view leads from any phase but kOutside to kEntering.
enum class ViewPhase {
  kOutside,   // a learner that is in no view yet; then kAgreeing
  kEntering,  // ends the operations of the earlier view; then kAgreeing
  kAgreeing,  // the workers of the view agree on its state; then kAgreed or kOpen
  kAgreed,    // the view is paused, or the workers repeat the start; then kOpen
  kOpen       // steps and calls are made
};

struct EngineState {
  using Done = std::function<void(const Status&)>;

  EngineState(transport::Loop& of_session, Model& of_worker, EngineOptions engine_options,
              std::shared_ptr<Log> of_log);

  transport::Loop& loop;
  Model& model;
  const EngineOptions options;
  const std::shared_ptr<Log> log;
  RefusalLog events;            // what may repeat with every step
  Mesh* mesh = nullptr;         // null: one worker
  ShardList* shards = nullptr;  // of the host's data; null: nothing reads samples
  // Functions of the engine, which its constructor sets: Engine::fail() and Engine::admit_call(). A part
  // calls change_applied() when it has reset `applying`: a view, or a worker's question, may have come
  // meanwhile.
  std::function<void(const Status&, bool tell_peers)> fail;
  std::function<Status()> admit_call;
  std::function<void()> change_applied;

  Step step;
  StallWatch stalls;
  Calls calls;
  StagingQueue staging_queue;
  StateGiver giver;
  std::shared_ptr<int> alive = std::make_shared<int>();  // the engine's timers hold it weakly

  // Failures.
  Status failure;  // OK: the session has not failed
  Status torn;     // why no step can succeed any more: one failed half-way, or values differ

  // The start, and steps.
  bool started = false;
  uint64_t next_step = 0;
  uint64_t strategy_version = 0;  // number of changes of the strategy and of loaded checkpoints
  int changes = 0;                // of these, in progress: begin_change()
  uint64_t applied_change = 0;    // number of the last of these calls that has succeeded
  std::optional<PreparedChange> prepared;
  std::optional<uint64_t> joined_at;  // the first step of a worker that has joined the running job
  StepResult last_result;             // of the last step that succeeded
  bool compared = false;              // the last step has compared all values

  // Changes of the view.
  ViewPhase phase = ViewPhase::kOpen;
  Status view_cause;      // why the present view has come
  bool learner = false;   // in a view, but its dsgd_start has not ended
  bool applying = false;  // a copy, a new plan or a checkpoint is being applied to the replicas
  // Whether this worker has entered a view whose workers have not agreed on its state yet, or which is
  // paused.
  bool recovering() const { return phase != ViewPhase::kOutside && phase != ViewPhase::kOpen; }

  int32_t rank() const { return mesh ? mesh->peers.rank() : 0; }
  int32_t size() const { return mesh ? mesh->peers.size() : 1; }
  uint64_t view() const { return mesh ? mesh->members().view().view : 1; }
  std::string view_change_name() const { return "the change to view " + std::to_string(view()); }
  // Returns a function that calls `then`, unless the view changes first or the session fails.
  template <typename Then>
  auto in_view(Then then) {
    return [this, then = std::move(then), entered = view()](auto&&... arguments) {
      if (phase != ViewPhase::kEntering && entered == view() && failure.ok())
        then(std::forward<decltype(arguments)>(arguments)...);
    };
  }

  // All that must be equal on all workers: describe_settings(), and the size of chunks.
  std::string signature(const std::string& strategy, bool with_rate) const;
  // Fails also if the strategy, or its algorithm, cannot run this job. `frozen_too`: includes frozen
  // parameters, whose state may move.
  Result<Plan> plan_of(const StrategySpec& strategy, bool frozen_too = false) const;
  // A failed allocation fails the session on all workers, since they have agreed on the plan.
  Status apply_plan(Plan plan);
  // A load of a checkpoint or a change of the strategy is in progress until the returned function is called.
  Done begin_change(Done done);
  // Keeps `change` for a change of the view, if views change and no other one is prepared.
  void prepare(PreparedChange change);
  bool has_prepared(const Call& call) const { return prepared && prepared->call.number == call.number; }
  // Call when the exchange after prepare() has ended. If the view is changing, keeps the change until the
  // reports of the new view decide, and returns true; the call still ends by its deadline. Otherwise drops
  // the prepared change and returns false: this worker knows the result.
  bool defer_to_reports(const Call& call);
  // This worker rejects the channel's next call, which all workers make together.
  void reject_next_call(uint32_t channel, const std::string& name, const Status& why);

  // Returns host memory for all values: the host's own buffers in its first dsgd_start, else new memory.
  // `filled`: with this worker's values. Copies from GPUs are only enqueued. Without `trained`: null for
  // trained parameters.
  Result<HostValues> host_values(bool filled, bool trained = true);
  Status spread_values(const HostValues& values);  // enqueues copies to all replicas
  // Work enqueued in the contexts' queues from now on happens after the work in the host's default streams.
  Status follow_default_streams();

  // Returns whether this worker of the view has joined after the job began, and rank 0 has not.
  bool has_joined_later(int32_t rank) const;
  // This worker has joined later and its settings differ: it fails, and the others go on without it.
  void fail_learner(const std::string& difference);
  // The error for a message of that rank which this worker cannot read, because of `why`.
  Status other_version(int32_t rank, const Status& why) const;

  // Returns what the call waits for, with the first missing rank and a parameter (engine_waiting.cc).
  WaitReport wait_report(uint64_t call) const;
  WaitReport report_of(const std::vector<int32_t>& ranks, const std::string& operation,
                       const std::string& what) const;

 private:
  Status check_strategy(const StrategySpec& strategy) const;
};

}  // namespace dsgd
