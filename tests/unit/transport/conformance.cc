#include "conformance.h"

#include <algorithm>

#include "tests/unit/transport/borrowed_sink.h"

namespace dsgd::transport {

bool until(Network& network, const std::function<bool()>& predicate) {
  // Shared: after a time-out a last look may still be on its way.
  struct State {
    std::atomic<bool> done{false}, given_up{false};
    std::function<void()> look;
  };
  auto state = std::make_shared<State>();
  Loop& loop = network.loop();
  state->look = [&loop, &predicate, weak = std::weak_ptr<State>(state)] {
    auto self = weak.lock();
    if (!self || self->given_up) return;
    if (predicate()) {
      self->done = true;
    } else {
      loop.schedule(loop.now() + 500us, [self] { self->look(); });
    }
  };
  loop.post([state] { state->look(); });
  if (loop.wait(state->done, loop.now() + kPatience)) return true;
  on(network, [&] { state->given_up = true; });
  return state->done;
}

std::vector<std::byte> bytes_of(size_t n, uint64_t seed) {
  std::vector<std::byte> bytes(n);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (auto& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

void TestSink::check(size_t offset, size_t n) {
  ++uses_;
  EXPECT_LE(offset + n, data_.size());
  EXPECT_EQ(offset % 64, 0u);
  if (offset + n != data_.size()) {
    EXPECT_EQ(n % 64, 0u) << "a piece in the middle of the chunk";
  }
}

std::byte* TestSink::destination(size_t offset, size_t n) {
  check(offset, n);
  const bool give = mode_ == Mode::kPlace || (mode_ == Mode::kMixed && uses_ % 2 == 0);
  if (on_use) on_use();
  return give && offset + n <= data_.size() ? data_.data() + offset : nullptr;
}

void TestSink::take(size_t offset, std::span<const std::byte> piece) {
  check(offset, piece.size());
  EXPECT_NE(mode_, Mode::kPlace);
  if (mode_ == Mode::kTake) {
    EXPECT_EQ(offset, next_) << "pieces come in order";
    next_ = offset + piece.size();
  }
  if (offset + piece.size() <= data_.size()) {
    std::copy(piece.begin(), piece.end(), data_.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  if (on_use) on_use();
}

Status Recorder::on_open(ServerChannel& channel) {
  check_loop();
  if (!refusal.ok()) return refusal;
  channels.push_back(&channel);
  hellos.push_back(channel.hello());
  return {};
}

void Recorder::on_call(ServerChannel& channel, Message request, Responder respond) {
  check_loop();
  if (const auto* watch = std::get_if<Watch>(&request))
    order.push_back("call " + std::to_string(watch->sequence));
  if (answer) {
    answer(channel, std::move(request), std::move(respond));
  } else {
    respond(Message(Empty{}));
  }
}

std::unique_ptr<BulkSink> Recorder::on_bulk(ServerChannel& channel, const BulkHeader& header, size_t nbytes) {
  check_loop();
  asked.push_back(nbytes);
  TestSink* sink = choose_sink ? choose_sink(channel, header, nbytes) : nullptr;
  if (!sink) return nullptr;
  return std::make_unique<BorrowedSink<TestSink>>(*sink, [this, header, sink] {
    check_loop();
    order.push_back("chunk " + std::to_string(header.operation));
    chunks.push_back({header, sink->data(), true});
  });
}

void Recorder::on_bulk_end(ServerChannel& channel, const BulkHeader& header,
                           std::unique_ptr<BulkReceipt> receipt) {
  check_loop();
  order.push_back("chunk " + std::to_string(header.operation));
  chunks.push_back({header, {receipt->data().begin(), receipt->data().end()}, false});
  if (receive) {
    receive(channel, header, std::move(receipt));
  } else {
    receipt->finish(Status());
  }
}

void Recorder::on_close(ServerChannel& channel, const Status& why) {
  check_loop();
  closed.push_back(why);
  std::erase(channels, &channel);
}

void Conformance::SetUp() {
  world_ = GetParam().make();
  auto serving = world_->environment(1).new_network("test-serve", 64 << 20);
  auto dialling = world_->environment(0).new_network("test-dial", 64 << 20);
  ASSERT_TRUE(serving.ok()) << serving.status().message();
  ASSERT_TRUE(dialling.ok()) << dialling.status().message();
  serving_ = std::move(serving).value();
  dialling_ = std::move(dialling).value();
  recorder_.network = serving_.get();
  acceptor_.network = serving_.get();
  acceptor_.handler = &recorder_;
  auto listener = serving_->listen(world_->listen_address(), &acceptor_);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  listener_ = std::move(listener).value();
}

void Conformance::TearDown() {
  if (dialling_) {
    for (auto& client : clients_) drop(client);
  }
  if (serving_) {
    on(*serving_, [&] { EXPECT_EQ(recorder_.off_loop, 0) << "callbacks run on the network's loop"; });
  }
  listener_.reset();
  dialling_.reset();
  serving_.reset();
  world_.reset();
}

void Conformance::drop(std::shared_ptr<Client>& client) {
  on(*dialling_, [&] { client->channel.reset(); });
}

std::shared_ptr<Client> Conformance::dial(DialOptions options, std::string address) {
  auto client = std::make_shared<Client>();
  if (address.empty()) address = listener_->address();
  options.hello.role = Role::kPeer;  // which may send anything
  on(*serving_, [] {});              // what the test has set up is seen by the serving thread
  if (options.deadline == kNever) options.deadline = dialling_->loop().now() + kPatience;
  options.closed = [raw = client.get()](const Status& why) { raw->closed.push_back(why); };
  options.refused = [raw = client.get()](uint64_t operation, const Status& why) {
    raw->refused.emplace_back(operation, why);
  };
  Status failed;
  bool done = false;
  on(*dialling_, [&] {
    dialling_->dial(address, std::move(options), [&](Result<std::unique_ptr<ClientChannel>> result) {
      done = true;
      if (result.ok()) {
        client->channel = std::move(result).value();
      } else {
        failed = result.status();
      }
    });
    EXPECT_FALSE(done) << "the result of a dial comes from the loop";
  });
  EXPECT_TRUE(client_until([&] { return done; })) << "the dial has no result";
  EXPECT_TRUE(failed.ok()) << failed.message();
  if (!client->channel) {
    std::fprintf(stderr, "cannot go on without a connection\n");
    std::abort();
  }
  clients_.push_back(client);
  return client;
}

Status Conformance::dial_error(const std::string& address, DialOptions options) {
  if (options.deadline == kNever) options.deadline = dialling_->loop().now() + kPatience;
  Status status;
  bool done = false;
  if (serving_) on(*serving_, [] {});
  on(*dialling_, [&] {
    dialling_->dial(address, std::move(options), [&](Result<std::unique_ptr<ClientChannel>> result) {
      status = result.status();
      done = true;
    });
  });
  EXPECT_TRUE(client_until([&] { return done; })) << "the dial has no result";
  return status;
}

Status Conformance::call(Client& client, Message request) {
  Status status;
  bool done = false;
  on(*dialling_, [&] {
    client.channel->call(std::move(request), dialling_->loop().now() + kPatience, [&](Result<Message> reply) {
      status = reply.status();
      done = true;
    });
    EXPECT_FALSE(done) << "`done` never comes from within call()";
  });
  EXPECT_TRUE(client_until([&] { return done; })) << "the call has no end";
  return status;
}

void Conformance::ping(Client& client) {
  const Status status = call(client, Message(Renew{}));
  EXPECT_TRUE(status.ok()) << status.message();
}

void Conformance::send(Client& client, uint64_t operation, std::span<const std::byte> data,
                       std::vector<Status>* ends) {
  on(*dialling_, [&] {
    BulkHeader header;
    header.operation = operation;
    const size_t before = ends->size();
    client.channel->send(header, data, [ends](const Status& status) { ends->push_back(status); });
    EXPECT_EQ(ends->size(), before) << "`done` never comes from within send()";
  });
}

}  // namespace dsgd::transport
