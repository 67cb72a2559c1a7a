// The decision of all workers on which GPUs NCCL reduces over: a function of what each tells of its own.
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
  std::string place;           // only workers of one place can be a team
};

// `workers`: by rank. A place whose GPUs cannot be a team fails if `demanded`; else `warn` gets the reason.
Result<Teams> decide_teams(const std::vector<GpusOfWorker>& workers, bool demanded,
                           const std::function<void(const std::string&)>& warn);
// A reason as its worker gave it, with the worker's rank.
Status of_rank(int32_t rank, const Status& reason);

}  // namespace dsgd
