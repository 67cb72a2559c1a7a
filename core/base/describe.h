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
bool listens_on_loopback(const transport::MemberInfo& member);
// Returns a clause that says why workers that run may not reach each other. `loopback`: one of them listens
// on a loopback address.
const char* reason_for_cut(bool loopback);

}  // namespace dsgd
