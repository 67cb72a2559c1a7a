#include "capi/tools/output_queue.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <utility>

namespace dsgd_tool {
namespace {

constexpr size_t kFullBytes = 256 * 1024;

// Opens the pipe or terminal behind `fd` again, so that writes do not block: `fd` itself is shared with other
// processes. Returns `fd` if this is impossible, for example for a socket.
int nonblocking(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0 || !(S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode))) return fd;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const int own = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  return own >= 0 ? own : fd;
}

bool same_file(int one, int other) {
  struct stat a, b;
  return fstat(one, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

OutputQueue::OutputQueue(int fd) : fd_(nonblocking(fd)) {}

OutputQueue& OutputQueue::of(int fd) {
  static OutputQueue output(STDOUT_FILENO), errors(STDERR_FILENO);
  static const bool same = same_file(STDOUT_FILENO, STDERR_FILENO);
  return fd == STDOUT_FILENO || same ? output : errors;
}

void OutputQueue::add(std::string lines, bool of_worker) {
  if (lines.empty()) return;
  const std::lock_guard lock(mutex_);
  size_ += lines.size();
  entries_.push_back({std::move(lines), of_worker});
  write_locked();
}

bool OutputQueue::write_some() {
  const std::lock_guard lock(mutex_);
  return write_locked();
}

// Each write ends with a line, unless the line is longer than PIPE_BUF: other processes' output does not
// split it. A descriptor that blocks is polled before.
bool OutputQueue::write_locked() {
  const size_t size_before = size_;
  while (!entries_.empty()) {
    pollfd writable{fd_, POLLOUT, 0};
    if (poll(&writable, 1, 0) <= 0) break;
    const Entry& first = entries_.front();
    const char* const text = first.lines.data() + written_;
    size_t count = first.lines.size() - written_;
    if (count > PIPE_BUF) {
      const void* const end = memrchr(text, '\n', PIPE_BUF);
      count = end ? static_cast<size_t>(static_cast<const char*>(end) - text) + 1 : PIPE_BUF;
    }
    const ssize_t n = write(fd_, text, count);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0 && first.of_worker && error_ == 0) error_ = errno;
    // After an error, the rest of these lines is discarded.
    const size_t done = n < 0 ? first.lines.size() - written_ : static_cast<size_t>(n);
    written_ += done;
    size_ -= done;
    if (written_ == first.lines.size()) {
      entries_.pop_front();
      written_ = 0;
    }
  }
  return size_ < size_before;
}

void OutputQueue::discard() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
  written_ = size_ = 0;
}

bool OutputQueue::empty() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty();
}

bool OutputQueue::full() const {
  const std::lock_guard lock(mutex_);
  return size_ >= kFullBytes;
}

int OutputQueue::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, 0);
}

void print_message(const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, arguments)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  va_end(arguments);
  OutputQueue::of(STDERR_FILENO).add(std::move(text), false);
}

}  // namespace dsgd_tool
