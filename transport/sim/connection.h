// One connection of the simulated network: two pipes, each from one end to the other. A pipe is what a TCP
// connection is to its users: bytes written in pieces, a bounded number of them under way, in order,
// delivered or lost as a suffix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "transport/base/status.h"
#include "transport/sim/kernel.h"

namespace dsgd::transport {

enum class FrameKind : uint8_t {
  kHello,       // header: Hello
  kChallenge,   // header: Challenge
  kProof,       // header: Proof
  kHelloReply,  // header: HelloReply
  kCall,        // header: Message
  kReply,       // header: Reply
  kBulk,        // header: BulkHeader; payload, read from the sender's span
  kSmall,       // the same; payload copied, received into pooled memory
  kBulkReply,   // header: Status
  kEnd,         // closed in good order
  kReset,       // closed otherwise
  kCorrupted,   // the other side has received a frame that failed its check, and closes
};

struct Frame {
  FrameKind kind{};
  uint64_t id = 0;         // of the call or chunk
  uint64_t operation = 0;  // of a chunk
  std::vector<uint8_t> header{};
  std::span<const std::byte> payload{};  // points into `owned` or into the sender's memory
  std::vector<std::byte> owned{};
  size_t written = 0;     // of payload
  uint32_t checksum = 0;  // of what is written of the payload
  bool begun = false;
};

// A piece of a frame, as it travels. The header comes with the first piece.
struct Packet {
  FrameKind kind{};
  uint64_t id = 0;
  std::vector<uint8_t> header{};
  std::vector<std::byte> body{};
  size_t offset = 0, total = 0;  // of body in the payload
  Time arrival{};
  // As written: of the header; of the payload up to the end of this piece.
  uint32_t header_checksum = 0, checksum = 0;
  bool checked = false, corrupted = false;

  bool is_last() const { return offset + body.size() == total; }
  bool carries_message() const { return kind >= FrameKind::kCall && kind <= FrameKind::kBulkReply; }
};

// The end of a connection that packets arrive at.
class End {
 public:
  virtual ~End() = default;
  // False: not ready to read (the packet stays first in line; Pipe::kick when that changes).
  virtual bool receive(Packet& packet) = 0;
  // The socket has taken all that was queued.
  virtual void drained() {}
};

class Pipe {
 public:
  Pipe(Kernel& kernel, Connection& connection, Process* from, Process* to)
      : kernel_(kernel), connection_(connection), from_(from), to_(to) {}

  // The writing and the reading end, each with its loop; a reader may be set late.
  void set_writer(std::shared_ptr<LoopState> loop, std::weak_ptr<End> end);
  void set_reader(std::shared_ptr<LoopState> loop, std::weak_ptr<End> end);

  void write(Frame frame);
  bool finished() const { return closed_ && queue_.empty(); }
  // Drops frames of the operation that are not begun (their ids are returned) and copies what is left of one
  // that is.
  std::vector<uint64_t> revoke(uint64_t operation);
  // Spans of the sender's memory are read no more: frames with one are dropped, or go on from a copy if
  // begun.
  void release_spans();
  // The writer's end closes: after what is queued, or dropping that. Idempotent.
  void finish(bool flush);
  // The link loses a suffix of what is under way; then a reset arrives, or nothing ever again.
  void cut(bool reset);
  void kick() { schedule_read(); }
  Process* from() const { return from_; }
  Process* to() const { return to_; }

 private:
  void schedule_write();
  void write_piece();
  void schedule_read();
  void read();
  void push(Packet packet);
  void check(Packet& packet);
  void note_blocked();
  static void keep_copy(Frame& frame);

  Kernel& kernel_;
  Connection& connection_;
  Process* const from_;
  Process* const to_;
  std::shared_ptr<LoopState> writer_loop_, reader_loop_;
  std::weak_ptr<End> writer_, reader_;
  std::deque<Frame> queue_;       // not written, or in part
  std::deque<Packet> under_way_;  // written, not read
  size_t unread_ = 0;
  uint32_t checksum_ = 0;  // of the payload that is being read
  Time last_arrival_{};
  Time blocked_since_ = kNever;  // the first attempt to send what waits
  bool write_scheduled_ = false, read_scheduled_ = false;
  bool closed_ = false;  // nothing more is written
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Kernel& kernel, uint64_t id, Process* client, Process* server)
      : id(id), to_server(kernel, *this, client, server), to_client(kernel, *this, server, client) {}
  const uint64_t id;
  Pipe to_server, to_client;
  bool checksums = false;  // known from the hello on
  // The ends live as long as the connection is open on their side.
  std::shared_ptr<End> client, server;
};

}  // namespace dsgd::transport
