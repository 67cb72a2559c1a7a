#include "core/base/describe.h"

#include <algorithm>
#include <cstdio>

#include "core/base/address.h"

namespace dsgd {

std::string describe_duration(transport::Duration duration) {
  char text[48];
  const double seconds = std::chrono::duration<double>(duration).count();
  if (seconds >= 1.0) {
    std::snprintf(text, sizeof text, "%.1f s", seconds);
  } else {
    std::snprintf(text, sizeof text, "%.0f ms", seconds * 1e3);
  }
  return text;
}

std::string describe_candidate(const transport::MemberInfo& member) {
  return "'" + member.worker_id + "' (host " + member.host + ", pid " + std::to_string(member.pid) + ")";
}

std::string describe_member(const transport::MemberInfo& member) {
  return "rank " + std::to_string(member.rank) + " (worker '" + member.worker_id + "' on host " +
         member.host + ", pid " + std::to_string(member.pid) + ")";
}

int32_t rank_of(const std::vector<transport::MemberInfo>& members, const std::string& worker_id) {
  const auto found = std::find_if(members.begin(), members.end(), [&](const transport::MemberInfo& member) {
    return member.worker_id == worker_id;
  });
  return found == members.end() ? -1 : static_cast<int32_t>(found - members.begin());
}

bool concerns_all_workers(Code code) {
  return code == Code::kAborted || code == Code::kMismatch || code == Code::kDiverged || code == Code::kTorn;
}

bool is_host_failure(const Status& why) { return why.operation() == kHostFailure; }

bool listens_on_loopback(const transport::MemberInfo& member) {
  return !member.addresses.empty() && is_loopback(member.addresses.front());
}

const char* reason_for_cut(bool loopback) {
  return loopback ? "the workers run in different containers, which a loopback address does not connect; set "
                    "`head`, `interface` or `listen` to an address or network that all workers share"
                  : "a firewall separates the workers";
}

Status invalid_data(const std::string& operation, int32_t rank, const std::string& data,
                    const std::string& sender) {
  return Status(Code::kInternal, (operation.empty() ? "" : operation + ": ") +
                                     (sender.empty() ? "rank " + std::to_string(rank) : sender) + " sent " +
                                     data + "; all workers must run the same version of dsgd")
      .with_rank(rank)
      .with_operation(operation);
}

}  // namespace dsgd
