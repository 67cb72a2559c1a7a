#include "transport/uv/client_connection.h"

#include <utility>

#include "transport/uv/guard.h"
#include "transport/uv/zero_region.h"

namespace dsgd::transport::uv {

namespace {

// Words of a push besides its payload: the header, and the far pointer's pad of two words.
constexpr uint64_t kPushWords = 32;
constexpr size_t kMaxChunkBytes = ZeroRegion::kMaxPayload - 4096;  // a frame has room for the header, too
// A span under way and one behind it keep the socket busy. The rest waits here, where revoke() costs nothing
// and from where control messages may overtake it.
constexpr size_t kSpansInQueue = 2;

}  // namespace

Result<std::shared_ptr<ClientConnection>> ClientConnection::make(NetworkShared shared, Fd fd,
                                                                 std::shared_ptr<Tls> tls, std::string peer,
                                                                 DialOptions options) {
  std::shared_ptr<ClientConnection> self(new ClientConnection(shared, std::move(peer), std::move(options)));
  DSGD_RETURN_IF_ERROR(Link::make(shared.loop.port(), std::move(fd), std::move(tls),
                                  capnp::rpc::twoparty::Side::CLIENT, shared.read, shared.sent, self.get(),
                                  nullptr)
                           .into(&self->link_));
  if (self->options_.hello.checksum) self->link_->use_checksums();
  return self;
}

ClientConnection::ClientConnection(NetworkShared shared, std::string peer, DialOptions options)
    : Connection(shared, std::move(peer)),
      options_(std::move(options)),
      bulk_(SendWindow<Chunk>::Limits::kEachOperation, options_.bulk_window),
      small_(SendWindow<SmallChunk>::Limits::kAllTogether, options_.small_window) {}

ClientConnection::~ClientConnection() noexcept { drop_rpc(); }

std::shared_ptr<ClientConnection> ClientConnection::shared_self() {
  return std::static_pointer_cast<ClientConnection>(shared_from_this());
}

void ClientConnection::start(std::function<void(Status)> ready) {
  ready_ = std::move(ready);
  tasks_.reset(new kj::TaskSet(*this));
  rpc_.emplace(*link_, kj::Maybe<capnp::Capability::Client>(nullptr));
  capnp::MallocMessageBuilder message(8);
  auto vat = message.initRoot<capnp::rpc::twoparty::VatId>();
  vat.setSide(capnp::rpc::twoparty::Side::SERVER);
  wire_.emplace(rpc_->bootstrap(vat).castAs<schema::Wire>());
  // Resolved before the first call: a call to a promise could be redirected and copied on its way.
  const auto tell = [this](const Status& status) {
    loop().post([self = shared_self(), status] {
      if (auto ready = std::exchange(self->ready_, nullptr)) ready(status);
    });
  };
  tasks_->add(wire_->whenResolved().then([tell] { tell({}); },
                                         [tell](kj::Exception&& exception) { tell(to_status(exception)); }));
}

Status ClientConnection::closed_status() const {
  if (!broken_.ok()) return broken_;
  return Status(Code::kClosed, "the connection to " + peer_ + " was closed here");
}

void ClientConnection::post_done(Done done, Status status) {
  if (!done) return;
  loop().post([self = shared_self(), done = std::move(done), status = std::move(status)] {
    if (!self->muted_) done(status);
  });
}

// ---- calls

void ClientConnection::call(Message request, Time deadline, std::function<void(Result<Message>)> done) {
  if (!open()) return post_done(std::move(done), closed_status());
  const uint64_t id = ++next_id_;
  Call& call = calls_[id];
  call.done = std::move(done);
  if (deadline != kNever) {
    call.timer = loop().schedule(deadline, [this, id, name = message_name(request)] {
      auto it = calls_.find(id);
      if (it == calls_.end()) return;
      it->second.timer = 0;
      finish_call(
          id, Status(Code::kTimeout, std::string("no answer to ") + name + " from " + peer_ + " in time"));
    });
  }
  try {
    auto rpc = wire_->callRequest(capnp::MessageSize{words_for(request) + 16, 0});
    write(request, rpc.initMessage());
    tasks_->add(rpc.send().then(
        [this, id](capnp::Response<schema::Wire::CallResults>&& response) {
          guarded([&] {
            Result<Message> result = Status(Code::kInternal, "");
            Status formed = read(response.getReply(), &result);
            finish_call(id, formed.ok() ? std::move(result) : Result<Message>(formed));
          });
        },
        [this, id](kj::Exception&& exception) { guarded([&] { finish_call(id, to_status(exception)); }); }));
  } catch (const kj::Exception& exception) {
    post_done([this, id](const Status& status) { finish_call(id, status); }, to_status(exception));
  }
}

void ClientConnection::finish_call(uint64_t id, Result<Message> result) {
  auto node = calls_.extract(id);
  if (node.empty()) return;
  if (node.mapped().timer) loop().cancel(node.mapped().timer);
  if (!muted_) node.mapped().done(std::move(result));
}

// ---- chunks

void ClientConnection::send(const BulkHeader& header, std::span<const std::byte> data, Done done) {
  if (!open()) return post_done(std::move(done), closed_status());
  if (data.size() > kMaxChunkBytes) {
    return post_done(std::move(done),
                     Status(Code::kInvalidArgument, "a chunk of " + std::to_string(data.size()) +
                                                        " bytes is too large; send at most " +
                                                        std::to_string(kMaxChunkBytes)));
  }
  bulk_.push(header.operation, {header, data, std::move(done)});
  pump();
}

void ClientConnection::pump() {
  if (pumping_ || !link_ || !wire_ || ended()) return;
  {
    pumping_ = true;
    KJ_DEFER(pumping_ = false);
    while (link_->writer().unwritten_spans() < kSpansInQueue) {
      std::optional<Chunk> chunk = bulk_.take();
      if (!chunk) break;
      issue(std::move(*chunk));
    }
  }
  advance();
}

void ClientConnection::issue(Chunk chunk) {
  const uint64_t id = ++next_id_;
  InFlight& sent = in_flight_[id] = {chunk.header.operation, chunk.data.size(), std::move(chunk.done)};
  Status failed;
  try {
    auto rpc = wire_->pushRequest(capnp::MessageSize{kPushWords, 0});
    write(chunk.header, rpc.initHeader());
    if (!chunk.data.empty() && !ZeroRegion::begin()) {
      // Copy the data: there is no zero region.
      rpc.setData(
          capnp::Data::Reader(reinterpret_cast<const kj::byte*>(chunk.data.data()), chunk.data.size()));
    } else if (!chunk.data.empty()) {
      sent.data = chunk.data;
      const auto* stand_in = ZeroRegion::begin() + id % ZeroRegion::kSlots;
      auto orphanage = capnp::Orphanage::getForMessageContaining(schema::Wire::PushParams::Builder(rpc));
      rpc.adoptData(orphanage.referenceExternalData(
          capnp::Data::Reader(reinterpret_cast<const kj::byte*>(stand_in), chunk.data.size())));
    }
    push(rpc, [this, id](const Status& status) { answered(id, status); });
    if (const auto unsent = in_flight_.find(id); unsent != in_flight_.end() && !unsent->second.data.empty())
      failed = Status(Code::kInternal, "a chunk was not written; this is a defect");
  } catch (const kj::Exception& exception) {
    failed = to_status(exception);
  }
  if (!failed.ok() && !ended()) {
    loop().post([self = shared_self(), id, failed] { self->answered(id, failed); });
  }
}

void ClientConnection::push(PushRequest& request, Done answered) {
  const auto tell = [this, answered = std::move(answered)](const Status& status) {
    guarded([&] { answered(status); });
  };
  tasks_->add(request.send().then(
      [tell](capnp::Response<schema::Wire::PushResults>&& response) {
        Status status;
        const Status formed = read(response.getStatus(), &status);
        tell(formed.ok() ? status : formed);
      },
      [tell](kj::Exception&& exception) { tell(to_status(exception)); }));
}

Link::Span ClientConnection::take_span(size_t slot) {
  // The newest chunk with this slot: each is sent before the next one is issued.
  const uint64_t id = next_id_ - (next_id_ - slot) % ZeroRegion::kSlots;
  const auto chunk = in_flight_.find(id);
  if (chunk == in_flight_.end()) return {};
  return {id, std::exchange(chunk->second.data, {})};
}

void ClientConnection::answered(uint64_t id, const Status& status) {
  auto node = in_flight_.extract(id);
  if (node.empty()) return;
  InFlight& chunk = node.mapped();
  bulk_.answered(chunk.operation, chunk.nbytes);
  if (chunk.done && !muted_) chunk.done(status);
  pump();
}

void ClientConnection::revoke(uint64_t operation) {
  bulk_.drop(operation);
  std::vector<Done> kept;  // each may own its span, which the link still reads
  for (auto& [id, chunk] : in_flight_) {
    if (chunk.operation == operation) kept.push_back(std::exchange(chunk.done, nullptr));
  }
  if (!link_) return;
  link_->revoke([this, operation](uint64_t id) {
    const auto chunk = in_flight_.find(id);
    return chunk != in_flight_.end() && chunk->second.operation == operation;
  });
}

// ---- small chunks

void ClientConnection::send_small(const BulkHeader& header, std::span<const std::byte> data, Done done) {
  if (!open()) return post_done(std::move(done), closed_status());
  if (data.size() > kSmallBytes) {
    return post_done(std::move(done),
                     Status(Code::kInvalidArgument, "a small chunk of " + std::to_string(data.size()) +
                                                        " bytes is too large; send at most " +
                                                        std::to_string(kSmallBytes)));
  }
  small_.push(header.operation, {header, {data.begin(), data.end()}, std::move(done)});
  pump_small();
}

void ClientConnection::pump_small() {
  if (std::exchange(pumping_small_, true)) return;  // the outer call continues the loop
  {
    KJ_DEFER(pumping_small_ = false);
    while (!ended()) {
      std::optional<SmallChunk> chunk = small_.take();
      if (!chunk) break;
      issue_small(std::move(*chunk));
    }
  }
  advance();
}

void ClientConnection::issue_small(SmallChunk chunk) {
  Status failed;
  try {
    auto rpc = wire_->pushRequest(capnp::MessageSize{kPushWords + (chunk.data.size() + 7) / 8, 0});
    write(chunk.header, rpc.initHeader());
    rpc.setData(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(chunk.data.data()), chunk.data.size()));
    push(rpc, [this, n = chunk.data.size(), operation = chunk.header.operation](const Status& status) {
      small_.answered(operation, n);
      if (!status.ok() && options_.refused && !muted_) options_.refused(operation, status);
      pump_small();
    });
  } catch (const kj::Exception& exception) {
    failed = to_status(exception);
    small_.answered(chunk.header.operation, chunk.data.size());
  }
  post_done(std::move(chunk.done), failed);
}

// ---- the end

void ClientConnection::close(bool flush) {
  if (closed_) return;
  options_.closed = nullptr;
  if (!flush) fail_all(closed_status());
  close_link(flush);
  closed_ = true;
}

void ClientConnection::abandon() {
  mute();
  bulk_.take_all();
  for (auto& [id, chunk] : in_flight_) chunk.done = nullptr;
  if (link_) link_->revoke([](uint64_t) { return true; });
  closed_ = true;
  if (!ended()) guarded([this] { close_link(true); });  // else the network closes it
}

void ClientConnection::link_written() {
  pump();
  Connection::link_written();
}

void ClientConnection::taskFailed(kj::Exception&& exception) {  // of its own handler
  if (is_exhaustion(exception)) loop().port().note_exhausted();
}

void ClientConnection::mute() {
  muted_ = true;
  options_.closed = nullptr;
  options_.refused = nullptr;
  ready_ = nullptr;
}

void ClientConnection::broken(const Status& why) {
  broken_ = why.ok() ? Status(Code::kClosed, peer_ + " closed the connection")
                     : Status(why.code(), "the connection to " + peer_ + " is broken: " + why.message());
  auto self = shared_from_this();
  if (auto tell = std::exchange(ready_, nullptr)) tell(broken_);
  fail_all(broken_);
  auto closed = std::exchange(options_.closed, nullptr);
  if (closed && !muted_) closed(broken_);
}

// From the loop, as every `done`: by way of a task where the caller may be inside close().
void ClientConnection::fail_all(const Status& why) {
  for (auto& [id, call] : std::exchange(calls_, {})) {  // in sending order
    post_done(std::move(call.done), why);
    if (call.timer) loop().cancel(call.timer);
  }
  for (auto& [id, chunk] : std::exchange(in_flight_, {})) post_done(std::move(chunk.done), why);
  for (Chunk& chunk : bulk_.take_all()) post_done(std::move(chunk.done), why);
  for (SmallChunk& chunk : small_.take_all()) post_done(std::move(chunk.done), why);
}

void ClientConnection::tear_down() {
  guarded([this] { fail_all(closed_status()); });
  drop_rpc();
}

void ClientConnection::drop_rpc() {
  tasks_.reset();
  wire_.reset();
  rpc_.reset();
  link_.reset();
}

}  // namespace dsgd::transport::uv
