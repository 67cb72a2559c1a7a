// Bytes from somebody who means ill, or is another program: an error there, nothing here.
#include <capnp/message.h>
#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>

#include <random>
#include <string_view>

#include "support.h"
#include "transport/authentication.h"
#include "transport/schema/codec.h"
#include "transport/schema/codec_capnp.h"

namespace dsgd::transport::test {
namespace {

class HostileTest : public NetworkTest {
 protected:
  uv::Fd raw_connection() {
    uv::Fd fd = connect_raw(port_of(listener->address()));
    timeval timeout{20, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    return fd;
  }
  static void put(const uv::Fd& fd, const void* data, size_t n) {
    (void)!::send(fd.get(), data, n, MSG_NOSIGNAL);
  }
  static void put(const uv::Fd& fd, const std::vector<uint8_t>& bytes) {
    put(fd, bytes.data(), bytes.size());
  }
  static void put(const uv::Fd& fd, capnp::MessageBuilder& message) {
    auto words = capnp::messageToFlatArray(message);
    put(fd, words.begin(), words.asBytes().size());
  }
  // Reads until the server ends the connection; false when it does not.
  static bool was_closed(const uv::Fd& fd) {
    char buffer[4096];
    for (;;) {
      const ssize_t n = receive_raw(fd, buffer, sizeof buffer);
      if (n == 0 || (n < 0 && errno == ECONNRESET)) return true;
      if (n < 0) {
        ADD_FAILURE() << "reading: " << std::strerror(errno);
        return false;
      }
    }
  }
  // One message of the handshake.
  static std::vector<uint8_t> receive(const uv::Fd& fd) {
    std::vector<uint8_t> bytes(8);
    EXPECT_EQ(receive_raw(fd, bytes.data(), 8, MSG_WAITALL), 8) << std::strerror(errno);
    uint32_t segments, words;
    std::memcpy(&segments, bytes.data(), sizeof segments);
    std::memcpy(&words, bytes.data() + sizeof segments, sizeof words);
    EXPECT_EQ(segments, 0u) << "of one segment, less one";
    bytes.resize(8 + words * 8);
    EXPECT_EQ(receive_raw(fd, bytes.data() + 8, words * 8, MSG_WAITALL), static_cast<ssize_t>(words * 8));
    return bytes;
  }
  uv::Fd challenged(const std::vector<uint8_t>& hello, Nonce* nonce) {
    uv::Fd fd = raw_connection();
    put(fd, hello);
    auto challenge = decode_challenge(receive(fd));
    EXPECT_TRUE(challenge.ok() && challenge.value().refused.ok());
    *nonce = challenge.value().nonce;
    return fd;
  }
  uv::Fd welcomed() {
    const auto hello = encode(Hello());
    Nonce nonce;
    uv::Fd fd = challenged(hello, &nonce);
    put(fd, encode(prove(Side::kDialling, "secret", "", hello, nonce)));
    auto reply = decode_hello_reply(receive(fd));
    EXPECT_TRUE(reply.ok() && reply.value().status.ok());
    EXPECT_EQ(reply.value().proof, prove(Side::kAccepting, "secret", "", hello, nonce));
    return fd;
  }
  static std::vector<uint8_t> words(std::initializer_list<uint32_t> numbers) {
    std::vector<uint8_t> bytes;
    for (uint32_t n : numbers) {
      for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<uint8_t>(n >> (8 * i)));
    }
    return bytes;
  }
  void still_works() {
    if (!channel) connect();
    EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
  }
};

TEST_F(HostileTest, GarbageInsteadOfAHelloEndsTheConnectionOnly) {
  start();
  using std::literals::operator""sv;
  for (std::string_view text :
       {"GET / HTTP/1.1\r\nHost: x\r\n\r\n"sv, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00"sv}) {
    auto fd = raw_connection();
    put(fd, text.data(), text.size());
    EXPECT_TRUE(was_closed(fd));
  }
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    auto fd = raw_connection();
    std::vector<uint8_t> bytes(16 + random() % 200);
    for (auto& b : bytes) b = static_cast<uint8_t>(random());
    bytes[0] = static_cast<uint8_t>(random() % 3), bytes[1] = bytes[2] = bytes[3] = 0;
    put(fd, bytes);
    ::shutdown(fd.get(), SHUT_WR);
    EXPECT_TRUE(was_closed(fd));
  }
  still_works();
}

TEST_F(HostileTest, AHugeHelloIsNotWaitedFor) {
  start();
  auto fd = raw_connection();
  put(fd, words({0, 0x10000000}));
  EXPECT_TRUE(was_closed(fd));
  still_works();
}

TEST_F(HostileTest, GarbageInsteadOfAProofEndsTheConnectionOnly) {
  start();
  const auto hello = encode(Hello());
  std::mt19937 random(2);
  for (int i = 0; i < 50; ++i) {
    Nonce nonce;
    auto fd = challenged(hello, &nonce);
    std::vector<uint8_t> bytes(i % 2 ? 16 + random() % 200 : 40);
    for (auto& b : bytes) b = static_cast<uint8_t>(random());
    bytes[0] = static_cast<uint8_t>(random() % 3), bytes[1] = bytes[2] = bytes[3] = 0;
    put(fd, bytes);
    ::shutdown(fd.get(), SHUT_WR);
    EXPECT_TRUE(was_closed(fd));
  }
  {  // a proof that is too short, and RPC instead of one
    Nonce nonce;
    auto fd = challenged(hello, &nonce);
    capnp::MallocMessageBuilder message;
    message.initRoot<schema::Proof>().initMac(31);
    put(fd, message);
    EXPECT_TRUE(was_closed(fd));
    fd = challenged(hello, &nonce);
    put(fd, encode(Message(Renew{})));
    EXPECT_TRUE(was_closed(fd));
  }
  on(*server, [&] { EXPECT_TRUE(handler.channels.empty() && handler.closes.empty()); });
  still_works();
}

// Each proof differs from the right one in one of its parts.
TEST_F(HostileTest, AProofForAnotherHelloChallengeTokenOrSideIsRefused) {
  start();
  Hello other;
  other.rank = 1;
  const auto hello = encode(Hello()), other_hello = encode(other);
  Nonce nonce, other_nonce{};
  auto try_proof = [&](const Proof& proof, uv::Fd fd) {
    put(fd, encode(proof));
    auto reply = decode_hello_reply(receive(fd));
    ASSERT_TRUE(reply.ok());
    EXPECT_EQ(reply.value().status.code(), Code::kUnauthorized);
    EXPECT_TRUE(was_closed(fd));
  };
  auto fd = challenged(hello, &nonce);
  try_proof(prove(Side::kDialling, "secret", "", other_hello, nonce), std::move(fd));
  fd = challenged(hello, &nonce);
  try_proof(prove(Side::kDialling, "secret", "", hello, other_nonce), std::move(fd));
  fd = challenged(hello, &nonce);
  try_proof(prove(Side::kDialling, "Secret", "", hello, nonce), std::move(fd));
  fd = challenged(hello, &nonce);
  try_proof(prove(Side::kDialling, "", "", hello, nonce), std::move(fd));
  fd = challenged(hello, &nonce);
  try_proof(prove(Side::kDialling, "secret", "another job", hello, nonce), std::move(fd));
  fd = challenged(hello, &nonce);
  try_proof(prove(Side::kAccepting, "secret", "", hello, nonce), std::move(fd));
  on(*server, [&] { EXPECT_TRUE(handler.channels.empty()); });
  still_works();
}

// A program in the place of the head, which does not know the token: it accepts whatever it is told.
TEST_F(HostileTest, ADialFailsWhenTheOtherSideCannotProveTheToken) {
  start();
  int port;
  uv::Fd listening = listen_raw(&port);
  std::thread impostor([&] {
    uv::Fd fd(::accept(listening.get(), nullptr, nullptr));
    const auto hello = receive(fd);
    const Nonce nonce{7};
    put(fd, encode(Challenge{{}, nonce}));
    receive(fd);
    put(fd, encode(HelloReply{{}, prove(Side::kAccepting, "guess", "", hello, nonce)}));
    EXPECT_TRUE(was_closed(fd));
  });
  auto dialled = dial(*client, "127.0.0.1:" + std::to_string(port), dial_options(*client));
  impostor.join();
  ASSERT_FALSE(dialled.ok());
  EXPECT_EQ(dialled.status().code(), Code::kUnauthorized);
  EXPECT_NE(dialled.status().message().find("give every process of the job the same `token`"),
            std::string::npos)
      << dialled.status().message();
}

// A peer that has not proved that it knows the token cannot choose the code or the rank of the error.
TEST_F(HostileTest, ARefusalBeforeTheProofIsAnIoErrorOfOneLine) {
  start();
  for (const Code sent : {Code::kAborted, Code::kMismatch, Code::kUnauthorized, Code::kIo}) {
    int port;
    uv::Fd listening = listen_raw(&port);
    std::thread impostor([&, code = sent] {
      uv::Fd fd(::accept(listening.get(), nullptr, nullptr));
      receive(fd);
      put(fd, encode(Challenge{Status(code, "one\ntwo\x1b[31m").with_rank(3, "elsewhere"), {}}));
      EXPECT_TRUE(was_closed(fd));
    });
    auto dialled = dial(*client, "127.0.0.1:" + std::to_string(port), dial_options(*client));
    impostor.join();
    ASSERT_FALSE(dialled.ok());
    EXPECT_EQ(dialled.status().code(), Code::kIo);
    EXPECT_NE(dialled.status().message().find("one two?[31m"), std::string::npos)
        << dialled.status().message();
    EXPECT_EQ(dialled.status().rank(), -1);
  }
}

// The listener cannot read this hello: the name of the job is longer than the limit. That says nothing about
// the token.
TEST_F(HostileTest, AnUnreadableHelloIsNotReportedAsAWrongToken) {
  start();
  auto options = dial_options(*client);
  options.hello.job.assign(kMaxNameBytes + 1, 'j');
  auto dialled = dial(*client, listener->address(), std::move(options));
  ASSERT_FALSE(dialled.ok());
  EXPECT_EQ(dialled.status().code(), Code::kIo);
  EXPECT_NE(dialled.status().message().find("job has 4097 bytes"), std::string::npos)
      << dialled.status().message();
}

TEST_F(HostileTest, TheTokenNeverTravelsAndARecordedStreamIsRefused) {
  door.secret = "correct horse battery staple";
  start();
  Relay relay(port_of(listener->address()));
  auto options = dial_options(*client);
  options.token = door.secret;
  options.hello.rank = 0;
  options.hello.worker_id = "w0";
  connect(options, relay.address());
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
  EXPECT_TRUE(send(*client, *channel, {}, pattern(5000, 3)).ok());
  const auto [sent, answered] = relay.recorded();
  ASSERT_GT(sent.size(), 5000u);
  for (const std::string& bytes : {sent, answered}) EXPECT_EQ(bytes.find(door.secret), std::string::npos);
  EXPECT_NE(sent.find("w0"), std::string::npos) << "the rest of the hello does";

  auto replay = raw_connection();
  put(replay, sent.data(), sent.size());
  EXPECT_TRUE(was_closed(replay));
  on(*server, [&] {
    EXPECT_EQ(handler.channels.size(), 1u) << "the recorded stream was taken for a connection";
    EXPECT_TRUE(handler.closes.empty());
  });
  still_works();
}

TEST_F(HostileTest, AFrameBeyondTheLimitsIsRefusedBeforeMemoryIsTaken) {
  start();
  for (auto& table : {words({0, 0x1fffffff}), words({1, 8, 0x1fffffff, 0}), words({15, 1}),
                      words({0xffffffff, 1}), words({511, 1}), words({1, 0xffffffff, 0xffffffff, 0})}) {
    auto fd = welcomed();
    put(fd, table);
    EXPECT_TRUE(was_closed(fd));
  }
  EXPECT_LT(server->counters().pooled_peak, 1u << 20);
  still_works();
  on(*server, [&] {
    for (auto& why : handler.closes) EXPECT_FALSE(why.ok());
  });
}

// Connections of strangers to a head would else hold as much memory as they like.
TEST_F(HostileTest, AControlConnectionTakesNoLargeFrame) {
  start();
  for (const auto& [role, served] :
       {std::pair(Role::kControl, false), {Role::kHeartbeat, false}, {Role::kPeer, true}}) {
    auto options = dial_options(*client);
    options.hello.role = role;
    auto dialled = dial(*client, listener->address(), options);
    ASSERT_TRUE(dialled.ok()) << dialled.status().message();
    PutObject put;
    put.data.resize(1 << 20);
    EXPECT_EQ(call(*client, *dialled.value(), put).ok(), served) << static_cast<int>(role);
    on(*client, [&] { dialled.value().reset(); });
  }
  still_works();
}

TEST_F(HostileTest, RandomFramesAfterAGoodHelloBreakTheirOwnConnectionAtMost) {
  start();
  connect();
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    auto fd = welcomed();
    for (int frame = 0; frame < 3; ++frame) {
      const uint32_t first = random() % 24, second = random() % 24;
      auto bytes = random() % 2 ? words({1, first, second, 0}) : words({0, first + second});
      for (uint32_t w = 0; w < (first + second) * 8; ++w)
        bytes.push_back(static_cast<uint8_t>(random() >> 7));
      put(fd, bytes);
    }
    ::shutdown(fd.get(), SHUT_WR);
    EXPECT_TRUE(was_closed(fd));
  }
  still_works();
}

// A push whose Data is right in everything but one thing.
void make_push(capnp::MallocMessageBuilder& message, uint32_t target, size_t nbytes, uint64_t operation,
               std::vector<uint64_t>& payload) {
  payload.resize((nbytes + 7) / 8);
  auto call = message.initRoot<capnp::rpc::Message>().initCall();
  call.setQuestionId(17);
  call.initTarget().setImportedCap(target);
  call.setInterfaceId(capnp::typeId<schema::Wire>());
  call.setMethodId(1);
  auto params = call.initParams().getContent().initAs<schema::Wire::PushParams>();
  params.initHeader().setOperation(operation);
  auto orphan = message.getOrphanage().referenceExternalData(
      capnp::Data::Reader(reinterpret_cast<const kj::byte*>(payload.data()), nbytes));
  params.adoptData(kj::mv(orphan));
}

TEST_F(HostileTest, APushToAnObjectThatIsNotThereLandsAndIsForgotten) {
  start();
  CopySink sink(1 << 16, CopySink::Mode::kPlace);
  int ends = 0;
  handler.bulk = [&](ServerChannel&, const BulkHeader&, size_t n) {
    return n <= sink.data.size() ? &sink : nullptr;
  };
  handler.landed = [&](const BulkHeader&) { ++ends; };
  {
    auto fd = welcomed();
    capnp::MallocMessageBuilder message(128);
    std::vector<uint64_t> payload;
    make_push(message, 4711, 1000, 1, payload);
    put(fd, message);
    ::shutdown(fd.get(), SHUT_WR);
    EXPECT_TRUE(was_closed(fd));
  }
  still_works();
  on(*server, [&] { EXPECT_EQ(ends, 0); });
  // The real one that follows is not mistaken for it.
  auto data = pattern(5000, 3);
  EXPECT_TRUE(send(*client, *channel, {}, data).ok());
  EXPECT_TRUE(std::equal(data.begin(), data.end(), sink.data.begin()));
  on(*server, [&] { EXPECT_EQ(ends, 1); });
}

TEST_F(HostileTest, APayloadLargerThanItsDataDoesNotLandBeyondIt) {
  start();
  size_t announced = 0;
  handler.bulk = [&](ServerChannel&, const BulkHeader&, size_t n) -> OwnedSink* {
    announced = n;
    return nullptr;
  };
  auto fd = welcomed();
  capnp::MallocMessageBuilder message(128);
  std::vector<uint64_t> payload;
  make_push(message, 0, 64, 1, payload);
  auto flat = capnp::messageToFlatArray(message);
  // Segment 1 is said to have 1000 words more than the Data in it.
  std::vector<uint8_t> bytes(flat.asBytes().begin(), flat.asBytes().end());
  uint32_t size;
  std::memcpy(&size, bytes.data() + 8, 4);
  size += 1000;
  std::memcpy(bytes.data() + 8, &size, 4);
  bytes.resize(bytes.size() + 8000);
  put(fd, bytes);
  ::shutdown(fd.get(), SHUT_WR);
  EXPECT_TRUE(was_closed(fd));
  on(*server, [&] { EXPECT_EQ(announced, 0u); });
  EXPECT_EQ(server->counters().landed, 0u);
  still_works();
}

// RPC keeps a call whose results the caller wants to fetch later (sendResultsTo.yourself), and the call's
// message if nobody here has taken it; then there may be no memory for a large one.
TEST_F(HostileTest, APeerThatHoldsAMessageAndSendsALargeOneIsDisconnected) {
  start("127.0.0.1:0", 4 << 20);
  auto fd = welcomed();
  capnp::MallocMessageBuilder hello, held;
  hello.initRoot<capnp::rpc::Message>().initBootstrap().setQuestionId(0);
  put(fd, hello);
  auto call = held.initRoot<capnp::rpc::Message>().initCall();
  call.setQuestionId(1);
  call.initTarget().initPromisedAnswer().setQuestionId(0);
  call.setInterfaceId(4711);
  call.initParams();
  call.getSendResultsTo().setYourself();
  put(fd, held);
  put(fd, words({0, (60 << 20) / 8}));
  ::shutdown(fd.get(), SHUT_WR);
  EXPECT_TRUE(was_closed(fd));
  still_works();
}

TEST_F(HostileTest, ConnectionsWithoutAHelloDoNotKeepOthersOut) {
  start();
  std::vector<uv::Fd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(raw_connection());
  connect();
  still_works();
}

}  // namespace
}  // namespace dsgd::transport::test
