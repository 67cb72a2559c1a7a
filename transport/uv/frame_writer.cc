#include "transport/uv/frame_writer.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "transport/uv/guard.h"

namespace dsgd::transport::uv {

namespace {
constexpr size_t kMaxParts = 64;  // of one system call
}

Status FrameWriter::write(int fd, std::atomic<uint64_t>* sent) {
  while (!frames_.empty()) {
    std::array<iovec, kMaxParts> parts;
    size_t count = 0;
    for (const Frame& frame : frames_) {
      if (count + (frame.count - frame.next) > kMaxParts) break;
      for (size_t i = frame.next; i < frame.count; ++i) parts[count++] = frame.parts[i];
      if (frame.span) break;  // the payload fills a call by itself
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t n = ::sendmsg(fd, &message, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
      return Status(Code::kWorkerLost, "sending failed: " + errno_text(errno));
    }
    sent->fetch_add(n, std::memory_order_relaxed);
    size_t left = static_cast<size_t>(n);
    queued_bytes_ -= left;
    while (!frames_.empty()) {
      Frame& frame = frames_.front();
      while (frame.next < frame.count && left >= frame.parts[frame.next].iov_len) {
        left -= frame.parts[frame.next++].iov_len;
      }
      if (frame.next < frame.count) {
        iovec& part = frame.parts[frame.next];
        part.iov_base = static_cast<char*>(part.iov_base) + left;
        part.iov_len -= left;
        break;
      }
      if (frame.span) --spans_;
      frames_.pop_front();
    }
  }
  return {};
}

bool FrameWriter::revoke(const std::function<bool(uint64_t span)>& chosen) {
  for (Frame& frame : frames_) {
    if (!reads(frame, chosen)) continue;
    iovec& part = frame.parts[frame.span_part];
    const auto* data = static_cast<const std::byte*>(part.iov_base);
    try {
      frame.copy.assign(data, data + part.iov_len);
    } catch (const std::bad_alloc&) {
      return false;
    }
    part.iov_base = frame.copy.data();
  }
  return true;
}

bool FrameWriter::has(const std::function<bool(uint64_t span)>& chosen) const {
  return std::any_of(frames_.begin(), frames_.end(), [&](const Frame& frame) { return reads(frame, chosen); });
}

void FrameWriter::drop_all() {
  frames_.clear();
  queued_bytes_ = 0;
  spans_ = 0;
}

}  // namespace dsgd::transport::uv
