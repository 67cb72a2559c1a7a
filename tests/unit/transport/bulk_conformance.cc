// Chunks: landing, pooled memory, windows, revoke, discard.
#include <algorithm>
#include <map>

#include "conformance.h"

namespace dsgd::transport {
namespace {

BulkHeader header_of(uint64_t operation, uint64_t offset = 0) {
  BulkHeader header;
  header.view = 3;
  header.operation = operation;
  header.source = 5;
  header.kind = 1;
  header.dtype = 2;
  header.reduction = 3;
  header.algorithm = 4;
  header.root = -1;
  header.count = 1ull << 40;
  header.tag = 0xfeedfacecafebeef;
  header.phase = 65535;
  header.offset = offset;
  return header;
}

bool all_ok(const std::vector<Status>& ends) {
  return std::all_of(ends.begin(), ends.end(), [](const Status& status) { return status.ok(); });
}

constexpr size_t kSizes[] = {0,       1,
                             7,       8,
                             63,      64,
                             65,      1000,
                             4095,    4096,
                             4100,    65535,
                             65536,   65537,
                             60000,   (1 << 20) - 3,
                             1 << 20, (1 << 20) + 1};

TEST_P(Conformance, ChunksLandExactly) {
  for (auto mode : {TestSink::Mode::kPlace, TestSink::Mode::kTake, TestSink::Mode::kMixed}) {
    auto client = dial();
    on(*serving_, [&] {
      recorder_.chunks.clear();
      recorder_.choose_sink = [&, mode](ServerChannel&, const BulkHeader&, size_t n) {
        return sink(mode, n);
      };
    });
    std::vector<std::vector<std::byte>> sources;
    for (size_t size : kSizes) sources.push_back(bytes_of(size, size + 1));
    std::vector<Status> ends;
    on(*dialling_, [&] {
      for (uint64_t i = 0; i < sources.size(); ++i) {
        client->channel->send(header_of(i, i), sources[i],
                              [&](const Status& status) { ends.push_back(status); });
      }
    });
    ASSERT_TRUE(client_until([&] { return ends.size() == sources.size(); }));
    EXPECT_TRUE(all_ok(ends));
    on(*serving_, [&] {
      ASSERT_EQ(recorder_.chunks.size(), sources.size());
      for (const auto& chunk : recorder_.chunks) {
        const uint64_t i = chunk.header.operation;
        EXPECT_EQ(chunk.header, header_of(i, i));
        EXPECT_TRUE(chunk.data == sources[i]) << sources[i].size() << " bytes";
        if (sources[i].size() >= 4096) {
          EXPECT_TRUE(chunk.landed);
        }
      }
    });
    drop(client);
  }
  EXPECT_EQ(serving_->counters().landing_missed, 0u);
  EXPECT_GT(serving_->counters().landed, 0u);
}

TEST_P(Conformance, ASpanMayBeginAnywhere) {
  auto client = dial();
  on(*serving_, [&] {
    recorder_.choose_sink = [&](ServerChannel&, const BulkHeader&, size_t n) {
      return sink(TestSink::Mode::kPlace, n);
    };
  });
  const auto source = bytes_of(70000, 1);
  std::vector<Status> ends;
  for (size_t shift : {1, 2, 3, 4, 7, 12}) {
    send(*client, shift, std::span(source).subspan(shift, 66001), &ends);
  }
  ASSERT_TRUE(client_until([&] { return ends.size() == 6; }));
  EXPECT_TRUE(all_ok(ends));
  on(*serving_, [&] {
    for (const auto& chunk : recorder_.chunks) {
      EXPECT_TRUE(std::ranges::equal(chunk.data, std::span(source).subspan(chunk.header.operation, 66001)));
    }
  });
}

TEST_P(Conformance, WithoutASinkAChunkIsPooledAndStaysValidUntilFinished) {
  std::vector<std::unique_ptr<BulkReceipt>> held;
  recorder_.receive = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    held.push_back(std::move(receipt));
  };
  auto client = dial();
  std::vector<std::vector<std::byte>> sources;
  for (size_t size : kSizes) sources.push_back(bytes_of(size, size + 2));
  std::vector<Status> ends;
  for (uint64_t i = 0; i < sources.size(); ++i) send(*client, i, sources[i], &ends);
  ASSERT_TRUE(server_until([&] { return held.size() == sources.size(); }));
  on(*dialling_, [&] { EXPECT_TRUE(ends.empty()) << "a chunk ends when the receiver has finished it"; });
  on(*serving_, [&] {
    for (size_t i = 0; i < held.size(); ++i) {
      EXPECT_TRUE(std::ranges::equal(held[i]->data(), sources[recorder_.chunks[i].header.operation]));
    }
    EXPECT_GE(serving_->counters().pooled_bytes, size_t{3} << 20);
    for (auto& receipt : held) receipt->finish(Status());
  });
  ASSERT_TRUE(client_until([&] { return ends.size() == sources.size(); }));
  EXPECT_TRUE(all_ok(ends));
  on(*serving_, [&] { held.clear(); });
  EXPECT_EQ(serving_->counters().pooled_bytes, 0u);
  EXPECT_GE(serving_->counters().pooled_peak, size_t{3} << 20);
}

TEST_P(Conformance, AReceiptOutlivesItsConnection) {
  std::vector<std::unique_ptr<BulkReceipt>> held;
  recorder_.receive = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    held.push_back(std::move(receipt));
  };
  auto client = dial();
  const auto source = bytes_of(100000, 3);
  std::vector<Status> ends;
  send(*client, 1, source, &ends);
  ASSERT_TRUE(server_until([&] { return held.size() == 1; }));
  drop(client);
  ASSERT_TRUE(server_until([&] { return recorder_.closed.size() == 1; }));
  on(*serving_, [&] {
    EXPECT_TRUE(std::ranges::equal(held[0]->data(), source));
    held[0]->finish(Status());
    held.clear();
  });
  EXPECT_EQ(serving_->counters().pooled_bytes, 0u);
}

TEST_P(Conformance, TheReceiversErrorEndsTheChunk) {
  recorder_.receive = [](ServerChannel&, const BulkHeader& header, std::unique_ptr<BulkReceipt> receipt) {
    if (header.operation == 1) {
      receipt->finish(Status(Code::kMismatch, "count 7 here, 9 there").with_rank(2, "node2"));
    }  // else dropped
  };
  auto client = dial();
  const auto source = bytes_of(5000, 1);
  std::vector<Status> ends;
  send(*client, 1, source, &ends);
  send(*client, 2, source, &ends);
  ASSERT_TRUE(client_until([&] { return ends.size() == 2; }));
  EXPECT_EQ(ends[0].code(), Code::kMismatch);
  EXPECT_EQ(ends[0].message(), "count 7 here, 9 there");
  EXPECT_EQ(ends[0].rank(), 2);
  EXPECT_EQ(ends[0].host(), "node2");
  EXPECT_FALSE(ends[1].ok()) << "a receipt that is dropped answers with an error";
}

TEST_P(Conformance, MessagesOfAConnectionArriveInTheOrderOfSending) {
  auto client = dial();
  const auto source = bytes_of(40000, 1);
  std::vector<std::string> sent;
  std::vector<Status> ends;
  on(*dialling_, [&] {
    for (uint64_t i = 0; i < 60; ++i) {
      if (i % 3 == 0) {
        client->channel->send(header_of(i), source, [&](const Status& status) { ends.push_back(status); });
      } else if (i % 3 == 1) {
        client->channel->send_small(header_of(i), std::span(source).first(10 * i), nullptr);
      } else {
        client->channel->call(Watch{i}, kNever,
                              [&](Result<Message> reply) { ends.push_back(reply.status()); });
      }
      sent.push_back((i % 3 == 2 ? "call " : "chunk ") + std::to_string(i));
    }
  });
  ASSERT_TRUE(client_until([&] { return ends.size() == 40; }));
  EXPECT_TRUE(all_ok(ends));
  on(*serving_, [&] { EXPECT_EQ(recorder_.order, sent); });
}

TEST_P(Conformance, AReceiverThatDoesNotFinishBoundsTheSender) {
  std::vector<std::unique_ptr<BulkReceipt>> held;
  recorder_.receive = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    held.push_back(std::move(receipt));
  };
  DialOptions options;
  options.bulk_window = 200000;
  auto client = dial(std::move(options));
  const auto source = bytes_of(100000, 1);
  std::vector<int> ends;
  on(*dialling_, [&] {
    for (int i = 0; i < 6; ++i) {
      client->channel->send(header_of(7, i), source, [&, i](const Status& status) {
        EXPECT_TRUE(status.ok());
        ends.push_back(i);
      });
    }
  });
  for (size_t finished = 0; finished < 6; ++finished) {
    const size_t arrived = std::min<size_t>(6, finished + 2);
    ASSERT_TRUE(server_until([&] { return recorder_.chunks.size() == arrived; }));
    for (int i = 0; i < 3; ++i) ping(*client);  // calls pass what waits for its window
    on(*serving_,
       [&] { EXPECT_EQ(recorder_.chunks.size(), arrived) << "no more than the window is unanswered"; });
    on(*dialling_, [&] {
      EXPECT_EQ(ends.size(), finished);
      EXPECT_EQ(client->channel->all_sent(), arrived == 6);
    });
    on(*serving_, [&] { held[finished]->finish(Status()); });
    ASSERT_TRUE(client_until([&] { return ends.size() == finished + 1; }));
  }
  on(*serving_, [&] {
    for (size_t i = 0; i < 6; ++i)
      EXPECT_EQ(recorder_.chunks[i].header.offset, i) << "in order within the operation";
    held.clear();
  });
}

TEST_P(Conformance, AWindowIsOneOperationsAndHoldsAtLeastOneChunk) {
  std::map<uint64_t, std::vector<std::unique_ptr<BulkReceipt>>> held;
  recorder_.receive = [&](ServerChannel&, const BulkHeader& header, std::unique_ptr<BulkReceipt> receipt) {
    held[header.operation].push_back(std::move(receipt));
  };
  DialOptions options;
  options.bulk_window = 1000;
  auto client = dial(std::move(options));
  const auto source = bytes_of(100000, 1);  // a hundred windows
  std::vector<Status> ends;
  for (uint64_t operation : {1, 1, 2, 3, 2}) send(*client, operation, source, &ends);
  ASSERT_TRUE(server_until([&] { return held.size() == 3; }));
  ping(*client);
  on(*serving_, [&] {
    for (uint64_t operation : {1, 2, 3}) EXPECT_EQ(held[operation].size(), 1u) << operation;
    held[2][0]->finish(Status());
  });
  ASSERT_TRUE(server_until([&] { return held[2].size() == 2; }));
  on(*serving_, [&] { held.clear(); });  // dropped: errors, and the last chunk of operation 1 comes
  ASSERT_TRUE(server_until([&] { return held[1].size() == 1; }));
  on(*serving_, [&] { held.clear(); });
  ASSERT_TRUE(client_until([&] { return ends.size() == 5; }));
}

TEST_P(Conformance, SmallChunksAreCopiedAndComePooled) {
  auto client = dial();
  on(*serving_, [&] {
    recorder_.choose_sink = [&](ServerChannel&, const BulkHeader&, size_t n) {
      return sink(TestSink::Mode::kPlace, n);
    };
  });
  const size_t sizes[] = {0, 1, 7, 8, 63, 64, 65, 1000, 4100, kSmallBytes - 1, kSmallBytes};
  int done = 0;
  on(*dialling_, [&] {
    for (uint64_t i = 0; i < std::size(sizes); ++i) {
      auto source = bytes_of(sizes[i], i);
      client->channel->send_small(header_of(i), source, [&](const Status& status) {
        EXPECT_TRUE(status.ok());
        ++done;
      });
      std::fill(source.begin(), source.end(), std::byte{0xee});  // "copied at once"
    }
  });
  ASSERT_TRUE(client_until([&] { return done == static_cast<int>(std::size(sizes)); }));
  ASSERT_TRUE(server_until([&] { return recorder_.chunks.size() == std::size(sizes); }));
  on(*serving_, [&] {
    EXPECT_TRUE(recorder_.asked.empty()) << "small chunks come with on_bulk_end alone";
    for (uint64_t i = 0; i < std::size(sizes); ++i) {
      EXPECT_EQ(recorder_.chunks[i].header, header_of(i));
      EXPECT_TRUE(recorder_.chunks[i].data == bytes_of(sizes[i], i)) << sizes[i] << " bytes";
    }
  });
}

TEST_P(Conformance, SmallChunksWaitForTheirWindow) {
  std::vector<std::unique_ptr<BulkReceipt>> held;
  recorder_.receive = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    held.push_back(std::move(receipt));
  };
  DialOptions options;
  options.small_window = 64000;
  auto client = dial(std::move(options));
  const auto source = bytes_of(32000, 1);
  int sent = 0;
  on(*dialling_, [&] {
    for (uint64_t i = 0; i < 5; ++i) {
      BulkHeader header = header_of(1);
      header.offset = i;
      client->channel->send_small(header, source, [&](const Status& status) {
        EXPECT_TRUE(status.ok());
        ++sent;
      });
    }
  });
  for (int finished = 0; finished < 3; ++finished) {
    ASSERT_TRUE(client_until([&] { return sent == 2 + finished; }))
        << "a place in the window needs no answer";
    on(*dialling_, [&] { EXPECT_FALSE(client->channel->all_sent()); });
    ASSERT_TRUE(server_until([&] { return held.size() == static_cast<size_t>(2 + finished); }));
    ping(*client);
    on(*serving_, [&] { EXPECT_EQ(held.size(), static_cast<size_t>(2 + finished)); });
    on(*dialling_, [&] { EXPECT_EQ(sent, 2 + finished); });
    on(*serving_, [&] { held[finished]->finish(Status()); });
  }
  ASSERT_TRUE(client_until([&] { return sent == 5; }));
  on(*dialling_, [&] { EXPECT_TRUE(client->channel->all_sent()); });
  ASSERT_TRUE(server_until([&] { return held.size() == 5; }));
  on(*serving_, [&] {
    for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(recorder_.chunks[i].header.offset, i);
    held.clear();
  });
}

// Chunks that are held until their operation begins must not hold up the data that it waits for.
TEST_P(Conformance, AFullSmallWindowLetsOneChunkOfEachOtherOperationThrough) {
  std::vector<std::unique_ptr<BulkReceipt>> held;
  recorder_.receive = [&](ServerChannel&, const BulkHeader& header, std::unique_ptr<BulkReceipt> receipt) {
    if (header.operation >= 5) {
      held.push_back(std::move(receipt));
    } else {
      receipt->finish(Status());
    }
  };
  DialOptions options;
  options.small_window = 64000;
  auto client = dial(std::move(options));
  const auto source = bytes_of(32000, 1);
  int later = 0, earlier = 0;
  on(*dialling_, [&] {
    for (uint64_t i = 0; i < 20; ++i)
      client->channel->send_small(header_of(5 + i % 2), source, [&](const Status&) { ++later; });
    for (uint64_t i = 0; i < 20; ++i)
      client->channel->send_small(header_of(1 + i % 2), source, [&](const Status&) { ++earlier; });
  });
  ASSERT_TRUE(client_until([&] { return earlier == 20; }));
  ping(*client);
  on(*dialling_, [&] { EXPECT_EQ(later, 2); });
  std::map<uint64_t, int> seen;
  ASSERT_TRUE(server_until([&] { return recorder_.chunks.size() == 22; }));
  on(*serving_, [&] {
    for (const auto& chunk : recorder_.chunks) ++seen[chunk.header.operation];
    recorder_.receive = [](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
      receipt->finish(Status());
    };
    for (auto& receipt : held) receipt->finish(Status());
  });
  EXPECT_EQ(seen, (std::map<uint64_t, int>{{1, 10}, {2, 10}, {5, 1}, {6, 1}}));
  ASSERT_TRUE(client_until([&] { return later == 20; }));
  ASSERT_TRUE(server_until([&] { return recorder_.chunks.size() == 40; }));
}

TEST_P(Conformance, ARefusedSmallChunkIsToldToTheDial) {
  recorder_.receive = [](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    receipt->finish(Status(Code::kMismatch, "not my operation").with_rank(1, "node1"));
  };
  auto client = dial();
  const auto source = bytes_of(100, 1);
  on(*dialling_, [&] { client->channel->send_small(header_of(77), source, nullptr); });
  ASSERT_TRUE(client_until([&] { return client->refused.size() == 1; }));
  on(*dialling_, [&] {
    EXPECT_EQ(client->refused[0].first, 77u);
    EXPECT_EQ(client->refused[0].second.code(), Code::kMismatch);
    EXPECT_EQ(client->refused[0].second.message(), "not my operation");
    EXPECT_EQ(client->refused[0].second.rank(), 1);
  });
}

TEST_P(Conformance, RevokeDropsWhatHasNotBegun) {
  std::vector<std::unique_ptr<BulkReceipt>> held;
  recorder_.receive = [&](ServerChannel&, const BulkHeader& header, std::unique_ptr<BulkReceipt> receipt) {
    if (header.operation == 2) return receipt->finish(Status());
    held.push_back(std::move(receipt));
  };
  DialOptions options;
  options.bulk_window = 1;
  auto client = dial(std::move(options));
  auto source = bytes_of(100000, 1);
  const auto original = source;
  std::vector<Status> revoked, others;
  for (int i = 0; i < 4; ++i) send(*client, 1, source, &revoked);
  ASSERT_TRUE(server_until([&] { return held.size() == 1; }));
  on(*dialling_, [&] {
    client->channel->revoke(1);
    client->channel->revoke(99);  // nothing of it is known: harmless
    std::fill(source.begin(), source.end(), std::byte{0xee});
  });
  on(*serving_, [&] { held.clear(); });
  send(*client, 2, original, &others);
  ASSERT_TRUE(client_until([&] { return others.size() == 1; }));
  EXPECT_TRUE(others[0].ok());
  on(*serving_, [&] {
    ASSERT_EQ(recorder_.chunks.size(), 2u) << "chunks not begun are dropped";
    EXPECT_TRUE(recorder_.chunks[0].data == original);
  });
  on(*dialling_, [&] { EXPECT_TRUE(revoked.empty()) << "`done` is not called after revoke"; });
}

// The chunk is larger than what sockets hold, and revoked as soon as its first bytes have been seen.
TEST_P(Conformance, AChunkHalfWrittenAtRevokeArrivesAsItWas) {
  for (size_t size : {size_t{300000}, size_t{12} << 20}) {
    auto client = dial();
    std::atomic<bool> seen{false};
    TestSink* landing = nullptr;
    on(*serving_, [&] {
      recorder_.chunks.clear();
      recorder_.choose_sink = [&](ServerChannel&, const BulkHeader&, size_t n) {
        landing = sink(TestSink::Mode::kTake, n);
        landing->on_use = [&] { seen = true; };
        return landing;
      };
    });
    auto source = bytes_of(size, size);
    const auto original = source;
    std::vector<Status> ends;
    send(*client, 1, source, &ends);
    ASSERT_TRUE(client_until([&] {
      if (!seen) return false;
      client->channel->revoke(1);
      std::fill(source.begin(), source.end(), std::byte{0xee});
      return true;
    }));
    ASSERT_TRUE(server_until([&] { return recorder_.chunks.size() == 1; }))
        << "a chunk that is half written is finished";
    on(*serving_, [&] { EXPECT_TRUE(recorder_.chunks[0].data == original); });
    ping(*client);
    drop(client);
  }
}

TEST_P(Conformance, DiscardStopsLandingAtOnce) {
  for (bool within : {true, false}) {
    auto client = dial();
    int uses_at_discard = 0;
    TestSink* landing = nullptr;
    bool discarded = false;
    const Status why = Status(Code::kAborted, "operation 1 ended here").with_rank(4, "node4");
    on(*serving_, [&] {
      recorder_.chunks.clear();
      recorder_.choose_sink = [&](ServerChannel& channel, const BulkHeader& header, size_t n) -> TestSink* {
        if (header.operation != 1) return sink(TestSink::Mode::kPlace, n);
        landing = sink(TestSink::Mode::kTake, n);
        auto discard = [&] {
          if (discarded) return;
          discarded = true;
          channel.discard(1, why);
          uses_at_discard = landing->uses();
        };
        landing->on_use = [&, discard] {
          if (discarded) return;
          if (within) {
            discard();
          } else {
            serving_->loop().post(discard);
          }
        };
        return landing;
      };
    });
    const auto source = bytes_of(8 << 20, 1);
    std::vector<Status> ends, others;
    send(*client, 1, source, &ends);
    send(*client, 2, source, &others);
    ASSERT_TRUE(client_until([&] { return ends.size() == 1 && others.size() == 1; }));
    on(*serving_, [&] {
      ASSERT_TRUE(discarded);
      EXPECT_EQ(landing->uses(), uses_at_discard) << "no sink is used after discard";
      ASSERT_EQ(recorder_.chunks.size(), 1u) << "a discarded chunk has no on_bulk_end";
      EXPECT_EQ(recorder_.chunks[0].header.operation, 2u);
      EXPECT_TRUE(recorder_.chunks[0].data == source) << "what follows a discarded chunk is whole";
    });
    EXPECT_EQ(ends[0].code(), Code::kAborted);
    EXPECT_EQ(ends[0].message(), why.message());
    EXPECT_EQ(ends[0].rank(), 4);
    EXPECT_TRUE(others[0].ok());
    ping(*client);
    drop(client);
  }
}

TEST_P(Conformance, PooledMemoryIsBounded) {
  constexpr size_t kMemory = 300000, kChunk = 100000, kChannels = 3, kChunks = 12;
  auto network = world_->environment(1).new_network("test-small", kMemory);
  ASSERT_TRUE(network.ok());
  auto small = std::move(network).value();
  std::vector<std::unique_ptr<BulkReceipt>> held;
  Recorder recorder;
  recorder.network = small.get();
  recorder.receive = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
    held.push_back(std::move(receipt));
  };
  acceptor_.network = small.get();
  acceptor_.handler = &recorder;
  on(*small, [] {});  // sees the recorder
  const auto source = bytes_of(kChunk, 1);
  std::vector<Status> ends;
  for (size_t i = 0; i < kChannels; ++i) {
    auto client = dial();
    for (uint64_t k = 0; k < kChunks; ++k) send(*client, k, source, &ends);
  }
  // Slowly, oldest first, so that the senders always have more to give than there is room.
  size_t finished = 0;
  while (finished < kChannels * kChunks) {
    ASSERT_TRUE(until(*small, [&] { return held.size() > finished; })) << "finished " << finished;
    for (int i = 0; i < 3; ++i) on(*small, [] {});
    on(*small, [&] {
      EXPECT_TRUE(std::ranges::equal(held[finished]->data(), source));
      held[finished]->finish(Status());
    });
    ++finished;
  }
  ASSERT_TRUE(client_until([&] { return ends.size() == kChannels * kChunks; }));
  EXPECT_TRUE(all_ok(ends));
  EXPECT_LE(small->counters().pooled_peak, kMemory + kChannels * kChunk);
  // The senders' last words may still be coming in.
  EXPECT_TRUE(until(*small, [&] { return small->counters().pooled_bytes == 0; }))
      << small->counters().pooled_bytes;
  for (auto& client : clients_) drop(client);
  ASSERT_TRUE(until(*small, [&] { return recorder.closed.size() == kChannels; }));
  on(*small, [&] { held.clear(); });
  EXPECT_EQ(recorder.off_loop, 0);
}

TEST_P(Conformance, BytesAreCounted) {
  auto client = dial();
  const auto source = bytes_of(500000, 1);
  std::vector<Status> ends;
  send(*client, 1, source, &ends);
  ASSERT_TRUE(client_until([&] { return ends.size() == 1; }));
  EXPECT_GE(dialling_->counters().bytes_sent, 500000u);
  EXPECT_LT(dialling_->counters().bytes_sent, 510000u);
  EXPECT_GE(serving_->counters().bytes_received, 500000u);
  EXPECT_LT(serving_->counters().bytes_received, 510000u);
}

}  // namespace
}  // namespace dsgd::transport
