// One simulated job, drawn from a seed: workers (whole sessions, as the C ABI uses them), a head, training
// steps and collectives, and at most one fault. run_job says what each worker saw.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "oracle.h"
#include "transport/base/status.h"
#include "transport/loop.h"

namespace dsgd::simulation {

enum class Fault {
  kNone,
  kSlow,         // some packets are late: nothing may come of it
  kShortPause,   // shorter than half a lease: nothing may come of it
  kShortBlock,   // the same, of one direction between two processes
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
  bool gpus = false;     // replicas are on the cpu and on two GPUs, as the seed will
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

inline constexpr char kAfterAFailedStep[] = "step after a failed one";

struct Call {
  std::string name;
  transport::Time began{}, ended{};
  Status status;
};

struct WorkerOutcome {
  std::vector<Call> calls;
  std::vector<std::string> wrong;  // results that differ from the oracle's
  bool finished = false;           // its program returned (the test did not stop it)
};

struct JobOutcome {
  std::vector<WorkerOutcome> workers;
  std::optional<transport::Time> fault_at;
  transport::Time ended{};
  uint64_t trace_hash = 0;
};

JobOutcome run_job(const JobSpec& spec);

inline constexpr transport::Duration kLease = std::chrono::milliseconds(500);
inline constexpr transport::Duration kStepTimeout = std::chrono::milliseconds(1500);
inline constexpr transport::Duration kInitTimeout = std::chrono::seconds(3);
inline constexpr transport::Duration kLongPause = std::chrono::seconds(2);

}  // namespace dsgd::simulation
