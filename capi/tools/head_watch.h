// Says from time to time that the head of a job, which runs elsewhere, cannot be reached.
#pragma once

#include <string>

namespace dsgd_tool {

// Tries to connect until that works, in a thread that lives as long as the process needs it.
void watch_head(const std::string& address);

}  // namespace dsgd_tool
