// Dialling, the hello, calls and their deadlines.
#include <kj/async.h>

#include "support.h"

namespace dsgd::transport::test {
namespace {

class ConnectionTest : public NetworkTest {};

TEST_F(ConnectionTest, ACallIsAnsweredOverEveryKindOfAddress) {
  const std::string path = "/tmp/dsgd-test-" + std::to_string(getpid()) + ".sock";
  for (const std::string& address :
       // The last is looked up.
       {std::string("127.0.0.1:0"), std::string("localhost:0"), std::string("127.1:0"),
        std::string("[::1]:0"), "unix:" + path}) {
    SCOPED_TRACE(address);
    auto env = make_uv_environment();
    if (address[0] == '[' && !env->new_network("probe", 1 << 20).value()->listen(address, &door).ok())
      continue;
    start(address);
    connect();
    auto reply = call(*client, *channel, Renew{4, 9});
    EXPECT_TRUE(reply.ok()) << reply.status().message();
    TearDown();
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "the socket file must go with its listener";
}

TEST_F(ConnectionTest, RequestAndReplyArriveUnchanged) {
  start();
  handler.call = [](ServerChannel& channel, Message request, Responder respond) {
    auto& watch = std::get<Watch>(request);
    WatchReply reply;
    reply.sequence = watch.sequence + 1;
    reply.view = channel.hello().view;
    reply.cause =
        Status(Code::kWorkerLost, channel.hello().job + " " + channel.hello().worker_id).with_rank(5, "h");
    respond(Message(reply));
  };
  auto options = dial_options(*client);
  options.hello.worker_id = "w7";
  options.hello.view = 77;
  connect(options, listener->address());
  auto reply = call(*client, *channel, Watch{41});
  ASSERT_TRUE(reply.ok());
  auto& watch = std::get<WatchReply>(reply.value());
  EXPECT_EQ(watch.sequence, 42u);
  EXPECT_EQ(watch.view, 77u);
  EXPECT_EQ(watch.cause.message(), "test w7");
  EXPECT_EQ(watch.cause.rank(), 5);
}

TEST_F(ConnectionTest, ARefusedHelloIsTheResultOfTheDial) {
  start();
  auto options = dial_options(*client);
  options.token = "guessed";
  auto refused = dial(*client, listener->address(), options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUnauthorized);
  EXPECT_EQ(refused.status().message(), "the token is wrong");
  EXPECT_EQ(refused.status().rank(), 3);
  EXPECT_EQ(refused.status().host(), "nodeb");
}

TEST_F(ConnectionTest, AnAddressWithoutAListenerIsUnreachableAndNamed) {
  start();
  const std::string address = listener->address();
  listener.reset();
  auto dialled = dial(*client, address, dial_options(*client));
  ASSERT_FALSE(dialled.ok());
  EXPECT_EQ(dialled.status().code(), Code::kUnreachable);
  EXPECT_NE(dialled.status().message().find(address), std::string::npos) << dialled.status().message();
}

TEST_F(ConnectionTest, ANameThatDoesNotResolveIsNamed) {
  start();
  auto dialled = dial(*client, "no-such-host.invalid:1", dial_options(*client));
  ASSERT_FALSE(dialled.ok());
  EXPECT_EQ(dialled.status().code(), Code::kUnreachable);
  EXPECT_NE(dialled.status().message().find("no-such-host.invalid"), std::string::npos);
}

TEST_F(ConnectionTest, MalformedAddressesAreRefusedWithTheFormsThatAreGood) {
  start();
  for (const char* bad : {"", "host", "host:", "host:x", "host:70000", "fe80::1:80", "unix:", "1.2.3.4:-1"}) {
    SCOPED_TRACE(bad);
    auto dialled = dial(*client, bad, dial_options(*client));
    ASSERT_FALSE(dialled.ok());
    EXPECT_EQ(dialled.status().code(), Code::kInvalidArgument);
    EXPECT_NE(dialled.status().message().find("host:port"), std::string::npos);
    auto bound = client->listen(bad, &door);
    ASSERT_FALSE(bound.ok());
    EXPECT_EQ(bound.status().code(), Code::kInvalidArgument);
  }
  auto dialled = dial(*client, "unix:/" + std::string(200, 'x'), dial_options(*client));
  ASSERT_FALSE(dialled.ok());
  EXPECT_EQ(dialled.status().code(), Code::kInvalidArgument);
}

TEST_F(ConnectionTest, ADialThatMeetsSilenceEndsAtItsDeadline) {
  start();
  int port;
  uv::Fd silent = listen_raw(&port);  // its backlog accepts, and nobody answers
  auto options = dial_options(*client);
  const Time begin = client->loop().now();
  options.deadline = begin + 50ms;
  auto dialled = dial(*client, "127.0.0.1:" + std::to_string(port), options);
  ASSERT_FALSE(dialled.ok());
  EXPECT_EQ(dialled.status().code(), Code::kTimeout);
  EXPECT_GE(client->loop().now() - begin, 50ms);
}

TEST_F(ConnectionTest, ASilentFirstAddressOfANameLeavesTimeForTheNext) {
  int port;
  uv::Fd silent = listen_raw(&port);
  const std::string at = ":" + std::to_string(port);
  auto env = make_uv_environment();
  if (!env->new_network("probe", 1 << 20).value()->listen("[::1]" + at, &door).ok())
    GTEST_SKIP() << "no IPv6 on the loopback interface";
  start("[::1]" + at);
  auto options = dial_options(*client);
  options.deadline = client->loop().now() + 1s;
  connect(options, "localhost" + at);
  EXPECT_TRUE(call(*client, *channel, Renew{4, 9}).ok());
}

TEST_F(ConnectionTest, TheErrorOfADialHasEveryAddressOfTheName) {
  start();
  int port;
  uv::Fd silent = listen_raw(&port);
  auto options = dial_options(*client);
  options.deadline = client->loop().now() + 100ms;
  auto dialled = dial(*client, "localhost:" + std::to_string(port), options);
  ASSERT_FALSE(dialled.ok());
  const std::string message = dialled.status().message();
  for (const char* host : {"127.0.0.1:", "[::1]:"})
    EXPECT_NE(message.find(host + std::to_string(port)), std::string::npos) << message;
}

TEST_F(ConnectionTest, ACallWithoutAnswerEndsAtItsDeadlineAndALateAnswerIsIgnored) {
  start();
  Responder parked;
  handler.call = [&](ServerChannel&, Message, Responder respond) { parked = std::move(respond); };
  connect();
  auto reply = call(*client, *channel, Watch{1}, client->loop().now() + 20ms);
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.status().code(), Code::kTimeout);
  ASSERT_TRUE(eventually(*server, [&] { return parked != nullptr; }));
  on(*server, [&] {
    parked(Message(Empty{}));
    parked = nullptr;
  });
  handler.call = [](ServerChannel&, Message, Responder respond) { respond(Message(Empty{})); };
  EXPECT_TRUE(call(*client, *channel, Watch{2}).ok());
}

TEST_F(ConnectionTest, ADroppedResponderAnswersWithAnErrorAndOnlyTheFirstAnswerCounts) {
  start();
  int calls = 0;
  handler.call = [&](ServerChannel&, Message, Responder respond) {
    if (++calls == 1) return;
    respond(Status(Code::kExists, "first"));
    respond(Message(Empty{}));
  };
  connect();
  auto dropped = call(*client, *channel, Watch{1});
  ASSERT_FALSE(dropped.ok());
  EXPECT_EQ(dropped.status().code(), Code::kInternal);
  auto first = call(*client, *channel, Watch{2});
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.status().code(), Code::kExists);
}

TEST_F(ConnectionTest, AnAnswerAfterTheConnectionOrTheNetworkHasGoneIsHarmless) {
  start();
  std::vector<Responder> parked;
  handler.call = [&](ServerChannel&, Message, Responder respond) { parked.push_back(std::move(respond)); };
  connect();
  on(*client, [&] {
    channel->call(Watch{1}, kNever, [](Result<Message>) {});
    channel->call(Watch{2}, kNever, [](Result<Message>) {});
  });
  ASSERT_TRUE(eventually(*server, [&] { return parked.size() == 2; }));
  on(*client, [&] { channel->close(false); });
  ASSERT_TRUE(eventually(*server, [&] { return handler.closes.size() == 1; }));
  on(*server, [&] { parked[0](Message(Empty{})); });
  listener.reset();
  server.reset();
  parked[1](Message(Empty{}));
  parked.clear();
}

TEST_F(ConnectionTest, ManyCallsAtOnceAreAnsweredInOrder) {
  start();
  connect();
  constexpr int kCalls = 500;
  std::vector<int> order;
  std::atomic<bool> done{false};
  client->loop().run(
      [&] {
        for (int i = 0; i < kCalls; ++i) {
          channel->call(Renew{i, 0}, kNever, [&, i](Result<Message> reply) {
            if (reply.ok()) order.push_back(i);
            if (i == kCalls - 1) done = true;
          });
        }
      },
      done, client->loop().now() + kLong);
  ASSERT_EQ(order.size(), static_cast<size_t>(kCalls));
  for (int i = 0; i < kCalls; ++i) EXPECT_EQ(order[i], i);
}

TEST_F(ConnectionTest, ALargeMessageTravelsWhole) {
  start();
  size_t seen = 0;
  handler.call = [&](ServerChannel&, Message request, Responder respond) {
    seen = std::get<PutObject>(request).data.size();
    respond(std::move(request));
  };
  connect();
  PutObject put;
  put.name = "blob";
  put.data.resize(5 << 20);
  for (size_t i = 0; i < put.data.size(); ++i) put.data[i] = static_cast<uint8_t>(i * 31);
  auto reply = call(*client, *channel, put);
  ASSERT_TRUE(reply.ok()) << reply.status().message();
  EXPECT_EQ(seen, put.data.size());
  EXPECT_EQ(std::get<PutObject>(reply.value()).data, put.data);
}

TEST_F(ConnectionTest, AConnectionMayLiveOnAnotherNetworkThanItsListener) {
  start();
  auto other = std::move(make_uv_environment()->new_network("test-other", 16 << 20)).value();
  door.network = other.get();
  bool right_loop = false;
  handler.call = [&](ServerChannel&, Message, Responder respond) {
    right_loop = other->loop().on_loop() && !server->loop().on_loop();
    respond(Message(Empty{}));
  };
  connect();
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
  EXPECT_TRUE(right_loop);
  on(*client, [&] { channel.reset(); });
  other.reset();
}

TEST_F(ConnectionTest, ACallerWithAKjLoopOfItsOwnCanDialAndCall) {
  start();
  kj::EventLoop own;
  kj::WaitScope scope(own);
  connect();
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
}

TEST_F(ConnectionTest, TheLocalAddressIsChosenAndExplained) {
  start();
  std::string why;
  auto local = client->local_address_for({listener->address()}, "", &why);
  ASSERT_TRUE(local.ok()) << local.status().message();
  EXPECT_EQ(local.value(), "127.0.0.1");
  EXPECT_NE(why.find("lo"), std::string::npos) << why;
  for (const char* by : {"lo", "127.0.0.1", "127.0.0.0/8"}) {
    SCOPED_TRACE(by);
    auto named = client->local_address_for({"127.0.0.1:1"}, by, &why);
    ASSERT_TRUE(named.ok()) << named.status().message();
    EXPECT_EQ(named.value(), "127.0.0.1");
    EXPECT_NE(why.find(by), std::string::npos) << why;
  }
  for (const char* bad : {"nosuch0", "203.0.113.7", "203.0.113.0/24", "127.0.0.0/99"}) {
    SCOPED_TRACE(bad);
    auto none = client->local_address_for({"127.0.0.1:1"}, bad, &why);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.status().code(), Code::kInvalidArgument);
    EXPECT_NE(none.status().message().find("lo 127.0.0.1"), std::string::npos) << "it must say what there is";
  }
}

TEST(Environment, NamesItsMachineAndItself) {
  auto a = make_uv_environment(), b = make_uv_environment();
  EXPECT_FALSE(a->host_name().empty());
  EXPECT_EQ(a->machine(), b->machine());
  EXPECT_GE(a->machine().size(), 8u);
  EXPECT_EQ(a->process_id(), getpid());
  EXPECT_TRUE(a->alive().ok());
}

}  // namespace
}  // namespace dsgd::transport::test
