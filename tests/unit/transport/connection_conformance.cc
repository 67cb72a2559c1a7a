// Dialling, listening, routing, closing, and what a lost peer means.
#include <algorithm>

#include "conformance.h"

namespace dsgd::transport {
namespace {

TEST_P(Conformance, TheHelloIsSeenByTheAcceptingSide) {
  DialOptions options;
  options.hello.role = Role::kPeer;
  options.hello.job = "digits";
  options.hello.worker_id = "worker-3";
  options.hello.rank = 3;
  options.hello.view = 1ull << 40;
  options.hello.library_version = "1.0.0";
  options.hello.job_nonce = std::string("\0\1\2", 3);
  auto client = dial(std::move(options));
  ping(*client);
  on(*serving_, [&] {
    ASSERT_EQ(recorder_.hellos.size(), 1u);
    const Hello& hello = recorder_.hellos[0];
    EXPECT_EQ(hello.protocol, kProtocolVersion);
    EXPECT_EQ(hello.role, Role::kPeer);
    EXPECT_EQ(hello.job, "digits");
    EXPECT_EQ(hello.job_nonce, std::string("\0\1\2", 3));
    EXPECT_EQ(hello.worker_id, "worker-3");
    EXPECT_EQ(hello.rank, 3);
    EXPECT_EQ(hello.view, 1ull << 40);
    EXPECT_EQ(hello.library_version, "1.0.0");
    ASSERT_EQ(recorder_.channels.size(), 1u);
    EXPECT_FALSE(recorder_.channels[0]->address().empty());
  });
  on(*dialling_, [&] { EXPECT_EQ(client->channel->address(), listener_->address()); });
}

TEST_P(Conformance, ARejectedHelloIsTheResultOfTheDial) {
  acceptor_.verdict = Status(Code::kUnauthorized, "wrong token for job 'digits'; set `token` to the head's")
                          .with_rank(2, "node2");
  const Status status = dial_error(listener_->address());
  EXPECT_EQ(status.code(), Code::kUnauthorized);
  EXPECT_EQ(status.message(), acceptor_.verdict.message());
  EXPECT_EQ(status.rank(), 2);
  EXPECT_EQ(status.host(), "node2");
  on(*serving_, [&] { EXPECT_TRUE(recorder_.hellos.empty()) << "a rejected connection is never opened"; });
}

TEST_P(Conformance, AWrongTokenIsTheResultOfTheDial) {
  on(*serving_, [&] { acceptor_.secret = "secret"; });
  for (const char* token : {"", "guess", "secretsecret", "secre"}) {
    DialOptions options;
    options.token = token;
    options.hello.worker_id = "w7";
    const Status status = dial_error(listener_->address(), std::move(options));
    EXPECT_EQ(status.code(), Code::kUnauthorized) << token;
    EXPECT_EQ(status.message(), "worker 'w7' has another token");
  }
  on(*serving_, [&] {
    EXPECT_TRUE(recorder_.hellos.empty());
    EXPECT_TRUE(recorder_.closed.empty());
  });
  DialOptions options;
  options.token = "secret";
  ping(*dial(std::move(options)));
}

TEST_P(Conformance, NoTwoConnectionsHaveTheSameNonce) {
  auto first = dial(), second = dial();
  ping(*first);
  ping(*second);
  on(*serving_, [&] {
    ASSERT_EQ(recorder_.hellos.size(), 2u);
    EXPECT_NE(recorder_.hellos[0].nonce, recorder_.hellos[1].nonce);
    EXPECT_NE(recorder_.hellos[0].nonce, Nonce{});
  });
}

TEST_P(Conformance, ARefusalAtTheOpeningIsTheResultOfTheDial) {
  on(*serving_,
     [&] { recorder_.refusal = Status(Code::kExists, "rank 3 is connected already").with_rank(3, "node3"); });
  const Status status = dial_error(listener_->address());
  EXPECT_EQ(status.code(), Code::kExists);
  EXPECT_EQ(status.message(), "rank 3 is connected already");
  EXPECT_EQ(status.rank(), 3);
  on(*serving_, [&] {
    recorder_.refusal = Status();
    EXPECT_TRUE(recorder_.closed.empty()) << "a connection that was refused was never open";
  });
  ping(*dial());
  on(*serving_, [&] { EXPECT_TRUE(recorder_.closed.empty()); });
}

TEST_P(Conformance, NobodyListens) {
  const std::string address = listener_->address();
  on(*serving_, [] {});
  listener_.reset();
  const Status status = dial_error(address);
  EXPECT_EQ(status.code(), Code::kUnreachable);
  EXPECT_NE(status.message().find(address), std::string::npos) << status.message();
}

TEST_P(Conformance, BadAddressesAreErrors) {
  for (const char* address : {"", "nonsense", "host:", "host:port", "host:70000", "unix:", "[::1:7700"}) {
    const Status status = dial_error(address);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << "'" << address << "': " << status.message();
    const std::string quoted = std::string("'").append(address).append("'");
    EXPECT_NE(status.message().find(quoted), std::string::npos) << status.message();
    auto listener = serving_->listen(address, &acceptor_);
    EXPECT_FALSE(listener.ok()) << address;
  }
  const Status unknown = dial_error("no-such-host.invalid:7700");
  EXPECT_EQ(unknown.code(), Code::kUnreachable);
  EXPECT_NE(unknown.message().find("no-such-host.invalid"), std::string::npos) << unknown.message();
}

TEST_P(Conformance, APortInUseIsAnError) {
  auto second = serving_->listen(listener_->address(), &acceptor_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kAddressInUse);
  EXPECT_NE(second.status().message().find(listener_->address()), std::string::npos)
      << second.status().message();
}

TEST_P(Conformance, TheListenerKnowsItsPort) {
  const std::string address = listener_->address();
  EXPECT_FALSE(address.ends_with(":0")) << address;
  EXPECT_NE(address.rfind(':'), std::string::npos);
}

TEST_P(Conformance, UnixSocketsWork) {
  const std::string path = world_->unix_path();
  if (path.empty()) GTEST_SKIP() << "no Unix sockets between these environments";
  auto listener = serving_->listen("unix:" + path, &acceptor_);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  EXPECT_EQ(listener.value()->address(), "unix:" + path);
  auto client = dial({}, "unix:" + path);
  ping(*client);
  drop(client);
  listener.value().reset();
  EXPECT_EQ(dial_error("unix:" + path).code(), Code::kUnreachable);
}

TEST_P(Conformance, AcceptedConnectionsOutliveTheListener) {
  auto client = dial();
  const std::string address = listener_->address();
  listener_.reset();
  ping(*client);
  EXPECT_EQ(dial_error(address).code(), Code::kUnreachable);
  auto again = serving_->listen(address, &acceptor_);  // the port is free at once
  ASSERT_TRUE(again.ok()) << again.status().message();
  listener_ = std::move(again).value();
  auto second = dial();
  ping(*second);
}

TEST_P(Conformance, AConnectionMayLiveOnAnotherNetwork) {
  auto other = world_->environment(1).new_network("test-other", 1 << 20);
  ASSERT_TRUE(other.ok());
  auto network = std::move(other).value();
  Recorder recorder;
  recorder.network = network.get();
  acceptor_.network = network.get();
  acceptor_.handler = &recorder;
  on(*network, [] {});  // sees the recorder
  auto client = dial();
  ping(*client);
  const auto source = bytes_of(200000, 1);
  std::vector<Status> ends;
  send(*client, 1, source, &ends);
  ASSERT_TRUE(client_until([&] { return ends.size() == 1; }));
  EXPECT_TRUE(ends[0].ok());
  drop(client);
  ASSERT_TRUE(until(*network, [&] { return recorder.closed.size() == 1; }));
  EXPECT_EQ(recorder.off_loop, 0) << "its callbacks run on that network's loop";
  EXPECT_TRUE(recorder.chunks[0].data == source);
  on(*serving_, [&] { EXPECT_TRUE(recorder_.hellos.empty()); });
}

TEST_P(Conformance, ManyConnectionsAtOnce) {
  constexpr size_t kClients = 24;
  std::vector<std::shared_ptr<Client>> many;
  for (size_t i = 0; i < kClients; ++i) many.push_back(dial());
  const auto source = bytes_of(30000, 4);
  std::vector<Status> ends;
  on(*dialling_, [&] {
    for (uint64_t k = 0; k < 10; ++k) {
      for (auto& client : many) {
        BulkHeader header;
        header.operation = k;
        client->channel->send(header, source, [&](const Status& status) { ends.push_back(status); });
        client->channel->call(Watch{k}, kNever,
                              [&](Result<Message> reply) { ends.push_back(reply.status()); });
      }
    }
  });
  ASSERT_TRUE(client_until([&] { return ends.size() == kClients * 20; }));
  for (const auto& end : ends) EXPECT_TRUE(end.ok()) << end.message();
  on(*serving_, [&] { EXPECT_EQ(recorder_.channels.size(), kClients); });
}

TEST_P(Conformance, CloseWithFlushDeliversWhatIsQueued) {
  auto client = dial();
  const auto source = bytes_of(300000, 1);
  on(*dialling_, [&] {
    BulkHeader header;
    header.operation = 1;
    client->channel->send(header, source, [](const Status&) {});
    for (uint64_t i = 0; i < 50; ++i) client->channel->call(Watch{i}, kNever, [](Result<Message>) {});
    client->channel->send_small(header, std::span(source).first(1000), nullptr);
    client->channel->call(Goodbye{}, kNever, [](Result<Message>) {});
    client->channel->close(true);
    client->channel->close(true);
  });
  ASSERT_TRUE(server_until([&] { return recorder_.closed.size() == 1; }));
  on(*serving_, [&] {
    EXPECT_TRUE(recorder_.closed[0].ok()) << "closed in good order: " << recorder_.closed[0].message();
    EXPECT_EQ(recorder_.order.size(), 52u);
    ASSERT_EQ(recorder_.chunks.size(), 2u);
    EXPECT_TRUE(recorder_.chunks[0].data == source);
  });
  on(*dialling_, [&] { EXPECT_TRUE(client->closed.empty()) << "`closed` is not called for an own close"; });
}

TEST_P(Conformance, CloseWithoutFlushEndsWhatWaits) {
  std::vector<Responder> parked;
  recorder_.answer = [&](ServerChannel&, Message, Responder respond) {
    parked.push_back(std::move(respond));
  };
  auto client = dial();
  std::vector<Status> ends;
  on(*dialling_, [&] {
    client->channel->call(Watch{1}, kNever, [&](Result<Message> reply) { ends.push_back(reply.status()); });
    client->channel->close(false);
    EXPECT_TRUE(ends.empty()) << "callbacks come from the loop";
  });
  ASSERT_TRUE(client_until([&] { return ends.size() == 1; }));
  EXPECT_FALSE(ends[0].ok());
  ASSERT_TRUE(server_until([&] { return recorder_.closed.size() == recorder_.hellos.size(); }));
  on(*dialling_, [&] {
    EXPECT_TRUE(client->closed.empty());
    client->channel->call(Watch{2}, kNever, [&](Result<Message> reply) { ends.push_back(reply.status()); });
    EXPECT_EQ(ends.size(), 1u);
  });
  ASSERT_TRUE(client_until([&] { return ends.size() == 2; }))
      << "a call on a closed channel ends with an error";
  EXPECT_FALSE(ends[1].ok());
  on(*serving_, [&] { parked.clear(); });
}

TEST_P(Conformance, ADestroyedChannelCallsNothingBack) {
  std::vector<Responder> parked;
  std::vector<std::unique_ptr<BulkReceipt>> held;
  recorder_.answer = [&](ServerChannel&, Message, Responder respond) {
    parked.push_back(std::move(respond));
  };
  recorder_.receive = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    held.push_back(std::move(receipt));
  };
  auto client = dial();
  auto source = bytes_of(3 << 20, 1);
  const auto original = source;
  auto ends = std::make_shared<int>(0);
  on(*dialling_, [&] {
    client->channel->call(Watch{1}, dialling_->loop().now() + 5ms, [ends](Result<Message>) { ++*ends; });
    for (int i = 0; i < 4; ++i) client->channel->send({}, source, [ends](const Status&) { ++*ends; });
    client->channel->send_small({}, std::span(source).first(10), nullptr);
  });
  ASSERT_TRUE(server_until([&] { return !parked.empty(); }));
  on(*dialling_, [&] {
    *ends = 0;
    client->channel.reset();
    std::fill(source.begin(), source.end(), std::byte{0xee});
  });
  ASSERT_TRUE(server_until([&] { return recorder_.closed.size() == 1; }));
  on(*serving_, [&] {
    parked.clear();
    held.clear();
  });
  bool later = false;
  on(*dialling_, [&] { dialling_->loop().schedule(dialling_->loop().now() + 20ms, [&] { later = true; }); });
  ASSERT_TRUE(client_until([&] { return later; }));
  on(*dialling_, [&] {
    EXPECT_EQ(*ends, 0);
    EXPECT_TRUE(client->closed.empty());
  });
  on(*serving_, [&] {
    for (const auto& chunk : recorder_.chunks) {
      EXPECT_TRUE(std::ranges::equal(chunk.data, std::span(original).first(chunk.data.size())));
    }
  });
}

TEST_P(Conformance, TheAcceptingSideMayClose) {
  auto client = dial();
  ping(*client);
  std::vector<Status> ends;
  on(*serving_,
     [&] { recorder_.answer = [](ServerChannel& channel, Message, Responder) { channel.close(); }; });
  on(*dialling_, [&] {
    client->channel->call(Watch{1}, kNever, [&](Result<Message> reply) { ends.push_back(reply.status()); });
  });
  ASSERT_TRUE(client_until([&] { return client->closed.size() == 1 && ends.size() == 1; }));
  on(*dialling_, [&] {
    EXPECT_FALSE(ends[0].ok());
    EXPECT_FALSE(client->closed[0].ok());
    EXPECT_NE(client->closed[0].message().find(listener_->address()), std::string::npos)
        << client->closed[0].message();
  });
  ASSERT_TRUE(server_until([&] { return recorder_.closed.size() == 1; }));
  ASSERT_TRUE(server_until([&] { return recorder_.channels.empty(); }));
}

TEST_P(Conformance, ALostPeerEndsEverythingThatWaits) {
  std::vector<Responder> parked;
  std::vector<std::unique_ptr<BulkReceipt>> held;
  recorder_.answer = [&](ServerChannel&, Message, Responder respond) {
    parked.push_back(std::move(respond));
  };
  recorder_.receive = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    held.push_back(std::move(receipt));
  };
  DialOptions options;
  options.bulk_window = 1;
  options.small_window = 1;
  auto client = dial(std::move(options));
  const auto source = bytes_of(100000, 1);
  std::vector<Status> ends;
  auto end = [&](const Status& status) { ends.push_back(status); };
  on(*dialling_, [&] {
    client->channel->call(Watch{1}, kNever, [&](Result<Message> reply) { end(reply.status()); });
    client->channel->send({}, source, end);  // on its way
    client->channel->send({}, source, end);  // waits for its window
    client->channel->send_small({}, std::span(source).first(10), nullptr);
    client->channel->send_small({}, std::span(source).first(10), end);  // waits for its window
  });
  ASSERT_TRUE(server_until([&] { return !parked.empty() && held.size() == 2; }));
  on(*serving_, [&] {
    parked.clear();
    recorder_.answer = nullptr;
  });
  ASSERT_TRUE(client_until([&] { return ends.size() == 1; }));
  std::vector<std::unique_ptr<BulkReceipt>> orphans;
  on(*serving_, [&] { orphans = std::move(held); });
  listener_.reset();
  serving_.reset();  // all its connections are closed, and no callback comes after
  orphans.clear();
  // Whether `closed` or the others come first is not said.
  ASSERT_TRUE(client_until([&] { return client->closed.size() == 1 && ends.size() == 4; }));
  on(*dialling_, [&] {
    for (const auto& status : ends) EXPECT_FALSE(status.ok());
    EXPECT_FALSE(client->closed[0].ok());
    client->channel->send({}, source, end);
    client->channel->call(Watch{1}, kNever, [&](Result<Message> reply) { ends.push_back(reply.status()); });
    client->closed.clear();
  });
  ASSERT_TRUE(client_until([&] { return ends.size() == 6; })) << "later ones end, too";
  on(*dialling_, [&] { EXPECT_TRUE(client->closed.empty()) << "`closed` is called once"; });
}

TEST_P(Conformance, ALostSenderLeavesNoSinkInUse) {
  auto client = dial();
  bool closed = false;
  int uses = 0, uses_at_close = -1;
  on(*serving_, [&] {
    recorder_.choose_sink = [&](ServerChannel&, const BulkHeader&, size_t n) {
      TestSink* landing = sink(TestSink::Mode::kTake, n);
      landing->on_use = [&] {
        ++uses;
        EXPECT_FALSE(closed);
      };
      return landing;
    };
  });
  const auto source = bytes_of(16 << 20, 1);
  std::vector<Status> ends;
  send(*client, 1, source, &ends);
  ASSERT_TRUE(server_until([&] { return uses > 0; }));
  clients_.clear();
  on(*dialling_, [&] { client->channel.reset(); });
  dialling_.reset();
  ASSERT_TRUE(server_until([&] {
    if (recorder_.closed.size() != 1) return false;
    closed = true;
    uses_at_close = uses;
    return true;
  }));
  on(*serving_, [&] {
    EXPECT_EQ(uses, uses_at_close);
    EXPECT_TRUE(recorder_.chunks.empty() || recorder_.chunks[0].data == source);
  });
}

TEST_P(Conformance, ANetworkThatEndsCallsNothingBack) {
  int results = 0;
  on(*dialling_, [&] {
    for (int i = 0; i < 5; ++i) {
      DialOptions options;
      dialling_->dial(listener_->address(), std::move(options), [&](auto) { ++results; });
    }
  });
  dialling_.reset();
  const int before = results;
  ASSERT_TRUE(server_until([&] { return recorder_.channels.empty(); }));
  EXPECT_EQ(results, before);
}

TEST_P(Conformance, TheLocalAddressIsChosenAndExplained) {
  std::string why;
  auto chosen = dialling_->local_address_for({listener_->address()}, "", &why);
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_FALSE(chosen.value().empty());
  EXPECT_EQ(chosen.value().find(":77"), std::string::npos) << "the host part only";
  EXPECT_NE(why.find(chosen.value()), std::string::npos) << why;
  auto loopback = dialling_->local_address_for({"127.0.0.1:7700"}, "127.0.0.0/8", &why);
  ASSERT_TRUE(loopback.ok()) << loopback.status().message();
  EXPECT_TRUE(loopback.value().starts_with("127.")) << loopback.value();
  auto unknown = dialling_->local_address_for({listener_->address()}, "eth77", &why);
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("eth77"), std::string::npos) << unknown.status().message();
}

}  // namespace
}  // namespace dsgd::transport
