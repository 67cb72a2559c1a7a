// The client of etcd against a real server.
#include "core/membership/etcd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>

#include "tests/unit/certificates.h"
#include "tests/unit/membership/etcd_server.h"
#include "transport/uv/environment.h"

namespace dsgd {
namespace {

using dsgd_test::EtcdServer;
using dsgd_test::LoopbackSocket;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using transport::Duration;
using Clock = std::chrono::steady_clock;

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

constexpr Duration kPatience = 60s;  // of a test with the real server; a busy machine needs time

TEST(EtcdAddressTest, IsReadFromText) {
  EXPECT_TRUE(is_etcd("etcd://a:1"));
  EXPECT_FALSE(is_etcd("/var/lib/etcd:1"));
  auto one = parse_etcd("etcd://10.0.0.1:2379");
  ASSERT_TRUE(one.ok());
  EXPECT_THAT(one->servers, ElementsAre("10.0.0.1:2379"));
  EXPECT_EQ(one->prefix, "dsgd");
  auto more = parse_etcd("etcd://a:1,[::1]:2,c:65535/jobs/red/");
  ASSERT_TRUE(more.ok());
  EXPECT_THAT(more->servers, ElementsAre("a:1", "[::1]:2", "c:65535"));
  EXPECT_EQ(more->prefix, "jobs/red");
  EXPECT_FALSE(more->tls);
  EXPECT_TRUE(is_etcd("etcds://a:1"));
  auto tls = parse_etcd("etcds://a:1,[::1]:2/jobs");
  ASSERT_TRUE(tls.ok());
  EXPECT_THAT(tls->servers, ElementsAre("a:1", "[::1]:2"));
  EXPECT_EQ(tls->prefix, "jobs");
  EXPECT_TRUE(tls->tls);
}

TEST(EtcdAddressTest, RefusesAServerWithoutHostOrPort) {
  for (const char* bad :
       {"etcd://",          "etcd:///x",    "etcd://a",       "etcd://a:",       "etcd://:1",
        "etcd://a:x",       "etcd://a:1,",  "etcd://,a:1",    "etcd://a:123456", "etcd://u@a:1",
        "etcd://a b:1",     "etcd://a?x:1", "etcd://a:65536", "etcd://a:0",      "etcd://::1:2379",
        "etcd://[::1:2379", "etcd://a;b:1", "http://a:1",     "ETCD://a:1",      "etcd:/a:1",
        "etcds://",         "etcds://a",    "etcds:/a:1",     "etcdss://a:1"}) {
    EXPECT_TRUE(is_etcd(bad)) << bad;
    const Status status = parse_etcd(bad).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << bad;
    EXPECT_EQ(status.parameter(), "head_state");
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr(bad), AnyOf(HasSubstr(":PORT"), HasSubstr("ports are 1..65535"))));
  }
}

// ---- the real server

class EtcdTest : public testing::Test {
 protected:
  explicit EtcdTest(bool tls = false) {
    if (tls) tls_ = ca_.issue("etcd", 3600, "IP:127.0.0.1");
    server_ = std::make_unique<EtcdServer>(tls_);
  }
  void SetUp() override {
    ASSERT_TRUE(server_->runs());
    ASSERT_TRUE(environment_->new_network("test", 1 << 20).into(&network_).ok());
    make_client({server_->address()});
    wait_for_server();
  }
  void TearDown() override {
    for (Etcd* client : {etcd_.get(), other_.get()})
      if (client) client->close();
    network_.reset();
  }

  std::unique_ptr<transport::Http> http() {
    std::unique_ptr<transport::Http> http;
    const Status status = environment_->new_http(tls_).into(&http);
    EXPECT_TRUE(status.ok()) << status.message();
    return http;
  }
  void make_client(std::vector<std::string> servers, Duration timeout = 5s) {
    if (etcd_) etcd_->close();
    other_ = std::move(etcd_);
    etcd_ = std::make_unique<Etcd>(network_->loop(), http(), std::move(servers), timeout);
  }
  void wait_for_server() {
    const auto deadline = Clock::now() + kPatience;
    while (!read("none").ok()) {
      ASSERT_FALSE(server_->has_ended()) << "the server has ended; perhaps its port was taken";
      ASSERT_LT(Clock::now(), deadline);
    }
  }

  // Calls `start(done)` on the loop and waits for its result.
  template <typename T, typename Start>
  Result<T> wait_for(Start start) {
    std::atomic<bool> over{false};
    Result<T> result = Status(Code::kInternal, "no answer");
    network_->loop().run(
        [&] {
          start([&](Result<T> answer) {
            result = std::move(answer);
            over = true;
          });
        },
        over, network_->loop().now() + kPatience);
    EXPECT_TRUE(over);
    return result;
  }
  Result<Etcd::Reading> read(const std::string& key) {
    return wait_for<Etcd::Reading>([&](auto done) { etcd_->read({key}, done); });
  }
  std::string value(const std::string& key) {
    auto reading = read(key);
    EXPECT_TRUE(reading.ok()) << reading.status().message();
    return reading.ok() && reading->values[0] ? reading->values[0]->bytes : "none";
  }
  Etcd::Lease grant(Duration ttl = 60s) {
    auto lease = wait_for<Etcd::Lease>([&](auto done) { etcd_->grant(ttl, done); });
    EXPECT_TRUE(lease.ok()) << lease.status().message();
    return lease.ok() ? lease.value() : Etcd::Lease();
  }
  Result<Etcd::Reading> create(const std::string& key, const std::string& bytes, int64_t lease,
                               const std::string& other = "other") {
    return wait_for<Etcd::Reading>([&](auto done) { etcd_->create(key, bytes, lease, other, done); });
  }
  Result<Etcd::Reading> change(const std::string& key, int64_t created, std::vector<Etcd::Change> changes) {
    return change(std::vector<Etcd::Condition>{{Of::kCreation, key, created}}, std::move(changes));
  }
  using Of = Etcd::Condition::Of;
  Result<Etcd::Reading> change(std::vector<Etcd::Condition> conditions, std::vector<Etcd::Change> changes) {
    return wait_for<Etcd::Reading>([&](auto done) { etcd_->change(conditions, changes, done); });
  }
  Result<bool> watch(const std::string& key, int64_t revision, Duration timeout = kPatience) {
    return wait_for<bool>([&](auto done) {
      etcd_->watch(key, revision, timeout,
                   [done](const Status& status) { status.ok() ? done(true) : done(status); });
    });
  }

  TestAuthority ca_;
  std::optional<transport::TlsFiles> tls_;
  std::unique_ptr<EtcdServer> server_;
  std::unique_ptr<transport::Environment> environment_ = transport::make_uv_environment();
  std::unique_ptr<transport::Network> network_;
  std::unique_ptr<Etcd> etcd_, other_;
};

TEST_F(EtcdTest, CreatesAKeyOnlyOnce) {
  const std::string bytes("\0\xff binary", 9);
  const Etcd::Lease mine = grant(), theirs = grant();
  EXPECT_NE(mine.id, theirs.id);
  auto first = create("key", bytes, mine.id);
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_TRUE(first->succeeded);
  ASSERT_TRUE(first->values[0]);
  EXPECT_EQ(first->values[0]->created, first->revision);
  EXPECT_FALSE(first->values[1]);
  auto second = create("key", "other", theirs.id, "key");
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(second->succeeded);
  for (const auto& read : second->values) {
    ASSERT_TRUE(read);
    EXPECT_EQ(read->bytes, bytes);
    EXPECT_EQ(read->lease, mine.id);
    EXPECT_EQ(read->created, first->revision);
  }
}

TEST_F(EtcdTest, ChangesKeysOnlyWhileTheFirstIsTheOneThatWasCreated) {
  const Etcd::Lease mine = grant(), theirs = grant();
  const int64_t created = create("key", "mine", mine.id)->revision;
  EXPECT_TRUE(change("key", created, {{"record", "1"}})->succeeded);
  EXPECT_TRUE(change("key", created, {{"record", "2"}, {"more", "3"}})->succeeded);
  EXPECT_EQ(value("record"), "2");
  etcd_->revoke(mine.id);
  ASSERT_TRUE(watch("key", created + 3).ok());
  EXPECT_FALSE(change("key", created, {{"record", "3"}})->succeeded) << "it is gone";
  const int64_t later = create("key", "theirs", theirs.id)->revision;
  EXPECT_FALSE(change("key", created, {{"record", "4"}})->succeeded) << "it is another one";
  EXPECT_EQ(value("record"), "2");
  EXPECT_TRUE(change("key", later, {{"record", std::nullopt}})->succeeded);
  EXPECT_EQ(value("record"), "none");
}

TEST_F(EtcdTest, ChangesAKeyOnlyIfItHasNotChangedSince) {
  const auto change_if = [&](int64_t revision, std::optional<std::string> text) {
    return change({{Of::kChange, "record", revision}}, {{"record", std::move(text)}}).value();
  };
  const Etcd::Reading first = change_if(0, "1");
  EXPECT_TRUE(first.succeeded);
  EXPECT_FALSE(change_if(0, "late").succeeded);
  const Etcd::Reading second = change_if(first.revision, "2");
  EXPECT_TRUE(second.succeeded);
  const Etcd::Reading late = change_if(first.revision, "late");
  EXPECT_FALSE(late.succeeded);
  ASSERT_EQ(late.values.size(), 1u);
  EXPECT_EQ(late.values[0]->bytes, "2");
  EXPECT_EQ(late.values[0]->created, first.revision);
  EXPECT_EQ(late.values[0]->modified, second.revision);
  EXPECT_TRUE(change_if(second.revision, std::nullopt).succeeded);
  EXPECT_EQ(value("record"), "none");
}

TEST_F(EtcdTest, ALeaseThatIsNotRenewedEndsWithItsKeys) {
  const auto begin = Clock::now();
  const Etcd::Lease lease = grant(2s);
  EXPECT_EQ(lease.ttl, 2s);
  const int64_t created = create("key", "mine", lease.id)->revision;
  ASSERT_TRUE(watch("key", created + 1).ok());
  EXPECT_GE(Clock::now() - begin, lease.ttl);
  EXPECT_EQ(value("key"), "none");
  auto renewed = wait_for<Etcd::Lease>([&](auto done) { etcd_->keep_alive(lease.id, done); });
  ASSERT_TRUE(renewed.ok()) << renewed.status().message();
  EXPECT_EQ(renewed->ttl, Duration{});
  EXPECT_EQ(create("key", "mine", lease.id).status().code(), Code::kNotFound);
}

TEST_F(EtcdTest, ALeaseThatIsRenewedGoesOn) {
  const Etcd::Lease lease = grant(2s);
  ASSERT_TRUE(create("key", "mine", lease.id).ok());
  const auto end = Clock::now() + 3s;
  while (Clock::now() < end) {
    auto renewed = wait_for<Etcd::Lease>([&](auto done) { etcd_->keep_alive(lease.id, done); });
    ASSERT_TRUE(renewed.ok());
    ASSERT_EQ(renewed->ttl, 2s);
  }
  EXPECT_EQ(value("key"), "mine");
}

TEST_F(EtcdTest, AWatchMissesNoChange) {
  const Etcd::Lease lease = grant();
  const int64_t created = create("key", "1", lease.id)->revision;
  ASSERT_TRUE(change("key", created, {{"key", "2"}}).ok());
  EXPECT_TRUE(watch("key", created + 1).ok()) << "it had changed before";
  EXPECT_EQ(watch("key", created + 2, 100ms).status().code(), Code::kTimeout) << "nothing has changed since";
}

TEST_F(EtcdTest, AServerThatWasKilledGoesOnWithItsKeys) {
  const Etcd::Lease lease = grant();
  const int64_t created = create("key", "mine", lease.id)->revision;
  server_->kill();
  const Status lost = change("key", created, {{"record", "1"}}).status();
  EXPECT_EQ(lost.code(), Code::kUnreachable);
  EXPECT_THAT(lost.message(), HasSubstr("a request to etcd at " + server_->address() + " failed"));
  server_->start();
  wait_for_server();
  EXPECT_TRUE(change("key", created, {{"record", "2"}})->succeeded);
  EXPECT_EQ(value("record"), "2");
}

TEST_F(EtcdTest, AWatchEndsWithTheServer) {
  const Etcd::Lease lease = grant();
  const int64_t created = create("key", "mine", lease.id)->revision;
  std::atomic<bool> over{false};
  Status status;
  network_->loop().post([&] {
    etcd_->watch("key", created + 1, kPatience, [&](const Status& why) {
      status = why;
      over = true;
    });
  });
  EXPECT_EQ(value("key"), "mine");  // the server has the watch before it
  server_->kill();
  EXPECT_TRUE(network_->loop().wait(over, network_->loop().now() + kPatience / 2));
  EXPECT_EQ(status.code(), Code::kUnreachable) << status.message();
}

TEST_F(EtcdTest, AsksTheNextServerAfterAFailure) {
  const LoopbackSocket closed;  // bound, and does not listen
  make_client({closed.address(), server_->address()});
  EXPECT_EQ(read("key").status().code(), Code::kUnreachable);
  EXPECT_TRUE(read("key").ok());
  EXPECT_TRUE(read("key").ok()) << "it stays there";
}

TEST_F(EtcdTest, AProgramThatTheHostStartsDoesNotInheritItsConnection) {
  ASSERT_TRUE(read("key").ok());
  int connections = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0 || peer.sin_family != AF_INET)
      continue;
    ++connections;
    EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC) << fd;
  }
  EXPECT_EQ(connections, 1);
}

TEST_F(EtcdTest, ItsHostMayBeAName) {
  make_client(
      {"no-such-host.invalid:2379", "localhost" + server_->address().substr(server_->address().rfind(':'))});
  const Status unknown = read("key").status();
  EXPECT_EQ(unknown.code(), Code::kUnreachable);
  EXPECT_THAT(unknown.message(), HasSubstr("'no-such-host.invalid'"));
  EXPECT_TRUE(read("key").ok());
}

TEST_F(EtcdTest, AServerThatDoesNotAnswerTimesOut) {
  const LoopbackSocket silent;
  ASSERT_EQ(listen(silent.fd(), 8), 0);
  make_client({silent.address()}, 100ms);
  EXPECT_EQ(read("key").status().code(), Code::kTimeout);
}

struct EtcdTlsTest : EtcdTest {
  EtcdTlsTest() : EtcdTest(true) {}
};

TEST_F(EtcdTlsTest, ReplacedFilesServeTheNextConnection) {
  TestAuthority other;
  const transport::TlsFiles files = other.issue("etcd", 3600, "IP:127.0.0.1");
  ASSERT_TRUE(read("key").ok());
  write_file(tls_->cert, read_file(files.cert));
  write_file(tls_->key, read_file(files.key));
  write_file(tls_->ca, read_file(files.ca));
  EXPECT_TRUE(read("key").ok()) << "the connection goes on";
  server_->kill();
  server_->start();
  wait_for_server();
}

TEST_F(EtcdTest, ARequestThatTheServerRefusesIsNotWorthAnother) {
  const Etcd::Lease lease = grant();
  const int64_t created = create("key", "mine", lease.id)->revision;
  const Status refused = change("key", created, {{"record", std::string(3 << 20, 'x')}}).status();
  EXPECT_EQ(refused.code(), Code::kState);
  EXPECT_THAT(refused.message(), HasSubstr("etcd at " + server_->address() + " says: "));
}

}  // namespace
}  // namespace dsgd
