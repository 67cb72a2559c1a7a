#include "transport/uv/bind.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "transport/uv/address.h"
#include "transport/uv/guard.h"

namespace dsgd::transport::uv {

namespace {

constexpr int kBacklog = 1024;

Status in_use(const std::string& address) {
  return Status(Code::kAddressInUse,
                "address " + address +
                    " is in use by another process; choose another port, or port 0 for any free one");
}

const char* path_of(const SocketAddress& address) { return address.as<sockaddr_un>().sun_path; }

// The socket file of a process that has died stays behind. It may be removed if no process listens on it.
bool is_stale(const SocketAddress& address) {
  struct stat info{};
  // Any other file is kept.
  if (::stat(path_of(address), &info) != 0 || !S_ISSOCK(info.st_mode)) return false;
  auto probe = make_socket(AF_UNIX);
  if (!probe.ok()) return false;
  return ::connect(probe.value().get(), address.get(), address.length) != 0 && errno == ECONNREFUSED;
}

// A Unix socket between bind() and listen() looks stale. Two processes that replace the same stale socket
// could remove each other's new one. So one process at a time binds in a directory: it holds a lock on the
// directory. If it cannot get the lock within kTries milliseconds, it continues without.
class DirectoryLock {
 public:
  explicit DirectoryLock(const SocketAddress& address) {
    constexpr int kTries = 1000;  // one per millisecond; the process that holds the lock may be stopped
    if (address.family() != AF_UNIX) return;
    const std::string path = path_of(address);
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    folder_ = above_standard_streams(
        [&folder] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    for (int i = 0; folder_ && ::flock(folder_.get(), LOCK_EX | LOCK_NB) != 0 && i < kTries; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  Fd folder_;
};

Status bind_once(const SocketAddress& address, const std::string& text, BoundSocket* bound,
                 bool* both_refused) {
  const DirectoryLock lock(address);
  auto fd = make_socket(address.family());
  if (!fd.ok()) return fd.status();
  const int on = 1;
  if (address.family() != AF_UNIX) setsockopt(fd.value().get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int failed = ::bind(fd.value().get(), address.get(), address.length);
  if (failed != 0 && errno == EADDRINUSE && address.family() == AF_UNIX && is_stale(address)) {
    ::unlink(path_of(address));
    failed = ::bind(fd.value().get(), address.get(), address.length);
  }
  if (failed == 0) {
    failed = ::listen(fd.value().get(), kBacklog);
    *both_refused = failed != 0 && errno == EADDRINUSE;
  }
  if (failed != 0) {
    if (errno == EADDRINUSE) return in_use(text);
    if (errno == EADDRNOTAVAIL) {
      return Status(Code::kUnreachable, "cannot listen on " + text +
                                            ": this machine does not have that address; use one of its own");
    }
    const char* remedy = errno == EACCES   ? "; choose a port above 1023, or a folder that you may write to"
                         : errno == ENOENT ? "; make the folder first"
                                           : "";
    return Status(Code::kIo, "cannot listen on " + text + ": " + errno_text(errno) + remedy);
  }
  bound->fd = std::move(fd).value();
  return {};
}

// bind() can succeed and listen() still fail with EADDRINUSE when another process does the same at the same
// time. Linux may refuse both. Tries again; the last process to try succeeds.
Status bind_one(const SocketAddress& address, const std::string& text, BoundSocket* bound) {
  constexpr int kTries = 1000;
  Status status;
  bool both_refused = true;
  for (int i = 0; both_refused && i < kTries; ++i) {
    both_refused = false;
    status = bind_once(address, text, bound, &both_refused);
  }
  return status;
}

}  // namespace

Result<BoundSocket> bind_and_listen(const std::string& address, const std::shared_ptr<ResolveLimit>& limit) {
  auto parsed = parse_address(address);
  if (!parsed.ok()) return parsed.status();
  auto candidates = resolve_now(parsed.value(), true, limit);
  if (!candidates.ok()) return candidates.status();
  BoundSocket bound;
  Status status;
  // Takes the first address that this machine has. An address in use ends the search: if two processes ask
  // for "localhost:7700", the second must not take [::1] because the first has 127.0.0.1.
  for (const SocketAddress& candidate : candidates.value()) {
    status = bind_one(candidate, address, &bound);
    if (status.code() != Code::kUnreachable && status.code() != Code::kLimit) break;
  }
  if (!status.ok()) return status;
  if (parsed.value().is_unix) {
    bound.address = "unix:" + parsed.value().path;
    bound.unlink_path = parsed.value().path;
    struct stat info{};
    if (::stat(bound.unlink_path.c_str(), &info) == 0) {
      bound.device = info.st_dev;
      bound.inode = info.st_ino;
    }
  } else {
    SocketAddress real;
    getsockname(bound.fd.get(), real.room(), &real.length);
    bound.address = to_text(real);
  }
  return bound;
}

}  // namespace dsgd::transport::uv
