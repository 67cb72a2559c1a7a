// The promise behind zero copy: after revoke() no span is read, after discard() no sink is written, wherever
// the chunk is.
#include "support.h"

namespace dsgd::transport::test {
namespace {

class RevokeTest : public NetworkTest {
 protected:
  static BulkHeader header(uint64_t operation, uint64_t offset = 0) {
    BulkHeader header;
    header.operation = operation;
    header.offset = offset;
    return header;
  }
};

TEST_F(RevokeTest, ARevokedSpanIsReadNoMoreThoughHalfOfItIsOnTheWire) {
  start();
  std::promise<void> entered, release;
  handler.call = [&](ServerChannel&, Message, Responder respond) {
    entered.set_value();
    release.get_future().wait();  // the server reads nothing meanwhile
    respond(Message(Empty{}));
  };
  std::map<uint64_t, std::vector<std::byte>> arrived;
  handler.bulk_end = [&](ServerChannel&, const BulkHeader& h, std::unique_ptr<BulkReceipt> receipt) {
    arrived[h.offset].assign(receipt->data().begin(), receipt->data().end());
    receipt->finish({});
  };
  auto options = dial_options(*client);
  options.bulk_window = 64 << 20;
  connect(options, listener->address());
  on(*client, [&] { channel->call(Watch{1}, kNever, [](Result<Message>) {}); });
  entered.get_future().wait();

  // More than the sockets take: chunks are on the wire, half on it, behind it in the queue, and not begun.
  constexpr size_t kChunk = 1 << 20;
  constexpr int kChunks = 24;
  auto original = pattern(kChunk * kChunks, 9);
  // The callbacks own the span: it is freed when the last of them is destroyed.
  auto live = std::make_shared<std::vector<std::byte>>(original);
  int called = 0;
  on(*client, [&] {
    for (int i = 0; i < kChunks; ++i) {
      channel->send(header(1, i * kChunk), {live->data() + i * kChunk, kChunk},
                    [&called, live](const Status&) { ++called; });
    }
  });
  std::weak_ptr<std::vector<std::byte>> freed = live;
  live.reset();
  // Until the socket is full: two looks without progress.
  uint64_t before = 0, now = 1;
  while (before != now) {
    before = client->counters().bytes_sent;
    std::atomic<bool> never{false};
    client->loop().wait(never, client->loop().now() + 20ms);
    now = client->counters().bytes_sent;
  }
  ASSERT_LT(now, kChunk * kChunks) << "the test needs a full socket";
  on(*client, [&] {
    channel->revoke(1);
    EXPECT_TRUE(freed.expired());  // ASan would see a reader
  });
  release.set_value();
  // A later operation passes, so all that the first one had begun has arrived.
  auto small = pattern(1000, 2);
  ASSERT_TRUE(send(*client, *channel, header(2, kChunk * kChunks), small).ok());
  on(*server, [&] {
    arrived.erase(kChunk * kChunks);
    EXPECT_GE(arrived.size(), 1u);
    EXPECT_LT(arrived.size(), static_cast<size_t>(kChunks)) << "chunks that were not begun must be dropped";
    for (auto& [offset, bytes] : arrived) {
      ASSERT_EQ(bytes.size(), kChunk);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), original.begin() + offset)) << "offset " << offset;
    }
  });
  EXPECT_EQ(called, 0) << "done of a revoked chunk is not called";
  end();
}

TEST_F(RevokeTest, ADestroyedChannelReadsNoSpanAndCallsNobody) {
  start();
  std::promise<void> entered, release;
  handler.call = [&](ServerChannel&, Message, Responder respond) {
    entered.set_value();
    release.get_future().wait();
    respond(Message(Empty{}));
  };
  connect();
  on(*client, [&] { channel->call(Watch{1}, kNever, [](Result<Message>) { ADD_FAILURE() << "called"; }); });
  entered.get_future().wait();
  auto live = std::make_unique<std::vector<std::byte>>(pattern(32 << 20, 4));
  on(*client, [&] {
    for (size_t i = 0; i < 8; ++i) {
      channel->send(header(i), {live->data() + (i << 22), 4 << 20},
                    [](const Status&) { ADD_FAILURE() << "called"; });
    }
  });
  on(*client, [&] {
    channel.reset();
    std::fill(live->begin(), live->end(), std::byte{0xff});
    live.reset();
  });
  release.set_value();
  EXPECT_TRUE(eventually(*server, [&] { return handler.closes.size() == 1; }));
  end();
}

TEST_F(RevokeTest, RevokingOneOperationLeavesTheOthersAlone) {
  start();
  connect();
  std::vector<std::unique_ptr<BulkReceipt>> parked;
  std::map<uint64_t, int> ends;
  handler.bulk_end = [&](ServerChannel&, const BulkHeader& h, std::unique_ptr<BulkReceipt> receipt) {
    ++ends[h.operation];
    receipt->finish({});
  };
  auto data = pattern(1 << 20, 1);
  int good = 0;
  on(*client, [&] {
    for (int i = 0; i < 10; ++i) {
      for (uint64_t operation : {1, 2, 3}) {
        channel->send(header(operation), data, [&, operation](const Status& status) {
          EXPECT_NE(operation, 2u);
          good += status.ok();
        });
      }
    }
    channel->revoke(2);
  });
  ASSERT_TRUE(eventually(*client, [&] { return good == 20; }));
  on(*server, [&] {
    EXPECT_EQ(ends[1], 10);
    EXPECT_EQ(ends[3], 10);
    EXPECT_LT(ends[2], 10) << "what was not begun must be dropped";
  });
  end();
}

TEST_F(RevokeTest, RevokeDoesNotCancelTheParkedChunkButItsAnswerIsHarmless) {
  start();
  connect();
  std::unique_ptr<BulkReceipt> parked;
  handler.bulk_end = [&](ServerChannel&, const BulkHeader& h, std::unique_ptr<BulkReceipt> receipt) {
    if (h.operation == 1) {
      parked = std::move(receipt);
    } else {
      receipt->finish({});
    }
  };
  auto data = pattern(50'000, 1);
  on(*client, [&] { channel->send(header(1), data, [](const Status&) { ADD_FAILURE() << "called"; }); });
  ASSERT_TRUE(eventually(*server, [&] { return parked != nullptr; }));
  on(*client, [&] { channel->revoke(1); });
  on(*server, [&] {
    EXPECT_TRUE(std::equal(data.begin(), data.end(), parked->data().begin()));
    parked->finish({});
  });
  EXPECT_TRUE(send(*client, *channel, header(2), data).ok());
  end();
}

class DiscardTest : public RevokeTest, public ::testing::WithParamInterface<CopySink::Mode> {};

TEST_P(DiscardTest, ADiscardInMidLandingEndsAllWritesToTheSink) {
  start();
  Relay relay(port_of(listener->address()));
  connect(dial_options(*client), relay.address());
  constexpr size_t kChunk = 1 << 20;
  auto data = pattern(kChunk, 6);
  auto sink = std::make_unique<CopySink>(kChunk, GetParam());
  bool landing = false;
  int ends = 0;
  on(*server, [&] {
    handler.bulk = [&](ServerChannel&, const BulkHeader& h, size_t) -> OwnedSink* {
      if (h.operation != 1) return nullptr;
      landing = true;
      return sink.get();
    };
    handler.landed = [&](const BulkHeader&) { ++ends; };
    handler.bulk_end = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
      ++ends;
      receipt->finish({});
    };
  });
  relay.limit(relay.forwarded() + kChunk / 2);
  Status answer;
  bool answered = false;
  on(*client, [&] {
    channel->send(header(1), data, [&](const Status& status) {
      answer = status;
      answered = true;
    });
  });
  ASSERT_TRUE(
      eventually(*server, [&] { return landing && server->counters().bytes_received >= kChunk / 2; }));
  on(*server, [&] {
    handler.channels.front()->discard(1, Status(Code::kAborted, "given up").with_rank(6, "g"));
    sink.reset();  // a write to it would be a use after free
  });
  relay.limit(INT64_MAX);
  ASSERT_TRUE(eventually(*client, [&] { return answered; }));
  EXPECT_EQ(answer.code(), Code::kAborted);
  EXPECT_EQ(answer.message(), "given up");
  EXPECT_EQ(answer.rank(), 6);
  // Later data of it is thrown away, too; other operations go on.
  EXPECT_EQ(send(*client, *channel, header(1), data).code(), Code::kAborted);
  EXPECT_TRUE(send(*client, *channel, header(2), data).ok());
  on(*server, [&] { EXPECT_EQ(ends, 1); });
}

TEST_P(DiscardTest, AConnectionThatBreaksInMidLandingLeavesTheSinkAlone) {
  start();
  Relay relay(port_of(listener->address()));
  Status closed;
  auto options = dial_options(*client);
  options.closed = [&](const Status& why) { closed = why; };
  connect(options, relay.address());
  constexpr size_t kChunk = 1 << 20;
  auto data = pattern(kChunk, 6);
  auto sink = std::make_unique<CopySink>(kChunk, GetParam());
  int ends = 0;
  on(*server, [&] {
    handler.bulk = [&](ServerChannel&, const BulkHeader&, size_t) { return sink.get(); };
    handler.landed = [&](const BulkHeader&) { ++ends; };
  });
  relay.limit(relay.forwarded() + kChunk / 2);
  Status answer;
  on(*client, [&] { channel->send(header(1), data, [&](const Status& status) { answer = status; }); });
  ASSERT_TRUE(eventually(*server, [&] { return server->counters().bytes_received >= kChunk / 2; }));
  relay.cut(true);
  ASSERT_TRUE(eventually(*server, [&] { return handler.closes.size() == 1; }));
  on(*server, [&] {
    EXPECT_FALSE(handler.closes.front().ok());
    EXPECT_EQ(ends, 0);
    sink.reset();
  });
  ASSERT_TRUE(eventually(*client, [&] { return !closed.ok() && !answer.ok(); }));
}

INSTANTIATE_TEST_SUITE_P(Modes, DiscardTest,
                         ::testing::Values(CopySink::Mode::kPlace, CopySink::Mode::kPieces),
                         [](const auto& info) {
                           return info.param == CopySink::Mode::kPlace ? "Place" : "Pieces";
                         });

}  // namespace
}  // namespace dsgd::transport::test
