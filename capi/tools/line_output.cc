#include "capi/tools/line_output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>

namespace dsgd_tool {
namespace {

constexpr size_t kLongestLine = 64 * 1024;  // a longer one is broken, so that memory is bounded

}  // namespace

LineOutput::~LineOutput() {
  if (from_ >= 0) close(from_);
}

// Returns the number of bytes. 0: the end; -1: there are none yet.
ssize_t LineOutput::copy_block() {
  if (from_ < 0) return 0;
  char block[65536];
  ssize_t n;
  do n = read(from_, block, sizeof block);
  while (n < 0 && errno == EINTR);
  if (n > 0) {
    pending_.append(block, static_cast<size_t>(n));
    write_lines(false);
    return n;
  }
  if (n < 0 && errno == EAGAIN) return -1;
  close(from_);
  from_ = -1;
  write_lines(true);
  return 0;
}

void LineOutput::copy() {
  if (wants_input()) copy_block();
}

void LineOutput::copy_all() {
  int left = 0;
  if (from_ < 0 || ioctl(from_, FIONREAD, &left) != 0) return;
  // One more than there is, which finds the end. Another process may hold the pipe, and write more.
  for (ssize_t n = 1; n > 0 && left >= 0; left -= static_cast<int>(n)) n = copy_block();
}

void LineOutput::finish() {
  copy_all();
  write_lines(true);
}

void LineOutput::take_line(const std::string& line, std::string* text) {
  last_line_ = line;
  if (on_line_ && on_line_(line)) return;
  *text += prefix_ + line + "\n";
}

// Adds all lines at once, so that lines of different workers do not mix.
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
  if (!discard_) to_.add(std::move(text), true);
}

}  // namespace dsgd_tool
