// Saves and loads checkpoints. All workers make these calls together. One is in progress at a time, and later
// ones wait (checkpoint_queue.h).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/session/checkpoint_call.h"
#include "core/session/checkpoint_queue.h"
#include "core/session/engine_state.h"

namespace dsgd {

class Checkpoints {
 public:
  using Done = EngineState::Done;

  explicit Checkpoints(EngineState& state)
      : state_(state), queue_(state.loop, [&state] { return !state.recovering; }) {}
  void use_files(std::shared_ptr<transport::Files> files) { queue_.use_files(std::move(files)); }
  // Both are called between steps. Without files they fail. The model must not change until `taken` was
  // called, which comes before `done`. Then files are written beside later steps.
  void save(const std::string& folder, std::function<void()> taken, Done done,
            const CallOptions& options = {});
  void load(const std::string& folder, Done done, const CallOptions& options = {});
  // A failure is reported, and training goes on: the next checkpoint may succeed.
  void save_at_interval(std::function<void()> taken);

  bool idle() const { return queue_.idle(); }         // no call is in flight
  void start_next() { queue_.start_next(); }          // recovery has ended (EngineState::recovering)
  void fail(const Status& why) { queue_.fail(why); }  // ends all calls
  void close() { queue_.close(); }                    // the last call on the loop

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
  void describe_model(CheckpointCall* checkpoint) const;
  Status enqueue_snapshot(CheckpointCall* checkpoint);
  void prepare_folder(const SharedCall& checkpoint);
  void note_data_shards(const Reports& reports, const std::vector<SampleLedger>& ledgers,
                        checkpoint::Manifest* manifest) const;
  void write_file(const SharedCall& checkpoint);
  void publish(const SharedCall& checkpoint, const Reports& reports);
  // Loading (checkpoints_load.cc).
  void start_load(const SharedCall& checkpoint);
  Status check_manifest(const checkpoint::Store::Found& found) const;
  Status make_targets(CheckpointCall* checkpoint);
  void read(const SharedCall& checkpoint);
  void apply(const SharedCall& checkpoint);
  void restore_shards(const checkpoint::Manifest& manifest);

  EngineState& state_;
  CheckpointQueue queue_;
  Memory snapshot_;  // the copy of the last save
  size_t snapshot_nbytes_ = 0;
};

}  // namespace dsgd
