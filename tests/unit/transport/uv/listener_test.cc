// Listening: addresses in use, Unix socket files, and running out of descriptors.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <fstream>

#include "support.h"
#include "transport/uv/listener.h"

namespace dsgd::transport::test {
namespace {

// A socket file that nobody listens at, as a killed process leaves it behind.
void leave_behind(const std::string& path) {
  uv::Fd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::strcpy(at.sun_path, path.c_str());
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
}

class ListenerTest : public NetworkTest {
 protected:
  const std::string path_ = "/tmp/dsgd-listener-" + std::to_string(getpid()) + ".sock";
};

TEST_F(ListenerTest, PortZeroBecomesARealPort) {
  start();
  EXPECT_GT(port_of(listener->address()), 0);
  EXPECT_EQ(listener->address().rfind("127.0.0.1:", 0), 0u);
}

TEST_F(ListenerTest, AnAddressInUseIsNamedWithARemedy) {
  start();
  auto second = client->listen(listener->address(), &door);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kAddressInUse);
  EXPECT_NE(second.status().message().find(listener->address()), std::string::npos);
  EXPECT_NE(second.status().message().find("another port"), std::string::npos);
  // And free again once the listener has gone, though connections of it live on.
  connect();
  const std::string address = listener->address();
  listener.reset();
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
  EXPECT_TRUE(client->listen(address, &door).ok());
}

TEST_F(ListenerTest, AnAddressOfAnotherMachineIsRefused) {
  start();
  auto far = client->listen("203.0.113.9:0", &door);
  ASSERT_FALSE(far.ok());
  EXPECT_EQ(far.status().code(), Code::kUnreachable);  // as in the simulation; who would be the head there dials instead
  EXPECT_NE(far.status().message().find("203.0.113.9"), std::string::npos);
}

TEST_F(ListenerTest, AStaleUnixSocketIsReplacedALiveOneIsNot) {
  leave_behind(path_);
  start("unix:" + path_);
  EXPECT_EQ(listener->address(), "unix:" + path_);
  connect();
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
  auto second = client->listen("unix:" + path_, &door);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kAddressInUse);
  on(*client, [&] { channel.reset(); });
  listener.reset();
  EXPECT_NE(::access(path_.c_str(), F_OK), 0);
}

TEST_F(ListenerTest, AFileThatIsNoSocketIsNotTouched) {
  std::ofstream(path_) << "precious";
  start();
  auto bound = client->listen("unix:" + path_, &door);
  EXPECT_FALSE(bound.ok());
  std::string content;
  std::ifstream(path_) >> content;
  EXPECT_EQ(content, "precious");
  ::unlink(path_.c_str());
}

// Workers that start at the same moment must not all believe that another one is the head, nor two that they are.
TEST_F(ListenerTest, OfTwoWhoListenAtTheSameMomentOneGetsIt) {
  constexpr int kRounds = 2000, kThreads = 2;
  start();
  const std::string port = listener->address();
  listener.reset();
  for (const std::string& address : {port, "unix:" + path_}) {
    std::atomic<int> arrived{0}, winners{0};
    std::vector<int> won(kRounds, 0);
    const auto together = [&arrived](int meeting) {
      ++arrived;
      while (arrived < meeting * kThreads) std::this_thread::yield();
    };
    const auto listen = [&](bool first) {
      for (int round = 0; round < kRounds; ++round) {
        if (first && address != port && round % 2 == 0) leave_behind(path_);
        together(3 * round + 1);
        auto bound = uv::bind_and_listen(address);
        winners += bound.ok();
        together(3 * round + 2);
        if (first) won[static_cast<size_t>(round)] = winners.exchange(0);
        if (bound.ok()) {
          bound.value().fd.reset();
          if (address != port) ::unlink(path_.c_str());
        }
        together(3 * round + 3);
      }
    };
    std::thread other(listen, false);
    listen(true);
    other.join();
    EXPECT_EQ(std::count(won.begin(), won.end(), 1), kRounds) << address;
  }
}

TEST_F(ListenerTest, AReplacedUnixSocketIsLeftToItsNewOwner) {
  start("unix:" + path_);
  ::unlink(path_.c_str());
  auto second = std::move(client->listen("unix:" + path_, &door)).value();
  listener.reset();
  EXPECT_EQ(::access(path_.c_str(), F_OK), 0) << "the second listener's file must stay";
  second.reset();
  EXPECT_NE(::access(path_.c_str(), F_OK), 0);
}

TEST_F(ListenerTest, WithoutDescriptorsItWaitsAndThenAccepts) {
  start();
  // Sockets first, so that connecting needs no descriptor.
  uv::Fd guest(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port_of(listener->address())));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  rlimit before{}, low{};
  getrlimit(RLIMIT_NOFILE, &before);
  low = before;
  low.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<uv::Fd> all;
  for (int fd; (fd = ::dup(0)) >= 0;) all.emplace_back(fd);
  ASSERT_EQ(::connect(guest.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);  // into the backlog
  ASSERT_TRUE(eventually(*server, [&] { return server->counters().accept_pauses >= 2; }));
  // It pauses ten times a second or so; a loop that spins would have counted thousands.
  const uint64_t pauses = server->counters().accept_pauses;
  const Time begin = server->loop().now();
  std::atomic<bool> never{false};
  server->loop().wait(never, begin + 300ms);
  const auto elapsed = server->loop().now() - begin;
  EXPECT_LE(server->counters().accept_pauses - pauses, static_cast<uint64_t>(elapsed / 100ms) + 2);
  all.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  connect();
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
}

TEST_F(ListenerTest, ManyWhoSayNothingDoNotShutOutWhoDoes) {
  rlimit before{}, high{};
  getrlimit(RLIMIT_NOFILE, &before);
  high = before;
  high.rlim_cur = high.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &high), 0);
  ASSERT_GE(high.rlim_cur, 2 * uv::Acceptor::kMaxGuests + 128) << "both ends are in this process";
  start();
  std::vector<uv::Fd> silent;
  for (size_t i = 0; i < uv::Acceptor::kMaxGuests; ++i) {
    silent.push_back(connect_raw(port_of(listener->address())));
    ASSERT_TRUE(silent.back());
  }
  connect();
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
  char byte;
  EXPECT_LE(::recv(silent.front().get(), &byte, 1, 0), 0) << "the oldest of them was shown out";
  silent.clear();
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(ListenerTest, ADestroyedListenerAsksItsHandlerNoMore) {
  start();
  // Connected, but without a hello yet.
  uv::Fd guest = connect_raw(port_of(listener->address()));
  ASSERT_TRUE(guest);
  EXPECT_TRUE(eventually(*server, [&] { return true; }));
  listener.reset();
  door.network = nullptr;  // on_hello would crash on it
  door.handler = nullptr;
  char byte;
  EXPECT_LE(::recv(guest.get(), &byte, 1, 0), 0) << "the guest is shown out";
}

TEST_F(ListenerTest, AListenerMayOutliveItsNetwork) {
  start();
  server.reset();
  EXPECT_FALSE(listener->address().empty());
  listener.reset();
}

}  // namespace
}  // namespace dsgd::transport::test
