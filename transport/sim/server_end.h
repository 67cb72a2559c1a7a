// The accepting end of a simulated connection.
#pragma once

#include <memory>

#include "transport/sim/sim_network.h"

namespace dsgd::transport {

class ServerEnd final : public End, public ServerChannel, public std::enable_shared_from_this<ServerEnd> {
 public:
  ServerEnd(std::shared_ptr<ListenerState> listener, std::shared_ptr<Connection> connection,
            std::string from);

  bool receive(Packet& packet) override;

  const Hello& hello() const override { return hello_; }
  std::string address() const override { return from_; }
  void discard(uint64_t operation, const Status& why) override;
  void close() override;
  void abandon();  // the network is destroyed: no callback any more

  void answer(FrameKind kind, uint64_t id, std::vector<uint8_t> header);
  void receipt_gone(size_t pooled);
  bool waits_for_pool() const { return waits_for_pool_; }

 private:
  // The chunk whose payload is being read.
  struct Incoming {
    uint64_t id = 0;
    BulkHeader header;
    size_t nbytes = 0, received = 0;
    std::unique_ptr<BulkSink> sink;  // not used once the chunk is discarded
    std::byte* place = nullptr;      // region [place_begin, place_end) given by the sink
    size_t place_begin = 0, place_end = 0;
    std::unique_ptr<std::vector<std::byte>> pooled;
    bool discarded = false;
    Status why_discarded;
    bool lands() const { return sink && !discarded; }
  };

  bool receive_handshake(Packet& packet);
  void take_hello(const std::vector<uint8_t>& bytes);
  void take_proof(const std::vector<uint8_t>& bytes);
  void reject(const Status& why);
  void receive_call(Packet& packet);
  bool receive_chunk(Packet& packet);
  bool begin_chunk(const Packet& packet);
  void land(std::span<const std::byte> piece);
  void end_chunk();
  void over(const Status& why, bool tell);

  std::shared_ptr<ListenerState> listener_;  // until the handshake is over
  std::shared_ptr<NetworkState> network_;
  std::shared_ptr<Connection> connection_;  // null when closed
  const std::string from_;
  Hello hello_;
  std::vector<uint8_t> hello_bytes_;
  Nonce challenge_{};
  bool challenged_ = false;  // the hello is in
  ServerHandler* handler_ = nullptr;
  std::shared_ptr<Incoming> incoming_;
  size_t pooled_ = 0;  // held by receipts of this connection and by incoming_
  bool opened_ = false, closed_ = false, waits_for_pool_ = false;
};

}  // namespace dsgd::transport
