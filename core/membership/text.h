// Texts and errors of the membership: how they name the head and workers, and the causes of losses.
#pragma once

#include <string>
#include <vector>

#include "transport/messages.h"
#include "transport/network.h"

namespace dsgd {

// "the head at 10.0.0.1:7700, hosted by rank 0 (worker 'w0' on host nodea, pid 17),", without the host if
// there is none
std::string describe_head(const std::string& address, const transport::JoinReply& view);

// "worker 'w0' at 10.0.0.2:40112"
std::string describe_sender(const transport::ServerChannel& channel);
// The answer to a message that its sender may not send.
Status bad_message(const std::string& text);

// "10.0.0.1:7700: <why>; 10.0.0.2:7700: <why>", of those that have failed; of one address, "<why>"
std::string describe_errors(const std::vector<std::string>& addresses, const std::vector<Status>& errors);
// The error if no address can be used. `why`: the one of `errors` that gives the code; the message has all.
Status error_of_all(const std::vector<std::string>& addresses, const std::vector<Status>& errors,
                    const Status& why);

// Appended to errors about two workers that claim one id or rank.
inline constexpr const char* kFirstRankHint =
    "; where another `dsgd run` has started the other one, give --first-rank";

// "rank 2 (worker ...) was lost: <why>"
Status lost_worker(const transport::MemberInfo& member, const std::string& why,
                   Code code = Code::kWorkerLost);
// The error of a lost worker that the others go on without, because of `why`.
Status evicted(const transport::MemberInfo& member, const Status& why);
// The code for the loss of a worker or head whose connection ended with `why`: kWorkerLost, or kCorrupted.
Code code_of_break(const Status& why);
// Returns `why` with "; <text>" after its message.
Status append_to_message(const Status& why, const std::string& text);
// Returns the cause that other workers get. Names `from` if `cause` names no rank. kClosed becomes
// kWorkerLost: in another session, kClosed would mean that this other session is closed.
Status relayed_cause(const transport::MemberInfo& from, const Status& cause, const std::string& prefix);

}  // namespace dsgd
