// The decision of the workers of a new view on where they go on: a function of their reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/mesh/channels.h"
#include "core/mesh/members.h"
#include "transport/base/status.h"
#include "transport/payloads.h"

namespace dsgd {

struct ViewDecision {
  // Not 0: some workers have applied the change of this call, and others have only prepared it. These apply
  // it now, and all report again. Nothing else is decided.
  uint64_t apply = 0;
  int32_t source = 0;              // rank with the most steps, not a learner; the lowest of several
  std::vector<int32_t> copiers;    // workers that are a step behind, and learners
  std::vector<int32_t> learners;   // the learners among `copiers`
  std::vector<int32_t> different;  // learners that cannot take part: their settings differ
  std::vector<uint64_t> calls = std::vector<uint64_t>(kChannels, 1);  // by channel: index of the next one
  bool all_started = true;  // every worker that is no learner has completed dsgd_start
  uint32_t replicas = 0;    // of all workers together
};

// Of all workers of the view, by rank.
Result<std::vector<transport::ViewReport>> decode_reports(const std::vector<std::vector<std::byte>>& encoded);
// `cause`: of the view. Fails if the job cannot go on.
Result<ViewDecision> decide(const std::vector<transport::ViewReport>& reports, const Members& members,
                            const Status& cause);

}  // namespace dsgd
