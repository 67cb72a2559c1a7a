#include "transport/sim/connection.h"

#include <algorithm>
#include <utility>

#include "transport/base/crc32c.h"

namespace dsgd::transport {
namespace {

size_t size_of(const Packet& packet) { return 64 + packet.header.size() + packet.body.size(); }

}  // namespace

void Pipe::set_writer(std::shared_ptr<LoopState> loop, std::weak_ptr<End> end) {
  writer_loop_ = std::move(loop);
  writer_ = std::move(end);
}

void Pipe::set_reader(std::shared_ptr<LoopState> loop, std::weak_ptr<End> end) {
  reader_loop_ = std::move(loop);
  reader_ = std::move(end);
  schedule_read();
}

void Pipe::write(Frame frame) {
  if (closed_) return;
  queue_.push_back(std::move(frame));
  schedule_write();
}

std::vector<uint64_t> Pipe::revoke(uint64_t operation) {
  std::vector<uint64_t> dropped;
  for (auto frame = queue_.begin(); frame != queue_.end();) {
    if (frame->kind != FrameKind::kBulk || frame->operation != operation) {
      ++frame;
    } else if (frame->begun) {
      keep_copy(*frame);
      ++frame;
    } else {
      dropped.push_back(frame->id);
      frame = queue_.erase(frame);
    }
  }
  return dropped;
}

void Pipe::keep_copy(Frame& frame) {
  if (!frame.owned.empty()) return;
  frame.owned.assign(frame.payload.begin(), frame.payload.end());
  frame.payload = frame.owned;
}

void Pipe::release_spans() {
  for (auto frame = queue_.begin(); frame != queue_.end();) {
    if (frame->kind == FrameKind::kBulk && !frame->begun) {
      frame = queue_.erase(frame);
      continue;
    }
    if (frame->kind == FrameKind::kBulk) keep_copy(*frame);
    ++frame;
  }
}

void Pipe::finish(bool flush) {
  if (closed_) return;
  if (!flush && !queue_.empty()) return cut(true);
  write({.kind = FrameKind::kEnd});
  closed_ = true;
}

void Pipe::cut(bool reset) {
  if (closed_ && queue_.empty() && !under_way_.empty() && under_way_.back().kind == FrameKind::kReset) return;
  closed_ = true;
  queue_.clear();
  const size_t kept = kernel_.random().below(under_way_.size() + 1);
  while (under_way_.size() > kept) {
    unread_ -= size_of(under_way_.back());
    under_way_.pop_back();
  }
  if (reset) push({.kind = FrameKind::kReset});
}

void Pipe::push(Packet packet) {
  if (packet.carries_message() && packet.header.size() + packet.body.size() > 0 &&
      kernel_.take_flip(*from_, *to_)) {
    const size_t bit = kernel_.random().below(8 * (packet.header.size() + packet.body.size())),
                 byte = bit / 8;
    const uint8_t mask = static_cast<uint8_t>(1u << (bit % 8));
    if (byte < packet.header.size()) {
      packet.header[byte] ^= mask;
    } else {
      packet.body[byte - packet.header.size()] ^= std::byte{mask};
    }
  }
  unread_ += size_of(packet);
  const auto transfer =
      Duration(1000000000ull * size_of(packet) / std::max<uint64_t>(1, kernel_.options().bytes_per_second));
  last_arrival_ = std::max(last_arrival_, kernel_.now() + kernel_.delay(*from_, *to_)) + transfer;
  packet.arrival = last_arrival_;
  under_way_.push_back(std::move(packet));
  schedule_read();
}

// One piece per event: between any two the sender may revoke, close or be killed.
void Pipe::schedule_write() {
  if (write_scheduled_ || queue_.empty() || unread_ >= kernel_.options().socket_buffer) return;
  write_scheduled_ = true;
  const Time when = kernel_.now() + kernel_.random().between(Duration(0), std::chrono::microseconds(5));
  kernel_.at(when, from_, nullptr, "write", [this, hold = connection_.shared_from_this()] {
    write_scheduled_ = false;
    write_piece();
  });
}

void Pipe::write_piece() {
  if (queue_.empty()) return;
  Frame& frame = queue_.front();
  Packet packet{.kind = frame.kind, .id = frame.id, .offset = frame.written, .total = frame.payload.size()};
  if (!frame.begun) packet.header = std::move(frame.header);
  packet.header_checksum = crc32c(0, packet.header.data(), packet.header.size());
  frame.begun = true;
  size_t n = frame.payload.size() - frame.written;
  if (n > 64) {
    const size_t most = std::min(n, kernel_.options().largest_piece);
    const size_t piece = 64 * (1 + kernel_.random().below(most / 64));
    n = std::min(n, piece);
  }
  const auto piece = frame.payload.subspan(frame.written, n);
  packet.body.assign(piece.begin(), piece.end());
  packet.checksum = frame.checksum = crc32c(frame.checksum, piece.data(), piece.size());
  frame.written += n;
  if (frame.written == frame.payload.size()) queue_.pop_front();
  push(std::move(packet));
  schedule_write();
  if (queue_.empty()) {
    if (auto end = writer_.lock()) {
      const LoopState* loop = writer_loop_.get();
      if (loop != nullptr && loop->alive) {
        kernel_.at(kernel_.now(), from_, writer_loop_, "drained", [weak = writer_] {
          if (auto end = weak.lock()) end->drained();
        });
      }
    }
  }
}

void Pipe::schedule_read() {
  if (read_scheduled_ || under_way_.empty() || !reader_loop_) return;
  if (kernel_.blocked(*from_, *to_)) return note_blocked();  // unblock kicks
  if (blocked_since_ != kNever) {
    Time again = blocked_since_;
    for (Duration wait = kernel_.options().retransmission; again < kernel_.now() && wait > Duration(0);
         wait *= 2)
      again += wait;
    under_way_.front().arrival = std::max(under_way_.front().arrival, again);
    blocked_since_ = kNever;
  }
  read_scheduled_ = true;
  kernel_.at(under_way_.front().arrival, to_, reader_loop_, "read",
             [this, hold = connection_.shared_from_this()] {
               read_scheduled_ = false;
               read();
             });
}

void Pipe::note_blocked() {
  if (blocked_since_ == kNever) blocked_since_ = kernel_.now();
}

// As a frame of the real network: the header is checked before it is used, the payload when it is complete.
void Pipe::check(Packet& packet) {
  if (!packet.carries_message() || std::exchange(packet.checked, true)) return;
  if (packet.offset == 0) checksum_ = 0;
  checksum_ = crc32c(checksum_, packet.body.data(), packet.body.size());
  if (!connection_.checksums) return;
  packet.corrupted = packet.header_checksum != crc32c(0, packet.header.data(), packet.header.size()) ||
                     (packet.is_last() && packet.checksum != checksum_);
}

void Pipe::read() {
  if (under_way_.empty()) return;
  if (kernel_.blocked(*from_, *to_)) return note_blocked();
  auto end = reader_.lock();
  if (!end) return;
  // A cut may have replaced the packet for which this event was made.
  if (under_way_.front().arrival > kernel_.now()) return schedule_read();
  // Taken out first: what receive() does may cut this pipe.
  Packet packet = std::move(under_way_.front());
  under_way_.pop_front();
  const size_t size = size_of(packet);
  check(packet);
  if (!end->receive(packet)) {
    under_way_.push_front(std::move(packet));
    return;
  }
  kernel_.trace(static_cast<uint64_t>(packet.kind) << 56 | packet.id);
  kernel_.trace(packet.offset);
  kernel_.trace_bytes(packet.header.data(), packet.header.size());
  kernel_.trace(checksum_);  // up to the end of this piece
  unread_ -= size;
  schedule_write();
  schedule_read();
}

}  // namespace dsgd::transport
