// Reads Cap'n Proto frames from a socket and lands payload: segment 0 of a push is parsed before segment 1 is
// read, so that the bytes go from the socket to where they belong.
#pragma once

#include <capnp/message.h>
#include <kj/memory.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/network.h"
#include "transport/uv/buffer_pool.h"
#include "transport/uv/frame_writer.h"
#include "transport/uv/read_ahead.h"
#include "transport/uv/stream.h"

namespace dsgd::transport::uv {

// A reader that waits for receive memory.
class MemoryWaiter {
 public:
  virtual void memory_freed() = 0;

 protected:
  ~MemoryWaiter() = default;
};

// State that all connections of a network share. Used on the loop, except the pool and the counters.
struct ReadShared {
  static constexpr size_t kScratchBytes = 256 << 10;  // stays in a core's cache between the read and the sum

  std::shared_ptr<BufferPool> pool;
  std::unique_ptr<std::byte[]> scratch_memory;
  std::byte* scratch = nullptr;  // aligned to 64 bytes
  std::atomic<uint64_t> received{0}, landed{0}, landing_missed{0};
  std::vector<MemoryWaiter*> memory_waiters;

  void wake_memory_waiters();  // pooled memory was freed: lets all waiting readers try again

  explicit ReadShared(size_t receive_memory);
};

// A payload that was not read into pooled memory: it went to a sink, or was discarded.
struct PayloadSlot {
  BulkHeader header;
  std::unique_ptr<BulkSink> sink;
  bool discarded = false;
  Status why;  // of a discarded one
};

class FrameReader;

inline constexpr uint16_t kPushMethod = 1;  // of schema::Wire

class Frame final : public capnp::MessageReader {
 public:
  Frame(const capnp::ReaderOptions& options, std::shared_ptr<FrameReader*> reader)
      : MessageReader(options), reader_(std::move(reader)) {}
  ~Frame() noexcept(false) override;
  kj::ArrayPtr<const capnp::word> getSegment(unsigned id) override {
    return id < segments_.size() ? segments_[id] : kj::ArrayPtr<const capnp::word>();
  }
  size_t words() const;
  size_t segment_count() const { return segments_.size(); }

 private:
  friend class FrameReader;
  std::vector<kj::ArrayPtr<const capnp::word>> segments_;
  BufferPool::Buffer body_, payload_;
  int slot_ = -1;
  bool live_ = false;
  std::shared_ptr<FrameReader*> reader_;  // null inside when the reader is gone
};

class FrameReader {
 public:
  static constexpr size_t kMaxFrameBytes = size_t{64} << 20;
  static capnp::ReaderOptions reader_options();

  // Decides where a payload goes.
  class Landing {
   public:
    // A sink; or null: pooled memory, or nowhere when *refused is set to an error, which then answers the
    // call.
    virtual std::unique_ptr<BulkSink> on_span(const BulkHeader& header, size_t nbytes, Status* refused) = 0;

   protected:
    ~Landing() = default;
  };

  FrameReader(ReadShared& shared, Landing* landing);  // landing null: everything is pooled
  ~FrameReader();

  // kDone: *frame holds one. kEnd comes between two frames only.
  ReadOutcome read(Stream stream, kj::Own<Frame>* frame, Status* error);
  void begin_turn() { input_.begin_turn(); }
  // Before the first frame. Sections of a frame are followed by checksums (frame_writer.h); one that does not
  // fit is kCorrupted.
  void use_checksums() { checksums_ = true; }
  void limit_frames(size_t nbytes) { max_frame_bytes_ = nbytes; }

  // No sink of this operation is used after this. The rest of its chunk is read and thrown away.
  void discard(uint64_t operation, const Status& why);

  // The landed payload that a Data of a push stands for; null: the Data is real.
  PayloadSlot* slot_of(const void* data);

 private:
  friend class Frame;
  enum class State { kTable, kBodyMemory, kBody, kBodyChecksum, kPayloadMemory, kPayload, kPayloadChecksum };

  ReadOutcome step(Stream stream, Status* error);
  ReadOutcome read_table(Stream stream, Status* error);
  ReadOutcome get_body_memory(Status* error);
  ReadOutcome read_body(Stream stream, Status* error);
  ReadOutcome read_checksum(Stream stream, Status* error);
  ReadOutcome end_body();
  ReadOutcome begin_payload();
  ReadOutcome get_payload_memory(Status* error);
  ReadOutcome get_memory(BufferPool::Buffer* buffer, size_t beyond, Status* error);
  void set_payload_segment();
  ReadOutcome read_payload(Stream stream, Status* error);
  ReadOutcome end_payload();
  bool parse_span(int slot, BulkHeader* header, size_t* nbytes);
  int take_slot();
  void deliver(size_t n);  // gives the sink its next piece, after n more bytes came into the scratch memory

  ReadShared& shared_;
  Landing* landing_;
  std::shared_ptr<FrameReader*> self_;

  ReadAhead input_;

  State state_ = State::kTable;
  uint32_t segments_ = 0;
  std::array<uint32_t, FrameWriter::kMaxSegments> sizes_{};  // words
  size_t total_ = 0;                                         // bytes of all segments
  size_t max_frame_bytes_ = kMaxFrameBytes;                  // of a frame that is accepted
  kj::Own<Frame> frame_;
  size_t want_ = 0, got_ = 0;  // bytes of body or payload

  // The payload under way.
  static constexpr size_t kPiece = 64;  // pieces are multiples of this
  enum class Target { kPooled, kInPlace, kPieces, kDiscarded };
  Target target_ = Target::kPooled;
  BulkSink* sink_ = nullptr;  // of its slot
  std::byte* place_ = nullptr;
  size_t nbytes_ = 0;  // want_ less the padding
  size_t taken_ = 0;   // bytes given to take()
  size_t carried_ = 0;
  std::array<std::byte, kPiece> carry_;

  bool checksums_ = false;
  uint32_t checksum_ = 0;  // of the section, as far as it has come

  size_t live_frames_ = 0;  // given out and not yet destroyed: they hold memory
  std::vector<PayloadSlot> slots_;
  std::vector<int> free_slots_;
};

}  // namespace dsgd::transport::uv
