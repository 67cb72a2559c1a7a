// Reads Cap'n Proto frames from a socket, with about 1 KiB of read-ahead, and lands payload: segment 0 of a
// push is parsed before segment 1 is read, so that the bytes go from the socket to where they belong.
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

namespace dsgd::transport::uv {

// A reader that waits for receive memory.
class Starving {
 public:
  virtual void memory_freed() = 0;

 protected:
  ~Starving() = default;
};

// State that all connections of a network share. Used on the loop, except the pool and the counters.
struct ReadShared {
  static constexpr size_t kScratchBytes = 256 << 10;  // stays in a core's cache between the read and the sum

  std::shared_ptr<BufferPool> pool;
  std::unique_ptr<std::byte[]> scratch_memory;
  std::byte* scratch = nullptr;  // aligned to 64 bytes
  std::atomic<uint64_t> received{0}, landed{0}, landing_missed{0};
  std::vector<Starving*> starving;

  void feed();  // pooled memory was freed: lets all starving readers try again

  explicit ReadShared(size_t receive_memory);
};

// A payload that was not read into pooled memory: it went to a sink, or was discarded.
struct Landed {
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

  enum class Outcome {
    kFrame,    // *frame holds one
    kBlocked,  // nothing more to read until the socket is readable again
    kStarved,  // no receive memory is left, and this connection holds some: call again when some was freed
    kEnd,      // the peer has ended the stream, between two frames
    kError,    // broken or malformed; *error says why
  };
  Outcome read(Stream stream, kj::Own<Frame>* frame, Status* error);
  void on_readable();  // the socket has something again, and the reader's share of this turn is fresh
  // Before the first frame. Sections of a frame are followed by checksums (frame_writer.h); one that does not
  // fit is kCorrupted.
  void use_checksums() { checksums_ = true; }
  void limit_frames(size_t nbytes) { largest_ = nbytes; }

  // No sink of this operation is used after this. The rest of its chunk is read and thrown away.
  void discard(uint64_t operation, const Status& why);

  // The landed payload that a Data of a push stands for; null: the Data is real.
  Landed* landed(const void* data);

 private:
  friend class Frame;
  enum class State { kTable, kBodyMemory, kBody, kBodyChecksum, kPayloadMemory, kPayload, kPayloadChecksum };
  enum class Step { kGo, kBlocked, kStarved, kEnd, kError };

  Step read_table(Stream stream, Status* error);
  Step get_body_memory(Status* error);
  Step read_body(Stream stream, Status* error);
  Step read_checksum(Stream stream, Status* error);
  Step end_body();
  Step begin_payload();
  Step get_payload_memory(Status* error);
  Step get_memory(BufferPool::Buffer* buffer, size_t beyond, Status* error);
  void show_payload();
  Step read_payload(Stream stream, Status* error);
  Step end_payload();
  bool parse_span(int slot, BulkHeader* header, size_t* nbytes);
  kj::Own<Frame> finish();
  int take_slot();
  Step receive(Stream stream, void* to, size_t n, size_t* got, Status* error);
  Step fill_stage(Stream stream, Status* error);
  size_t take_staged(void* to, size_t n);
  void deliver(size_t n);  // gives the sink its next piece, after n more bytes came into the scratch memory

  ReadShared& shared_;
  Landing* landing_;
  std::shared_ptr<FrameReader*> self_;

  static constexpr size_t kReadAhead = 1024;
  static constexpr size_t kPiece = 64;  // pieces are multiples of this
  alignas(8) std::array<std::byte, kReadAhead> stage_;
  size_t stage_begin_ = 0, stage_end_ = 0;
  bool drained_ = false;   // the last read came back short
  size_t turn_bytes_ = 0;  // read since the last on_readable

  State state_ = State::kTable;
  uint32_t segments_ = 0;
  std::array<uint32_t, FrameWriter::kMaxSegments> sizes_{};  // words
  size_t largest_ = kMaxFrameBytes;                          // frame that is accepted
  kj::Own<Frame> frame_;
  size_t want_ = 0, got_ = 0;  // bytes of body or payload

  // The payload under way.
  enum class Where { kBuffer, kPlace, kPieces, kNowhere };
  Where where_ = Where::kBuffer;
  BulkSink* sink_ = nullptr;  // of its slot
  std::byte* place_ = nullptr;
  size_t nbytes_ = 0;  // want_ less the padding
  size_t taken_ = 0;   // bytes given to take()
  size_t carried_ = 0;
  std::array<std::byte, kPiece> carry_;

  bool checksums_ = false;
  uint32_t checksum_ = 0;  // of the section, as far as it has come

  size_t live_frames_ = 0;  // given out and not yet destroyed: they hold memory
  std::vector<Landed> slots_;
  std::vector<int> free_slots_;
};

}  // namespace dsgd::transport::uv
