// Sends a session's reports to the program that started the worker.
#pragma once

#include "core/base/log.h"
#include "core/config/config.h"

namespace dsgd::capi {

// Returns an empty function if the key `supervisor` is not set. A report is one datagram, "RANK KIND CAUSE
// TEXT", where RANK is the key `rank`. It is lost if the supervisor no longer runs, or does not read for 50
// ms while its queue is full.
Log::Reporter make_reporter(const Config& config);

}  // namespace dsgd::capi
