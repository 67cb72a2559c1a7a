#include "capi/tools/head_watch.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace dsgd_tool {
namespace {

constexpr std::chrono::milliseconds kPause{500};
constexpr int kPatienceMilliseconds = 2000;  // for one attempt

// 0, or an errno.
int connect_to(const sockaddr* address, socklen_t length) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  int error = connect(fd, address, length) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd writable{fd, POLLOUT, 0};
    socklen_t size = sizeof error;
    if (poll(&writable, 1, kPatienceMilliseconds) <= 0) {
      error = ETIMEDOUT;
    } else {
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  close(fd);
  return error;
}

// "", or why not.
std::string try_to_reach(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) {
    sockaddr_un path{};
    path.sun_family = AF_UNIX;
    address.copy(path.sun_path, sizeof path.sun_path - 1, 5);
    const int error = connect_to(reinterpret_cast<sockaddr*>(&path), sizeof path);
    return error ? std::strerror(error) : "";
  }
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found))
    return gai_strerror(error);
  int error = 0;
  for (const addrinfo* it = found; it; it = it->ai_next)
    if ((error = connect_to(it->ai_addr, it->ai_addrlen)) == 0) break;
  freeaddrinfo(found);
  if (error == 0) return "";
  const bool silent = error == ETIMEDOUT || error == EHOSTUNREACH;
  return std::string(std::strerror(error)) +
         (silent ? "; a firewall may be between" : "; is `dsgd head` running there?");
}

void watch(const std::string& address, const std::shared_ptr<WaitNote>& note) {
  for (std::string why; !(why = try_to_reach(address)).empty(); std::this_thread::sleep_for(kPause))
    note->begin(why);
  note->end();
}

}  // namespace

// The thread is not joined: it may be within a slow look-up of a name when the workers have ended.
std::shared_ptr<WaitNote> watch_head(const std::string& address) {
  auto note = std::make_shared<WaitNote>("the head at " + address);
  note->begin("no answer yet");
  std::thread(watch, address, note).detach();
  return note;
}

}  // namespace dsgd_tool
