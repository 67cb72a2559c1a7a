// One connection as Cap'n Proto's RPC sees it: a network of two vats over a socket. The bytes are standard
// two-party RPC. The library's own TwoPartyVatNetwork is not used because it keeps outgoing messages in a
// queue of promises where a span cannot be reached any more once it must not be read.
#pragma once

#include <capnp/rpc-twoparty.capnp.h>
#include <capnp/rpc.h>
#include <kj/async.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>

#include "transport/uv/frame_reader.h"
#include "transport/uv/frame_writer.h"
#include "transport/uv/poll_fd.h"

namespace dsgd::transport::uv {

using TwoPartyNetwork =
    capnp::VatNetwork<capnp::rpc::twoparty::VatId, capnp::rpc::twoparty::ProvisionId,
                      capnp::rpc::twoparty::RecipientId, capnp::rpc::twoparty::ThirdPartyCapId,
                      capnp::rpc::twoparty::JoinResult>;

class Link final : public TwoPartyNetwork, private PollFd::Handler, private Flushable, private MemoryWaiter {
 public:
  struct Span {
    uint64_t id = 0;  // 0: there is none
    std::span<const std::byte> data;
  };
  class Events {
   public:
    // Once, from inside the link: the owner must not destroy it before its caller has returned. OK: the peer
    // closed in good order.
    virtual void link_down(const Status& why) = 0;
    // Returns the span that the message being sent carries at this slot of the zero region, once; id 0 if
    // there is none.
    virtual Span take_span(size_t /*slot*/) { return {}; }
    // Queued frames have been written: there may be room for the next span, or the queue has become empty.
    // Never from inside a send.
    virtual void link_written() = 0;
    // There is no memory for the next message while earlier ones hold some: nothing is read before they let
    // go of it.
    virtual void link_starved() = 0;

   protected:
    ~Events() = default;
  };

  static Result<std::unique_ptr<Link>> make(UvEventPort& port, Fd fd, std::shared_ptr<Tls> tls,
                                            capnp::rpc::twoparty::Side side, ReadShared& shared,
                                            std::atomic<uint64_t>& sent, Events* events,
                                            FrameReader::Landing* landing);
  ~Link();

  void send_raw(std::vector<uint8_t> bytes);
  void limit_frames(size_t nbytes) { reader_.limit_frames(nbytes); }
  // Both sides, from the first frame on.
  void use_checksums() {
    reader_.use_checksums();
    writer_.use_checksums();
  }
  void send_goodbye();  // the last message; what RPC sends after it is dropped
  void push_out();      // writes what is held back to be batched with the next message
  void end_writing();   // after all is written
  void stop();          // no more events, no more reading and writing
  bool starved() const { return starved_; }
  uint64_t received() const { return received_; }  // messages

  FrameReader& reader() { return reader_; }
  const FrameWriter& writer() const { return writer_; }
  void revoke(const std::function<bool(uint64_t)>& chosen);
  void drop_queue() { writer_.drop_all(); }

  // capnp::VatNetwork
  kj::Maybe<kj::Own<TwoPartyNetwork::Connection>> connect(capnp::rpc::twoparty::VatId::Reader vat) override;
  kj::Promise<kj::Own<TwoPartyNetwork::Connection>> accept() override;

 private:
  class RpcConnection;
  class Outgoing;
  class Receive;
  using Received = kj::Maybe<kj::Own<capnp::IncomingRpcMessage>>;

  Link(UvEventPort& port, std::shared_ptr<Tls> tls, capnp::rpc::twoparty::Side side, ReadShared& shared,
       std::atomic<uint64_t>& sent, Events* events, FrameReader::Landing* landing);

  void send(Outgoing& message);
  kj::Promise<Received> receive();
  // True: *out holds a message. False: there is none now, or the link is down.
  bool try_receive(Received* out);
  // Records a small chunk. For an RPC Abort or a malformed message: why the link goes down (OK: a goodbye).
  std::optional<Status> inspect(Frame& frame);
  bool can_wait(Outgoing& message);
  void rpc_gave_up();
  void write();          // and tells the owner
  void write_quietly();  // the owner is told at the next flush
  void down(const Status& why);
  void send_abort(const char* reason);
  Stream stream() const { return {poll_->fd(), tls_.get()}; }

  void on_readable() override;
  void on_writable() override;
  void flush() override;
  void flush_held() override;
  void memory_freed() override;
  void receive_more();

  UvEventPort& port_;
  ReadShared& shared_;
  const capnp::rpc::twoparty::Side side_;
  std::atomic<uint64_t>& sent_;
  Events* events_;

  std::unique_ptr<PollFd> poll_;    // null once the link has stopped
  const std::shared_ptr<Tls> tls_;  // null: none
  FrameReader reader_;
  FrameWriter writer_;
  Status corrupted_;            // why it goes down, whatever else fails meanwhile
  Receive* waiting_ = nullptr;  // RPC waits for a message
  uint64_t received_ = 0;       // messages
  bool accepted_ = false, said_goodbye_ = false, down_ = false;
  bool flush_queued_ = false, held_ = false, starved_ = false, unreported_ = false;
  // Small chunks that are not answered yet, with their size.
  std::unordered_map<uint32_t, size_t> small_questions_;
  size_t held_credit_ = 0;  // bytes of small chunks whose answers are held back
};

}  // namespace dsgd::transport::uv
