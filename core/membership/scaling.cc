#include "core/membership/scaling.h"

#include <string>

#include "core/base/text.h"

namespace dsgd {

Status Scaling::request(uint32_t workers, transport::StatusReply::State state) {
  using State = transport::StatusReply::State;
  if (state != State::kRunning && state != State::kPaused)
    return Status(Code::kState, state == State::kGathering ? "the job has not begun; scale it when it runs"
                                                           : "the job has ended");
  if (!options_.views_change()) {
    return Status(Code::kUnsupported,
                  "the workers of this job do not change; set min_workers below num_workers, or max_workers "
                  "above it, when you start it")
        .with_parameter("max_workers");
  }
  if (workers < options_.min_workers || workers > options_.max_workers) {
    return Status(Code::kInvalidArgument, "the job cannot have " + counted(workers, "worker") +
                                              ": min_workers = " + std::to_string(options_.min_workers) +
                                              ", max_workers = " + std::to_string(options_.max_workers))
        .with_parameter(workers < options_.min_workers ? "min_workers" : "max_workers");
  }
  wanted_ = workers;
  ++requests_;
  return {};
}

void Scaling::describe(transport::StatusReply* reply) const {
  reply->wanted_workers = wanted_;
  reply->scale_requests = requests_;
}

}  // namespace dsgd
