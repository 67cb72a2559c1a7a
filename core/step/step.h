// One synchronous step, from gradients to new values, as a state machine on the session's loop:
//
//   begin      the header goes out: step, strategy, rate, weights, digest, stop
//   buckets    gradients are marked; their buckets travel, a few at a time, and become sums (step_buckets.h)
//   commit     the header agrees and every bucket is in: values and optimizer state change, on every device
//
// This class is the order of these phases, and the only one that ends a step. Its parts do the work;
// README.md lists them. They share the StepState, add operations through StepTasks and report failures
// through StepInFlight.
//
// Until the commit nothing of the model has changed, so a step that fails leaves values and state as they
// were. Gradients do not change before the step ends. They are read when their bucket is reduced locally, and
// again for exact sums, after a departure and in a new view. With one worker and one device that is not the
// host, sums stay there, unless they are exact.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/device/collective_queue.h"
#include "core/device/waiter.h"
#include "core/mesh/mesh.h"
#include "core/metrics/counters.h"
#include "core/model/step_result.h"
#include "core/step/commit.h"
#include "core/step/device_path.h"
#include "core/step/half_wire.h"
#include "core/step/header.h"
#include "core/step/step_buckets.h"
#include "core/step/step_group.h"
#include "core/step/step_in_flight.h"
#include "core/step/step_state.h"
#include "core/step/step_tasks.h"
#include "core/step/step_trace.h"
#include "core/step/untrained_values.h"
#include "core/step/value_comparison.h"

namespace dsgd {

class Step {
 public:
  using Done = std::function<void(const Status&, const StepResult&)>;

  // `on_device_failure` is called when a device fails in a step, or when the values of replicas differ. It
  // must fail the session, which ends the step.
  Step(transport::Loop& loop, Model& model, StepOptions options,
       std::function<void(const Status&)> on_device_failure);
  ~Step();
  void use_mesh(Mesh* mesh) { state_.mesh = mesh; }  // null: one worker
  // Where the view may change: called when the step needs a worker that has closed its session. The step
  // waits for a view without it.
  void on_worker_left(std::function<void(const Status&)> then) { on_worker_left_ = std::move(then); }
  std::string name() const { return state_.name(); }  // of the step in flight
  uint64_t call() const { return state_.request.call; }
  // Gradients that the step in flight waits for.
  UnmarkedGradients unmarked() const { return running() ? state_.marks.unmarked() : UnmarkedGradients(); }
  // "parameters 'a', 'b' and 3 more", of the buckets that these operations move; empty if they move none.
  std::string parameters_text(const std::vector<uint64_t>& operations) const {
    return buckets_.parameters_text(operations);
  }
  // Aborts the step and all waits on devices, since the session has failed.
  void abort(const Status& cause);

  // The devices that replicas are on; known from start.
  void set_contexts(std::vector<DeviceContext> contexts);
  std::vector<DeviceContext>& contexts() { return state_.contexts; }
  const std::vector<DeviceContext>& contexts() const { return state_.contexts; }
  DeviceContext& context_of(uint32_t replica) { return state_.context_of(replica); }
  // Known from start, too. `queue`: of this worker's devices; null if they are in no team.
  void set_teams(Teams teams, std::unique_ptr<device::CollectiveQueue> queue);
  // A new plan, at start and after a change of strategy or settings. It fails for want of memory.
  Status set_plan(Plan plan, uint64_t version);
  void set_version(uint64_t version) { version_ = version; }  // which headers compare
  const std::vector<Bucket>& plan() const { return state_.plan; }
  const StrategySpec& strategy() const { return state_.strategy; }
  bool has_teams() const { return state_.teams.any(); }
  bool reduces_by_teams(const StrategySpec& strategy) const { return state_.reduces_by_teams(strategy); }
  // Replicas of all workers of the view together.
  void set_replicas(uint32_t total) { state_.total_replicas = total; }

  void begin(StepRequest request, Done done);
  bool running() const { return done_ || suspended_; }  // a step is in flight; it may be suspended
  // The view changes: drops everything that the step in flight has exchanged. The marks of its gradients
  // stay, and resume() begins it again. Returns false if its commit has begun: it will end, and suspend() can
  // be called then.
  bool suspend(const Status& why);
  // Begins a step in the suspended state: the workers of a new view have not agreed yet on where they stand.
  void begin_suspended(StepRequest request, Done done);
  // Begins the suspended step again, as call `call`. A step is suspended.
  void resume(uint64_t call);
  // Ends the suspended step with a result that another worker has computed; the values are in the replicas.
  void end_suspended(const StepResult& result);
  // By rank: the samples that the workers had drawn, as of the last step that this worker has taken part in.
  const std::map<int32_t, transport::DrawnSamples>& drawn() const { return state_.drawn; }
  // For the workers of a new view, where the plan has the same buckets. No step is in flight, or it is
  // suspended.
  Status change_plan(Plan plan);
  GradientMarks& marks() { return state_.marks; }
  // The gradients of these buckets are marked.
  void buckets_ready(const std::vector<uint32_t>& buckets);
  void fail(const Status& cause) { fail(cause, cause); }
  // This worker closes its session, and these gradients are not marked: the step fails on all workers.
  void leave(const UnmarkedGradients& unmarked);
  // A device, or a stream of the host's, has failed: the session ends, and with it the step.
  void device_failed(const Status& cause);
  // The loop may end afterwards: devices no longer post to it.
  void close();
  // Gives `then` the digests of the values of replica 0, for find_divergence(), or the device's failure. Not
  // during a step.
  void digest_values(transport::Time deadline,
                     std::function<void(const Status&, std::vector<uint64_t>)> then) {
    values_.digest_all(deadline, std::move(then));
  }
  // The last step failed on all workers alike, before anything changed, so the workers may try again.
  bool failed_in_agreement() const { return progress_.agreed; }

  // Whether optimizer state lives with the owners of ranges, rather than on every worker.
  bool updates_at_owner() const { return state_.path.updates_at_owner; }
  size_t buffer_bytes() const { return state_.buffer_bytes; }  // memory that the step holds beside the model
  const metrics::StepCounters& counters() const { return trace_.counters(); }  // any thread
  OptimizerStateStore& optimizer_state() { return optimizer_state_; }
  // As Commit::on_update().
  void on_update(Commit::Noted noted) { commit_.on_update(std::move(noted)); }
  // Calls `then` when the work in the queues of all contexts has ended, or with an error after the deadline.
  void when_queues_done(transport::Time deadline, std::function<void(const Status&)> then) {
    devices_.when_queues_done(deadline, std::move(then));
  }
  // Calls `then` when all work that dsgd has enqueued on the devices so far has ended. No deadline. May be
  // called during a step, whose end does not end the wait; `waiter` is not the step's.
  void when_devices_done(device::Waiter& waiter, std::function<void(const Status&)> then) {
    devices_.when_devices_done(waiter, std::move(then));
  }

 private:
  Status make_buffers();
  void reset(StepRequest request);  // for a new step

  // Header.
  void send_header();
  void on_header(const Status& status, const std::vector<std::vector<std::byte>>& headers);
  void compare_settings();
  void compare_values(std::function<void()> agreed);  // all values; the step fails unless all workers agree

  // Commit.
  void commit_if_complete();
  void end_non_finite();
  void exchange_norms();
  void commit();
  Status update(size_t bucket);
  void update_by_norm();
  void after_updates();
  void exchange_untrained();
  void deliver_values();
  void end_without_data();
  void end_when_queues_done(bool norm);
  void end();

  // Failure and limits.
  void start_deadline_timer();
  void deadline_passed();
  void team_failed(const Status& cause);
  void announce_failure(const Status& why);
  void fail(const Status& cause, const Status& for_peers);
  bool waits_for_view(const Status& cause) const;
  void operation_failed(const Status& cause);
  void cancel_timers();

  transport::Loop& loop_;
  const std::function<void(const Status&)> on_device_failure_;
  std::function<void(const Status&)> on_worker_left_;
  StepState state_;
  const StepInFlight step_;
  uint64_t version_ = 0, plan_digest_ = 0;
  StepGroup group_;
  StepTasks tasks_;
  StepTrace trace_;
  device::Waiter waiter_;

  DevicePath devices_;
  OptimizerStateStore optimizer_state_;
  Commit commit_;
  HalfWire wire_;
  UntrainedValues untrained_;
  ValueComparison values_;

  // Of the step in flight.
  Done done_;
  Done suspended_;  // holds done_ while the step is suspended
  struct Progress {
    bool agreed = false;  // failed_in_agreement()
    bool norms_done = false;
    bool untrained_exchanged = false;
    bool exchanging = false;  // norms or untrained values; the commit waits for them
    bool committed = false;
    bool waits = false;  // for a view without a worker that has closed its session
  } progress_;           // reset whole by begin()

  transport::TimerId lost_worker_timer_ = 0;  // of the wait for the name of the lost worker
  transport::TimerId deadline_timer_ = 0;     // of a step that waits for the host's gradients, or for devices
  StepBuckets buckets_;  // last member: destroyed first, which stops devices from using the others
};

}  // namespace dsgd
