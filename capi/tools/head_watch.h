// Watches whether a remote head can be reached.
#pragma once

#include <memory>
#include <string>

#include "capi/tools/wait_note.h"

namespace dsgd_tool {

// Tries to connect until that works, in a thread that lives as long as the process needs it. The note waits until then.
std::shared_ptr<WaitNote> watch_head(const std::string& address);

}  // namespace dsgd_tool
