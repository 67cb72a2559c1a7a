// Checksums of frames: who has them, and that no flipped bit gets through.
#include <sys/socket.h>

#include "support.h"
#include "tests/unit/sanitizer.h"
#include "transport/base/crc32c.h"
#include "transport/schema/codec.h"
#include "transport/uv/address.h"
#include "transport/uv/frame_reader.h"

namespace dsgd::transport::test {
namespace {

constexpr size_t kSpan = 70000;  // more than a small chunk, not a multiple of a word

class ChecksumTest : public NetworkTest {
 protected:
  void start_with(Checksum serving, Checksum dialling, const std::string& address = "127.0.0.1:0") {
    start(address);
    server->set_checksum(serving);
    client->set_checksum(dialling);
  }

  // Traffic of every kind: a call with its answer, a small chunk, a span that lands in its place, one that
  // lands in pieces, and one that is pooled. Returns the first failure that the client is told. What the
  // server is given is checked.
  struct Outcome {
    Status client, server;  // server: why its side of the connection ended; OK: it has not
    bool delivered_as_sent = true;
    int64_t forwarded = 0, returned = 0;
  };
  Outcome carry(const Relay::Flip& flip) {
    Outcome outcome;
    Relay relay(port_of(listener->address()));
    relay.flip(flip);
    TestHandler server_side;
    door.handler = &server_side;
    CopySink place(kSpan, CopySink::Mode::kPlace), pieces(kSpan, CopySink::Mode::kPieces);
    server_side.call = [&](ServerChannel&, Message request, Responder respond) {
      auto* put = std::get_if<PutObject>(&request);
      outcome.delivered_as_sent =
          outcome.delivered_as_sent && put && put->name == "name" && put->data == object_;
      respond(std::move(request));
    };
    server_side.bulk = [&](ServerChannel&, const BulkHeader& header, size_t) -> OwnedSink* {
      return header.operation == 2 ? &place : header.operation == 3 ? &pieces : nullptr;
    };
    const auto delivered = [&](const BulkHeader& header, std::span<const std::byte> got) {
      const std::vector<std::byte>& want = header.operation == 1 ? small_ : span_;
      outcome.delivered_as_sent = outcome.delivered_as_sent && header.operation <= 4 && header.tag == 77 &&
                                  std::equal(got.begin(), got.end(), want.begin(), want.end());
    };
    server_side.landed = [&](const BulkHeader& header) {
      delivered(header, header.operation == 2 ? place.data : pieces.data);
    };
    server_side.bulk_end = [&](ServerChannel&, const BulkHeader& header,
                               std::unique_ptr<BulkReceipt> receipt) {
      delivered(header, receipt->data());
      receipt->finish({});
    };
    auto options = dial_options(*client);
    Status closed, refused;
    options.closed = [&closed](const Status& why) { closed = why; };
    options.refused = [&refused](uint64_t, const Status& why) { refused = why; };
    auto dialled = dial(*client, relay.address(), options);
    if (!dialled.ok()) {
      outcome.client = dialled.status();
      eventually(*server, [&] { return !server_side.closes.empty(); });
    } else {
      channel = std::move(dialled).value();
      outcome.client = talk();
      if (outcome.client.ok()) outcome.client = refused;
      if (!outcome.client.ok()) {  // an operation's end and the connection's come in either order
        eventually(*client, [&] { return !closed.ok(); });
        if (closed.code() == Code::kCorrupted) outcome.client = closed;
        eventually(*server, [&] { return !server_side.closes.empty(); });
      }
    }
    on(*server, [&] {
      if (!server_side.closes.empty()) outcome.server = server_side.closes[0];
    });
    outcome.forwarded = relay.forwarded(), outcome.returned = relay.returned();
    if (channel) on(*client, [this] { channel.reset(); });
    eventually(*server, [&] { return server_side.channels.empty(); });
    return outcome;
  }

  Status talk() {
    PutObject put;
    put.name = "name";
    put.data = object_;
    auto echoed = call(*client, *channel, put);
    if (!echoed.ok()) return echoed.status();
    const auto* back = std::get_if<PutObject>(&echoed.value());
    if (!back || back->name != "name" || back->data != object_)
      return Status(Code::kInternal, "the answer was changed");
    BulkHeader header;
    header.tag = 77;
    header.operation = 1;
    Status small = await<Status>(
        *client, [&](std::function<void(Status)> finish) { channel->send_small(header, small_, finish); });
    if (!small.ok()) return small;
    for (header.operation = 2; header.operation <= 4; ++header.operation) {
      if (Status status = send(*client, *channel, header, span_); !status.ok()) return status;
    }
    return {};
  }

  const std::vector<uint8_t> object_ = std::vector<uint8_t>(300, 7);
  const std::vector<std::byte> small_ = pattern(500, 1), span_ = pattern(kSpan, 2);
};

// Which connections have checksums by default.
TEST(ChecksumByDefault, IsForConnectionsThatLeaveTheMachine) {
  struct Case {
    const char *own, *peer;
    bool leaves;
  };
  for (const Case& c : {Case{"10.0.0.1:7700", "10.0.0.2:4000", true},
                        {"10.0.0.1:7700", "10.0.0.1:4000", false},
                        {"127.0.0.1:7700", "127.0.0.1:4000", false},
                        {"127.0.0.1:7700", "127.0.0.2:4000", false},
                        {"[::1]:7700", "[::1]:4000", false},
                        {"[fe80::1]:7700", "[fe80::2]:4000", true},
                        {"[fe80::1]:7700", "[fe80::1]:4000", false},
                        {"[::ffff:10.0.0.1]:7700", "[::ffff:10.0.0.2]:4000", true},
                        {"[::ffff:127.0.0.1]:7700", "[::ffff:127.0.0.1]:4000", false},
                        {"unix:/tmp/a", "unix:/tmp/b", false}}) {
    const auto address = [](const char* text) {
      return uv::numeric_addresses(uv::parse_address(text).value()).value().at(0);
    };
    EXPECT_EQ(uv::leaves_machine(address(c.own), address(c.peer)), c.leaves) << c.own << " to " << c.peer;
  }
}

// Nothing comes behind this table. A reader that took a larger number of segments would wait.
TEST(FrameReader, FindsAFlippedBitOfTheTableWithoutFurtherBytes) {
  for (int bit = -1; bit < 96; ++bit) {
    uint32_t table[3] = {0xffff0000u, 1, 0};  // one segment of one word
    table[2] = crc32c(0, table, 2 * sizeof table[0]);
    if (bit >= 0) table[bit / 32] ^= 1u << bit % 32;
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    const uv::Fd near(fds[0]), far(fds[1]);
    ASSERT_EQ(::write(near.get(), table, sizeof table), static_cast<ssize_t>(sizeof table));
    uv::ReadShared shared(1 << 20);
    uv::FrameReader reader(shared, nullptr);
    reader.use_checksums();
    reader.begin_turn();
    kj::Own<uv::Frame> frame;
    Status error;
    const auto outcome = reader.read(far.get(), &frame, &error);
    if (bit < 0) {
      EXPECT_EQ(outcome, uv::ReadOutcome::kBlocked);
    } else {
      EXPECT_EQ(outcome, uv::ReadOutcome::kError) << "bit " << bit;
      EXPECT_EQ(error.code(), Code::kCorrupted) << "bit " << bit;
    }
  }
}

TEST_F(ChecksumTest, EitherSidesWishSwitchesThemOn) {
  const Checksum kAll[] = {Checksum::kAuto, Checksum::kAlways, Checksum::kNever};
  for (const std::string& address :
       {std::string("127.0.0.1:0"), "unix:/tmp/dsgd-checksum-" + std::to_string(getpid())}) {
    for (Checksum serving : kAll) {
      for (Checksum dialling : kAll) {
        start_with(serving, dialling, address);
        connect();
        const bool wanted = serving == Checksum::kAlways || dialling == Checksum::kAlways;
        EXPECT_EQ(handler.channels.at(0)->hello().checksum, wanted);
        EXPECT_TRUE(call(*client, *channel, Message(Empty{})).ok());
        TearDown();
        handler.channels.clear();
      }
    }
  }
}

TEST_F(ChecksumTest, EverySizeArrivesWholeInPlaceInPiecesAndPooled) {
  start_with(Checksum::kAlways, Checksum::kAlways);
  connect();
  uint64_t operation = 1;
  for (size_t size : {size_t{1}, size_t{8}, size_t{4100}, size_t{65537}, size_t{262147},
                      (size_t{1} << 20) - 4, size_t{1} << 20}) {
    const std::vector<std::byte> data = pattern(size, static_cast<unsigned>(size));
    for (int way = 0; way < 3; ++way) {
      CopySink sink(size, way == 0 ? CopySink::Mode::kPlace : CopySink::Mode::kPieces);
      std::vector<std::byte> pooled;
      handler.bulk = [&](ServerChannel&, const BulkHeader&, size_t) -> OwnedSink* {
        return way < 2 ? &sink : nullptr;
      };
      handler.bulk_end = [&](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) {
        pooled.assign(receipt->data().begin(), receipt->data().end());
        receipt->finish({});
      };
      BulkHeader header;
      header.operation = operation++;
      const Status sent = send(*client, *channel, header, data);
      ASSERT_TRUE(sent.ok()) << size << ' ' << way << ": " << sent.message();
      EXPECT_TRUE((pooled.empty() ? sink.data : pooled) == data) << size << ' ' << way;
    }
  }
  end();
}

TEST_F(ChecksumTest, ARevokedSpanIsFinishedFromACopyWithTheRightChecksum) {
  start_with(Checksum::kAlways, Checksum::kAlways);
  revoke_half_sent_span(1 << 20);
}

// Flips a bit in every 23rd byte of the small frames, or in every seventh with TEST_ALL_CASES=1, and in some
// bytes of each part of a span. Flips none in the handshake.
TEST_F(ChecksumTest, NoFlippedBitOfAFrameGetsThrough) {
  start_with(Checksum::kAlways, Checksum::kAlways);
  Hello said = dial_options(*client).hello;
  said.checksum = true;
  const int64_t hello = static_cast<int64_t>(encode(said).size() + encode(Proof()).size());
  const int64_t reply = static_cast<int64_t>(encode(Challenge()).size() + encode(HelloReply()).size());
  const Outcome whole = carry({});
  ASSERT_TRUE(whole.client.ok()) << whole.client.message();
  ASSERT_TRUE(whole.delivered_as_sent);
  const bool all = dsgd_test::runs_all_cases();
  const int64_t of_small = all ? 7 : 23, of_spans = all ? 1597 : 4001;
  int flips = 0;
  for (bool to_server : {true, false}) {
    const int64_t begin = to_server ? hello : reply, end = to_server ? whole.forwarded : whole.returned;
    ASSERT_GT(end, begin);
    for (int64_t byte = begin; byte < end - 64; byte += byte < begin + 1400 ? of_small : of_spans) {
      const Outcome outcome = carry({to_server, byte, static_cast<int>(byte % 8)});
      const std::string where =
          std::string(to_server ? "to the server, byte " : "to the client, byte ") + std::to_string(byte);
      ++flips;
      EXPECT_TRUE(outcome.delivered_as_sent) << where;
      ASSERT_FALSE(outcome.client.ok()) << where;
      // The receiving side says what happened; the sending side learns it from there, or sees the connection
      // end.
      const Code told = (to_server ? outcome.server : outcome.client).code();
      EXPECT_EQ(told, Code::kCorrupted)
          << where << ": " << (to_server ? outcome.server : outcome.client).message();
    }
  }
  EXPECT_GT(flips, all ? 200 : 80);
}

TEST_F(ChecksumTest, WithoutThemAFlippedBitIsDelivered) {
  start_with(Checksum::kNever, Checksum::kNever);
  const Outcome whole = carry({});
  ASSERT_TRUE(whole.client.ok());
  const Outcome flipped = carry({true, whole.forwarded - 20000, 3});
  EXPECT_TRUE(flipped.client.ok());
  EXPECT_FALSE(flipped.delivered_as_sent);
}

}  // namespace
}  // namespace dsgd::transport::test
