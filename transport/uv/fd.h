// A file descriptor with one owner.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

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

 private:
  int fd_ = -1;
};

// A host may run with its standard input, output or error closed; what it prints must not go into a socket of ours.
inline Fd above_standard_streams(Fd fd) {
  if (!fd || fd.get() > STDERR_FILENO) return fd;
  Fd moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  const int error = errno;
  fd.reset();
  errno = error;
  return moved;
}

}  // namespace dsgd::transport::uv
