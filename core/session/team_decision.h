// The decision of all workers on which GPUs NCCL reduces over: a function of the GPUs that each reports.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/step/teams.h"
#include "transport/base/status.h"
#include "transport/payloads.h"

namespace dsgd {

struct GpusOfWorker {
  transport::WorkerGpus gpus;  // empty: it has none
  std::string machine;         // a team has workers of one machine; empty on all workers: of any
};

// `workers`: by rank. If the GPUs of a machine cannot be a team, fails where `demanded`; else `warn` gets the
// reason.
Result<Teams> decide_teams(const std::vector<GpusOfWorker>& workers, bool demanded,
                           const std::function<void(const std::string&)>& warn);
// A reason as its worker gave it, with the worker's rank.
Status of_rank(int32_t rank, const Status& reason);

}  // namespace dsgd
