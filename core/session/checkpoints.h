// Saves and loads checkpoints. All workers make these calls together. One is in progress at a time, and later
// ones wait (checkpoint_queue.h).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/session/checkpoint_call.h"
#include "core/session/checkpoint_queue.h"
#include "core/session/engine_state.h"
#include "core/session/stall_watch.h"

namespace dsgd {

class Checkpoints {
 public:
  using Done = EngineState::Done;

  explicit Checkpoints(EngineState& state)
      : state_(state), queue_(state.loop, [this](const CheckpointCall& next) {
          return !state_.recovering() &&
                 (!next.follows || state_.rank() == 0 || next_of_others() != NextCall::kUnknown);
        }) {}
  void use_files(std::shared_ptr<transport::Files> files) { queue_.use_files(std::move(files)); }
  // Both are called between steps. Without files they fail. The model must not change until `taken` was
  // called, which comes before `done`. Then files are written beside later steps.
  void save(const std::string& folder, std::function<void()> taken, Done done,
            const CallOptions& options = {});
  void load(const std::string& folder, Done done, const CallOptions& options = {});
  // A failure is reported, and training goes on: the next checkpoint may succeed.
  void save_at_interval(std::function<void()> taken);

  // A load may fail on one worker, and a change of the view may then end it on another with kViewChanged. The
  // first one does not repeat it. So the workers of the new view report how many loads have ended on each,
  // and the code of the last one. On a worker that has ended fewer, the repeated call fails with that code.
  void add_to_report(transport::ViewReport* mine) const;
  void take_reports(const std::vector<transport::ViewReport>& reports);

  bool idle() const { return queue_.idle(); }  // no call is in flight
  // Begins the next call if it may begin. Called when recovery has ended (EngineState::recovering()), when a
  // peer has left, and when a peer has begun an operation before this worker.
  void start_next() { queue_.start_next(); }
  void fail(const Status& why) { queue_.fail(why); }  // ends all calls
  // Ends all calls but a prepared load, which the reports of the new view decide.
  void change_view(const Status& why);
  void close() { queue_.close(); }  // the last call on the loop

 private:
  using SharedCall = std::shared_ptr<CheckpointCall>;
  using Reports = std::vector<transport::CheckpointReport>;
  using Check = std::function<Status(const transport::CheckpointReport&)>;

  // Common to both.
  SharedCall new_call(Kind kind, const std::string& folder, const CallOptions& options) const;
  Status begin(const SharedCall& checkpoint);
  // Tells the others what this worker has done. A failure of any worker ends the call on all of them.
  void exchange_reports(const SharedCall& checkpoint, std::function<void(const Reports&)> then);
  std::vector<size_t> states_by_parameter() const;
  // Returns the first error that `check` finds in a report, with the worker's name; OK: it finds none.
  Status first_error(const Reports& reports, Kind kind, const Check& check) const;
  // Saving (checkpoints_save.cc).
  void start_save(const SharedCall& checkpoint);
  uint64_t draft_number(const CheckpointCall& checkpoint) const;
  void describe_model(CheckpointCall* checkpoint) const;
  Status enqueue_snapshot(CheckpointCall* checkpoint);
  void prepare_folder(const SharedCall& checkpoint);
  void note_data_shards(const Reports& reports, const std::vector<SampleLedger>& ledgers,
                        checkpoint::Manifest* manifest) const;
  void write_file(const SharedCall& checkpoint);
  void publish(const SharedCall& checkpoint, const Reports& reports);
  // Loading (checkpoints_load.cc).
  enum class NextCall { kUnknown, kLoad, kOther };
  NextCall next_of_others() const;                           // that others have begun and this worker has not
  WaitReport wait_report(const CheckpointCall& load) const;  // of a load that waits for it
  void log_no_load() const;
  void start_load(const SharedCall& checkpoint);
  Status check_manifest(const checkpoint::Store::Found& found) const;
  Status make_targets(CheckpointCall* checkpoint);
  void read(const SharedCall& checkpoint);
  // `applied`: called once the replicas have the new values.
  void apply(const SharedCall& checkpoint, transport::Time deadline, const Done& applied);
  void restore_shards(const checkpoint::Manifest& manifest, const Roster& roster);

  struct MissedLoad {
    uint64_t step;  // EngineState::next_step when it was missed
    Code result;    // on the other workers
  };

  EngineState& state_;
  CheckpointQueue queue_;
  uint64_t loads_ = 0;                     // loads that have ended, except by a change of the view
  Code load_result_ = Code::kOk;           // of the last of these
  std::optional<MissedLoad> missed_load_;  // which the host has not been told of yet
  // The next step, if the reports of a view have shown that another worker has begun a step, or another call
  // of channel 0, that this worker has not. At ranks above 0 the others' messages show it, too.
  std::optional<uint64_t> step_without_load_;
  Memory snapshot_;  // the copy of the last save
  size_t snapshot_nbytes_ = 0;
};

}  // namespace dsgd
