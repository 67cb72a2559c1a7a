// The engine: a worker's whole protocol state after it has joined, on the session's loop. Each function
// starts work and returns; the loop calls `done` when the work has ended. The session (threads, blocking) and
// the simulation (neither) both drive it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/device/buffer_copier.h"
#include "core/mesh/mesh.h"
#include "core/model/model.h"
#include "core/objects/objects.h"
#include "core/session/checkpoints.h"
#include "core/session/collectives.h"
#include "core/session/engine_options.h"
#include "core/session/engine_state.h"
#include "core/session/last_step.h"
#include "core/session/last_values.h"
#include "core/session/start.h"
#include "core/session/state_copier.h"
#include "core/session/state_fetcher.h"
#include "core/session/state_placement.h"
#include "core/session/strategy_change.h"
#include "core/session/view_decision.h"
#include "transport/files.h"
#include "transport/payloads.h"

namespace dsgd {

class Engine final : public SessionEvents {
 public:
  using Done = std::function<void(const Status&)>;
  using StepDone = Step::Done;

  // Without a mesh (one worker) collectives are local.
  Engine(transport::Loop& loop, Model& model, EngineOptions options, std::shared_ptr<Log> log);
  ~Engine() override;
  // When the session fails, `call` is called once, before any operation ends with the failure. It must not
  // throw.
  void before_failure(std::function<void(const Status&)> call) { before_failure_ = std::move(call); }
  // `call` is called once, when all operations have ended with the failure.
  void after_failure(std::function<void(const Status&)> call) { after_failure_ = std::move(call); }
  // `report` reports the possible loss of a worker. `unreachable`: the peer that this worker cannot reach,
  // because of `cause`; -1: another worker has noticed the loss. It returns true if the head decides which
  // worker is lost. Its verdict then follows, by fail() or change_view(); if none has come when it is due,
  // the session fails with its own error. `silent`: as in on_peer_unreachable(); if the peer has answered by
  // then, the session goes on.
  void use_loss_report(std::function<bool(int32_t unreachable, const Status& cause, bool silent)> report) {
    report_loss_ = std::move(report);
  }
  // `due` says when the head's verdict on a loss reported at that time is due.
  void use_verdict_due(std::function<transport::Time(transport::Time)> due) { verdict_due_ = std::move(due); }

  // This worker is a learner: it joins a running job. start() fetches the state of the workers of the
  // `present` view, and then calls `enter`, which asks the head for a view with this worker; change_view() or
  // fail_start() follows. Other collectives fail until start() has ended.
  void join_running_job(std::function<transport::JoinReply()> present, std::function<void()> enter) {
    present_view_ = std::move(present);
    enter_ = std::move(enter);
    state_.phase = ViewPhase::kOutside;
  }
  // `held` is called when this worker, which has joined, has the job's state.
  void on_state_held(std::function<void()> held) { on_state_held_ = std::move(held); }
  bool outside_view() const { return state_.phase == ViewPhase::kOutside; }
  void fail_start(const Status& why);
  // Call when the present view has changed: a worker whose state is being fetched may have left it.
  void check_sources();

  // `changed` is called when the job goes on in another view, and ranks are those of it.
  void on_view(std::function<void(const transport::JoinReply& view)> changed) {
    on_view_ = std::move(changed);
  }

  // The mesh exists before the view does, since peers may dial early.
  void use_mesh(Mesh* mesh) {
    state_.mesh = mesh;
    state_.step.use_mesh(mesh);
    state_.calls.use_mesh(mesh);
    objects_.use_peers(mesh ? &mesh->peers : nullptr);
    if (mesh) mesh->operations.on_early_operation([this] { checkpoints_.start_next(); });
  }
  Status open(const transport::JoinReply& view);
  // This worker rejects the call `name`, which all workers make together. The call fails on the others, too;
  // the session goes on.
  void reject_call(const std::string& name, const Status& why);

  int32_t rank() const { return state_.rank(); }
  int32_t size() const { return state_.size(); }
  uint64_t view() const { return state_.view(); }
  const Status& failure() const { return state_.failure; }  // OK: the session has not failed
  bool torn() const { return !state_.torn.ok(); }

  Collectives& collectives() { return collectives_; }
  // Admits a collective or an object call, or says why not. The first one after a change of the view fails,
  // unless the result of a step has named the view before.
  Status admit_call();
  uint64_t reported_view() const { return reported_view_; }  // that the host knows; any thread

  void start(const StrategySpec& strategy, Done done, const CallOptions& options = {});
  void set_strategy(const StrategySpec& strategy, Done done, const CallOptions& options = {}) {
    strategy_change_.begin(strategy, std::move(done), options);
  }
  Status replan() { return strategy_change_.replan(); }  // settings of parameters have changed

  // `shards` outlives the engine.
  void use_files(std::shared_ptr<transport::Files> files, ShardList* shards) {
    checkpoints_.use_files(std::move(files));
    state_.shards = shards;
  }
  Checkpoints& checkpoints() { return checkpoints_; }
  uint64_t next_step() const { return state_.next_step; }

  const Step& step() const { return state_.step; }
  GradientMarks& marks() { return state_.step.marks(); }  // any thread
  const Objects& objects() const { return objects_; }
  // A stream of the host, which the step in flight was to wait for, has failed.
  void stream_failed(const Status& why) { state_.step.device_failed(why); }

  // `weights` by replica.
  // `wait_for_devices`: `done` is called when the new values are in memory, not only enqueued on the devices.
  void step_begin(std::vector<double> weights, bool stop, bool wait_for_devices, StepDone done,
                  const CallOptions& options = {});
  void buckets_ready(const std::vector<uint32_t>& buckets) { state_.step.buckets_ready(buckets); }

  // Calls `done` when the work enqueued in the context has ended, or with an error after step_timeout.
  void when_queue_done(DeviceContext& context, Done done) {
    waiter_.after(context.device->name(), *context.queue, *context.reached, state_.calls.deadline(),
                  std::move(done));
  }

  // Copies of what collectives read and write on devices. They fail with the session.
  device::BufferCopier& buffer_copier() { return buffer_copier_; }

  // Calls `done` when all work that is enqueued on the replicas' devices now has ended, or with the failure
  // of a device or of the session.
  void when_devices_done(Done done) { state_.step.when_devices_done(waiter_, std::move(done)); }

  void put_object(const std::string& name, SharedObject object, Done done, const CallOptions& options = {});
  void delete_object(const std::string& name, Done done, const CallOptions& options = {});
  // Returns a ticket for cancel_get; 0 when `done` was called at once.
  uint64_t get_object(const std::string& name, std::function<void(Result<SharedObject>)> done,
                      const CallOptions& options = {});
  void cancel_get(uint64_t ticket, const Status& why) { objects_.cancel(ticket, why); }

  // Returns the number of the channel's next call.
  uint64_t next_call(uint32_t channel = 0) const { return state_.calls.next(channel); }
  // Returns what the call waits for, with the first missing rank and a parameter.
  WaitReport wait_report(uint64_t call) const { return state_.wait_report(call); }
  // For the head: the steps made, and one open call: the oldest that waits for workers, else the oldest that
  // is busy, else the oldest (engine_waiting.cc).
  transport::Progress progress() const;
  Status waiting_for_object(const std::string& operation, const std::string& name) const {
    return objects_.waiting(operation, name);
  }

  // Fails the session with `cause`. `tell_peers`: the other workers do not know the cause yet.
  void fail(const Status& cause, bool tell_peers);
  // The failure of a session that has run out of memory, preallocated.
  const Status& exhausted() const { return exhausted_; }
  // The head's news: `rank` has left; the job goes on in another view, because of `why` (engine_view.cc).
  void note_departure(int32_t rank, uint64_t departure_call);
  void change_view(const transport::JoinReply& view, const Status& why);
  // As EngineState::recovering(). A worker that closes in this time counts as lost.
  bool recovering() const { return state_.recovering(); }
  // This worker closes its session in the middle of a step, which cannot end without these gradients.
  void leave_step(const UnmarkedGradients& unmarked) { state_.step.leave(unmarked); }
  // Digests the values and compares them with goodbyes that have come; close() sends the digests. Does
  // nothing for a single worker, before the first step, after a failure, or if the last step has compared all
  // values. Calls `then` in every case.
  void compare_last_values(transport::Time deadline, std::function<void()> then);
  // Where views change: waits until all others have completed the last step of this worker, so that the job
  // cannot repeat it without this worker any more. Calls `then` in every case: with an error if the session
  // fails meanwhile, or others give that step up, and with kEvicted if this worker was evicted before.
  void await_last_step(transport::Time deadline, std::function<void(const Status&)> then);
  void hasten_last_step(transport::Time deadline) { last_step_.hasten(deadline); }
  // Whether await_last_step() has ended for all steps of this worker. A step in flight may end after it.
  bool has_awaited_last_step() const { return !has_last_step() || last_step_.has_awaited(state_.next_step); }
  // Returns the first call that this worker does not make, if steps of that and later calls may go on without
  // it; else 0.
  uint64_t close(const Status& cause);
  const Status& divergence() const { return last_values_.divergence(); }  // found as it closed
  // The last call on the loop: nothing is posted to it any more. Timers that are left end with it.
  void detach_from_loop() {
    waiter_.close();
    buffer_copier_.close();
    state_.staging_queue.close();
    state_.step.close();
    state_.stalls.close();
    checkpoints_.close();
  }
  bool idle() const;  // no operation is in flight
  bool all_sent() const { return !state_.mesh || state_.mesh->peers.all_sent(); }

  // SessionEvents
  void on_peer_failure(int32_t rank, const Status& why) override;
  void on_peer_unreachable(int32_t rank, const Status& error, const Status& network_error,
                           bool silent) override;
  void on_peer_departed(int32_t rank) override;
  void on_goodbye(int32_t rank, uint64_t steps, std::vector<uint64_t> digests) override;
  void on_given_up(int32_t rank, uint64_t call, const Status& cause) override;
  void on_completion_asked(int32_t rank, uint64_t steps, transport::Responder respond) override;
  void on_state_asked(const std::string& worker_id, const transport::FetchState& question,
                      transport::Responder respond) override;
  void on_learner_gone(const std::string& worker_id) override { state_.giver.forget(worker_id); }
  void on_object(transport::Message message, transport::Responder respond) override;
  std::unique_ptr<transport::BulkSink> on_object_data(uint64_t put, const transport::BulkHeader& header,
                                                      size_t nbytes) override {
    return objects_.on_data(put, header, nbytes);
  }
  void on_object_data_end(uint64_t put, const transport::BulkHeader& header,
                          std::unique_ptr<transport::BulkReceipt> receipt) override {
    objects_.on_data_end(put, header, std::move(receipt));
  }

 private:
  struct NextView {
    transport::JoinReply view;
    Status why;
    std::vector<std::pair<int32_t, uint64_t>> departures;  // reported after this view was published
  };
  void step_ended(const Status& status, const StepResult& result, const StepDone& done);
  // Returns what a call about an object waits for, for StallWatch.
  StallWatch::Ask object_report(const char* operation, const std::string& name) const;
  Objects::Deadline object_deadline(const CallOptions& options = {}) const {
    return {state_.calls.deadline(options), state_.calls.deadline_setting(options)};
  }

  void learn();  // the start of a learner that is in no view yet

  // Changes of the view (engine_view.cc).
  Status torn_before(const Status& change) const;
  Status view_changed(const transport::JoinReply& view) const;
  Status not_started() const;  // of a worker that joins
  void enter_view();
  void enter_first_view(const transport::JoinReply& view, const Status& why);
  void begin_agreement();
  void send_report(const std::shared_ptr<Call>& call);
  void apply_prepared(const std::shared_ptr<Call>& call, uint64_t change);
  void on_missing_report(const std::shared_ptr<Call>& call, const Status& why);
  void on_reports(const std::shared_ptr<Call>& call, const Calls::Parts& encoded);
  void add_samples(transport::ViewReport* mine) const;
  Status deal_samples(const std::vector<transport::ViewReport>& reports, bool epoch_over);
  void copy_and_resume(const std::shared_ptr<Call>& call, const ViewDecision& decision,
                       const std::vector<transport::ViewReport>& reports);
  void start_again(const std::vector<transport::ViewReport>& reports);
  void resume(const std::vector<uint64_t>& calls);
  void end_recovery();
  bool has_host_calls() const;
  void resume_step();
  bool has_last_step() const;  // that others could repeat
  void ask_for_last_step();    // unless the workers of the view have yet to agree

  // Failures.
  // Ends the start, and all calls, copies, objects, checkpoints and streams of state that wait.
  void end_waits(const Status& why);
  void await_verdict(const Status& error, int32_t peer, const Status& network_error, bool silent = false);
  void fail_without_verdict(const Status& error, int32_t peer, bool silent, transport::Time reported);
  void report_non_finite(const StepResult& result);

  void warn_of_departed(uint64_t call);

  Objects objects_;
  device::Waiter waiter_;
  device::BufferCopier buffer_copier_;
  EngineState state_;
  Collectives collectives_;
  StatePlacement placement_;
  Start start_;
  StrategyChange strategy_change_;
  Checkpoints checkpoints_;
  StateCopier copier_;
  std::unique_ptr<StateFetcher> fetcher_;  // of a learner

  // Failures.
  Status exhausted_;  // exhausted()
  enum class Failing { kNo, kRunning, kDone };
  Failing failing_ = Failing::kNo;  // kRunning while fail() ends all operations; kDone: all have ended
  bool tell_peers_ = false;
  std::function<void(const Status&)> before_failure_, after_failure_;
  std::function<bool(int32_t, const Status&, bool)> report_loss_;
  std::function<transport::Time(transport::Time)> verdict_due_;

  uint64_t last_step_call_ = 0;  // of the last step that succeeded

  // Changes of the view.
  std::function<void(const transport::JoinReply&)> on_view_;
  // The view to enter when the commit in progress, and the state being applied to the replicas, have ended.
  std::optional<NextView> next_view_;
  std::atomic<uint64_t> reported_view_ = 1;             // that the host knows; written on the loop
  std::function<void()> enter_;                         // of a learner
  std::function<transport::JoinReply()> present_view_;  // of a learner
  uint64_t agreement_watch_ = 0;  // a ticket of StallWatch; 0: no agreement is in progress
  std::function<void()> on_state_held_;

  // The end of the session.
  LastStep last_step_;
  LastValues last_values_;
  std::vector<int32_t> departed_;  // ranks that have left, and that warn_of_departed() has not named yet
};

}  // namespace dsgd
