// The payloads as plain structs: what workers exchange in an operation beside elements of a dtype. They
// travel as the bytes of a chunk; transport/schema/codec.h encodes and decodes them. The meaning is core's.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "transport/base/status.h"

namespace dsgd::transport {

// Begins a step. All but `stop` and `weights` must be equal on all workers.
struct StepHeader {
  uint64_t step = 0;
  uint64_t strategy_version = 0;  // number of changes of the plan
  uint64_t settings = 0;          // digest of the settings of optimizer and parameters
  uint64_t plan = 0;              // digest
  uint64_t values = 0;            // digest of a part of the values
  double learning_rate = 0, loss_scale = 0;
  bool stop = false;            // this worker asks all workers to stop
  std::vector<double> weights;  // by replica
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

// The first worker of a team gives its members what they join with.
struct TeamInvitation {
  Status failure;  // why the team cannot be formed; its message is cut at kMaxReasonBytes
  std::array<uint8_t, 128> communicator{};
};

// Of a registered algorithm, for one number of elements.
struct ScheduleDigest {
  uint64_t digest = 0;
  Status failure;  // why there is no schedule; its message is cut at kMaxReasonBytes
};

// The part of an operation's signature that has no place in BulkHeader.
struct OperationCounts {
  uint64_t chunk_bytes = 0;
  std::vector<uint64_t> counts;  // elements of each rank, where the operation has parts of given sizes
};

// Digests of a worker's values, by parameter.
struct ValueDigests {
  std::vector<uint64_t> digests;
};

}  // namespace dsgd::transport
