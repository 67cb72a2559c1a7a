// Chunks: where they land, what sizes and alignments they may have, and the windows that bound them.
#include "support.h"
#include "tests/unit/sanitizer.h"

namespace dsgd::transport::test {
namespace {

class BulkTest : public NetworkTest {
 protected:
  BulkHeader header(uint64_t operation, uint64_t offset = 0) {
    BulkHeader header;
    header.operation = operation;
    header.offset = offset;
    header.view = 3;
    header.source = 1;
    header.kind = 4;
    header.dtype = 5;
    header.reduction = 6;
    header.algorithm = 7;
    header.root = 8;
    header.count = 1ull << 40;
    header.tag = 0xdeadbeefcafef00d;
    header.phase = 9;
    return header;
  }
  // Of the other direction; they live as long as the networks.
  TestHandler back_handler;
  OpenDoor back_door;
};

// Sizes around the traps: not a multiple of a word, 4100 (once sent as 4104), 65536, a chunk less a float.
constexpr size_t kSizes[] = {
    1, 7, 8, 9, 63, 64, 65, 4096, 4100, 65535, 65536, 65537, 262144, 262147, (1 << 20) - 4, 1 << 20};

TEST_F(BulkTest, EverySizeAndAlignmentLandsInPlaceAndInPieces) {
  start();
  connect();
  for (auto mode : {CopySink::Mode::kPlace, CopySink::Mode::kPieces}) {
    for (size_t size : kSizes) {
      for (size_t shift : {0, 1, 4}) {
        SCOPED_TRACE(std::to_string(size) + " bytes, misaligned by " + std::to_string(shift));
        // Exactly as large as it must be: the address sanitizer sees any byte read beyond.
        auto memory = pattern(size + shift, static_cast<unsigned>(size));
        std::span<const std::byte> data(memory.data() + shift, size);
        CopySink sink(size, mode);
        BulkHeader seen;
        size_t announced = 0, landed = 0;
        on(*server, [&] {
          handler.bulk = [&](ServerChannel&, const BulkHeader& h, size_t n) {
            seen = h;
            announced = n;
            return &sink;
          };
          handler.landed = [&](const BulkHeader& h) {
            EXPECT_EQ(h, seen);
            ++landed;
          };
        });
        const auto sent = header(size, shift);
        Status status = send(*client, *channel, sent, data);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(seen, sent);
        EXPECT_EQ(announced, size);
        EXPECT_EQ(landed, 1u);
        EXPECT_TRUE(std::equal(data.begin(), data.end(), sink.data.begin()));
        EXPECT_TRUE(sink.aligned);
        size_t at = 0;
        for (auto [offset, n] : sink.pieces) {
          EXPECT_EQ(offset, at);
          EXPECT_LE(n, 256u << 10);
          at += n;
          if (at < size) {
            EXPECT_EQ(n % 64, 0u);
          }
        }
        if (mode == CopySink::Mode::kPieces) {
          EXPECT_EQ(at, size);
        }
      }
    }
  }
  EXPECT_EQ(server->counters().landing_missed, 0u);
  EXPECT_EQ(server->counters().landed, 2 * std::size(kSizes) * 3);
  end();
}

TEST_F(BulkTest, WithoutASinkTheChunkIsPooledUntilItIsFinished) {
  start();
  connect();
  std::unique_ptr<BulkReceipt> parked;
  handler.bulk_end = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    parked = std::move(receipt);
  };
  for (size_t size : kSizes) {
    SCOPED_TRACE(size);
    auto data = pattern(size, 7);
    bool done = false;
    on(*client, [&] { channel->send(header(1), data, [&](const Status& status) { done = status.ok(); }); });
    ASSERT_TRUE(eventually(*server, [&] { return parked != nullptr; }));
    on(*server, [&] {
      EXPECT_TRUE(std::equal(data.begin(), data.end(), parked->data().begin(), parked->data().end()));
      EXPECT_GE(server->counters().pooled_bytes, size);
      parked->finish({});
      EXPECT_TRUE(parked->data().empty());
      parked.reset();
    });
    ASSERT_TRUE(eventually(*client, [&] { return done; }));
  }
  ASSERT_TRUE(eventually(*server, [&] { return server->counters().pooled_bytes == 0; }));
  EXPECT_EQ(server->counters().landing_missed, 0u);
  end();
}

TEST_F(BulkTest, AnEmptyChunkArrivesToo) {
  start();
  connect();
  int ends = 0;
  handler.bulk_end = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    ++ends;
    EXPECT_TRUE(receipt->data().empty());
    receipt->finish({});
  };
  EXPECT_TRUE(send(*client, *channel, header(1), {}).ok());
  EXPECT_EQ(ends, 1);
  end();
}

TEST_F(BulkTest, TheReceiversErrorIsTheSendersResultAndADroppedReceiptIsAnError) {
  start();
  connect();
  handler.bulk_end = [](ServerChannel&, const BulkHeader& h, std::unique_ptr<BulkReceipt> receipt) {
    if (h.operation == 1) receipt->finish(Status(Code::kMismatch, "other counts").with_rank(2, "b"));
  };
  auto data = pattern(5000, 1);
  Status mismatch = send(*client, *channel, header(1), data);
  EXPECT_EQ(mismatch.code(), Code::kMismatch);
  EXPECT_EQ(mismatch.message(), "other counts");
  EXPECT_EQ(mismatch.rank(), 2);
  EXPECT_EQ(send(*client, *channel, header(2), data).code(), Code::kInternal);
  end();
}

TEST_F(BulkTest, NoMoreThanTheWindowIsUnansweredAndAnswersLetTheRestGo) {
  start();
  auto options = dial_options(*client);
  options.bulk_window = 250'000;
  connect(options, listener->address());
  std::map<uint64_t, std::unique_ptr<BulkReceipt>> parked;
  std::vector<uint64_t> offsets;
  handler.bulk_end = [&](ServerChannel&, const BulkHeader& h, std::unique_ptr<BulkReceipt> receipt) {
    offsets.push_back(h.offset);
    parked[h.offset] = std::move(receipt);
  };
  auto data = pattern(100'000, 3);
  int answered = 0;
  on(*client, [&] {
    for (uint64_t i = 0; i < 6; ++i) {
      channel->send(header(1, i), data, [&](const Status& status) { answered += status.ok(); });
    }
  });
  ASSERT_TRUE(eventually(*server, [&] { return parked.size() == 2; }));
  // A call goes round: had a third chunk been sent, it would have come before it.
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
  on(*server, [&] { EXPECT_EQ(parked.size(), 2u); });
  // Another operation has a window of its own.
  on(*client,
     [&] { channel->send(header(2, 100), data, [&](const Status& status) { answered += status.ok(); }); });
  ASSERT_TRUE(eventually(*server, [&] { return parked.size() == 3; }));
  for (size_t expected = 4; expected <= 7; ++expected) {
    on(*server, [&] {
      parked.begin()->second->finish({});
      parked.erase(parked.begin());
    });
    ASSERT_TRUE(eventually(*server, [&] { return offsets.size() == expected; })) << expected;
  }
  on(*server, [&] { parked.clear(); });
  EXPECT_EQ(offsets, (std::vector<uint64_t>{0, 1, 100, 2, 3, 4, 5}));
  end();
}

TEST_F(BulkTest, AChunkLargerThanTheWindowGoesAlone) {
  start();
  auto options = dial_options(*client);
  options.bulk_window = 1;
  connect(options, listener->address());
  auto data = pattern(100'000, 3);
  int answered = 0;
  on(*client, [&] {
    for (int i = 0; i < 4; ++i) channel->send(header(1), data, [&](const Status& s) { answered += s.ok(); });
  });
  EXPECT_TRUE(eventually(*client, [&] { return answered == 4; }));
  end();
}

TEST_F(BulkTest, SmallChunksAreCopiedAtOnceArriveInOrderAndWaitForNoAnswer) {
  start();
  auto options = dial_options(*client);
  options.small_window = 10'000;
  std::vector<std::pair<uint64_t, Code>> refused;
  options.refused = [&](uint64_t operation, const Status& why) {
    refused.emplace_back(operation, why.code());
  };
  connect(options, listener->address());
  std::vector<std::unique_ptr<BulkReceipt>> parked;
  std::vector<std::vector<std::byte>> seen;
  int spans = 0;
  handler.bulk = [&](ServerChannel&, const BulkHeader&, size_t) -> OwnedSink* {
    ++spans;
    return nullptr;
  };
  handler.bulk_end = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    seen.emplace_back(receipt->data().begin(), receipt->data().end());
    parked.push_back(std::move(receipt));
  };
  int placed = 0;
  on(*client, [&] {
    for (unsigned i = 0; i < 5; ++i) {
      auto data = pattern(4000, i);
      channel->send_small(header(1), data, [&](const Status& status) { placed += status.ok(); });
      std::fill(data.begin(), data.end(), std::byte{0});
    }
  });
  // Two fit into the window; they need no answer to be placed.
  ASSERT_TRUE(eventually(*server, [&] { return parked.size() == 2; }));
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
  on(*client, [&] { EXPECT_EQ(placed, 2); });
  on(*server, [&] {
    EXPECT_EQ(parked.size(), 2u);
    parked[0]->finish(Status(Code::kAborted, "no"));
    parked[1]->finish({});
  });
  ASSERT_TRUE(eventually(*server, [&] { return parked.size() == 4; }));
  on(*server, [&] { parked.clear(); });  // dropped: errors
  ASSERT_TRUE(eventually(*server, [&] { return seen.size() == 5; }));
  ASSERT_TRUE(eventually(*client, [&] { return placed == 5 && refused.size() == 3; }));
  for (unsigned i = 0; i < 5; ++i) EXPECT_EQ(seen[i], pattern(4000, i));
  EXPECT_EQ(refused[0], (std::pair<uint64_t, Code>{1, Code::kAborted}));
  EXPECT_EQ(spans, 0);
  on(*server, [&] { parked.clear(); });
  ASSERT_TRUE(eventually(*client, [&] { return refused.size() == 4; }));
  end();
}

TEST_F(BulkTest, ReceiveMemoryBoundsWhatIsParkedAndTheRestGoesOnWhenItComesBack) {
  start("127.0.0.1:0", 1 << 20);
  auto options = dial_options(*client);
  options.bulk_window = 16 << 20;
  connect(options, listener->address());
  std::vector<std::unique_ptr<BulkReceipt>> parked;
  handler.bulk_end = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    parked.push_back(std::move(receipt));
  };
  constexpr int kChunks = 10;
  auto data = pattern(400'000, 1);
  int answered = 0;
  on(*client, [&] {
    for (int i = 0; i < kChunks; ++i)
      channel->send(header(1), data, [&](const Status& s) { answered += s.ok(); });
  });
  ASSERT_TRUE(eventually(*server, [&] { return parked.size() == 2; }));
  // Another connection holds nothing yet: it may have one chunk though memory is used up.
  auto other = std::move(dial(*client, listener->address(), dial_options(*client))).value();
  on(*client, [&] { other->send(header(2), data, [](const Status&) {}); });
  ASSERT_TRUE(eventually(*server, [&] { return parked.size() == 3; }));
  for (int i = 0; i < kChunks + 1; ++i) {
    ASSERT_TRUE(eventually(*server, [&] { return !parked.empty(); })) << i;
    on(*server, [&] {
      EXPECT_LE(parked.size(), 3u);
      EXPECT_EQ(parked.front()->data().size(), data.size());
      parked.front()->finish({});
      parked.erase(parked.begin());
    });
  }
  ASSERT_TRUE(eventually(*client, [&] { return answered == kChunks; }));
  EXPECT_LE(server->counters().pooled_peak, 3 * data.size() + 65536);
  on(*client, [&] { other.reset(); });
  end();
}

TEST_F(BulkTest, BothDirectionsAtOnceWithManyOperationsKeepEveryByte) {
  start();
  connect();
  // The other direction: the client's network listens too.
  back_door.network = client.get();
  back_door.handler = &back_handler;
  auto back_listener = std::move(client->listen("127.0.0.1:0", &back_door)).value();
  auto back = std::move(dial(*server, back_listener->address(), dial_options(*server))).value();

  constexpr int kOperations = 8, kChunks = dsgd_test::kSanitized ? 4 : 12;
  constexpr size_t kChunk = 300'001;
  auto source = pattern(kOperations * kChunks * kChunk, 5);
  struct Side {
    std::vector<std::byte> got = std::vector<std::byte>(kOperations * kChunks * kChunk);
    struct Sink : OwnedSink {
      std::byte* base;
      bool in_place;
      std::byte* destination(size_t offset, size_t) override { return in_place ? base + offset : nullptr; }
      void take(size_t offset, std::span<const std::byte> piece) override {
        std::memcpy(base + offset, piece.data(), piece.size());
      }
    } sink;
    void serve(TestHandler& handler) {
      handler.bulk = [this](ServerChannel&, const BulkHeader& h, size_t) -> OwnedSink* {
        if (h.operation % 3 == 0) return nullptr;
        sink.base = got.data() + h.offset;
        sink.in_place = h.operation % 3 == 1;
        return &sink;
      };
      handler.bulk_end = [this](ServerChannel&, const BulkHeader& h, std::unique_ptr<BulkReceipt> receipt) {
        if (!receipt->data().empty())
          std::memcpy(got.data() + h.offset, receipt->data().data(), receipt->data().size());
        receipt->finish({});
      };
    }
  } forward, backward;
  on(*server, [&] { forward.serve(handler); });
  on(*client, [&] { backward.serve(back_handler); });
  std::atomic<int> left{2 * kOperations * kChunks};
  auto send_all = [&](ClientChannel& to) {
    for (int c = 0; c < kChunks; ++c) {
      for (int o = 0; o < kOperations; ++o) {
        const size_t offset = (o * kChunks + c) * kChunk;
        to.send(header(o, offset), {source.data() + offset, kChunk},
                [&](const Status& s) { left -= s.ok(); });
      }
    }
  };
  on(*client, [&] { send_all(*channel); });
  on(*server, [&] { send_all(*back); });
  ASSERT_TRUE(eventually(*client, [&] { return left == 0; }));
  EXPECT_TRUE(forward.got == source);
  EXPECT_TRUE(backward.got == source);
  EXPECT_EQ(server->counters().landing_missed + client->counters().landing_missed, 0u);
  on(*server, [&] { back.reset(); });
  back_listener.reset();
  end();
}

}  // namespace
}  // namespace dsgd::transport::test
