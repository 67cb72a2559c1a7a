#include "core/membership/text.h"

#include "core/base/describe.h"
#include "core/base/text.h"

namespace dsgd {
namespace {

bool is_rank(int32_t rank, const transport::JoinReply& view) {
  return rank >= 0 && static_cast<size_t>(rank) < view.members.size();
}

}  // namespace

std::string describe_head(const std::string& address, const transport::JoinReply& view) {
  std::string text = "the head at " + address;
  if (is_rank(view.head_rank, view)) {
    text += ", hosted by " + describe_member(view.members[static_cast<size_t>(view.head_rank)]) + ",";
  }
  return text;
}

std::string describe_sender(const transport::ServerChannel& channel) {
  return "worker '" + printable(channel.hello().worker_id) + "' at " + channel.address();
}

Status bad_message(const std::string& text) { return Status(Code::kInvalidArgument, text); }

std::string describe_errors(const std::vector<std::string>& addresses, const std::vector<Status>& errors) {
  if (addresses.size() == 1) return errors[0].message();
  std::string text;
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (!errors[i].ok()) text += (text.empty() ? "" : "; ") + addresses[i] + ": " + errors[i].message();
  }
  return text;
}

Status error_of_all(const std::vector<std::string>& addresses, const std::vector<Status>& errors,
                    const Status& why) {
  if (addresses.size() == 1) return why;
  return Status(why.code(), describe_errors(addresses, errors)).with_parameter(why.parameter());
}

Code code_of_break(const Status& why) {
  return why.code() == Code::kCorrupted ? Code::kCorrupted : Code::kWorkerLost;
}

Status lost_worker(const transport::MemberInfo& member, const std::string& why, Code code) {
  return Status(code, describe_member(member) + " was lost: " + why).with_rank(member.rank, member.host);
}

Status evicted(const transport::MemberInfo& member, const Status& why) {
  return Status(Code::kEvicted,
                describe_member(member) +
                    " was evicted from the job, which goes on without it if min_workers are left (" +
                    why.message() + "); its values are out of date, and it can only join another job")
      .with_rank(member.rank, member.host);
}

Status append_to_message(const Status& why, const std::string& text) {
  return Status(why.code(), why.message() + "; " + text)
      .with_rank(why.rank(), why.host())
      .with_operation(why.operation())
      .with_parameter(why.parameter());
}

Status relayed_cause(const transport::MemberInfo& from, const Status& cause, const std::string& prefix) {
  // Its message names the worker, and its rank may be that of an earlier view.
  if (is_host_failure(cause)) return Status(cause).with_rank(from.rank, from.host);
  const Code code = cause.code() == Code::kClosed ? Code::kWorkerLost : cause.code();
  const bool named = cause.rank() >= 0;
  return Status(code, prefix + cause.message())
      .with_rank(named ? cause.rank() : from.rank, named ? cause.host() : from.host)
      .with_operation(cause.operation())
      .with_parameter(cause.parameter());
}

}  // namespace dsgd
