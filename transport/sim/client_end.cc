#include "transport/sim/client_end.h"

#include <utility>

#include "transport/schema/codec.h"

namespace dsgd::transport {

ClientEnd::ClientEnd(std::shared_ptr<NetworkState> network, std::shared_ptr<Connection> connection,
                     std::string address, DialOptions options, Dialled dialled)
    : network_(std::move(network)),
      connection_(std::move(connection)),
      address_(std::move(address)),
      options_(std::move(options)),
      dialled_(std::move(dialled)),
      bulk_(SendWindow<Chunk>::Limits::kEachOperation, options_.bulk_window),
      small_(SendWindow<Chunk>::Limits::kAllTogether, options_.small_window) {}

void ClientEnd::start() {
  options_.hello.checksum = network_->wants_checksums(*connection_);
  options_.hello.nonce = make_nonce(*network_->loop);
  hello_bytes_ = encode(options_.hello);
  connection_->to_server.write({.kind = FrameKind::kHello, .header = hello_bytes_});
}

bool ClientEnd::receive(Packet& packet) {
  if (abandoned_ || !connection_) return true;
  network_->counters.bytes_received += packet.header.size();
  if (packet.corrupted) {
    closing_ = true;  // what is queued goes out, and with it why
    connection_->to_server.release_spans();
    connection_->to_server.write({.kind = FrameKind::kCorrupted});
    connection_->to_server.finish(true);
    break_off({Code::kCorrupted, "a received frame failed its CRC32C check"}, false);
    return true;
  }
  switch (packet.kind) {
    case FrameKind::kChallenge:
      challenged(packet.header);
      return true;
    case FrameKind::kHelloReply: {
      auto reply = decode_hello_reply(packet.header);
      verdict(reply.ok() ? reply.value() : HelloReply{reply.status(), {}});
      return true;
    }
    case FrameKind::kReply: {
      Result<Message> reply = Status();
      Status form = decode_reply(packet.header, &reply);
      if (!form.ok()) {
        break_off(form, true);
        return true;
      }
      auto found = calls_.find(packet.id);
      if (found == calls_.end()) return true;  // its deadline has passed
      Call call = std::move(found->second);
      calls_.erase(found);
      if (call.timer != 0) network_->loop->cancel(call.timer);
      call.done(std::move(reply));
      return true;
    }
    case FrameKind::kBulkReply: {
      Status status;
      Status form = decode_status(packet.header, &status);
      form.ok() ? answered(packet.id, status) : break_off(form, true);
      return true;
    }
    case FrameKind::kCorrupted:
      break_off({Code::kCorrupted, "the peer received a frame that failed its CRC32C check"}, false);
      return true;
    case FrameKind::kEnd:
    case FrameKind::kReset: {
      const char* how = packet.kind == FrameKind::kEnd ? "was closed by the peer" : "broke";
      const Status why(Code::kIo, "the connection to " + address_ + " " + how);
      dialled_ ? fail_dial({Code::kUnreachable, why.message() + " before it answered the hello"})
               : break_off(why, false);
      return true;
    }
    default:
      break_off({Code::kIo, "unexpected frame from " + address_}, true);
      return true;
  }
}

void ClientEnd::challenged(std::span<const uint8_t> bytes) {
  if (!dialled_) return;
  auto challenge = decode_challenge(bytes);
  if (!challenge.ok()) return fail_dial(challenge.status());
  if (!challenge.value().refused.ok()) return fail_dial(challenge.value().refused);
  challenge_ = challenge.value().nonce;
  connection_->to_server.write({.kind = FrameKind::kProof, .header = encode(prove_as(Side::kDialling))});
}

Proof ClientEnd::prove_as(Side side) const {
  return prove(side, options_.token, options_.hello.job_nonce, hello_bytes_, challenge_);
}

void ClientEnd::verdict(const HelloReply& reply) {
  if (!dialled_) return;
  if (!reply.status.ok()) return fail_dial(reply.status);
  if (!equal_proofs(reply.proof, prove_as(Side::kAccepting))) return fail_dial(not_proved(address_));
  auto done = std::exchange(dialled_, nullptr);
  done(std::unique_ptr<ClientChannel>(std::make_unique<SimClientChannel>(shared_from_this())));
}

void ClientEnd::fail_dial(const Status& why) {
  auto done = std::exchange(dialled_, nullptr);
  abandon();
  if (done) done(why);
}

void ClientEnd::call(Message request, Time deadline, std::function<void(Result<Message>)> done) {
  network_->kernel.require_loop(network_->loop_state.get(), "ClientChannel::call");
  if (!connection_ || closing_) return post_gone(std::move(done));
  const uint64_t id = next_id_++;
  Call& call = calls_[id];
  call.name = message_name(request);
  call.done = std::move(done);
  if (deadline != kNever) {
    call.timer = network_->loop->schedule(deadline, [this, self = shared_from_this(), id] {
      auto found = calls_.find(id);
      if (found == calls_.end()) return;
      Call late = std::move(found->second);
      calls_.erase(found);
      late.done(Status(Code::kTimeout, std::string("no answer to ") + late.name + " from " + address_ +
                                           " before the deadline"));
    });
  }
  auto bytes = encode(request);
  network_->counters.bytes_sent += bytes.size();
  connection_->to_server.write({.kind = FrameKind::kCall, .id = id, .header = std::move(bytes)});
}

void ClientEnd::send(const BulkHeader& header, std::span<const std::byte> data, Done done) {
  network_->kernel.require_loop(network_->loop_state.get(), "ClientChannel::send");
  if (!connection_ || closing_) return post_gone(std::move(done));
  bulk_.push(header.operation, {next_id_++, header, data, {}, std::move(done)});
  pump();
}

void ClientEnd::send_small(const BulkHeader& header, std::span<const std::byte> data, Done done) {
  network_->kernel.require_loop(network_->loop_state.get(), "ClientChannel::send_small");
  if (!connection_ || closing_) return post_gone(std::move(done));
  if (data.size() > kSmallBytes) {
    const Status why(Code::kInvalidArgument, "a small chunk has " + std::to_string(data.size()) +
                                                 " bytes, more than " + std::to_string(kSmallBytes));
    return later([done = std::move(done), why] {
      if (done) done(why);
    });
  }
  small_.push(header.operation, {next_id_++, header, {}, {data.begin(), data.end()}, std::move(done)});
  pump_small();
}

void ClientEnd::pump() {
  while (connection_) {
    std::optional<Chunk> chunk = bulk_.take();
    if (!chunk) return;
    write_chunk(std::move(*chunk), false);
  }
}

void ClientEnd::pump_small() {
  while (connection_) {
    std::optional<Chunk> chunk = small_.take();
    if (!chunk) return;
    if (chunk->done) later([done = std::move(chunk->done)] { done(Status()); });
    chunk->done = nullptr;
    write_chunk(std::move(*chunk), true);
  }
}

void ClientEnd::write_chunk(Chunk chunk, bool small) {
  const size_t nbytes = small ? chunk.owned.size() : chunk.data.size();
  chunks_[chunk.id] = {chunk.header.operation, nbytes, small, std::move(chunk.done)};
  Frame frame{.kind = small ? FrameKind::kSmall : FrameKind::kBulk,
              .id = chunk.id,
              .operation = chunk.header.operation,
              .header = encode(chunk.header)};
  network_->counters.bytes_sent += frame.header.size() + nbytes;
  if (small) {
    frame.owned = std::move(chunk.owned);
    frame.payload = frame.owned;
  } else {
    frame.payload = chunk.data;
  }
  connection_->to_server.write(std::move(frame));
}

void ClientEnd::answered(uint64_t id, const Status& status) {
  auto found = chunks_.find(id);
  if (found == chunks_.end()) return;
  Unanswered chunk = std::move(found->second);
  chunks_.erase(found);
  auto self = shared_from_this();
  if (chunk.small) {
    small_.answered(chunk.operation, chunk.nbytes);
    if (!status.ok() && options_.refused) options_.refused(chunk.operation, status);
    if (!abandoned_) pump_small();
  } else {
    bulk_.answered(chunk.operation, chunk.nbytes);
    pump();
    if (chunk.done) chunk.done(status);
  }
  if (!abandoned_) finish_if_flushed();
}

void ClientEnd::revoke(uint64_t operation) {
  network_->kernel.require_loop(network_->loop_state.get(), "ClientChannel::revoke");
  if (!connection_) return;
  for (uint64_t id : connection_->to_server.revoke(operation)) {
    auto found = chunks_.find(id);
    bulk_.answered(operation, found->second.nbytes);
    chunks_.erase(found);
  }
  for (auto& [id, chunk] : chunks_) {
    if (!chunk.small && chunk.operation == operation) chunk.done = nullptr;
  }
  bulk_.drop(operation);
  finish_if_flushed();
}

void ClientEnd::close(bool flush) {
  network_->kernel.require_loop(network_->loop_state.get(), "ClientChannel::close");
  if (!connection_) return;
  options_.closed = nullptr;
  if (closing_ && flush) return;
  closing_ = true;
  if (flush) return finish_if_flushed();
  why_gone_ = {Code::kClosed, "the connection to " + address_ + " is closed"};
  connection_->to_server.finish(false);
  // From the loop, not from within this call; until then a span may be said to be in use, but nothing reads
  // it.
  later([this] { break_off(why_gone_, false); });
}

void ClientEnd::finish_if_flushed() {
  if (!closing_ || !connection_) return;
  if (all_sent()) connection_->to_server.finish(true);
}

void ClientEnd::drained() {
  if (!closing_ || !connection_ || !connection_->to_server.finished()) return;
  break_off({Code::kClosed, "the connection to " + address_ + " is closed"}, false);
}

// The end of the connection as this side sees it: everything that waits is told, once.
void ClientEnd::break_off(const Status& why, bool tell) {
  if (!connection_) return;
  auto self = shared_from_this();
  why_gone_ = why;
  auto connection = std::exchange(connection_, nullptr);
  connection->to_server.release_spans();
  if (tell) {
    connection->to_server.cut(true);
  } else if (!closing_) {
    connection->to_server.cut(false);
  }
  network_->clients.erase(connection->id);
  // network.h does not say whether `closed` comes before or after the others, so users must handle both.
  auto tell_closed = [&] {
    if (!abandoned_ && options_.closed) std::exchange(options_.closed, nullptr)(why);
  };
  const bool first = network_->kernel.random().chance(0.5);
  if (first) tell_closed();
  if (!abandoned_) fail_all(why);
  if (!first) tell_closed();
  connection->client.reset();
  if (!connection->server) network_->kernel.remove(connection.get());
}

void ClientEnd::fail_all(const Status& why) {
  std::map<uint64_t, Done> waiting;  // in sending order
  for (auto& [id, call] : std::exchange(calls_, {})) {
    if (call.timer != 0) network_->loop->cancel(call.timer);
    waiting.emplace(id, std::move(call.done));
  }
  for (auto& [id, chunk] : std::exchange(chunks_, {})) waiting.emplace(id, std::move(chunk.done));
  for (auto* window : {&bulk_, &small_}) {
    for (Chunk& chunk : window->take_all()) waiting.emplace(chunk.id, std::move(chunk.done));
  }
  for (const auto& [id, done] : waiting) {
    if (abandoned_) return;
    if (done) done(why);
  }
}

void ClientEnd::abandon() {
  if (std::exchange(abandoned_, true)) return;
  auto self = shared_from_this();
  options_.closed = nullptr;
  options_.refused = nullptr;
  dialled_ = nullptr;
  if (network_->loop != nullptr) {
    for (auto& [id, call] : calls_) {
      if (call.timer != 0) network_->kernel.cancel(call.timer);
    }
  }
  auto connection = std::exchange(connection_, nullptr);
  if (connection) {
    connection->to_server.release_spans();
    connection->to_server.finish(closing_ && network_->loop != nullptr);
    network_->clients.erase(connection->id);
    connection->client.reset();
    if (!connection->server) network_->kernel.remove(connection.get());
  }
  calls_.clear();
  chunks_.clear();
  bulk_.take_all();
  small_.take_all();
}

void ClientEnd::later(Task task) {
  if (network_->loop == nullptr) return;
  network_->loop->post([self = shared_from_this(), task = std::move(task)] {
    if (!self->abandoned_) task();
  });
}

void ClientEnd::post_gone(Done done) {
  later([this, done = std::move(done)] {
    if (done) done(gone());
  });
}

Status ClientEnd::gone() const {
  if (!why_gone_.ok()) return why_gone_;
  return {Code::kClosed, "the connection to " + address_ + " is closed"};
}

}  // namespace dsgd::transport
