#include "core/base/describe.h"

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

bool listens_on_loopback(const transport::MemberInfo& member) {
  return !member.addresses.empty() && is_loopback(member.addresses.front());
}

const char* reason_for_cut(bool loopback) {
  return loopback
             ? "the workers run in different containers, and a loopback address does not lead from one to "
               "another; let `head`, or `interface` or `listen`, name a network that all share"
             : "a firewall separates the workers";
}

}  // namespace dsgd
