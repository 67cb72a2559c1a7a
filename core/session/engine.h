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

#include "core/base/log.h"
#include "core/base/refusal_log.h"
#include "core/device/staged_copies.h"
#include "core/mesh/mesh.h"
#include "core/model/model.h"
#include "core/objects/objects.h"
#include "core/session/calls.h"
#include "core/session/checkpoint_call.h"
#include "core/session/checkpoint_queue.h"
#include "core/session/collectives.h"
#include "core/session/engine_options.h"
#include "core/session/last_step.h"
#include "core/session/last_values.h"
#include "core/session/operation.h"
#include "core/session/stall_watch.h"
#include "core/session/state_giver.h"
#include "core/step/step.h"
#include "transport/files.h"
#include "transport/payloads.h"

namespace dsgd {

struct ViewDecision;

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
  // Sets the function that reports the possible loss of a worker. `unreachable`: the peer that this worker
  // cannot reach, because of `cause`; -1: another worker has noticed the loss. `loss` returns true if the
  // head decides which worker is lost. Its verdict then follows, by fail() or change_view(); if none has come
  // when it is due, the session fails with its own error. `silent`: as in on_peer_unreachable(); if the peer
  // has answered by then, the session goes on.
  void on_loss(std::function<bool(int32_t unreachable, const Status& cause, bool silent)> loss) {
    on_loss_ = std::move(loss);
  }
  // `due` says when the head's verdict on a loss reported at that time is due.
  void on_verdict_due(std::function<transport::Time(transport::Time)> due) { verdict_due_ = std::move(due); }

  // This worker is a learner: it joins a running job. start() fetches the state of the workers of the
  // `present` view, and then calls `enter`, which asks the head for a view with this worker; change_view() or
  // fail_start() follows. Other collectives fail until start() has ended.
  void join_later(std::function<transport::JoinReply()> present, std::function<void()> enter) {
    present_view_ = std::move(present), enter_ = std::move(enter);
  }
  void fail_start(const Status& why);
  void check_sources();  // `present` has changed: it may lack a worker whose state this one fetches

  // `changed` is called when the job goes on in another view, and ranks are those of it.
  void on_view(std::function<void(const transport::JoinReply& view)> changed) {
    on_view_ = std::move(changed);
  }

  // The mesh exists before the view does, since peers may dial early.
  void use_mesh(Mesh* mesh) {
    mesh_ = mesh;
    step_.use_mesh(mesh);
    calls_.use_mesh(mesh);
    objects_.use_peers(mesh ? &mesh->peers : nullptr);
  }
  Status open(const transport::JoinReply& view);
  // This worker rejects the call `name`, which all workers make together. The call fails on the others, too;
  // the session goes on.
  void refuse(const std::string& name, const Status& why);

  int32_t rank() const { return mesh_ ? mesh_->peers.rank() : 0; }
  int32_t size() const { return mesh_ ? mesh_->peers.size() : 1; }
  uint64_t view() const { return mesh_ ? mesh_->members().view().view : 1; }
  const Status& failure() const { return failure_; }  // OK: the session has not failed
  bool torn() const { return !torn_.ok(); }

  Collectives& collectives() { return collectives_; }
  // Admits a collective or an object call, or says why not. The first one after a change of the view fails,
  // unless the result of a step has named the view before.
  Status admit_call();
  uint64_t reported_view() const { return reported_view_; }  // that the host knows; any thread

  void start(const StrategySpec& strategy, Done done, const CallOptions& options = {});
  void set_strategy(const StrategySpec& strategy, Done done, const CallOptions& options = {});

  // Checkpoints (engine_checkpoint.cc, engine_load.cc). One is saved or loaded at a time; later calls wait.
  //
  // Without files they fail. `shards` outlives the engine.
  void use_files(std::shared_ptr<transport::Files> files, ShardList* shards) {
    checkpoints_.use_files(std::move(files));
    shards_ = shards;
  }
  // Both are called between steps, by all workers. The model must not change until `taken` was called, which
  // comes before `done`. Then files are written beside later steps.
  void save_checkpoint(const std::string& folder, std::function<void()> taken, Done done,
                       const CallOptions& options = {});
  void load_checkpoint(const std::string& folder, Done done, const CallOptions& options = {});
  uint64_t next_step() const { return next_step_; }

  Status replan();  // settings of parameters have changed
  const Step& step() const { return step_; }
  GradientMarks& marks() { return step_.marks(); }  // any thread
  const Objects& objects() const { return objects_; }
  // A stream of the host, which the step in flight was to wait for, has failed.
  void stream_failed(const Status& why) { step_.device_failed(why); }

  // `weights` by replica.
  // `wait_for_devices`: `done` is called when the new values are in memory, not only enqueued on the devices.
  void step_begin(std::vector<double> weights, bool stop, bool wait_for_devices, StepDone done,
                  const CallOptions& options = {});
  void buckets_ready(const std::vector<uint32_t>& buckets) { step_.buckets_ready(buckets); }

  // Calls `done` when the work enqueued in the context has ended, or with an error after step_timeout.
  void when_reached(DeviceContext& context, Done done) {
    waiter_.after(context.device->name(), *context.queue, *context.reached, calls_.deadline(),
                  std::move(done));
  }

  // Copies of what collectives read and write on devices. They fail with the session.
  device::StagedCopies& copies() { return copies_; }

  // Calls `done` when all work that is enqueued on the replicas' devices now has ended, or with the failure
  // of a device or of the session.
  void when_devices_done(Done done) { step_.when_devices_done(waiter_, std::move(done)); }

  void put_object(const std::string& name, SharedObject object, Done done, const CallOptions& options = {});
  void delete_object(const std::string& name, Done done, const CallOptions& options = {});
  // Returns a ticket for cancel_get; 0 when `done` was called at once.
  uint64_t get_object(const std::string& name, std::function<void(Result<SharedObject>)> done,
                      const CallOptions& options = {});
  void cancel_get(uint64_t ticket, const Status& why) { objects_.cancel(ticket, why); }

  // Returns the number of the channel's next call.
  uint64_t next_call(uint32_t channel = 0) const { return calls_.next(channel); }
  // Returns what the call waits for, with the first missing rank and a parameter (engine_waiting.cc).
  WaitReport wait_report(uint64_t call) const;
  // For the head: the steps made, and the call that has waited longest for other workers, if any.
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
  // Returns whether this worker has entered a view whose workers have not agreed on its state yet, or which
  // is paused. A worker that closes in this time counts as lost.
  bool recovering() const { return recovering_; }
  // This worker closes its session in the middle of a step, which cannot end without these gradients.
  void leave_step(const UnmarkedGradients& unmarked) { step_.leave(unmarked); }
  // Digests the values and compares them with goodbyes that have come; close() sends the digests. Does
  // nothing for a single worker, before the first step, after a failure, or if the last step has compared all
  // values. Calls `then` in every case.
  void compare_last_values(transport::Time deadline, std::function<void()> then);
  // Where views change: waits until all others have completed the last step of this worker, so that the job
  // cannot repeat it without this worker any more. Calls `then` in every case.
  void await_last_step(transport::Time deadline, std::function<void()> then);
  void hasten_last_step(transport::Time deadline) { last_step_.hasten(deadline); }
  // Returns the first call that this worker does not make, if steps of that and later calls may go on without
  // it; else 0.
  uint64_t close(const Status& cause);
  const Status& divergence() const { return last_values_.divergence(); }  // found as it closed
  // Ends all timers and posts. The last call on the loop.
  void detach_from_loop() {
    waiter_.close(), copies_.close(), step_.close(), stalls_.close(), checkpoints_.close();
  }
  bool idle() const;  // no operation is in flight
  bool all_sent() const { return !mesh_ || mesh_->peers.all_sent(); }

  // SessionEvents
  void on_peer_failure(int32_t rank, const Status& why) override;
  void on_peer_unreachable(int32_t rank, const Status& error, const Status& network_error,
                           bool silent) override;
  void on_peer_departed(int32_t rank) override;
  void on_goodbye(int32_t rank, uint64_t steps, std::vector<uint64_t> digests) override;
  void on_given_up(int32_t rank, uint64_t call, const Status& cause) override;
  void on_completion_asked(uint64_t steps, transport::Responder respond) override;
  void on_state_asked(const std::string& worker_id, const transport::FetchState& question,
                      transport::Responder respond) override;
  void on_newcomer_gone(const std::string& worker_id) override { giver_.forget(worker_id); }
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
  struct Starting {
    StrategySpec strategy;
    CallOptions options;
    Done done;
    uint64_t call = 0;
  };
  using Reports = std::vector<transport::CheckpointReport>;
  // Values on the host, by parameter: replica 0's own buffers, or copies where a replica is on another
  // device.
  using HostValues = std::vector<std::shared_ptr<void>>;
  using HeldRanges = std::vector<uint8_t>;  // a bit for each key range
  struct NextView {
    transport::JoinReply view;
    Status why;
    std::vector<std::pair<int32_t, uint64_t>> departures;  // that came after it
  };
  struct Learning;
  struct StateCopy;
  struct Copying;
  // Warns of an object's call that does not end. Returns a ticket for StallWatch::end().
  uint64_t watch_object(const char* operation, const std::string& name);
  // Warns in the same way until the returned function is called, which calls `done`.
  Done watched(const char* operation, const std::string& name, Done done);
  Objects::Deadline object_deadline(const CallOptions& options = {}) const {
    return {calls_.deadline(options), calls_.deadline_setting(options)};
  }

  // Common to several of the following parts.
  // Calls `then` only if the view is still the present one.
  template <typename Then>
  auto in_view(Then then) {
    return [this, then = std::move(then), entered = view()](auto&&... arguments) {
      if (!entering_ && entered == view() && failure_.ok())
        then(std::forward<decltype(arguments)>(arguments)...);
    };
  }
  bool is_on_host() const;  // all replicas are
  // `why`: what is wrong with the message of that rank.
  Status other_version(int32_t rank, const Status& why) const;
  static constexpr Code kNotNow = Code::kWaitTimeout;  // answer to a learner in no view yet: ask again later

  void refuse_next_call(uint32_t channel, const std::string& name, const Status& why);

  // Checkpoints: both.
  std::shared_ptr<CheckpointCall> new_checkpoint(Kind kind, const std::string& folder,
                                                 const CallOptions& options) const;
  Status begin_checkpoint(const std::shared_ptr<CheckpointCall>& checkpoint);
  // Tells the others what this worker has done. A failure of any worker ends the call on all of them.
  void exchange_reports(const std::shared_ptr<CheckpointCall>& checkpoint,
                        std::function<void(const Reports&)> then);
  std::vector<size_t> states_by_parameter();
  Status name_worker(int32_t rank, const Status& why, Kind kind) const;
  // Saving.
  void start_save(const std::shared_ptr<CheckpointCall>& checkpoint);
  void describe_model(CheckpointCall* checkpoint) const;
  Status enqueue_snapshot(CheckpointCall* checkpoint);
  void note_data_shards(const Reports& reports, const std::vector<SampleLedger>& ledgers,
                        checkpoint::Manifest* manifest) const;
  void prepare_folder(const std::shared_ptr<CheckpointCall>& checkpoint);
  void write_checkpoint_file(const std::shared_ptr<CheckpointCall>& checkpoint);
  void publish(const std::shared_ptr<CheckpointCall>& checkpoint, const Reports& reports);
  void save_at_interval(std::function<void()> taken);
  // Loading.
  void start_load(const std::shared_ptr<CheckpointCall>& checkpoint);
  Status check_manifest(const checkpoint::Store::Found& found) const;
  Status make_targets(CheckpointCall* checkpoint);
  void read_checkpoint(const std::shared_ptr<CheckpointCall>& checkpoint);
  void apply_checkpoint(const std::shared_ptr<CheckpointCall>& checkpoint);
  void restore_shards(const checkpoint::Manifest& manifest);

  // Start (engine_start.cc).
  void begin_start();
  // All that must be equal on all workers: describe_settings(), and the size of chunks.
  std::string signature(const std::string& strategy, bool with_rate) const;
  void compare_signatures(const std::shared_ptr<Call>& call, std::string mine, size_t length, Done done);
  void on_differences(const std::vector<std::vector<std::byte>>& differences, const Done& done);
  // Has this worker of the view joined after the job began, unlike rank 0?
  bool has_joined_later(int32_t rank) const;
  // A worker that has joined later fails, as its settings differ. The others go on in a view without it.
  void fail_newcomer(const std::string& difference);
  // Teams of GPUs (engine_teams.cc). `gpus_of`: number of GPUs by rank.
  //
  // The GPUs of this worker's replicas, each once, in the order of the replicas.
  std::vector<std::shared_ptr<device::Device>> gpus() const;
  Result<device::Device::CommunicatorLibrary> communicator_library() const;
  void form_teams(const std::shared_ptr<Call>& call, const StrategySpec& strategy,
                  std::vector<uint32_t> gpus_of, Done done);
  Result<Teams> compute_teams(const std::vector<std::vector<std::byte>>& encoded,
                              const std::vector<uint32_t>& gpus_of, bool demanded);
  void join_team(const std::shared_ptr<Call>& call, Teams teams, Done done);
  void give_values(const std::shared_ptr<Call>& call, std::shared_ptr<const Plan> plan, Done done);
  // `filled`: they are to be filled with this worker's values.
  Result<HostValues> host_values(bool filled);
  Status spread_values(const HostValues& values);
  // Fails also if the strategy's algorithm cannot run this job. `frozen_too`: includes frozen parameters,
  // whose state may move.
  Result<Plan> plan_of(const StrategySpec& strategy, bool frozen_too = false) const;
  Status apply_plan(Plan plan);
  // A load of a checkpoint or a change of the strategy is in progress until the returned function is called.
  Done begin_change(Done done);
  void replace_plan(transport::Time deadline, std::shared_ptr<const Plan> plan, Done done);
  void move_state(const std::shared_ptr<Call>& call, Done done);
  void gather_state(const std::shared_ptr<Call>& call, std::shared_ptr<const Plan> plan, size_t bucket,
                    size_t tensor, Done done);

  // The optimizer's state where owners keep it, in another view (engine_owners.cc).
  HeldRanges held_under(const Plan& plan) const;
  void note_held();  // this worker has the state of the ranges that the plan gives it
  void place_state(const std::shared_ptr<Call>& call, const std::vector<HeldRanges>& held,
                   std::function<void()> then);
  void agree_on_placement(const std::shared_ptr<Call>& call, std::shared_ptr<const Plan> plan,
                          std::function<void()> then);

  // Changes of the view (engine_view.cc).
  Status view_changed(const transport::JoinReply& view) const;
  void enter_view();
  void enter_first_view(const transport::JoinReply& view, const Status& why);
  std::string present_signature() const;
  void report();
  void on_missing_report(const std::shared_ptr<Call>& call, const Status& why);
  void on_reports(const std::shared_ptr<Call>& call, const std::vector<std::vector<std::byte>>& encoded);
  void report_samples(transport::ViewReport* mine) const;
  Status deal_samples(const std::vector<transport::ViewReport>& reports, bool over);
  void start_again(const std::vector<transport::ViewReport>& reports);
  void resume(const std::vector<uint64_t>& calls);
  void end_recovery();
  bool has_host_calls() const;
  void resume_step();

  // Copies of the state in a new view (engine_copy.cc).
  void copy_and_resume(const std::shared_ptr<Call>& call, const ViewDecision& decision,
                       const std::vector<transport::ViewReport>& reports);
  void name_difference(const std::shared_ptr<Copying>& copying, std::shared_ptr<const Group> informed,
                       const transport::ViewReport& report);
  void give_state(const std::shared_ptr<Copying>& copying);
  void give_objects(const std::shared_ptr<Copying>& copying, std::function<void()> then);
  void receive_state(const std::shared_ptr<Copying>& copying,
                     const std::vector<transport::ViewReport>& reports);
  void broadcast_state(const std::shared_ptr<Copying>& copying, std::shared_ptr<StateCopy> copy,
                       std::function<void()> then);
  void apply_copy(const std::shared_ptr<Copying>& copying, std::shared_ptr<StateCopy> copy,
                  const transport::ViewReport& report);
  void end_copied_step(const transport::ViewReport& report);
  void end_copied_start(const transport::ViewReport& report);

  // The state of a worker that joins (engine_join.cc).
  void learn();
  void end_learning();
  void ask_for_state(size_t source);
  void ask_later(size_t source, const Status& why);
  void on_state(size_t source, uint64_t asked_in, uint64_t ask, const Result<transport::Message>& answer);
  void enter_when_learnt();
  void enter_now();
  void change_source(size_t source);
  void on_source_left(int32_t rank);
  // `of`: the report of a worker that has completed all steps.
  void fetch_rest(const std::vector<transport::ViewReport>& reports, const transport::ViewReport& of,
                  transport::Time deadline, std::function<void()> then);
  void stop_fetching_rest();

  // Failures.
  Status no_memory(const std::string& what) const;
  // Ends the start, and all calls, copies, objects, checkpoints and streams of state that wait.
  void end_waits(const Status& why);
  void await_verdict(const Status& error, int32_t peer, const Status& network_error, bool silent = false);
  void fail_without_verdict(const Status& error, int32_t peer, bool silent, transport::Time reported);
  void report_non_finite(const StepResult& result);

  void warn_of_departed(uint64_t call);

  transport::Loop& loop_;
  Model& model_;
  EngineOptions options_;
  std::shared_ptr<Log> log_;
  Mesh* mesh_ = nullptr;
  Objects objects_;
  device::Waiter waiter_;
  device::StagedCopies copies_;
  Step step_;
  StallWatch stalls_;
  Calls calls_;
  Collectives collectives_;
  std::shared_ptr<int> alive_ = std::make_shared<int>();

  // Failures.
  Status failure_;
  Status exhausted_;      // exhausted()
  bool failing_ = false;  // fail() is running
  bool at_rest_ = false;  // the session has failed, and all operations have ended
  bool tell_peers_ = false;
  Status torn_;  // why no step can succeed any more: one failed half-way, or values differ
  std::function<void(const Status&)> before_failure_, after_failure_;
  std::function<bool(int32_t, const Status&, bool)> on_loss_;
  std::function<transport::Time(transport::Time)> verdict_due_;
  RefusalLog events_;  // what may repeat with every step

  // Checkpoints.
  CheckpointQueue checkpoints_;
  ShardList* shards_ = nullptr;
  Memory snapshot_;  // the copy of the last save
  size_t snapshot_nbytes_ = 0;

  // The start, and steps.
  bool started_ = false;
  std::optional<Starting> starting_;  // a dsgd_start that has not ended
  int32_t start_source_ = 0;          // the rank whose values all workers begin with
  uint64_t next_step_ = 0;
  uint64_t strategy_version_ = 0;      // changes of the strategy, and checkpoints loaded
  int changes_ = 0;                    // those that are in progress: begin_change()
  std::optional<uint64_t> joined_at_;  // the first step of a worker that has joined the running job
  uint32_t total_replicas_ = 1;
  StepResult last_result_;       // of the last step that succeeded
  uint64_t last_step_call_ = 0;  // of the last step that succeeded
  bool last_step_failed_ = false;
  bool compared_ = false;  // the last step has compared all values

  // Changes of the view.
  std::function<void(const transport::JoinReply&)> on_view_;
  // Key ranges of which this worker has the optimizer's state; empty unless owners keep it and views change.
  HeldRanges held_;
  // To be entered once the step's commit, and what is being applied (applying_), have ended.
  std::optional<NextView> next_view_;
  Status view_cause_;                                   // why the present view has come
  std::atomic<uint64_t> reported_view_ = 1;             // that the host knows; written on the loop
  std::function<void()> enter_;                         // of a learner; null once it is in a view
  std::function<transport::JoinReply()> present_view_;  // of a learner
  std::shared_ptr<Learning> learning_;                  // of a learner whose replicas are on the host
  StateGiver giver_;
  bool learner_ = false;     // in a view, but its dsgd_start has not ended
  bool entering_ = false;    // enter_view() ends the operations of the earlier view
  bool recovering_ = false;  // recovering()
  bool agreed_ = true;       // the workers of this view know where all of them stand
  bool applying_ = false;    // a copy, a new plan or a checkpoint is being applied to the replicas

  // The end of the session.
  LastStep last_step_;
  LastValues last_values_;
  std::vector<int32_t> departed_;  // ranks that have left, and that warn_of_departed() has not named yet
};

}  // namespace dsgd
