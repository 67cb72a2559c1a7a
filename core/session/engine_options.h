// The options of an engine. The worker reads them from the configuration (worker.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/collectives/all_reduce.h"
#include "core/step/step_state.h"
#include "transport/loop.h"

namespace dsgd {

struct EngineOptions {
  transport::Duration step_timeout = std::chrono::seconds(300);
  int32_t num_workers = 1;  // with which the job began
  size_t bucket_bytes = 0;  // 0: as the plan needs them
  int32_t servers = 0;      // 0: as many as workers
  AlgorithmChoice algorithm = {};
  bool views_change = false;    // the job goes on after a loss, or workers may join it
  bool internode_nccl = false;  // GPUs of all nodes are one team; else those of each
  std::string nccl_library = {};
  transport::Duration stall_warning = std::chrono::seconds(30);
  std::string checkpoint_dir = {};
  uint64_t checkpoint_interval = 0;  // steps; 0: the host alone saves
  uint64_t checkpoint_keep = 0;      // 0: all
  StepOptions step;
  std::string library_version;
  std::string fingerprint;  // of the host's code
};

}  // namespace dsgd
