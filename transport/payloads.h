// The payloads as plain structs: what workers exchange in an operation beside elements of a dtype. They
// travel as the bytes of a chunk; transport/schema/codec.h encodes and decodes them. The meaning is core's.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "transport/base/status.h"

namespace dsgd::transport {

// The samples that a worker has drawn of its data shards (core/data/shard_list.h).
struct DrawnSamples {
  struct Shard {
    uint64_t number = 0;            // of the shard; the same on all workers
    uint64_t pass = 0;              // how often the host has moved to another position of the data
    uint64_t epoch = 0, begin = 0;  // where the pass began
    uint64_t count = 0;             // indices that it has drawn in the pass
    bool operator==(const Shard&) const = default;
  };
  uint64_t made = 0;          // shards so far, those included that the host has freed and the list lacks
  std::vector<Shard> shards;  // by number, at most kMaxShards
  bool operator==(const DrawnSamples&) const = default;
};

// Begins a step. All but `stop`, `weights` and `drawn` must be equal on all workers.
struct StepHeader {
  uint64_t step = 0;
  uint64_t strategy_version = 0;  // number of changes of the plan
  uint64_t settings = 0;          // digest of the settings of optimizer and parameters
  uint64_t plan = 0;              // digest
  uint64_t values = 0;            // digest of a part of the values
  double learning_rate = 0, loss_scale = 0;
  bool stop = false;            // this worker asks all workers to stop
  std::vector<double> weights;  // by replica
  DrawnSamples drawn;           // for this step or earlier ones, where the job goes on after a loss
};

// Begins dsgd_start.
struct StartHeader {
  uint64_t signature = 0;         // digest of the text of all settings that must be equal
  uint64_t signature_length = 0;  // bytes of that text
  uint32_t replicas = 0;
  uint32_t gpus = 0;  // of the replicas, each once
  bool operator==(const StartHeader&) const = default;
};

// The GPUs of a worker, for the teams that reduce over GPUs.
struct WorkerGpus {
  Status unusable;      // why these GPUs can be in no team; its message is cut at kMaxReasonBytes
  int32_t version = 0;  // of the library that reduces over them
  std::vector<std::array<uint8_t, 16>> devices;  // their identities
};

// Sent by the first worker of a team to its members: the id of the communicator that they join.
struct TeamInvitation {
  Status failure;  // why the team cannot be formed; its message is cut at kMaxReasonBytes
  std::array<uint8_t, 128> communicator{};
};

// The digest of a registered algorithm's schedule for one number of elements.
struct ScheduleDigest {
  uint64_t digest = 0;
  Status failure;  // why there is no schedule; its message is cut at kMaxReasonBytes
};

// The part of an operation's signature that BulkHeader does not have.
struct OperationCounts {
  uint64_t chunk_bytes = 0;
  std::vector<uint64_t> counts;  // elements of each rank, where the operation has parts of given sizes
};

// Digests of a worker's values, by parameter.
struct ValueDigests {
  std::vector<uint64_t> digests;
};

// The elements of a worker's gradients in a step that are not finite.
struct GradientReport {
  struct OfParameter {
    uint32_t parameter = 0;  // index
    uint64_t count = 0;      // elements
    uint64_t first = 0;      // index of the first one
    bool operator==(const OfParameter&) const = default;
  };
  uint64_t count = 0;              // elements
  uint32_t parameters = 0;         // that have some
  std::vector<OfParameter> named;  // the first of these, at most kMaxNamedGradients
};

// The result of a step, as in dsgd_step_result.
struct StepOutcome {
  int64_t view = 0;
  int32_t size = 0;
  bool applied = false, all_done = false, stop = false;
  double weight = 0;
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();
  bool skipped = false;              // the gradients, or with a loss scale their mean, were not finite
  int64_t nonfinite = 0;             // elements of gradients, over all workers, where they are checked
  int32_t nonfinite_rank = -1;       // the first rank that has some
  uint32_t nonfinite_parameter = 0;  // and its first parameter
  bool operator==(const StepOutcome&) const = default;
};

// A worker's state when it has stopped all work of earlier views.
struct ViewReport {
  bool started = false;           // holds the values that all workers begin with, or later ones
  uint64_t steps = 0;             // that it has completed
  uint64_t strategy_version = 0;  // number of changes of the plan
  uint32_t replicas = 0;
  double loss_scale = 1;
  uint32_t loss_scale_age = 0;                   // steps since it has changed
  StepOutcome outcome;                           // of its last step
  std::vector<uint64_t> calls;                   // by channel: the next one
  bool learner = false;                          // joins the running job, and holds no state
  uint64_t signature = 0, signature_length = 0;  // of the settings that must be equal
  std::vector<uint8_t> samples;  // an encoded SampleReport; empty: this worker knows of no data shard
  // By key range, 8 in a byte from the lowest bit on: whether it has the optimizer's state of the range.
  // Empty: every worker has all state, or this one has none.
  std::vector<uint8_t> held;
  double learning_rate = 0;
  uint64_t loads = 0;            // loads of checkpoints that have ended, except by a change of the view
  Code load_result = Code::kOk;  // of the last of these
  uint64_t applied_change = 0;   // call number of the last change of the plan; 0: none
  uint64_t prepared_change = 0;  // of one that it can apply, and others may have applied; 0: none
  bool operator==(const ViewReport&) const = default;
};

// Positions first, first + stride, ... in the order of an epoch.
struct SampleRun {
  uint64_t first = 0, stride = 1, count = 0;
  bool operator==(const SampleRun&) const = default;
};

// How the samples of one pass of a data shard are dealt out (core/data/ledger.h).
struct SampleLedger {
  static constexpr uint32_t kNoSlot = UINT32_MAX;
  struct Part {
    uint64_t worker = 0;      // its identity
    uint32_t slot = kNoSlot;  // its share of the tail: positions tail + slot + i * slots
    uint64_t taken = 0;       // samples of its share of the tail that come before this part
    uint64_t base = 0;        // what the worker had drawn before the first sample of this part
    uint64_t held = 0;        // what it had drawn when the part was dealt
    std::vector<SampleRun> runs;
    bool operator==(const Part&) const = default;
  };
  uint64_t number = 0, samples = 0, seed = 0;
  bool shuffle = true;
  uint64_t pass = 0, epoch = 0, begin = 0;
  uint64_t view = 0;   // in which it was dealt, or else begun
  bool dealt = false;  // anew since the pass began
  uint64_t tail = 0;   // the positions from here on are shared by stride
  uint32_t slots = 0;
  std::vector<Part> parts;
  bool operator==(const SampleLedger&) const = default;
};

// The state of a worker's data shards when it has stopped all work of earlier views.
struct SampleReport {
  struct Lost {
    uint64_t worker = 0;
    DrawnSamples committed;
    bool operator==(const Lost&) const = default;
  };
  bool joined = false;     // in this view: it has no part yet
  DrawnSamples drawn;      // by this worker
  DrawnSamples committed;  // of that, for steps that it has completed
  DrawnSamples step;       // and for the one in flight
  std::vector<Lost> lost;  // workers that are not in the new view
  std::vector<SampleLedger> ledgers;
  bool operator==(const SampleReport&) const = default;
};

// A worker's part in a checkpoint that is saved or loaded. Failure, step and checksum of the manifest
// are compared.
struct CheckpointReport {
  Status failure;  // its message is cut at kMaxReasonBytes
  uint64_t step = 0;
  uint64_t nbytes = 0, checksum = 0;  // of the file that it has written, or of the manifest that it has read
  DrawnSamples drawn;
};

}  // namespace dsgd::transport
