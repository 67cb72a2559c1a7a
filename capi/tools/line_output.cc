#include "capi/tools/line_output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace dsgd_tool {
namespace {

constexpr size_t kLongestLine = 64 * 1024;  // a longer one is broken, so that memory is bounded

}  // namespace

// One call per batch of lines, so that lines of different workers do not mix.
int write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      pollfd writable{fd, POLLOUT, 0};
      poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

LineOutput::~LineOutput() {
  if (from_ >= 0) close(from_);
}

void LineOutput::copy() {
  char block[16384];
  while (from_ >= 0) {
    const ssize_t n = read(from_, block, sizeof block);
    if (n > 0) {
      pending_.append(block, static_cast<size_t>(n));
      write_lines(false);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && errno == EAGAIN) {
      return;
    } else {
      close(from_);
      from_ = -1;
      write_lines(true);
    }
  }
}

void LineOutput::finish() {
  copy();
  write_lines(true);
}

void LineOutput::take_line(const std::string& line, std::string* text) {
  last_line_ = line;
  if (on_line_ && on_line_(line)) return;
  *text += prefix_ + line + "\n";
}

void LineOutput::write_lines(bool all) {
  std::string text;
  size_t begin = 0;
  for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1)
    take_line(pending_.substr(begin, end - begin), &text);
  pending_.erase(0, begin);
  if (!pending_.empty() && (all || pending_.size() >= kLongestLine)) {
    take_line(pending_, &text);
    pending_.clear();
  }
  if (discard_) return;
  const int error = write_all(to_, text);
  if (error_ == 0) error_ = error;
}

}  // namespace dsgd_tool
