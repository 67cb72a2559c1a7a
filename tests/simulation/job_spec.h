// One simulated job, as a seed draws it: workers, a head, training steps and collectives, and at most one
// fault.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "oracle.h"
#include "transport/loop.h"

namespace dsgd::simulation {

inline constexpr transport::Duration kLease = std::chrono::milliseconds(500);
inline constexpr transport::Duration kStepTimeout = std::chrono::milliseconds(1500);
inline constexpr transport::Duration kInitTimeout = std::chrono::seconds(3);
inline constexpr transport::Duration kLongPause = std::chrono::seconds(2);

enum class Fault {
  kNone,
  kSlow,         // some packets are late; the job must not fail
  kShortPause,   // a process stops for less than half a lease; the job must not fail
  kShortBlock,   // one direction between two processes is cut for as long; the job must not fail
  kKill,         // a process dies, its sockets are reset
  kMachineDies,  // a process falls silent
  kLongPause,    // longer than the lease, then it goes on
  kLongBlock,    // one direction between two processes, for good
  kIsolate,      // a process is cut off from all others, for good
  kBreak,        // the connections between two processes break
  kFlip,         // one bit from one process to another arrives flipped
};
const char* fault_name(Fault fault);
bool harmless(Fault fault);

struct JobSpec {
  Shape shape;
  bool separate_head = false;  // else worker 0 hosts it
  std::string strategy, algorithm, bucket_size;
  bool reproducible = false;
  bool gradient_norm = false;
  bool loss_scale = false;
  std::string nonfinite = "off", wire = "fp32", copies = "1";
  bool gpus = false;     // replicas are on the CPU and on two GPUs, drawn from the seed
  bool changes = false;  // the strategy changes between steps
  Fault fault = Fault::kNone;
  transport::Duration fault_after{};
  int victim = 0, other = 0;  // processes: workers, then the separate head
  bool one_host = false;

  static JobSpec draw(uint64_t seed);
  std::string describe() const;
  std::string device(int worker, int replica) const;
  int processes() const { return shape.workers + (separate_head ? 1 : 0); }
};

}  // namespace dsgd::simulation
