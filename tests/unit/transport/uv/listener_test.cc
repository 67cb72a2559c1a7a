// Listening: addresses in use, Unix socket files, and running out of descriptors.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>

#include "support.h"
#include "tests/unit/sanitizer.h"
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

// While it lives, the process has no file descriptor left.
class NoDescriptors {
 public:
  NoDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit low = before_;
    low.rlim_cur = 256;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (int fd; (fd = ::dup(0)) >= 0;) all_.emplace_back(fd);
  }
  ~NoDescriptors() { end(); }
  void end() {
    all_.clear();
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<uv::Fd> all_;
};

class ListenerTest : public NetworkTest {
 protected:
  // Takes no descriptor: the socket is the caller's.
  int connect_to_listener(const uv::Fd& socket) const {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port_of(listener->address())));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to);
  }

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

// Of two processes with head = localhost:PORT one becomes the head, not one on each loopback address.
TEST_F(ListenerTest, ANameOfSeveralAddressesIsListenedOnOnce) {
  start("localhost:0");
  const std::string port = std::to_string(port_of(listener->address()));
  auto second = client->listen("localhost:" + port, &door);
  ASSERT_FALSE(second.ok()) << "it listens on " << second.value()->address();
  EXPECT_EQ(second.status().code(), Code::kAddressInUse);
}

TEST_F(ListenerTest, AnAddressOfAnotherMachineIsRefused) {
  start();
  auto far = client->listen("203.0.113.9:0", &door);
  ASSERT_FALSE(far.ok());
  // As in the simulation; who would be the head there dials instead.
  EXPECT_EQ(far.status().code(), Code::kUnreachable);
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

// Workers that start at the same moment must not all believe that another one is the head, nor two that they
// are.
TEST_F(ListenerTest, OfTwoWhoListenAtTheSameMomentOneGetsIt) {
  constexpr int kThreads = 2;
  const int rounds = 2000 / dsgd_test::one_of(4, 10);
  int port = 0;
  const uv::Fd held = hold_port(&port);
  for (const std::string& address : {"127.0.0.1:" + std::to_string(port), "unix:" + path_}) {
    std::atomic<int> arrived{0}, winners{0};
    std::vector<int> won(static_cast<size_t>(rounds), 0);
    const bool is_file = address.starts_with("unix:");
    const auto together = [&arrived](int meeting) {
      ++arrived;
      while (arrived < meeting * kThreads) std::this_thread::yield();
    };
    const auto listen = [&](bool first) {
      for (int round = 0; round < rounds; ++round) {
        if (first && is_file && round % 2 == 0) leave_behind(path_);
        together(3 * round + 1);
        auto bound = uv::bind_and_listen(address, std::make_shared<uv::ResolveLimit>());
        winners += bound.ok();
        together(3 * round + 2);
        if (first) won[static_cast<size_t>(round)] = winners.exchange(0);
        if (bound.ok()) {
          bound.value().fd.reset();
          if (is_file) ::unlink(path_.c_str());
        }
        together(3 * round + 3);
      }
    };
    std::thread other(listen, false);
    listen(true);
    other.join();
    EXPECT_EQ(std::count(won.begin(), won.end(), 1), rounds) << address;
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
  uv::Fd queued(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  NoDescriptors exhausted;
  ASSERT_EQ(connect_to_listener(queued), 0);  // into the backlog
  ASSERT_TRUE(eventually(*server, [&] { return server->counters().accept_pauses >= 2; }));
  // It pauses ten times a second or so; a loop that spins would have counted thousands.
  const uint64_t pauses = server->counters().accept_pauses;
  const Time begin = server->loop().now();
  std::atomic<bool> never{false};
  server->loop().wait(never, begin + 300ms);
  const auto elapsed = server->loop().now() - begin;
  EXPECT_LE(server->counters().accept_pauses - pauses, static_cast<uint64_t>(elapsed / 100ms) + 2);
  exhausted.end();
  connect();
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
}

TEST_F(ListenerTest, TheOldestSilentConnectionMakesRoomForANewOne) {
  start();
  std::vector<uv::Fd> silent;
  for (int64_t i = 0; i < uv::Acceptor::kMaxPending; ++i) {
    silent.push_back(connect_raw(port_of(listener->address())));
    ASSERT_TRUE(silent.back());
  }
  connect();
  EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
  char byte;
  EXPECT_LE(::recv(silent.front().get(), &byte, 1, 0), 0) << "the oldest one was closed";
}

TEST_F(ListenerTest, AConnectionInItsHandshakeIsNotEvictedBeforeSilentOnes) {
  start();
  uv::Fd speaking = connect_raw(port_of(listener->address()));
  const std::vector<uint8_t> beginning = {0, 0, 0, 0};  // half a word: the hello goes on
  ASSERT_EQ(::send(speaking.get(), beginning.data(), beginning.size(), 0), 4);
  std::vector<uv::Fd> silent;
  for (int64_t i = 0; i < 3 * uv::Acceptor::kMaxPending; ++i) {
    silent.push_back(connect_raw(port_of(listener->address())));
    ASSERT_TRUE(silent.back());
  }
  connect();  // all of them have been accepted before
  char byte;
  EXPECT_EQ(::recv(speaking.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_TRUE(errno == EAGAIN || errno == EWOULDBLOCK) << std::strerror(errno);
}

// A child process that has opened `count` silent connections, without the descriptors of this one. It makes
// system calls only.
class SilentFlood {
 public:
  SilentFlood(int port, int count) {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      rlimit high{};
      ::getrlimit(RLIMIT_NOFILE, &high);
      high.rlim_cur = high.rlim_max;
      ::setrlimit(RLIMIT_NOFILE, &high);
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(static_cast<uint16_t>(port));
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      for (int i = 0; i < count; ++i) {
        const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) ::_exit(1);
      }
      (void)!::write(ready[1], "!", 1);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte;
    done_ = ::read(ready[0], &byte, 1) == 1;
    ::close(ready[0]);
  }
  ~SilentFlood() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  bool done() const { return done_; }

 private:
  pid_t pid_ = -1;
  bool done_ = false;
};

TEST_F(ListenerTest, SilentConnectionsLeaveTheDescriptorsToTheProcess) {
  rlimit before{}, low{};
  getrlimit(RLIMIT_NOFILE, &before);
  low = before;
  low.rlim_cur = 1024;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  start();
  const int64_t free_before = make_uv_environment()->free_descriptors();
  {
    SilentFlood flood(port_of(listener->address()), 1500);
    ASSERT_TRUE(flood.done());
    connect();  // behind all of them in the backlog
    EXPECT_TRUE(call(*client, *channel, Renew{}).ok());
    EXPECT_GE(make_uv_environment()->free_descriptors(), free_before - uv::Acceptor::kMaxPending - 8);
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

// The job's own connections come later; pending ones must not have taken what they need.
TEST_F(ListenerTest, ReservedDescriptorsLowerTheNumberOfPendingConnections) {
  rlimit before{}, low{};
  getrlimit(RLIMIT_NOFILE, &before);
  low = before;
  low.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  start();
  const int64_t free = make_uv_environment()->free_descriptors();
  ListenOptions options;
  options.reserved_descriptors = free - 20;
  auto reserving = std::move(server->listen("127.0.0.1:0", &door, options)).value();
  {
    SilentFlood flood(port_of(reserving->address()), 100);
    ASSERT_TRUE(flood.done());
    connect(dial_options(*client), reserving->address());
    EXPECT_GE(make_uv_environment()->free_descriptors(), options.reserved_descriptors);
  }
  on(*client, [&] { channel.reset(); });
  reserving.reset();
  setrlimit(RLIMIT_NOFILE, &before);
}

// The process has used up its descriptors while a pending connection held one.
TEST_F(ListenerTest, WithoutDescriptorsASilentConnectionMakesRoom) {
  start();
  uv::Fd silent = connect_raw(port_of(listener->address()));
  ASSERT_TRUE(eventually(*server, [&] { return server->counters().accepted == 1; }));
  uv::Fd next(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  NoDescriptors exhausted;
  ASSERT_EQ(connect_to_listener(next), 0);
  EXPECT_TRUE(eventually(*server, [&] { return server->counters().accepted == 2; }));
  char byte;
  EXPECT_LE(::recv(silent.get(), &byte, 1, 0), 0) << "the silent connection was closed";
}

TEST_F(ListenerTest, ADestroyedListenerAsksItsHandlerNoMore) {
  start();
  // Connected, but without a hello yet.
  uv::Fd pending = connect_raw(port_of(listener->address()));
  ASSERT_TRUE(pending);
  EXPECT_TRUE(eventually(*server, [&] { return true; }));
  listener.reset();
  door.network = nullptr;  // on_hello would crash on it
  door.handler = nullptr;
  char byte;
  EXPECT_LE(::recv(pending.get(), &byte, 1, 0), 0) << "the pending connection was closed";
}

TEST_F(ListenerTest, AListenerMayOutliveItsNetwork) {
  start();
  server.reset();
  EXPECT_FALSE(listener->address().empty());
  listener.reset();
}

}  // namespace
}  // namespace dsgd::transport::test
