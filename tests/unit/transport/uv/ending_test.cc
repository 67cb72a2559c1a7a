// How connections end: in good order, by a break, and with their network.
#include <sys/wait.h>

#include "support.h"
#include "tests/unit/sanitizer.h"
#include "transport/uv/uv_loop.h"

namespace dsgd::transport::test {
namespace {

class EndingTest : public NetworkTest {};

TEST_F(EndingTest, ACloseOfTheDiallingSideDeliversWhatIsQueuedAndIsGoodOrder) {
  start();
  std::vector<int> seen;
  size_t bulk = 0;
  handler.call = [&](ServerChannel&, Message request, Responder respond) {
    seen.push_back(std::get<Renew>(request).number);
    respond(Message(Empty{}));
  };
  handler.bulk_end = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    bulk += receipt->data().size();
    receipt->finish({});
  };
  auto options = dial_options(*client);
  options.closed = [](const Status&) { ADD_FAILURE() << "closed is for breaks"; };
  connect(options, listener->address());
  auto data = pattern(1 << 20, 1);
  on(*client, [&] {
    for (int i = 0; i < 12; ++i) channel->send({}, data, [](const Status&) {});
    for (int i = 0; i < 100; ++i) channel->call(Renew{i, 0}, kNever, [](Result<Message>) {});
    channel->close(true);
  });
  ASSERT_TRUE(eventually(*server, [&] { return handler.closes.size() == 1; }));
  EXPECT_TRUE(handler.closes.front().ok()) << handler.closes.front().message();
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(bulk, 12 * data.size());
}

TEST_F(EndingTest, DestroyingTheChannelIsAClose) {
  start();
  connect();
  int seen = 0;
  handler.call = [&](ServerChannel&, Message, Responder respond) {
    ++seen;
    respond(Message(Empty{}));
  };
  on(*client, [&] {
    channel->call(Renew{}, kNever, [](Result<Message>) {});
    channel.reset();
  });
  ASSERT_TRUE(eventually(*server, [&] { return handler.closes.size() == 1; }));
  EXPECT_TRUE(handler.closes.front().ok());
  EXPECT_EQ(seen, 1);
}

TEST_F(EndingTest, TheNetworkMayGoRightAfterACloseAndTheQueueStillArrives) {
  start();
  connect();
  size_t bulk = 0;
  bool goodbye = false;
  handler.bulk_end = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    bulk += receipt->data().size();
    receipt->finish({});
  };
  handler.call = [&](ServerChannel&, Message, Responder respond) {
    goodbye = true;
    respond(Message(Empty{}));
  };
  auto data = pattern(1 << 20, 1);
  on(*client, [&] {
    for (int i = 0; i < 8; ++i) channel->send({}, data, [](const Status&) {});
    channel->call(Goodbye{}, kNever, [](Result<Message>) {});
    channel->close(true);
  });
  client.reset();  // the channel outlives it, harmlessly
  ASSERT_TRUE(eventually(*server, [&] { return handler.closes.size() == 1; }));
  EXPECT_TRUE(handler.closes.front().ok());
  EXPECT_EQ(bulk, 8 * data.size());
  EXPECT_TRUE(goodbye);
  channel.reset();
}

// The loop's timers run until its thread ends, and one of them may dial, as after a connection that broke.
TEST_F(EndingTest, AConnectionMayBeDialledUntilTheThreadOfTheNetworkHasEnded) {
  for (int round = 0; round < 2000 / dsgd_test::one_of(2, 10); ++round) {
    start();
    std::function<void()> dial_again = [&, network = client.get()] {
      network->dial("127.0.0.1:1", {}, [](Result<std::unique_ptr<ClientChannel>>) {});
      network->loop().schedule(network->loop().now(), dial_again);
    };
    client->loop().set_busy(true);  // else the thread keeps out of the way of the destructor's own calls
    on(*client, dial_again);
    client.reset();
    TearDown();
  }
}

TEST_F(EndingTest, AnswersGivenBeforeTheAcceptingSideClosesAllArrive) {
  for (int round = 0; round < 10; ++round) {
    start();
    std::vector<Responder> parked;
    handler.call = [&](ServerChannel&, Message, Responder respond) { parked.push_back(std::move(respond)); };
    handler.closes.clear();
    Status closed;
    auto options = dial_options(*client);
    options.closed = [&](const Status& why) { closed = why; };
    connect(options, listener->address());
    int good = 0, bad = 0;
    on(*client, [&] {
      for (int i = 0; i < 200; ++i) {
        channel->call(Renew{}, kNever, [&](Result<Message> reply) { ++(reply.ok() ? good : bad); });
      }
    });
    ASSERT_TRUE(eventually(*server, [&] { return parked.size() == 200; }));
    // The last Return must not be lost: answer all, close, and take the whole network away.
    on(*server, [&] {
      for (auto& respond : parked) respond(Message(Empty{}));
      parked.clear();
      handler.channels.front()->close();
    });
    listener.reset();
    server.reset();
    ASSERT_TRUE(eventually(*client, [&] { return !closed.ok(); }));
    on(*client, [&] {
      EXPECT_EQ(good, 200);
      EXPECT_EQ(bad, 0);
      EXPECT_EQ(closed.code(), Code::kClosed) << closed.message();
    });
    EXPECT_EQ(handler.closes.size(), 1u);
    TearDown();
  }
}

TEST_F(EndingTest, ACloseWithoutFlushDropsTheQueueAndTheirDoneSaysSo) {
  start();
  connect();
  handler.bulk_end = [](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt>) {};
  auto data = std::make_unique<std::vector<std::byte>>(pattern(32 << 20, 1));
  std::vector<Code> ends;
  bool inside = true;
  on(*client, [&] {
    for (int i = 0; i < 8; ++i) {
      channel->send({}, {data->data() + (i << 22), 4 << 20}, [&](const Status& status) {
        EXPECT_FALSE(inside) << "done must come from the loop";
        ends.push_back(status.code());
      });
    }
    channel->call(Renew{}, kNever, [&](Result<Message> reply) { ends.push_back(reply.status().code()); });
    channel->close(false);
    data.reset();  // nothing reads it any more
    inside = false;
  });
  ASSERT_TRUE(eventually(*client, [&] { return ends.size() == 9; }));
  for (Code code : ends) EXPECT_EQ(code, Code::kClosed);
  // Use after close fails in the same way.
  auto late = call(*client, *channel, Renew{});
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.status().code(), Code::kClosed);
  EXPECT_EQ(send(*client, *channel, {}, pattern(10, 1)).code(), Code::kClosed);
}

class BreakTest : public EndingTest, public ::testing::WithParamInterface<bool> {};

TEST_P(BreakTest, ABreakFailsEverythingOnceAndIsNoGoodOrder) {
  start();
  Relay relay(port_of(listener->address()));
  std::vector<Status> closed;
  auto options = dial_options(*client);
  options.closed = [&](const Status& why) { closed.push_back(why); };
  handler.call = [keep = std::make_shared<std::vector<Responder>>()](
                     ServerChannel&, Message, Responder respond) { keep->push_back(std::move(respond)); };
  std::vector<std::unique_ptr<BulkReceipt>> parked;
  handler.bulk_end = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    parked.push_back(std::move(receipt));
  };
  connect(options, relay.address());
  auto data = pattern(100'000, 1);
  std::vector<Status> ends;
  on(*client, [&] {
    channel->call(Renew{}, kNever, [&](Result<Message> reply) { ends.push_back(reply.status()); });
    channel->send({}, data, [&](const Status& status) { ends.push_back(status); });
  });
  ASSERT_TRUE(eventually(*server, [&] { return parked.size() == 1; }));
  relay.cut(GetParam());
  ASSERT_TRUE(eventually(*client, [&] { return ends.size() == 2 && closed.size() == 1; }));
  ASSERT_TRUE(eventually(*server, [&] { return handler.closes.size() == 1; }));
  EXPECT_FALSE(handler.closes.front().ok());
  EXPECT_EQ(handler.closes.front().code(), Code::kWorkerLost);
  on(*client, [&] {
    for (auto& status : ends) EXPECT_EQ(status.code(), Code::kWorkerLost) << status.message();
    EXPECT_EQ(closed.front().code(), Code::kWorkerLost);
    EXPECT_NE(closed.front().message().find(relay.address()), std::string::npos) << closed.front().message();
  });
  on(*server, [&] {
    // Pooled data of a connection that has gone stays valid until it is finished.
    EXPECT_TRUE(std::equal(data.begin(), data.end(), parked.front()->data().begin()));
    parked.front()->finish({});
    parked.clear();
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, BreakTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Reset" : "EndOfStream"; });

TEST_F(EndingTest, AReceiptMayOutliveTheNetworkWithItsData) {
  start();
  connect();
  std::unique_ptr<BulkReceipt> parked;
  handler.bulk_end = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    parked = std::move(receipt);
  };
  auto data = pattern(70'000, 1);
  on(*client, [&] { channel->send({}, data, [](const Status&) {}); });
  ASSERT_TRUE(eventually(*server, [&] { return parked != nullptr; }));
  listener.reset();
  server.reset();
  EXPECT_TRUE(std::equal(data.begin(), data.end(), parked->data().begin()));
  parked->finish({});
}

TEST_F(EndingTest, APeerThatReadsNothingDoesNotHoldUpTheEndOfANetwork) {
  start();
  std::promise<void> entered, release;
  handler.call = [&](ServerChannel&, Message, Responder respond) {
    entered.set_value();
    release.get_future().wait();
    respond(Message(Empty{}));
  };
  connect();
  auto data = pattern(64 << 20, 1);
  on(*client, [&] { channel->call(Watch{1}, kNever, [](Result<Message>) {}); });
  entered.get_future().wait();
  on(*client, [&] {
    for (uint64_t i = 0; i < 16; ++i) {
      BulkHeader header;
      header.operation = i;
      channel->send(header, {data.data() + (i << 22), 4 << 20}, [](const Status&) {});
    }
    channel->close(true);
  });
  const auto begin = std::chrono::steady_clock::now();
  client.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  release.set_value();
  channel.reset();
}

TEST_F(EndingTest, ANetworkMayGoInTheMidstOfADial) {
  start();
  int port;
  uv::Fd silent = listen_raw(&port);
  on(*client, [&] {
    for (const std::string& address :
         {"127.0.0.1:" + std::to_string(port), std::string("no-such-host.invalid:1"), listener->address()}) {
      client->dial(address, dial_options(*client), [](Result<std::unique_ptr<ClientChannel>>) {});
    }
  });
  client.reset();
}

TEST_F(EndingTest, NothingIsLeftInAnyLoop) {
  const uint64_t unclean = uv::UvLoop::unclean_shutdowns();
  for (int i = 0; i < 5; ++i) {
    start();
    connect();
    EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
    if (i % 2) on(*client, [&] { channel.reset(); });
    client.reset();
    channel.reset();
    listener.reset();
    server.reset();
  }
  EXPECT_EQ(uv::UvLoop::unclean_shutdowns(), unclean);
}

}  // namespace
}  // namespace dsgd::transport::test
