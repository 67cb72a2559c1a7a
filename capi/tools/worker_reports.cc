#include "capi/tools/worker_reports.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <sstream>

#include "capi/tools/output_queue.h"
#include "capi/tools/remote.h"
#include "capi/tools/tool.h"

namespace dsgd_tool {
namespace {

// Returns the sender's process. Any process on this machine can send to the socket. Reports of other users
// are ignored: nullopt.
std::optional<pid_t> sender_of(msghdr& message) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_CREDENTIALS) continue;
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(part), sizeof sender);
    if (sender.uid == geteuid()) return sender.pid;
  }
  return std::nullopt;
}

}  // namespace

// Binds an abstract name that the kernel chooses.
WorkerReports::WorkerReports() : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  socklen_t length = sizeof name;
  const int yes = 1;
  if (fd_ < 0 || setsockopt(fd_, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0 ||
      bind(fd_, reinterpret_cast<sockaddr*>(&name), sizeof name.sun_family) != 0 ||
      getsockname(fd_, reinterpret_cast<sockaddr*>(&name), &length) != 0)
    throw system_failure("cannot open a socket for the workers' reports");
  const size_t path = offsetof(sockaddr_un, sun_path);
  address_ = "@" + std::string(name.sun_path + 1, length - path - 1);
}

WorkerReports::~WorkerReports() { close(fd_); }

void WorkerReports::take() {
  char text[8192], control[CMSG_SPACE(sizeof(ucred))];
  for (;;) {
    iovec part{text, sizeof text};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(fd_, &message, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    if (const auto sender = sender_of(message))
      note(std::string(text, static_cast<size_t>(n)), getpgid(*sender));  // -1: it has ended
  }
}

// "RANK KIND CAUSE TEXT": see capi/src/reporter.h. Ignores what it does not know; another version may have
// sent it.
void WorkerReports::note(const std::string& report, pid_t group) {
  std::istringstream words(report);
  int rank = -1, cause = -1;
  std::string kind, text;
  if (!(words >> rank >> kind >> cause)) return;
  std::getline(words >> std::ws, text);
  if (passes_on_ && (kind == "waiting" || kind == "joined"))
    OutputQueue::of(STDOUT_FILENO)
        .add(std::string(kReport) + std::to_string(rank) + " " + kind + " " + std::to_string(cause) + " " +
                 text + "\n",
             true);
  const Worker worker(rank, rank < 0 ? group : 0);
  const bool has_ended = worker.second < 0;
  if (kind == "dialing" && !has_ended) {
    waiting_.erase(worker);
    dialing_.insert(worker);
    head_error_ = text;
  } else if (kind == "waiting" && !has_ended) {
    dialing_.erase(worker);
    waiting_.insert(worker);
    progress_ = text;
  } else if (kind == "joined") {  // the job begins with all workers, so all have come
    ++joins_;
    dialing_.clear();
    waiting_.clear();
    causes_.erase(rank);
  } else if (kind == "failed") {
    forget(worker);
    if (cause != rank) causes_[rank] = {cause, ++failures_};  // else it aborts the job, maybe because of that
  } else if (kind == "recovered") {
    causes_.erase(rank);
  }
}

void WorkerReports::reset() {
  take();
  causes_.clear();
  dialing_.clear(), waiting_.clear();
  head_error_.clear(), progress_.clear();
  joins_ = 0;
}

void WorkerReports::forget(const Worker& worker) {
  dialing_.erase(worker);
  waiting_.erase(worker);
}

int WorkerReports::cause(int rank) const {
  auto failure = causes_.find(rank);
  if (failure == causes_.end()) return -1;
  for (;;) {
    const auto next = causes_.find(failure->second.rank);
    if (next == causes_.end() || next->second.rank < 0 || next->second.order > failure->second.order)
      return failure->second.rank;
    failure = next;
  }
}

}  // namespace dsgd_tool
