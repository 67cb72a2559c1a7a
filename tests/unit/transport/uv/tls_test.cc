// TLS: who gets in, what both sides are told, certificates that change, and what no network may change or
// read.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "support.h"
#include "tests/unit/certificates.h"
#include "transport/uv/address.h"
#include "transport/uv/connection.h"
#include "transport/uv/openssl.h"
#include "transport/uv/tls_context.h"

namespace dsgd::transport::test {
namespace {

using testing::HasSubstr;

struct TlsDoor : OpenDoor {
  void on_tls_failure(const std::string&, const Status& why) override {
    Ordered ordered;
    failures.push_back(why);
  }
  std::vector<Status> failures;  // on the listening loop
};

class TlsTest : public NetworkTest {
 protected:
  using Files = std::optional<TlsFiles>;

  void start_with(const Files& serving, const Files& dialling, const ListenOptions& options = {},
                  const std::string& address = "127.0.0.1:0") {
    server = network(serving);
    client = network(dialling);
    tls_door.network = server.get();
    tls_door.handler = &handler;
    auto bound = server->listen(address, &tls_door, options);
    if (!bound.ok()) throw std::runtime_error(bound.status().message());
    listener = std::move(bound).value();
  }
  std::unique_ptr<Network> network(const Files& files) {
    environments.push_back(make_uv_environment());
    if (files) {
      const Status status = environments.back()->use_tls(*files, [this](const std::string& warning) {
        std::lock_guard lock(mutex);
        warnings.push_back(warning);
      });
      if (!status.ok()) throw std::runtime_error(status.message());
    }
    return std::move(environments.back()->new_network("test", 64 << 20)).value();
  }
  Status dial_fails() { return dial(*client, listener->address(), dial_options(*client)).status(); }
  std::string server_is_told() {
    EXPECT_TRUE(eventually(*server, [this] { return !tls_door.failures.empty(); }));
    std::string text;
    on(*server, [&] { text = tls_door.failures.empty() ? "" : tls_door.failures.back().message(); });
    return text;
  }
  size_t count_warnings() {
    std::lock_guard lock(mutex);
    return warnings.size();
  }
  void expect_service() {
    connect(dial_options(*client), listener->address());
    EXPECT_TRUE(call(*client, *channel, Message(Empty{})).ok());
  }
  void TearDown() override {
    NetworkTest::TearDown();
    environments.clear();
  }

  TestAuthority ca, other;
  TlsDoor tls_door;
  std::vector<std::unique_ptr<Environment>> environments;
  std::mutex mutex;
  std::vector<std::string> warnings;
};

TEST_F(TlsTest, CertificatesOfOneCaConnectOverTcpAndUnixSockets) {
  for (const std::string& address :
       {std::string("127.0.0.1:0"), "unix:/tmp/dsgd-tls-" + std::to_string(getpid())}) {
    start_with(ca.issue("a"), ca.issue("b"), {}, address);
    expect_service();
    TearDown();
  }
}

TEST_F(TlsTest, ACertificateOfAnotherCaIsRefusedAndBothSidesAreToldWhy) {
  start_with(ca.issue("server"), other.issue("client"));  // each trusts its own CA
  const Status status = dial_fails();
  EXPECT_EQ(status.code(), Code::kUnauthorized);
  EXPECT_THAT(status.message(), HasSubstr("cannot connect to " + listener->address()));
  EXPECT_THAT(status.message(), HasSubstr("unable to get local issuer certificate"));
  EXPECT_THAT(status.message(), HasSubstr("check that a CA of `tls_ca` has signed it"));
  EXPECT_THAT(server_is_told(), HasSubstr("the peer refused the TLS connection: unknown CA"));
}

TEST_F(TlsTest, ACertificateOfACaOfThatNameWithAnotherKeyIsRefusedAndBothSidesAreToldWhy) {
  TestAuthority first("CA"), second("CA");
  start_with(first.issue("server"), second.issue("client"));
  const Status status = dial_fails();
  EXPECT_EQ(status.code(), Code::kUnauthorized);
  EXPECT_THAT(status.message(), HasSubstr("the certificate of the peer was refused: certificate signature"));
  EXPECT_THAT(status.message(), HasSubstr("check that a CA of `tls_ca` has signed it"));
  EXPECT_THAT(server_is_told(), HasSubstr("the peer refused the TLS connection: decrypt error; check that"));
}

TEST_F(TlsTest, AnAcceptingSideThatRefusesTellsTheDiallingSide) {
  TlsFiles stranger = other.issue("client");
  stranger.ca = ca.path("ca.pem");  // trusts the server, which does not trust it
  start_with(ca.issue("server"), stranger);
  const Status status = dial_fails();
  EXPECT_EQ(status.code(), Code::kUnauthorized);
  EXPECT_THAT(status.message(), HasSubstr(listener->address()));
  EXPECT_THAT(status.message(), HasSubstr("the peer refused the TLS connection: unknown CA"));
  EXPECT_THAT(server_is_told(), HasSubstr("unable to get local issuer certificate"));
}

TEST_F(TlsTest, AnExpiredCertificateIsRefusedOnEitherSide) {
  start_with(ca.issue("server"), ca.issue("old", -60));
  Status status = dial_fails();
  EXPECT_EQ(status.code(), Code::kUnauthorized);
  EXPECT_THAT(status.message(), HasSubstr("refused the TLS connection: certificate expired"));
  EXPECT_THAT(server_is_told(), HasSubstr("certificate has expired"));
  TearDown();
  start_with(ca.issue("old", -60), ca.issue("client"));
  status = dial_fails();
  EXPECT_EQ(status.code(), Code::kUnauthorized);
  EXPECT_THAT(status.message(), HasSubstr("certificate has expired"));
}

TEST_F(TlsTest, TheTokenIsAskedForInsideTls) {
  start_with(ca.issue("server"), ca.issue("client"));
  auto options = dial_options(*client);
  options.token = "wrong";
  const Status status = dial(*client, listener->address(), options).status();
  EXPECT_EQ(status.code(), Code::kUnauthorized);
  EXPECT_EQ(status.message(), "the token is wrong");
  expect_service();
}

TEST_F(TlsTest, AProcessWithoutTlsIsRefusedAndBothSidesAreToldWhy) {
  start_with(ca.issue("server"), std::nullopt);
  const Status status = dial_fails();
  EXPECT_EQ(status.code(), Code::kUnauthorized);
  EXPECT_THAT(status.message(), HasSubstr("cannot connect to " + listener->address()));
  EXPECT_THAT(status.message(), HasSubstr("the peer uses TLS, and this process does not"));
  EXPECT_THAT(status.message(), HasSubstr("set `tls_cert`, `tls_key` and `tls_ca`"));
  EXPECT_THAT(server_is_told(), HasSubstr("it does not use TLS, and this process does"));
}

TEST_F(TlsTest, AProcessWithTlsIsToldThatTheOtherHasNone) {
  start_with(std::nullopt, ca.issue("client"));
  const Status status = dial_fails();
  EXPECT_EQ(status.code(), Code::kUnauthorized);
  EXPECT_THAT(status.message(), HasSubstr("cannot connect to " + listener->address()));
  EXPECT_THAT(status.message(), HasSubstr("answers without TLS; set `tls_cert`, `tls_key` and `tls_ca`"));
  EXPECT_THAT(server_is_told(), HasSubstr("it uses TLS, and this process does not"));
}

// A client of OpenSSL's own, so that it may do what dsgd's never does.
TEST_F(TlsTest, ADiallingSideNeedsACertificateAndTls13) {
  start_with(ca.issue("server"), ca.issue("client"));
  for (const bool old : {false, true}) {
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    if (old) {
      const TlsFiles files = ca.issue("old");
      SSL_CTX_use_certificate_chain_file(context, files.cert.c_str());
      SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM);
      SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
    }
    const uv::Fd fd = connect_raw(port_of(listener->address()));
    SSL* ssl = SSL_new(context);
    SSL_set_fd(ssl, fd.get());
    char byte;
    EXPECT_TRUE(SSL_connect(ssl) != 1 || SSL_read(ssl, &byte, 1) <= 0) << old;
    EXPECT_THAT(server_is_told(),
                HasSubstr(old ? "unsupported protocol" : "peer did not return a certificate"));
    SSL_free(ssl);
    SSL_CTX_free(context);
    on(*server, [this] { tls_door.failures.clear(); });
  }
  expect_service();
}

TEST_F(TlsTest, GarbageInTheHandshakeHarmsNobodyElse) {
  start_with(ca.issue("server"), ca.issue("client"));
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::vector<std::byte> garbage = pattern(1 + seed * 37, seed);
    garbage[0] = std::byte{uv::Tls::kFirstByte};
    if (seed % 2 && garbage.size() > 8) {  // a record whose length is right
      garbage[1] = garbage[2] = std::byte{3};
      garbage[3] = static_cast<std::byte>((garbage.size() - 5) >> 8);
      garbage[4] = static_cast<std::byte>((garbage.size() - 5) & 0xff);
    }
    const uv::Fd fd = connect_raw(port_of(listener->address()));
    ASSERT_EQ(::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(garbage.size()));
    ::shutdown(fd.get(), SHUT_WR);
    char answer[256];
    while (receive_raw(fd, answer, sizeof answer) > 0) {
    }
  }
  EXPECT_THAT(server_is_told(), HasSubstr("TLS"));
  expect_service();
}

TEST_F(TlsTest, AHandshakeThatDoesNotEndIsClosedAtItsDeadline) {
  ListenOptions options;
  options.handshake_timeout = 100ms;
  start_with(ca.issue("server"), ca.issue("client"), options);
  const uv::Fd silent = connect_raw(port_of(listener->address()));
  const uint8_t beginning[] = {uv::Tls::kFirstByte, 3, 1};
  ASSERT_EQ(::send(silent.get(), beginning, sizeof beginning, 0), static_cast<ssize_t>(sizeof beginning));
  char byte;
  EXPECT_LE(receive_raw(silent, &byte, 1), 0);
  expect_service();
}

TEST_F(TlsTest, ADialToAPeerThatDoesNotAnswerEndsAtItsDeadline) {
  start_with(ca.issue("server"), ca.issue("client"));
  int port;
  const uv::Fd mute = listen_raw(&port);
  auto options = dial_options(*client);
  options.deadline = client->loop().now() + 100ms;
  const Status status = dial(*client, "127.0.0.1:" + std::to_string(port), options).status();
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("did not complete the handshake in time"));
}

TEST_F(TlsTest, AProcessThatDiesInTheHandshakeFailsTheDialAtOnce) {
  start_with(ca.issue("server"), ca.issue("client"));
  int64_t whole = 0;
  {
    Relay relay(port_of(listener->address()));
    connect(dial_options(*client), relay.address());
    whole = relay.forwarded();
    end();
  }
  for (int64_t byte = 1; byte < whole; byte += 61) {
    Relay relay(port_of(listener->address()));
    relay.limit(byte);
    std::atomic<bool> done{false};
    Status status;
    on(*client, [&] {
      client->dial(relay.address(), dial_options(*client),
                   [&](Result<std::unique_ptr<ClientChannel>> result) {
                     status = result.status();
                     done = true;
                   });
    });
    ASSERT_TRUE(eventually(*client, [&] { return done || relay.forwarded() == byte; }));
    relay.cut(byte % 2 == 0);
    ASSERT_TRUE(eventually(*client, [&] { return done.load(); })) << byte;
    EXPECT_EQ(status.code(), Code::kUnreachable) << byte << ": " << status.message();
  }
  expect_service();
}

TEST_F(TlsTest, NothingTravelsInTheClear) {
  start_with(ca.issue("server"), ca.issue("client"));
  Relay relay(port_of(listener->address()));
  connect(dial_options(*client), relay.address());
  PutObject put;
  put.name = "a name that nobody may read";
  handler.call = [](ServerChannel&, Message request, Responder respond) { respond(std::move(request)); };
  ASSERT_TRUE(call(*client, *channel, put).ok());
  const auto [there, back] = relay.recorded();
  EXPECT_GT(there.size(), put.name.size());
  for (const std::string& bytes : {there, back}) {
    EXPECT_EQ(bytes.find(put.name), std::string::npos);
    EXPECT_EQ(bytes.find("test"), std::string::npos) << "the job's name, of the hello";
  }
  end();
}

TEST_F(TlsTest, AFlippedBitEndsTheConnectionAsCorrupted) {
  start_with(ca.issue("server"), ca.issue("client"));
  const std::vector<std::byte> data = pattern(300000, 1);
  int64_t begin = 0, whole = 0;
  for (int flip = -1; flip < 8; ++flip) {
    Relay relay(port_of(listener->address()));
    if (flip >= 0) relay.flip({true, begin + (whole - begin - 100) * flip / 8 + 50, flip});
    TestHandler server_side;
    tls_door.handler = &server_side;
    CopySink sink(data.size(), CopySink::Mode::kPieces);
    bool landed = false;
    server_side.bulk = [&](ServerChannel&, const BulkHeader&, size_t) -> OwnedSink* { return &sink; };
    server_side.landed = [&](const BulkHeader&) { landed = true; };
    connect(dial_options(*client), relay.address());
    if (flip < 0) begin = relay.forwarded();
    const Status status = send(*client, *channel, BulkHeader{}, data);
    if (flip < 0) {
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(sink.data == data);
      whole = relay.forwarded();
    } else {
      EXPECT_FALSE(status.ok());
      EXPECT_TRUE(eventually(*server, [&] { return !server_side.closes.empty(); }));
      on(*server, [&] {
        EXPECT_FALSE(landed);
        EXPECT_EQ(server_side.closes.at(0).code(), Code::kCorrupted) << server_side.closes[0].message();
      });
    }
    end();
    eventually(*server, [&] { return server_side.channels.empty(); });
  }
}

TEST_F(TlsTest, ARevokedSpanIsFinishedWithItsOwnBytes) {
  start_with(ca.issue("server"), ca.issue("client"));
  revoke_half_sent_span(4 << 20);
}

TEST_F(TlsTest, ChecksumsAreOnlyForConnectionsWithoutTls) {
  const uv::Fd unconnected = std::move(uv::make_socket(AF_INET)).value();  // its ends are not known
  auto context = uv::TlsContext::load(ca.issue("a"), {});
  ASSERT_TRUE(context.ok());
  const auto tls = context.value()->open(Side::kDialling).value();
  EXPECT_TRUE(uv::wants_checksums(Checksum::kAuto, unconnected.get()));
  EXPECT_FALSE(uv::wants_checksums(Checksum::kAuto, {unconnected.get(), tls.get()}));
  EXPECT_TRUE(uv::wants_checksums(Checksum::kAlways, {unconnected.get(), tls.get()}));
}

// ---- files

TEST_F(TlsTest, FilesThatChangeCountForNewConnectionsAndOldOnesGoOn) {
  const TlsFiles serving = ca.issue("server");
  start_with(serving, ca.issue("client"));
  expect_service();
  // The server moves to another CA: the old connection lives, the client is refused until it moves, too.
  const TlsFiles moved = other.issue("server");
  write_file(serving.ca, read_file(moved.ca));
  write_file(serving.key, read_file(moved.key));
  write_file(serving.cert, read_file(moved.cert));
  EXPECT_TRUE(call(*client, *channel, Message(Empty{})).ok());
  auto stranger = network(other.issue("client"));
  auto dialled = dial(*stranger, listener->address(), dial_options(*stranger));
  EXPECT_TRUE(dialled.ok()) << dialled.status().message();
  EXPECT_TRUE(call(*client, *channel, Message(Empty{})).ok());
  EXPECT_EQ(count_warnings(), 0u);
  on(*stranger, [&] { dialled = Status(Code::kClosed, ""); });
}

TEST_F(TlsTest, ABadNewFileIsAWarningAndTheOldCertificateStaysInUse) {
  const TlsFiles serving = ca.issue("server");
  start_with(serving, ca.issue("client"));
  const auto serve_after_a_second = [&] {
    expect_service();  // finds the change
    end();
    std::this_thread::sleep_for(std::chrono::milliseconds(1050));
    expect_service();
  };
  write_file(serving.cert, "no certificate\n");
  expect_service();
  EXPECT_EQ(count_warnings(), 0u) << "the file may be in the middle of a replacement";
  end();
  serve_after_a_second();
  EXPECT_EQ(count_warnings(), 1u);
  EXPECT_THAT(warnings.at(0), HasSubstr("tls_cert = '" + serving.cert + "' cannot be used: no start line"));
  EXPECT_THAT(warnings.at(0), HasSubstr("the certificate before it stays in use"));
  end();
  expect_service();
  EXPECT_EQ(count_warnings(), 1u) << "once for each change";
  end();
  std::filesystem::remove(serving.key);
  serve_after_a_second();
  EXPECT_EQ(count_warnings(), 2u);
  end();
  ca.issue("server");
  serve_after_a_second();
  EXPECT_EQ(count_warnings(), 2u);
}

TEST_F(TlsTest, EachUnusableFileHasAnErrorThatNamesIt) {
  const TlsFiles good = ca.issue("good");
  const std::string empty = ca.path("empty");
  write_file(empty, "");
  const std::string locked = ca.path("locked");
  EVP_PKEY* key = EVP_EC_gen("P-256");
  FILE* file = std::fopen(locked.c_str(), "w");
  PEM_write_PrivateKey(file, key, EVP_aes_128_cbc(), reinterpret_cast<const unsigned char*>("pass"), 4,
                       nullptr, nullptr);
  std::fclose(file);
  EVP_PKEY_free(key);
  const std::string fifo = ca.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  struct Case {
    TlsFiles files;
    const char *parameter, *text;
  };
  for (const Case& c :
       {Case{{"/none", good.key, good.ca}, "tls_cert", "tls_cert = '/none' cannot be read: no such file"},
        {{good.cert, "/none", good.ca}, "tls_key", "tls_key = '/none' cannot be read: no such file"},
        {{good.cert, good.key, "/none"}, "tls_ca", "tls_ca = '/none' cannot be read: no such file"},
        {{good.cert, good.key, "/tmp"}, "tls_ca", "it is not a file"},
        {{fifo, good.key, good.ca}, "tls_cert", "it is not a file"},
        {{empty, good.key, good.ca}, "tls_cert", "no start line"},
        {{good.cert, empty, good.ca}, "tls_key", "cannot be used"},
        {{good.cert, good.key, empty}, "tls_ca", "cannot be used"},
        {{good.cert, locked, good.ca}, "tls_key", "without a passphrase"},
        {{good.cert, ca.issue("another").key, good.ca}, "tls_key", "key values mismatch"}}) {
    const Status status = make_uv_environment()->use_tls(c.files, {});
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << c.text;
    EXPECT_EQ(status.parameter(), c.parameter) << c.text;
    EXPECT_THAT(status.message(), HasSubstr(c.text));
  }
}

// ---- one connection, without a network

class TlsPair {
 public:
  explicit TlsPair(const TlsFiles& files, uint64_t key_bytes) {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    context_ = SSL_CTX_new(TLS_method());
    SSL_CTX_use_certificate_chain_file(context_, files.cert.c_str());
    SSL_CTX_use_PrivateKey_file(context_, files.key.c_str(), SSL_FILETYPE_PEM);
    for (int i = 0; i < 2; ++i) {
      fd[i] = uv::Fd(fds[i]);
      tls[i] = uv::Tls::make(*uv::load_openssl().value(), context_,
                             i == 0 ? Side::kDialling : Side::kAccepting, key_bytes)
                   .value();
    }
    Status error;
    bool done[2] = {};
    for (int i = 0; i < 20 && !(done[0] && done[1]); ++i)
      done[i % 2] = tls[i % 2]->handshake(fd[i % 2].get(), &error) == uv::Tls::Outcome::kDone;
    EXPECT_TRUE(done[0] && done[1]) << error.message();
  }
  ~TlsPair() { SSL_CTX_free(context_); }

  uv::Fd fd[2];
  std::shared_ptr<uv::Tls> tls[2];

 private:
  SSL_CTX* context_;
};

TEST_F(TlsTest, EverySplitIntoPartsArrivesAlsoWhileKeysChange) {
  for (const uint64_t key_bytes : {uv::Tls::kKeyBytes, uint64_t{20000}}) {
    TlsPair pair(ca.issue("a"), key_bytes);
    const std::vector<std::byte> data = pattern(1 << 20, 5);
    std::vector<std::byte> got;
    std::vector<std::byte> room(100000);
    size_t sent = 0;
    for (unsigned round = 1; got.size() < data.size(); ++round) {
      std::vector<iovec> parts;
      size_t at = sent;
      for (unsigned i = 0; i < 20 && at < data.size(); ++i) {
        const size_t n = std::min<size_t>(data.size() - at, i % 7 == 6 ? 70000 : (round * 13 + i * 31) % 997);
        parts.push_back({const_cast<std::byte*>(data.data() + at), n});
        at += n;
      }
      const ssize_t n = pair.tls[0]->send(pair.fd[0].get(), parts.data(), parts.size());
      ASSERT_TRUE(n >= 0 || errno == EAGAIN) << pair.tls[0]->error().message();
      if (n > 0) sent += static_cast<size_t>(n);
      const ssize_t k = pair.tls[1]->receive(pair.fd[1].get(), room.data(), room.size(), false);
      ASSERT_TRUE(k >= 0 || errno == EAGAIN) << pair.tls[1]->error().message();
      if (k > 0) got.insert(got.end(), room.begin(), room.begin() + k);
    }
    EXPECT_TRUE(got == data);
  }
}

TEST_F(TlsTest, ASocketThatIsFullHoldsBackTheSender) {
  TlsPair pair(ca.issue("a"), uv::Tls::kKeyBytes);
  std::vector<std::byte> data = pattern(64 << 20, 6);
  size_t taken = 0;
  for (;;) {
    iovec part{data.data() + taken, data.size() - taken};
    const ssize_t n = pair.tls[0]->send(pair.fd[0].get(), &part, 1);
    if (n < 0) break;
    taken += static_cast<size_t>(n);
    ASSERT_LT(taken, data.size());
  }
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_GT(pair.tls[0]->unsent(), 0u);
  std::vector<std::byte> room(data.size());
  size_t got = 0;
  while (got < taken) {
    (void)pair.tls[0]->flush(pair.fd[0].get());
    const ssize_t n = pair.tls[1]->receive(pair.fd[1].get(), room.data() + got, room.size() - got, false);
    ASSERT_GT(n, 0);
    got += static_cast<size_t>(n);
  }
  EXPECT_EQ(got, taken);
  EXPECT_TRUE(std::equal(room.begin(), room.begin() + static_cast<ptrdiff_t>(got), data.begin()));
}

TEST_F(TlsTest, BufferedBytesAreGivenWithoutReadingTheSocket) {
  TlsPair pair(ca.issue("a"), uv::Tls::kKeyBytes);
  std::vector<std::byte> data = pattern(50000, 7), room(50000);
  iovec part{data.data(), data.size()};
  ASSERT_EQ(pair.tls[0]->send(pair.fd[0].get(), &part, 1), 50000);
  const int in = pair.fd[1].get();
  EXPECT_EQ(pair.tls[1]->receive(in, room.data(), 10, true), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(pair.tls[1]->receive(in, room.data(), 10, false), 10);
  const ssize_t rest = pair.tls[1]->receive(in, room.data() + 10, room.size() - 10, true);
  EXPECT_GT(rest, 0);
  EXPECT_TRUE(std::equal(room.begin(), room.begin() + 10 + rest, data.begin()));
}

}  // namespace
}  // namespace dsgd::transport::test
