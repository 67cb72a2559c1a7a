#include "capi/tools/output_queue.h"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace dsgd_tool {
namespace {

constexpr size_t kFull = 256 * 1024;

bool same_file(int one, int other) {
  struct stat a, b;
  return fstat(one, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

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

void OutputQueue::write_some() {
  const std::lock_guard lock(mutex_);
  write_locked();
}

// A pipe that is writable takes PIPE_BUF bytes without blocking. The descriptor itself stays blocking, since
// it is shared with other processes. Writes whole lines if they are not longer, since others may write, too.
void OutputQueue::write_locked() {
  while (!entries_.empty()) {
    pollfd writable{fd_, POLLOUT, 0};
    if (poll(&writable, 1, 0) <= 0) return;
    const Entry& first = entries_.front();
    const char* const text = first.lines.data() + written_;
    size_t count = first.lines.size() - written_;
    if (count > PIPE_BUF) {
      const void* const end = memrchr(text, '\n', PIPE_BUF);
      count = end ? static_cast<size_t>(static_cast<const char*>(end) - text) + 1 : PIPE_BUF;
    }
    const ssize_t n = write(fd_, text, count);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
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
  return size_ >= kFull;
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
