// Runs one job of the simulated world. Workers are whole sessions, used as the C ABI uses them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "job_spec.h"
#include "programs.h"
#include "transport/loop.h"

namespace dsgd::simulation {

inline constexpr char kAfterAFailedStep[] = "step after a failed one";

struct WorkerOutcome {
  std::vector<NotedCall> calls;
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

}  // namespace dsgd::simulation
