// Prints a message from time to time while a remote head cannot be reached.
#pragma once

#include <string>

namespace dsgd_tool {

// Tries to connect until that works, in a thread that lives as long as the process needs it.
void watch_head(const std::string& address);

}  // namespace dsgd_tool
