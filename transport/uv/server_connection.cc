#include "transport/uv/server_connection.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "transport/schema/codec.h"
#include "transport/uv/guard.h"
#include "transport/uv/zero_region.h"

namespace dsgd::transport::uv {

namespace {

constexpr size_t kRememberedDiscards = 256;
// Messages of a worker to the head are small. The limit bounds the memory that connections of strangers can
// hold.
constexpr size_t kLargestControlFrame = size_t{256} << 10;

Status closed_here() {
  return Status(Code::kClosed, "the connection was closed by the side that accepted it");
}

// Why something gets no other answer.
Status dropped(const char* what) {
  if (std::uncaught_exceptions() > 0)
    return Status(Code::kNoMemory, std::string("there was no memory to take the ") + what);
  return Status(Code::kInternal, std::string("the ") + what + " was dropped without an answer");
}

}  // namespace

// ---- handles

// One answer to one call, shared by the copies of its Responder.
class ServerConnection::Answer {
 public:
  Answer(std::shared_ptr<Anchor> anchor, uint64_t id) : anchor_(std::move(anchor)), id_(id) {}
  ~Answer() {
    if (given_ || !anchor_->connection) return;
    anchor_->connection->guarded([this] { give(dropped("request")); });
  }
  void give(const Result<Message>& result) {
    if (given_) return;
    given_ = true;
    if (anchor_->connection) anchor_->connection->answer_call(id_, result);
  }

 private:
  const std::shared_ptr<Anchor> anchor_;
  const uint64_t id_;
  bool given_ = false;
};

class ServerConnection::Receipt final : public BulkReceipt {
 public:
  Receipt(std::shared_ptr<Anchor> anchor, uint64_t id, std::span<const std::byte> data)
      : anchor_(std::move(anchor)), id_(id), data_(data) {
    if (!data_.empty()) anchor_->connection->receipts_.insert(this);
  }
  ~Receipt() override {
    if (finished_ || !anchor_->connection) return;
    anchor_->connection->guarded([this] { finish(dropped("chunk")); });
    anchor_->connection->receipts_.erase(this);
  }

  std::span<const std::byte> data() const override { return data_; }
  void finish(const Status& status) override {
    if (finished_) return;
    finished_ = true;
    data_ = {};
    kept_.reset();
    if (!anchor_->connection) return;
    anchor_->connection->receipts_.erase(this);
    anchor_->connection->answer_push(id_, status);
  }
  // The connection goes, and its buffers with it; the data stays valid. Without the memory for that the
  // session fails, and what is read until then is zeros.
  void keep() {
    if (data_.empty() || kept_) return;
    kept_.reset(new (std::nothrow) std::byte[data_.size()]);
    if (kept_) {
      std::copy(data_.begin(), data_.end(), kept_.get());
      data_ = {kept_.get(), data_.size()};
    } else {
      anchor_->connection->loop().port().note_exhausted();
      data_ = {reinterpret_cast<const std::byte*>(ZeroRegion::begin()), data_.size()};
    }
  }

 private:
  const std::shared_ptr<Anchor> anchor_;
  const uint64_t id_;
  std::span<const std::byte> data_;
  std::unique_ptr<std::byte[]> kept_;
  bool finished_ = false;
};

class ServerConnection::WireServer final : public schema::Wire::Server {
 public:
  explicit WireServer(std::shared_ptr<Anchor> anchor) : anchor_(std::move(anchor)) {}
  kj::Promise<void> call(CallContext context) override {
    KJ_REQUIRE(anchor_->connection, "the connection is closed");
    return anchor_->connection->loop().port().noted(
        [&] { return anchor_->connection->on_rpc_call(kj::mv(context)); });
  }
  kj::Promise<void> push(PushContext context) override {
    KJ_REQUIRE(anchor_->connection, "the connection is closed");
    return anchor_->connection->loop().port().noted(
        [&] { return anchor_->connection->on_rpc_push(kj::mv(context)); });
  }

 private:
  const std::shared_ptr<Anchor> anchor_;
};

// ---- the connection

Result<std::shared_ptr<ServerConnection>> ServerConnection::make(NetworkShared shared, Fd fd,
                                                                 Greeting greeting, ServerHandler* handler) {
  greeting.hello.checksum =
      greeting.hello.checksum || wants_checksums(shared.checksum, {fd.get(), greeting.tls.get()});
  std::shared_ptr<Tls> tls = std::move(greeting.tls);
  std::shared_ptr<ServerConnection> self(new ServerConnection(shared, std::move(greeting), handler));
  DSGD_RETURN_IF_ERROR(Link::make(shared.loop.port(), std::move(fd), std::move(tls),
                                  capnp::rpc::twoparty::Side::SERVER, shared.read, shared.sent, self.get(),
                                  self.get())
                           .into(&self->link_));
  return self;
}

ServerConnection::ServerConnection(NetworkShared shared, Greeting greeting, ServerHandler* handler)
    : Connection(shared, std::move(greeting.from)),
      hello_(std::move(greeting.hello)),
      proof_(greeting.proof),
      handler_(handler),
      anchor_(std::make_shared<Anchor>(Anchor{this})) {}

ServerConnection::~ServerConnection() noexcept { drop_rpc(); }

void ServerConnection::start() {
  const Status refused = handler_->on_open(*this);
  link_->send_raw(encode(HelloReply{refused, proof_, hello_.checksum}));
  if (!refused.ok()) {
    handler_ = nullptr;
    return close_link(false);  // the verdict has been written: it is small, and the first thing on the socket
  }
  if (hello_.checksum) link_->use_checksums();
  if (hello_.role != Role::kPeer) link_->limit_frames(kLargestControlFrame);
  rpc_.emplace(*link_,
               kj::Maybe<capnp::Capability::Client>(schema::Wire::Client(kj::heap<WireServer>(anchor_))));
}

// ---- calls

kj::Promise<void> ServerConnection::on_rpc_call(CallContext context) {
  Result<Message> request = read(context.getParams().getMessage());
  context.releaseParams();
  const uint64_t id = ++next_id_;
  auto paf = kj::newPromiseAndFulfiller<void>();
  calls_.emplace(id, Unanswered<CallContext>{kj::mv(context), kj::mv(paf.fulfiller)});
  KJ_ON_SCOPE_FAILURE(calls_.erase(id));  // RPC answers the call with the exception
  if (!request.ok()) {
    answer_call(id, request.status());
  } else if (!serving()) {
    answer_call(id, closed_here());
  } else {
    auto answer = std::make_shared<Answer>(anchor_, id);
    handler_->on_call(*this, std::move(request).value(),
                      [answer](Result<Message> result) { answer->give(result); });
  }
  return kj::mv(paf.promise);
}

void ServerConnection::answer_call(uint64_t id, const Result<Message>& result) {
  const size_t words = result.ok() ? words_for(result.value()) : words_for(result.status());
  answer(calls_, id, [&](CallContext& context) {
    write(result, context.getResults(capnp::MessageSize{words + 16, 0}).initReply());
  });
}

template <typename Context, typename Fill>
void ServerConnection::answer(std::unordered_map<uint64_t, Unanswered<Context>>& unanswered, uint64_t id,
                              const Fill& fill) {
  auto node = unanswered.extract(id);
  if (node.empty()) return;
  Unanswered<Context>& call = node.mapped();
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                 fill(call.context);
                 call.fulfiller->fulfill();
               })) {
    call.fulfiller->reject(kj::mv(*exception));
  }
}

// ---- chunks

// Returns why no chunk of the operation is taken; OK: chunks are.
Status ServerConnection::refusal(uint64_t operation) const {
  if (!serving()) return closed_here();
  const auto it = discarded_.find(operation);
  return it == discarded_.end() ? Status() : it->second;
}

std::unique_ptr<BulkSink> ServerConnection::on_span(const BulkHeader& header, size_t nbytes,
                                                    Status* refused) {
  *refused = refusal(header.operation);
  return refused->ok() ? handler_->on_bulk(*this, header, nbytes) : nullptr;
}

kj::Promise<void> ServerConnection::on_rpc_push(PushContext context) {
  auto params = context.getParams();
  Result<BulkHeader> header = read(params.getHeader());
  auto bytes = params.getData();
  std::span<const std::byte> data(reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size());
  Status refused = header.status();
  std::unique_ptr<BulkSink> sink;
  if (PayloadSlot* landed = link_->reader().slot_of(data.data())) {
    if (landed->discarded) refused = landed->why;
    sink = std::move(landed->sink);
    data = {};
  }
  if (data.empty()) context.releaseParams();
  if (refused.ok()) refused = refusal(header.value().operation);
  const uint64_t id = ++next_id_;
  auto paf = kj::newPromiseAndFulfiller<void>();
  pushes_.emplace(id, Unanswered<PushContext>{kj::mv(context), kj::mv(paf.fulfiller)});
  KJ_ON_SCOPE_FAILURE(pushes_.erase(id));  // RPC answers the push with the exception
  if (!refused.ok()) {
    answer_push(id, refused);
  } else if (sink) {
    answer_push(id, Status());
    sink->landed();
  } else {
    handler_->on_bulk_end(*this, header.value(), std::make_unique<Receipt>(anchor_, id, data));
  }
  return kj::mv(paf.promise);
}

void ServerConnection::answer_push(uint64_t id, const Status& status) {
  answer(pushes_, id, [&](PushContext& context) {
    context.releaseParams();
    write(status, context.getResults(capnp::MessageSize{words_for(status) + 8, 0}).initStatus());
  });
}

void ServerConnection::discard(uint64_t operation, const Status& why) {
  if (ended()) return;
  link_->reader().discard(operation, why);
  if (discarded_.insert_or_assign(operation, why).second) {
    discarded_order_.push_back(operation);
    if (discarded_order_.size() > kRememberedDiscards) {
      discarded_.erase(discarded_order_.front());
      discarded_order_.pop_front();
    }
  }
}

// ---- the end

void ServerConnection::close() {
  if (!open()) return;
  auto* handler = handler_;
  loop().post([self = shared_from_this(), handler] {
    auto* server = static_cast<ServerConnection*>(self.get());
    if (std::exchange(server->handler_, nullptr) == nullptr) return;
    handler->on_close(*server, Status());
  });
  // Answers already given are written first; then the goodbye.
  close_link(true);
}

void ServerConnection::broken(const Status& why) {
  auto* handler = std::exchange(handler_, nullptr);
  if (!handler) return;
  handler->on_close(
      *this,
      why.ok() ? why : Status(why.code(), "the connection from " + peer_ + " is broken: " + why.message()));
}

void ServerConnection::tear_down() { drop_rpc(); }

void ServerConnection::drop_rpc() {
  for (Receipt* receipt : receipts_) receipt->keep();
  anchor_->connection = nullptr;
  receipts_.clear();
  calls_.clear();
  pushes_.clear();
  rpc_.reset();
  link_.reset();
}

}  // namespace dsgd::transport::uv
