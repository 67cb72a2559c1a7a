// A checkpoint that is being saved or loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/reader.h"
#include "core/checkpoint/store.h"
#include "core/data/shard_list.h"
#include "core/mesh/task.h"
#include "core/session/calls.h"
#include "core/session/operation.h"
#include "transport/payloads.h"

namespace dsgd {

struct CheckpointCall {
  Kind kind = Kind::kSave;
  std::string folder;
  CallOptions options;
  transport::Time deadline{};
  std::string limit;           // the setting that the deadline comes from
  std::shared_ptr<Call> call;  // null: it has not begun
  std::function<void(const Status&)> done;
  Status expired;                    // why it has ended before its turn came
  uint64_t exchanges = 0;            // so far
  transport::CheckpointReport mine;  // what this worker tells the others next

  // Saving.
  std::function<void()> taken;  // called once the model may change again
  std::string header;
  std::shared_ptr<void> data;
  uint64_t nbytes = 0;
  checkpoint::Draft draft;
  checkpoint::Manifest manifest;  // as the model was then; rank 0 adds the files
  std::vector<SampleLedger> ledgers;

  // Loading.
  bool follows = false;  // this worker takes part only if the others load, too (Checkpoints::load)
  checkpoint::Store::Found found;
  checkpoint::Targets targets;
  // Of the view in which all have read it. A worker that applies the load in a later view deals the samples
  // alike.
  std::shared_ptr<const Roster> roster;
  std::vector<std::shared_ptr<void>> values;               // by parameter
  std::vector<std::vector<std::shared_ptr<void>>> states;  // by parameter, by tensor
};

}  // namespace dsgd
