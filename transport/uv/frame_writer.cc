#include "transport/uv/frame_writer.h"

#include <errno.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "transport/base/crc32c.h"

namespace dsgd::transport::uv {

namespace {
constexpr size_t kMaxParts = 64;  // of one system call
}

void FrameWriter::push(Frame frame) {
  if (frame.span) ++spans_;
  frames_.push_back(std::move(frame));
  Frame& kept = frames_.back();
  // Only now does the table have its final place.
  kept.parts[0].iov_base = kept.raw.empty() ? static_cast<void*>(kept.table.data()) : kept.raw.data();
  if (checksums_ && kept.raw.empty()) add_checksums(kept);
  queued_bytes_ += kept.bytes;
}

void FrameWriter::add_checksums(Frame& frame) {
  iovec& table = frame.parts[0];
  frame.table[0] |= ~frame.table[0] << 16;
  frame.table[table.iov_len / sizeof(uint32_t)] = crc32c(0, table.iov_base, table.iov_len);
  table.iov_len += sizeof(uint32_t);
  const auto parts = frame.parts;
  const size_t count = std::exchange(frame.count, 1), span_part = frame.span_part;
  auto add_section = [&](size_t begin, size_t end, uint32_t& checksum) {
    for (size_t i = begin; i < end; ++i) {
      if (i == span_part) frame.span_part = frame.count;
      frame.parts[frame.count++] = parts[i];
      // A span is summed as it is written, and its padding after it.
      if (!frame.span || begin != frame.payload_part)
        checksum = crc32c(checksum, parts[i].iov_base, parts[i].iov_len);
    }
    frame.parts[frame.count++] = {&checksum, sizeof checksum};
    frame.bytes += sizeof checksum;
  };
  frame.bytes += sizeof(uint32_t);
  const size_t payload = frame.payload_part ? frame.payload_part : count;
  add_section(1, payload, frame.checksums[0]);
  if (frame.payload_part) add_section(payload, count, frame.checksums[1]);
}

// Adds the next piece of the span to its checksum. True: the checksum is complete, so all of the frame may be
// written.
bool FrameWriter::sum_span(Frame& frame) {
  const iovec& span = frame.parts[frame.span_part];
  if (frame.summed == span.iov_len) return true;
  const size_t n = std::min(kSumBytes, span.iov_len - frame.summed);
  uint32_t& checksum = frame.checksums[1];
  checksum = crc32c(checksum, static_cast<const std::byte*>(span.iov_base) + frame.summed, n);
  frame.summed += n;
  if (frame.summed < span.iov_len) return false;
  for (size_t i = frame.span_part + 1; i + 1 < frame.count; ++i) {  // padding
    checksum = crc32c(checksum, frame.parts[i].iov_base, frame.parts[i].iov_len);
  }
  return true;
}

Status FrameWriter::write(Stream stream, std::atomic<uint64_t>* sent) {
  Status status = write_frames(stream, sent);
  if (status.ok() && !stream.flush() && errno != EAGAIN && errno != EWOULDBLOCK)
    status = stream.failure(Code::kWorkerLost, "sending", errno);
  unsent_ = stream.unsent();
  return status;
}

Status FrameWriter::write_frames(Stream stream, std::atomic<uint64_t>* sent) {
  while (!frames_.empty()) {
    std::array<iovec, kMaxParts> parts;
    size_t count = 0;
    for (Frame& frame : frames_) {
      if (count + (frame.count - frame.next) > kMaxParts) break;
      for (size_t i = frame.next; i < frame.count; ++i) {
        parts[count++] = frame.parts[i];
        const bool sums_now = checksums_ && frame.span && frame.payload_part && i == frame.span_part;
        if (sums_now && !sum_span(frame)) {
          parts[count - 1].iov_len = frame.summed;
          break;
        }
      }
      if (frame.span) break;  // the payload fills a call by itself
    }
    const ssize_t n = stream.send(parts.data(), count);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
      return stream.failure(Code::kWorkerLost, "sending", errno);
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
        if (frame.next == frame.span_part) frame.summed -= std::min(frame.summed, left);
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
    frame.copy.reset(new (std::nothrow) std::byte[part.iov_len]);
    if (!frame.copy) return false;
    std::copy(data, data + part.iov_len, frame.copy.get());
    part.iov_base = frame.copy.get();
  }
  return true;
}

void FrameWriter::drop_all() {
  frames_.clear();
  queued_bytes_ = 0;
  spans_ = 0;
}

}  // namespace dsgd::transport::uv
