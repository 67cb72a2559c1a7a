#include "transport/sim/server_end.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/authentication.h"
#include "transport/schema/codec.h"

namespace dsgd::transport {
namespace {

// Behind all copies of one Responder.
struct Answer {
  std::weak_ptr<ServerEnd> end;
  uint64_t id;
  bool given = false;

  Answer(std::weak_ptr<ServerEnd> of_end, uint64_t of_call) : end(std::move(of_end)), id(of_call) {}
  void give(const Result<Message>& reply) {
    if (std::exchange(given, true)) return;
    if (auto alive = end.lock()) alive->answer(FrameKind::kReply, id, encode_reply(reply));
  }
  ~Answer() { give(Status(Code::kInternal, "the call was dropped without an answer")); }
};

class Receipt final : public BulkReceipt {
 public:
  Receipt(std::weak_ptr<ServerEnd> end, std::shared_ptr<NetworkState> network, uint64_t id,
          std::unique_ptr<std::vector<std::byte>> pooled)
      : end_(std::move(end)), network_(std::move(network)), id_(id), pooled_(std::move(pooled)) {}
  ~Receipt() override {
    if (!finished_) finish({Code::kInternal, "the chunk was dropped without an answer"});
  }
  std::span<const std::byte> data() const override {
    return pooled_ ? std::span<const std::byte>(*pooled_) : std::span<const std::byte>();
  }
  void finish(const Status& status) override {
    if (std::exchange(finished_, true)) return;
    const size_t nbytes = pooled_ ? pooled_->size() : 0;
    pooled_.reset();
    if (auto end = end_.lock()) {
      end->receipt_gone(nbytes);
      end->answer(FrameKind::kBulkReply, id_, encode_status(status));
    }
    if (nbytes > 0) network_->pool_released(nbytes);
  }

 private:
  std::weak_ptr<ServerEnd> end_;
  std::shared_ptr<NetworkState> network_;
  const uint64_t id_;
  std::unique_ptr<std::vector<std::byte>> pooled_;
  bool finished_ = false;
};

}  // namespace

ServerEnd::ServerEnd(std::shared_ptr<ListenerState> listener, std::shared_ptr<Connection> connection,
                     std::string from)
    : listener_(std::move(listener)),
      network_(listener_->network),
      connection_(std::move(connection)),
      from_(std::move(from)) {}

bool ServerEnd::receive(Packet& packet) {
  if (closed_ || !connection_) return true;
  if (listener_) return receive_handshake(packet);
  if (!opened_) return false;  // on_open comes first
  if (packet.corrupted) {
    // As in the real network, payload lands before its checksum is verified.
    if (incoming_ && incoming_->lands()) land(packet.body);
    answer(FrameKind::kCorrupted, 0, {});
    over({Code::kCorrupted, "a received frame failed its CRC32C check"}, false);
    return true;
  }
  switch (packet.kind) {
    case FrameKind::kCall:
      receive_call(packet);
      return true;
    case FrameKind::kBulk:
    case FrameKind::kSmall:
      return receive_chunk(packet);
    case FrameKind::kCorrupted:
      over({Code::kCorrupted, "the peer received a frame that failed its CRC32C check"}, false);
      return true;
    case FrameKind::kEnd:
      over(Status(), false);
      return true;
    case FrameKind::kReset:
      over({Code::kIo, "the connection from " + from_ + " broke"}, false);
      return true;
    default:
      over({Code::kIo, "unexpected frame from " + from_}, true);
      return true;
  }
}

bool ServerEnd::receive_handshake(Packet& packet) {
  auto self = shared_from_this();
  if (packet.kind != (challenged_ ? FrameKind::kProof : FrameKind::kHello) || !listener_->usable()) {
    listener_ = nullptr;
    over({Code::kIo, "the connection ended before its hello"}, true);
  } else if (challenged_) {
    take_proof(packet.header);
  } else {
    take_hello(packet.header);
  }
  return true;
}

void ServerEnd::reject(const Status& why) {
  listener_ = nullptr;
  if (challenged_) {
    answer(FrameKind::kHelloReply, 0, encode(HelloReply{why, {}}));
  } else {
    answer(FrameKind::kChallenge, 0, encode(Challenge{why, {}}));
  }
  over(why, false);
}

void ServerEnd::take_hello(const std::vector<uint8_t>& bytes) {
  auto hello = decode_hello(bytes);
  if (!hello.ok()) return reject(hello.status());
  hello_ = hello.value();
  hello_bytes_ = bytes;
  challenge_ = make_nonce(*network_->loop);
  challenged_ = true;
  answer(FrameKind::kChallenge, 0, encode(Challenge{{}, challenge_}));
}

void ServerEnd::take_proof(const std::vector<uint8_t>& bytes) {
  AcceptHandler& handler = *listener_->handler;
  const auto prove_as = [&](Side side) {
    return prove(side, handler.token(), hello_.job_nonce, hello_bytes_, challenge_);
  };
  auto proof = decode_proof(bytes);
  if (!proof.ok()) return reject(proof.status());
  if (!equal_proofs(proof.value(), prove_as(Side::kDialling)))
    return reject(handler.on_wrong_token(hello_, from_));
  auto decision = handler.on_hello(hello_, from_);
  if (!decision.ok()) return reject(decision.status());
  listener_ = nullptr;

  // From here on the connection is the chosen network's.
  network_->servers.erase(connection_->id);
  network_ = static_cast<SimNetwork*>(decision.value().network)->state();
  handler_ = decision.value().handler;
  network_->servers.emplace(connection_->id, connection_);
  hello_.checksum = hello_.checksum || network_->wants_checksums(*connection_);
  connection_->checksums = hello_.checksum;
  connection_->to_server.set_reader(network_->loop_state, weak_from_this());
  connection_->to_client.set_writer(network_->loop_state, weak_from_this());
  network_->loop->post([self = shared_from_this(), proof = prove_as(Side::kAccepting)] {
    if (self->closed_) return;
    const Status refused = self->handler_->on_open(*self);
    if (self->closed_) return;
    self->answer(FrameKind::kHelloReply, 0, encode(HelloReply{refused, proof}));
    if (!refused.ok()) {
      self->handler_ = nullptr;
      return self->over(refused, false);
    }
    self->opened_ = true;
    self->connection_->to_server.kick();
  });
}

void ServerEnd::receive_call(Packet& packet) {
  network_->counters.bytes_received += packet.header.size();
  auto message = decode_message(packet.header);
  if (!message.ok()) return over(message.status(), true);
  auto given = std::make_shared<Answer>(weak_from_this(), packet.id);
  handler_->on_call(*this, std::move(message).value(),
                    [given](Result<Message> reply) { given->give(reply); });
}

bool ServerEnd::receive_chunk(Packet& packet) {
  auto self = shared_from_this();
  if (!incoming_ && !begin_chunk(packet)) return true;
  if (closed_) return true;
  Incoming& chunk = *incoming_;
  if (!chunk.sink && !chunk.pooled && !chunk.discarded) {
    // Each connection may hold one pooled chunk whatever the bound says, else two that wait for each other's
    // would hang.
    if (pooled_ > 0 && network_->counters.pooled_bytes + chunk.nbytes > network_->receive_memory) {
      waits_for_pool_ = true;
      return false;
    }
    waits_for_pool_ = false;
    chunk.pooled = std::make_unique<std::vector<std::byte>>();
    chunk.pooled->reserve(chunk.nbytes);
    pooled_ += chunk.nbytes;
    auto& counters = network_->counters;
    counters.pooled_bytes += chunk.nbytes;
    counters.pooled_peak = std::max(counters.pooled_peak, counters.pooled_bytes);
  }
  network_->counters.bytes_received += packet.header.size() + packet.body.size();
  if (chunk.pooled) {
    chunk.pooled->insert(chunk.pooled->end(), packet.body.begin(), packet.body.end());
  } else if (chunk.lands()) {
    land(packet.body);
    if (closed_) return true;
  }
  incoming_->received += packet.body.size();
  if (incoming_->received == incoming_->nbytes) end_chunk();
  return true;
}

bool ServerEnd::begin_chunk(const Packet& packet) {
  auto header = decode_bulk_header(packet.header);
  if (!header.ok() || packet.offset != 0) {
    over(header.ok() ? Status(Code::kIo, "a chunk without its header") : header.status(), true);
    return false;
  }
  incoming_ = std::make_shared<Incoming>();
  incoming_->id = packet.id;
  incoming_->header = header.value();
  incoming_->nbytes = packet.total;
  if (packet.kind == FrameKind::kBulk) {
    auto sink = handler_->on_bulk(*this, header.value(), packet.total);
    if (closed_) return false;
    incoming_->sink = std::move(sink);
  }
  return true;
}

// The sink says piece by piece where to; the regions it is asked for differ from the pieces that arrive.
void ServerEnd::land(std::span<const std::byte> piece) {
  Random& random = network_->kernel.random();
  const std::shared_ptr<Incoming> held = incoming_;  // the sink may end the connection
  Incoming& chunk = *held;
  size_t used = 0;
  while (used < piece.size() && !closed_ && chunk.lands()) {
    const size_t offset = chunk.received + used;
    if (chunk.place == nullptr) {
      const size_t rest = chunk.nbytes - offset;
      const size_t region =
          random.chance(0.5) ? rest : std::min(rest, 64 * (1 + random.below(rest / 64 + 1)));
      chunk.place = chunk.sink->destination(offset, region);
      chunk.place_begin = offset;
      chunk.place_end = offset + region;
      if (closed_ || !chunk.lands()) return;
      if (chunk.place == nullptr) {
        const size_t n = std::min(region, piece.size() - used);
        chunk.sink->take(offset, piece.subspan(used, n));
        used += n;
        continue;
      }
    }
    const size_t n = std::min(piece.size() - used, chunk.place_end - offset);
    std::memcpy(chunk.place + (offset - chunk.place_begin), piece.data() + used, n);
    used += n;
    if (offset + n == chunk.place_end) chunk.place = nullptr;
  }
}

void ServerEnd::end_chunk() {
  auto chunk = std::exchange(incoming_, nullptr);
  if (chunk->discarded) {
    answer(FrameKind::kBulkReply, chunk->id, encode_status(chunk->why_discarded));
    return;
  }
  if (chunk->sink) {
    ++network_->counters.landed;
    answer(FrameKind::kBulkReply, chunk->id, encode_status({}));
    return chunk->sink->landed();
  }
  handler_->on_bulk_end(
      *this, chunk->header,
      std::make_unique<Receipt>(weak_from_this(), network_, chunk->id, std::move(chunk->pooled)));
}

void ServerEnd::discard(uint64_t operation, const Status& why) {
  network_->kernel.require_loop(network_->loop_state.get(), "ServerChannel::discard");
  if (!incoming_ || incoming_->header.operation != operation || incoming_->discarded) return;
  incoming_->discarded = true;
  incoming_->why_discarded = why;
  incoming_->place = nullptr;
  if (auto pooled = std::exchange(incoming_->pooled, nullptr)) {
    pooled_ -= incoming_->nbytes;
    network_->pool_released(incoming_->nbytes);
  }
  if (std::exchange(waits_for_pool_, false)) connection_->to_server.kick();
}

void ServerEnd::close() {
  network_->kernel.require_loop(network_->loop_state.get(), "ServerChannel::close");
  if (closed_) return;
  closed_ = true;
  connection_->to_client.finish(true);
  network_->loop->post([self = shared_from_this()] {
    self->closed_ = false;
    self->over({Code::kClosed, "the connection from " + self->from_ + " was closed by this side"}, false);
  });
}

// The end of the connection as this side sees it.
void ServerEnd::over(const Status& why, bool tell) {
  if (closed_ || !connection_) return;
  auto self = shared_from_this();
  closed_ = true;
  tell ? connection_->to_client.cut(true) : connection_->to_client.finish(true);
  if (handler_) handler_->on_close(*this, why);
  abandon();
}

void ServerEnd::abandon() {
  closed_ = true;
  auto self = shared_from_this();
  if (auto chunk = std::exchange(incoming_, nullptr); chunk && chunk->pooled) {
    pooled_ -= chunk->nbytes;
    network_->pool_released(chunk->nbytes);
  }
  auto connection = std::exchange(connection_, nullptr);
  if (!connection) return;
  if (network_->loop == nullptr) connection->to_client.cut(true);
  network_->servers.erase(connection->id);
  connection->server.reset();
  if (!connection->client) network_->kernel.remove(connection.get());
}

void ServerEnd::answer(FrameKind kind, uint64_t id, std::vector<uint8_t> header) {
  if (!connection_ || network_->loop == nullptr) return;
  network_->counters.bytes_sent += header.size();
  connection_->to_client.write({.kind = kind, .id = id, .header = std::move(header)});
}

void ServerEnd::receipt_gone(size_t pooled) { pooled_ -= pooled; }

}  // namespace dsgd::transport
