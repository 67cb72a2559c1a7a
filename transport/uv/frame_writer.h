// The queue of outgoing frames of one connection. It alone holds pointers to spans that are being sent, so it
// alone can promise that a span is read no more.
#pragma once

#include <kj/memory.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "transport/base/status.h"

namespace dsgd::transport::uv {

class FrameWriter {
 public:
  static constexpr size_t kMaxSegments = 15;

  struct Frame {
    kj::Own<void> message;  // owns the segments
    std::array<uint32_t, kMaxSegments + 1> table{};
    std::array<iovec, kMaxSegments + 2> parts{};  // table, segments; a span's padding is a part of its own
    size_t count = 0, next = 0;
    size_t bytes = 0;
    uint64_t span = 0;     // id of the span in it, 0: none
    size_t span_part = 0;  // where in parts
    std::vector<std::byte> copy;
    std::vector<uint8_t> raw;  // bytes without a message: the handshake's
  };

  void push(Frame frame) {
    queued_bytes_ += frame.bytes;
    if (frame.span) ++spans_;
    frames_.push_back(std::move(frame));
    Frame& kept = frames_.back();
    // Only now does the table have its final place.
    kept.parts[0].iov_base = kept.raw.empty() ? static_cast<void*>(kept.table.data()) : kept.raw.data();
  }

  // Writes until all is written or the socket is full. `sent` is advanced by what was written.
  Status write(int fd, std::atomic<uint64_t>* sent);

  bool empty() const { return frames_.empty(); }
  size_t queued_bytes() const { return queued_bytes_; }
  size_t unwritten_spans() const { return spans_; }

  // No byte of the chosen spans is read after this: what is left of them goes out from a copy. False: there is no memory for one.
  bool revoke(const std::function<bool(uint64_t span)>& chosen);
  bool has(const std::function<bool(uint64_t span)>& chosen) const;  // still reads such a span
  void drop_all();

 private:
  static bool reads(const Frame& frame, const std::function<bool(uint64_t span)>& chosen) {
    return frame.span && frame.next <= frame.span_part && frame.copy.empty() && chosen(frame.span);
  }

  std::deque<Frame> frames_;
  size_t queued_bytes_ = 0;
  size_t spans_ = 0;
};

}  // namespace dsgd::transport::uv
