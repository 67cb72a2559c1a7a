// Questions to the head of a job, from any process that knows the token (dsgd_job_status, dsgd_job_scale).
#pragma once

#include <string>

#include "core/config/config.h"
#include "transport/network.h"

namespace dsgd {

// Asks the head that the configuration names, and returns its answer as the JSON that dsgd.h describes.
// Blocks for `timeout` at most.
Result<std::string> job_status(const Config& config, transport::Environment& environment,
                               transport::Duration timeout);

// Tells that head how many workers the job shall have. Blocks for `timeout` at most.
Status scale_job(const Config& config, transport::Environment& environment, transport::Duration timeout,
                 uint32_t workers);

}  // namespace dsgd
