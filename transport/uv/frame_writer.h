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
#include <vector>

#include "transport/base/status.h"
#include "transport/uv/stream.h"

namespace dsgd::transport::uv {

// With checksums on, each of a frame's sections is followed by its CRC32C in four bytes, so that the reader
// uses nothing that it has not checked: the table; the segments before the payload; the payload, where
// payload_part says that there is one. The number of segments, in the low 16 bits of the table's first word,
// has its complement in the high 16: a wrong number would let the reader wait for a table that does not come.
class FrameWriter {
 public:
  static constexpr size_t kMaxSegments = 15;

  struct Frame {
    kj::Own<void> message;                           // owns the segments
    std::array<uint32_t, kMaxSegments + 2> table{};  // and its checksum
    // Table, segments, checksums; a span's padding is a part of its own.
    std::array<iovec, kMaxSegments + 4> parts{};
    size_t count = 0, next = 0;
    size_t payload_part = 0;  // first part of the payload section, 0: none
    size_t bytes = 0;
    uint64_t span = 0;     // id of the span in it, 0: none
    size_t span_part = 0;  // where in parts
    std::unique_ptr<std::byte[]> copy;
    std::vector<uint8_t> raw;             // bytes without a message: the handshake's
    std::array<uint32_t, 2> checksums{};  // of the segments before the payload, of the payload
    // Bytes of the span, from where its part begins now, that are in the payload's checksum.
    size_t summed = 0;
  };

  // Call before the first frame with a message.
  void use_checksums() { checksums_ = true; }
  void push(Frame frame);

  // Writes until all is written or the socket is full. `sent` is advanced by what was written.
  Status write(Stream stream, std::atomic<uint64_t>* sent);

  bool empty() const { return frames_.empty() && unsent_ == 0; }
  size_t queued_bytes() const { return queued_bytes_ + unsent_; }
  size_t unwritten_spans() const { return spans_; }

  // No byte of the chosen spans is read after this: what is left of them goes out from a copy. False: there
  // is no memory for one.
  bool revoke(const std::function<bool(uint64_t span)>& chosen);
  void drop_all();

 private:
  // Bytes of a span that are summed and then written while they are in the cache.
  static constexpr size_t kSumBytes = 128 << 10;

  Status write_frames(Stream stream, std::atomic<uint64_t>* sent);
  static void add_checksums(Frame& frame);
  bool sum_span(Frame& frame);
  static bool reads(const Frame& frame, const std::function<bool(uint64_t span)>& chosen) {
    return frame.span && frame.next <= frame.span_part && !frame.copy && chosen(frame.span);
  }

  std::deque<Frame> frames_;
  size_t queued_bytes_ = 0;
  size_t unsent_ = 0;  // bytes that the stream has taken and the socket has not
  size_t spans_ = 0;
  bool checksums_ = false;
};

}  // namespace dsgd::transport::uv
