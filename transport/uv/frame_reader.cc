#include "transport/uv/frame_reader.h"

#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/base/crc32c.h"
#include "transport/schema/codec_capnp.h"
#include "transport/uv/zero_region.h"

namespace dsgd::transport::uv {

namespace {

constexpr size_t kWord = sizeof(capnp::word);
constexpr size_t kDirectBytes = 4096;  // less than this is read ahead, with the start of the next frame
constexpr size_t kControlReserve = 32 << 20;  // beyond receive_memory, for frames that are not bulk
constexpr size_t kUnlimited = SIZE_MAX / 4;   // does not overflow when it is added to
// Bytes of a payload that are read and then summed while they are in the cache.
constexpr size_t kSumBytes = 128 << 10;

Status corrupted() {
  return Status(
      Code::kCorrupted,
      "a received frame failed its CRC32C check: the network, a machine's memory, or a host that wrote to "
      "a buffer while dsgd was sending it, changed bytes on their way");
}

}  // namespace

ReadShared::ReadShared(size_t receive_memory)
    : pool(std::make_shared<BufferPool>(receive_memory)), scratch_memory(new std::byte[kScratchBytes + 64]) {
  const auto address = reinterpret_cast<uintptr_t>(scratch_memory.get());
  scratch = scratch_memory.get() + (64 - address % 64) % 64;
}

void ReadShared::wake_memory_waiters() {
  for (MemoryWaiter* reader : std::exchange(memory_waiters, {})) reader->memory_freed();
}

Frame::~Frame() noexcept(false) {
  FrameReader* reader = *reader_;
  if (!reader) return;
  if (slot_ >= 0) {
    reader->slots_[slot_].sink = nullptr;
    reader->free_slots_.push_back(slot_);
  }
  if (live_) --reader->live_frames_;
}

size_t Frame::words() const {
  size_t words = 0;
  for (auto segment : segments_) words += segment.size();
  return words;
}

capnp::ReaderOptions FrameReader::reader_options() {
  capnp::ReaderOptions options;
  // Payload is pointed at several times; what a frame may hold is bounded by kMaxFrameBytes already.
  options.traversalLimitInWords = 8 * kMaxFrameBytes / kWord;
  return options;
}

FrameReader::FrameReader(ReadShared& shared, Landing* landing)
    : shared_(shared),
      landing_(landing),
      self_(std::make_shared<FrameReader*>(this)),
      input_(shared.received) {}

FrameReader::~FrameReader() { *self_ = nullptr; }

PayloadSlot* FrameReader::slot_of(const void* data) {
  if (!ZeroRegion::contains(data)) return nullptr;
  const size_t slot = ZeroRegion::slot(data);
  return slot < slots_.size() ? &slots_[slot] : nullptr;
}

void FrameReader::discard(uint64_t operation, const Status& why) {
  if (state_ == State::kPayload && sink_ && slots_[frame_->slot_].header.operation == operation) {
    sink_ = nullptr;
    target_ = Target::kDiscarded;
  }
  // Chunks that have landed but are not dispatched yet are discarded, too.
  for (PayloadSlot& slot : slots_) {
    if (slot.header.operation == operation && !slot.discarded) {
      slot.discarded = true;
      slot.why = why;
    }
  }
}

// ---- reading

ReadOutcome FrameReader::read(Stream stream, kj::Own<Frame>* frame, Status* error) {
  for (;;) {
    const ReadOutcome outcome = step(stream, error);
    if (outcome == ReadOutcome::kEnd && (state_ != State::kTable || input_.size() > 0)) {
      *error = Status(Code::kWorkerLost, "the connection ended in the middle of a message");
      return ReadOutcome::kError;
    }
    if (outcome != ReadOutcome::kDone) return outcome;
    if (state_ == State::kTable && frame_) {
      frame_->live_ = true;
      ++live_frames_;
      *frame = kj::mv(frame_);
      return ReadOutcome::kDone;
    }
  }
}

// Does what the state asks for. kDone: it has led to another state, or there are more bytes to look at.
ReadOutcome FrameReader::step(Stream stream, Status* error) {
  switch (state_) {
    case State::kTable:
      return read_table(stream, error);
    case State::kBodyMemory:
      return get_body_memory(error);
    case State::kBody:
      return read_body(stream, error);
    case State::kPayloadMemory:
      return get_payload_memory(error);
    case State::kPayload:
      return read_payload(stream, error);
    case State::kBodyChecksum:
    case State::kPayloadChecksum:
      return read_checksum(stream, error);
  }
  return ReadOutcome::kError;
}

ReadOutcome FrameReader::read_table(Stream stream, Status* error) {
  auto number = [this](size_t index) {
    uint32_t value;
    std::memcpy(&value, input_.data() + index * sizeof value, sizeof value);
    return value;
  };
  size_t bytes = kWord;
  if (input_.size() >= kWord) {
    const uint32_t first = number(0);
    if (checksums_ && first >> 16 != (~first & 0xffff)) {
      *error = corrupted();
      return ReadOutcome::kError;
    }
    const uint32_t last = checksums_ ? first & 0xffff : first;
    segments_ = last + 1;
    if (segments_ == 0 || segments_ > FrameWriter::kMaxSegments) {
      *error = Status(Code::kIo, "a message has " + std::to_string(uint64_t{last} + 1) +
                                     " segments, at most " + std::to_string(FrameWriter::kMaxSegments) +
                                     " are accepted; is the peer another program?");
      return ReadOutcome::kError;
    }
    bytes = (segments_ + 2) / 2 * kWord;
  }
  const size_t checksum = checksums_ ? sizeof checksum_ : 0;
  if (input_.size() < bytes + checksum) return input_.read_more(stream, error);
  if (checksums_ && number(bytes / sizeof checksum_) != crc32c(0, input_.data(), bytes)) {
    *error = corrupted();
    return ReadOutcome::kError;
  }
  total_ = 0;
  for (uint32_t i = 0; i < segments_; ++i) {
    sizes_[i] = number(i + 1);
    total_ += sizes_[i] * kWord;
  }
  if (total_ > max_frame_bytes_) {
    *error = Status(Code::kLimit, "a message has " + std::to_string(total_) + " bytes, at most " +
                                      std::to_string(max_frame_bytes_) + " are accepted");
    return ReadOutcome::kError;
  }
  input_.skip(bytes + checksum);
  checksum_ = 0;
  // Of two segments the second may be payload: it waits until the first has been looked at.
  const bool maybe_span = landing_ && segments_ == 2 && sizes_[1] > 0;
  want_ = maybe_span ? sizes_[0] * kWord : total_;
  got_ = 0;
  frame_ = kj::heap<Frame>(reader_options(), self_);
  state_ = State::kBodyMemory;
  return ReadOutcome::kDone;
}

// A connection without frames may exceed the limit by one frame, so that it can always go on. Others wait for
// memory.
ReadOutcome FrameReader::get_memory(BufferPool::Buffer* buffer, size_t beyond, Status* error) {
  *buffer = BufferPool::get(shared_.pool, want_, live_frames_ == 0 ? kUnlimited : beyond);
  if (*buffer) return ReadOutcome::kDone;
  if (live_frames_ > 0) return ReadOutcome::kStarved;
  *error = Status(Code::kNoMemory, "no memory for a message of " + std::to_string(want_) + " bytes");
  return ReadOutcome::kError;
}

ReadOutcome FrameReader::get_body_memory(Status* error) {
  const ReadOutcome outcome = get_memory(&frame_->body_, kControlReserve, error);
  if (outcome == ReadOutcome::kDone) state_ = State::kBody;
  return outcome;
}

ReadOutcome FrameReader::read_body(Stream stream, Status* error) {
  std::byte* body = frame_->body_.data();
  while (got_ < want_) {
    size_t got = input_.take(body + got_, want_ - got_);
    if (got == 0) {
      const ReadOutcome outcome = want_ - got_ < kDirectBytes
                                      ? input_.read_more(stream, error)
                                      : input_.read_directly(stream, body + got_, want_ - got_, &got, error);
      if (outcome != ReadOutcome::kDone) return outcome;
    }
    got_ += got;
  }
  if (!checksums_) return end_body();
  checksum_ = crc32c(0, body, want_);
  state_ = State::kBodyChecksum;
  return ReadOutcome::kDone;
}

// No byte of a section is used before its checksum is verified. Payload is in its final place by then.
ReadOutcome FrameReader::read_checksum(Stream stream, Status* error) {
  uint32_t sent;
  if (input_.size() < sizeof sent) return input_.read_more(stream, error);
  (void)input_.take(&sent, sizeof sent);
  if (sent == std::exchange(checksum_, 0)) return state_ == State::kBodyChecksum ? end_body() : end_payload();
  *error = corrupted();
  return ReadOutcome::kError;
}

ReadOutcome FrameReader::end_body() {
  const auto* words = reinterpret_cast<const capnp::word*>(frame_->body_.data());
  for (uint32_t i = 0, at = 0; i < segments_; at += sizes_[i++]) {
    const bool here = at * kWord < want_ || sizes_[i] == 0;
    frame_->segments_.push_back(here ? kj::arrayPtr(words + at, sizes_[i])
                                     : kj::ArrayPtr<const capnp::word>());
  }
  if (total_ > want_) return begin_payload();
  state_ = State::kTable;
  return ReadOutcome::kDone;
}

// ---- payload

int FrameReader::take_slot() {
  if (!ZeroRegion::begin()) return -1;
  if (free_slots_.empty()) {
    if (slots_.size() >= ZeroRegion::kSlots) return -1;
    free_slots_.push_back(static_cast<int>(slots_.size()));
    slots_.emplace_back();
  }
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot] = PayloadSlot();
  return slot;
}

bool FrameReader::parse_span(int slot, BulkHeader* header, size_t* nbytes) {
  const auto payload = kj::arrayPtr(ZeroRegion::begin() + slot, sizes_[1]);
  const kj::ArrayPtr<const capnp::word> segments[] = {frame_->segments_[0], payload};
  bool fits = false;
  (void)kj::runCatchingExceptions([&] {
    capnp::SegmentArrayMessageReader reader(kj::arrayPtr(segments, 2), reader_options());
    auto message = reader.getRoot<capnp::rpc::Message>();
    if (!message.isCall()) return;
    auto call = message.getCall();
    if (call.getInterfaceId() != capnp::typeId<schema::Wire>() || call.getMethodId() != kPushMethod) return;
    auto params = call.getParams().getContent().getAs<schema::Wire::PushParams>();
    auto data = params.getData();  // checked against the segment's size, not read
    if (reinterpret_cast<const capnp::word*>(data.begin()) != payload.begin() ||
        (data.size() + kWord - 1) / kWord != payload.size()) {
      return;
    }
    auto parsed = transport::read(params.getHeader());
    if (!parsed.ok()) return;
    *header = parsed.value();
    *nbytes = data.size();
    fits = true;
  });
  return fits;
}

ReadOutcome FrameReader::begin_payload() {
  want_ = sizes_[1] * kWord;
  got_ = taken_ = carried_ = 0;
  sink_ = nullptr;
  nbytes_ = want_;
  state_ = State::kPayload;
  const int slot = take_slot();
  BulkHeader header;
  Status refused;
  const bool span = slot >= 0 && parse_span(slot, &header, &nbytes_);
  if (span) {
    slots_[slot].header = header;
    frame_->slot_ = slot;
    slots_[slot].sink = landing_->on_span(header, nbytes_, &refused);
    sink_ = slots_[slot].sink.get();
    if (slots_[slot].discarded) {  // from within on_bulk
      sink_ = nullptr;
      refused = slots_[slot].why;
    }
  } else {
    if (slot >= 0) free_slots_.push_back(slot);
    shared_.landing_missed.fetch_add(1, std::memory_order_relaxed);
  }
  if (sink_) {
    target_ = Target::kPieces;
    place_ = sink_->destination(0, nbytes_);
    if (sink_ && place_) target_ = Target::kInPlace;  // destination() itself may have discarded
  } else if (refused.ok()) {
    target_ = Target::kPooled;
    state_ = State::kPayloadMemory;
    return ReadOutcome::kDone;
  } else {
    slots_[slot].discarded = true;
    slots_[slot].why = refused;
    target_ = Target::kDiscarded;
  }
  set_payload_segment();
  return ReadOutcome::kDone;
}

ReadOutcome FrameReader::get_payload_memory(Status* error) {
  const ReadOutcome outcome = get_memory(&frame_->payload_, 0, error);
  if (outcome != ReadOutcome::kDone) return outcome;
  state_ = State::kPayload;
  if (frame_->slot_ >= 0) free_slots_.push_back(std::exchange(frame_->slot_, -1));
  set_payload_segment();
  return ReadOutcome::kDone;
}

void FrameReader::set_payload_segment() {
  frame_->segments_[1] =
      target_ == Target::kPooled
          ? kj::arrayPtr(reinterpret_cast<const capnp::word*>(frame_->payload_.data()), sizes_[1])
          : kj::arrayPtr(ZeroRegion::begin() + frame_->slot_, sizes_[1]);
}

ReadOutcome FrameReader::read_payload(Stream stream, Status* error) {
  while (got_ < want_) {
    // Where the next bytes go, and how many may.
    std::byte* to = shared_.scratch;
    size_t room = std::min(want_ - got_, ReadShared::kScratchBytes);
    if (target_ == Target::kPooled) {
      to = frame_->payload_.data() + got_;
      room = want_ - got_;
    } else if (target_ == Target::kInPlace && got_ < nbytes_) {
      to = place_ + got_;
      room = nbytes_ - got_;  // the padding goes to the scratch
    } else if (target_ == Target::kPieces && got_ < nbytes_) {
      std::memcpy(to, carry_.data(), carried_);
      to += carried_;
      room = std::min(nbytes_ - got_, ReadShared::kScratchBytes - carried_);
    }
    if (checksums_) room = std::min(room, kSumBytes);
    size_t n = input_.take(to, room);
    if (n == 0) {
      const ReadOutcome outcome = input_.read_directly(stream, to, room, &n, error);
      if (outcome != ReadOutcome::kDone) return outcome;
    }
    const bool payload = got_ < nbytes_;
    got_ += n;
    if (checksums_) checksum_ = crc32c(checksum_, to, n);
    if (target_ == Target::kPieces && payload) deliver(n);
  }
  if (!checksums_) return end_payload();
  state_ = State::kPayloadChecksum;
  return ReadOutcome::kDone;
}

ReadOutcome FrameReader::end_payload() {
  if (sink_) shared_.landed.fetch_add(1, std::memory_order_relaxed);
  sink_ = nullptr;
  state_ = State::kTable;
  return ReadOutcome::kDone;
}

void FrameReader::deliver(size_t n) {
  const size_t available = carried_ + n;
  const bool last = got_ >= nbytes_;
  const size_t piece = last ? available : available / kPiece * kPiece;
  carried_ = available - piece;
  std::memcpy(carry_.data(), shared_.scratch + piece, carried_);
  if (piece == 0) return;
  const size_t offset = taken_;
  taken_ += piece;
  sink_->take(offset, {shared_.scratch, piece});
}

}  // namespace dsgd::transport::uv
