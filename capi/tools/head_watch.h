// Watches whether a remote head can be reached.
#pragma once

#include <memory>
#include <string>

#include "capi/tools/wait_note.h"

namespace dsgd_tool {

// Starts a detached thread that tries to connect until it succeeds. The note is active until then.
std::shared_ptr<WaitNote> watch_head(const std::string& address);

}  // namespace dsgd_tool
