// A file descriptor with one owner.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace dsgd::transport::uv {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int release() { return std::exchange(fd_, -1); }  // to another owner

 private:
  int fd_ = -1;
};

// While this object lives, /dev/null occupies the free ones of descriptors 0, 1 and 2. A host may run with
// them closed. Its output must not go into our sockets, and libuv aborts the process if its own descriptor is
// one of them.
class StandardStreams {
 public:
  StandardStreams() {
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
      if (::fcntl(stream, F_GETFD) != -1) continue;
      Fd& held = held_[static_cast<size_t>(stream)];
      held = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));  // the lowest that is free
      if (held.get() > STDERR_FILENO) held.reset();
    }
  }

 private:
  std::array<Fd, STDERR_FILENO + 1> held_;
};

// A descriptor made by `make`, none of the standard streams'; errno as it left it.
template <typename Make>
Fd above_standard_streams(Make make) {
  Fd fd;
  int error;
  {
    const StandardStreams held;
    fd = Fd(make());
    error = errno;
  }
  if (fd && fd.get() <= STDERR_FILENO) {  // another thread's hold ended in between
    fd = Fd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    error = errno;
  }
  errno = error;
  return fd;
}

}  // namespace dsgd::transport::uv
