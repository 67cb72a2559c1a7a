#include "capi/src/reporter.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace dsgd::capi {
namespace {

const char* name_of(WorkerReport::Kind kind) {
  static constexpr const char* kNames[] = {"dialing", "waiting", "joined", "failed", "recovered"};
  return kNames[static_cast<int>(kind)];
}

// Limit of the wait for a place in the supervisor's queue, which on Linux has ten by default. It is only
// reached if the supervisor is stopped.
constexpr timeval kLongestWait{0, 50'000};

// Opens a socket for each report. Reports are rare, and no descriptor stays open in the host's process.
void send_report(const std::string& supervisor, const std::string& text) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  supervisor.copy(address.sun_path, sizeof address.sun_path);
  address.sun_path[0] = 0;  // abstract: no file
  const size_t length =
      offsetof(sockaddr_un, sun_path) + std::min(supervisor.size(), sizeof address.sun_path);
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kLongestWait, sizeof kLongestWait);
  sendto(fd, text.data(), text.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address),
         static_cast<socklen_t>(length));
  close(fd);
}

}  // namespace

Log::Reporter make_reporter(const Config& config) {
  const std::string supervisor = config.text("supervisor");
  if (supervisor.empty()) return nullptr;
  return [supervisor, rank = std::to_string(config.integer("rank"))](const WorkerReport& report) {
    send_report(supervisor,
                rank + " " + name_of(report.kind) + " " + std::to_string(report.cause) + " " + report.text);
  };
}

}  // namespace dsgd::capi
