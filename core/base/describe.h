// How messages name workers and durations.
#pragma once

#include <string>

#include "transport/loop.h"
#include "transport/messages.h"

namespace dsgd {

// "10.0 s", "500 ms"
std::string describe_duration(transport::Duration duration);
// "'w2' (host nodeb, pid 4242)": a worker that has no rank yet
std::string describe_candidate(const transport::MemberInfo& member);
// "rank 2 (worker 'w2' on host nodeb, pid 4242)"
std::string describe_member(const transport::MemberInfo& member);
// Returns a clause that says why others may not reach a worker that runs.
const char* reason_for_cut(const transport::MemberInfo& member);

}  // namespace dsgd
