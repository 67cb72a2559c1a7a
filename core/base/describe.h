// Texts for workers, durations and failures in messages.
#pragma once

#include <string>
#include <vector>

#include "transport/loop.h"
#include "transport/messages.h"

namespace dsgd {

// "10.0 s", "500 ms"
std::string describe_duration(transport::Duration duration);
// "'w2' (host nodeb, pid 4242)": a worker that has no rank yet
std::string describe_candidate(const transport::MemberInfo& member);
// "rank 2 (worker 'w2' on host nodeb, pid 4242)"
std::string describe_member(const transport::MemberInfo& member);
// Returns the index of the worker with this id, which is its rank in the view; -1 if there is none.
int32_t rank_of(const std::vector<transport::MemberInfo>& members, const std::string& worker_id);
// Returns whether a failure with this code concerns all workers, not only the one that reports it.
bool concerns_all_workers(Code code);
// Returns whether the host has reported this failure of its worker by dsgd_fail. Its operation tells.
bool is_host_failure(const Status& why);
inline constexpr char kHostFailure[] = "dsgd_fail";
bool listens_on_loopback(const transport::MemberInfo& member);
// Returns a clause that says why workers that run may not reach each other. `loopback`: one of them listens
// on a loopback address.
const char* reason_for_cut(bool loopback);

// "OPERATION: SENDER sent DATA; all workers must run the same version of dsgd". `operation` may be empty.
// `data`: "an invalid step header: WHY". `sender`, if empty: "rank 2".
Status invalid_data(const std::string& operation, int32_t rank, const std::string& data,
                    const std::string& sender = {});

}  // namespace dsgd
