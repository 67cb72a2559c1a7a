// A client and a server network in one process, and a relay between them that a test can throttle and cut.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/transport/borrowed_sink.h"
#include "transport/network.h"
#include "transport/uv/environment.h"
#include "transport/uv/fd.h"

namespace dsgd::transport::test {

using namespace std::chrono_literals;

inline constexpr Duration kLong = 20s;  // a test that waits longer has failed

// Tests change handlers and read what these have noted while the message that orders the two went through a
// socket, which a thread sanitizer does not follow. Passing through one lock on both sides says so in the
// language's own terms.
class Ordered {
 public:
  Ordered() { pass(); }
  ~Ordered() { pass(); }

 private:
  static void pass() {
    static std::mutex mutex;
    std::lock_guard lock(mutex);
  }
};

// Runs `body` on the loop and waits until it has.
inline void on(Network& network, std::function<void()> body) {
  Ordered ordered;
  std::atomic<bool> done{false};
  network.loop().run(
      [&] {
        body();
        done.store(true, std::memory_order_release);
      },
      done, network.loop().now() + kLong);
  ASSERT_TRUE(done);
}

// Starts something on the loop that ends with `finish`, and waits for its end.
template <typename T>
T await(Network& network, std::function<void(std::function<void(T)> finish)> begin) {
  Ordered ordered;
  struct State {
    std::atomic<bool> done{false};
    std::optional<T> value;
    int times = 0;
  };
  auto state = std::make_shared<State>();
  network.loop().run(
      [&] {
        begin([state](T value) {
          if (++state->times == 1) state->value.emplace(std::move(value));
          state->done.store(true, std::memory_order_release);
        });
      },
      state->done, network.loop().now() + kLong);
  if (!state->done) throw std::runtime_error("nothing came within the test's time");
  return std::move(*state->value);
}

// Waits, on the network's loop, until `condition` (looked at on the loop) holds.
inline bool eventually(Network& network, std::function<bool()> condition) {
  Ordered ordered;
  struct Watch {
    std::atomic<bool> done{false};
    std::function<void()> look;
  };
  auto watch = std::make_shared<Watch>();
  Loop& loop = network.loop();
  const Time end = loop.now() + kLong;
  std::weak_ptr<Watch> weak = watch;
  watch->look = [weak, condition, &loop, end] {
    auto self = weak.lock();
    if (!self) return;
    if (condition()) {
      self->done.store(true, std::memory_order_release);
    } else if (loop.now() < end) {
      loop.schedule(loop.now() + 1ms, [self] { self->look(); });
    }
  };
  loop.run([watch] { watch->look(); }, watch->done, end);
  return watch->done;
}

inline std::vector<std::byte> pattern(size_t n, unsigned seed) {
  std::vector<std::byte> data(n);
  uint32_t x = seed * 2654435761u + 1;
  for (auto& b : data) b = static_cast<std::byte>((x = x * 1664525u + 1013904223u) >> 24);
  return data;
}

// A sink that the test owns; TestHandler gives the channel a handle of it.
class OwnedSink {
 public:
  virtual ~OwnedSink() = default;
  virtual std::byte* destination(size_t offset, size_t n) = 0;
  virtual void take(size_t offset, std::span<const std::byte> piece) = 0;
};

class CopySink final : public OwnedSink {
 public:
  enum class Mode { kPlace, kPieces };
  CopySink(size_t n, Mode mode) : data(n), mode_(mode) {}
  std::byte* destination(size_t offset, size_t) override {
    return mode_ == Mode::kPlace ? data.data() + offset : nullptr;
  }
  void take(size_t offset, std::span<const std::byte> piece) override {
    pieces.push_back({offset, piece.size()});
    aligned = aligned && reinterpret_cast<uintptr_t>(piece.data()) % 64 == 0;
    std::memcpy(data.data() + offset, piece.data(), piece.size());
  }
  std::vector<std::byte> data;
  std::vector<std::pair<size_t, size_t>> pieces;
  bool aligned = true;

 private:
  const Mode mode_;
};

// A handler made of functions; what is not set answers at once.
struct TestHandler : ServerHandler {
  std::function<void(ServerChannel&, Message, Responder)> call =
      [](ServerChannel&, Message, Responder respond) { respond(Message(Empty{})); };
  std::function<OwnedSink*(ServerChannel&, const BulkHeader&, size_t)> bulk =
      [](ServerChannel&, const BulkHeader&, size_t) -> OwnedSink* { return nullptr; };
  std::function<void(const BulkHeader&)> landed = [](const BulkHeader&) {};
  std::function<void(ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt>)> bulk_end =
      [](ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt> receipt) { receipt->finish({}); };

  Status on_open(ServerChannel& channel) override {
    Ordered ordered;
    channels.push_back(&channel);
    return {};
  }
  void on_call(ServerChannel& channel, Message request, Responder respond) override {
    Ordered ordered;
    call(channel, std::move(request), std::move(respond));
  }
  std::unique_ptr<BulkSink> on_bulk(ServerChannel& channel, const BulkHeader& header, size_t n) override {
    Ordered ordered;
    OwnedSink* const sink = bulk(channel, header, n);
    if (!sink) return nullptr;
    return std::make_unique<BorrowedSink<OwnedSink>>(*sink, [this, header] {
      Ordered landing;
      landed(header);
    });
  }
  void on_bulk_end(ServerChannel& channel, const BulkHeader& header,
                   std::unique_ptr<BulkReceipt> receipt) override {
    Ordered ordered;
    bulk_end(channel, header, std::move(receipt));
  }
  void on_close(ServerChannel& channel, const Status& why) override {
    Ordered ordered;
    std::erase(channels, &channel);
    closes.push_back(why);
  }
  // On the loop only.
  std::vector<ServerChannel*> channels;
  std::vector<Status> closes;
};

struct OpenDoor : AcceptHandler {
  Network* network = nullptr;
  ServerHandler* handler = nullptr;
  std::string secret = "secret";
  const std::string& token() const override { return secret; }
  Result<Decision> on_hello(const Hello&, const std::string&) override { return Decision{network, handler}; }
  Status on_wrong_token(const Hello&, const std::string&) override {
    return Status(Code::kUnauthorized, "the token is wrong").with_rank(3, "nodeb").with_operation("join");
  }
};

inline DialOptions dial_options(Network& network) {
  DialOptions options;
  options.hello.job = "test";
  options.hello.role = Role::kPeer;  // which may send anything
  options.token = "secret";
  options.deadline = network.loop().now() + kLong;
  return options;
}

inline Result<std::unique_ptr<ClientChannel>> dial(Network& network, const std::string& address,
                                                   DialOptions options) {
  using R = Result<std::unique_ptr<ClientChannel>>;
  auto holder = await<std::shared_ptr<R>>(network, [&](std::function<void(std::shared_ptr<R>)> finish) {
    network.dial(address, options, [finish](R result) { finish(std::make_shared<R>(std::move(result))); });
  });
  return std::move(*holder);
}

inline Result<Message> call(Network& network, ClientChannel& channel, Message request,
                            Time deadline = kNever) {
  return await<Result<Message>>(network, [&](std::function<void(Result<Message>)> finish) {
    channel.call(std::move(request), deadline, finish);
  });
}

inline Status send(Network& network, ClientChannel& channel, const BulkHeader& header,
                   std::span<const std::byte> data) {
  return await<Status>(network,
                       [&](std::function<void(Status)> finish) { channel.send(header, data, finish); });
}

class NetworkTest : public ::testing::Test {
 protected:
  void revoke_half_sent_span(size_t nbytes);  // through a Relay; ends the connection
  void start(const std::string& address = "127.0.0.1:0", size_t receive_memory = 64 << 20) {
    auto env = make_uv_environment();
    server = std::move(env->new_network("test-server", receive_memory)).value();
    client = std::move(env->new_network("test-client", 64 << 20)).value();
    door.network = server.get();
    door.handler = &handler;
    auto bound = server->listen(address, &door);
    // Ends the test, which could not go on.
    if (!bound.ok()) throw std::runtime_error(bound.status().message());
    listener = std::move(bound).value();
  }
  void connect() { connect(dial_options(*client), listener->address()); }
  void connect(DialOptions options, const std::string& address) {
    auto dialled = dial(*client, address, std::move(options));
    if (!dialled.ok()) throw std::runtime_error(dialled.status().message());
    channel = std::move(dialled).value();
  }
  // The last line of a test whose buffers or variables the channel may still use: nothing of it comes
  // afterwards.
  void end() {
    if (channel) on(*client, [this] { channel.reset(); });
    if (server) on(*server, [] {});
  }
  void TearDown() override {
    end();
    listener.reset();
    client.reset();
    server.reset();
  }

  TestHandler handler;
  OpenDoor door;
  std::unique_ptr<Network> server, client;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<ClientChannel> channel;
};

inline int port_of(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

inline uv::Fd connect_raw(int port) {
  uv::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) fd.reset();
  return fd;
}

// As ::recv, going on after an interruption: a socket with a time limit does not by itself. Nobody need send
// a signal for that: libuv from 1.45 on uses io_uring, whose end interrupts system calls of the threads that
// have driven its loop.
inline ssize_t receive_raw(const uv::Fd& fd, void* buffer, size_t n, int flags = 0) {
  for (;;) {
    const ssize_t got = ::recv(fd.get(), buffer, n, flags);
    if (got >= 0 || errno != EINTR) return got;
  }
}

// Holds a free port of the loopback interface, so that the system gives it to no other program. With
// SO_REUSEADDR, which dsgd sets, others may listen there.
inline uv::Fd hold_port(int* port) {
  uv::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t n = sizeof at;
  const int yes = 1;
  EXPECT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), n), 0);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &n), 0);
  *port = ntohs(at.sin_port);
  return fd;
}

inline uv::Fd listen_raw(int* port) {
  uv::Fd fd = hold_port(port);
  EXPECT_EQ(::listen(fd.get(), 8), 0);
  return fd;
}

// Carries bytes between one client and a server, in both directions, towards the server no more than `limit`
// bytes.
class Relay {
 public:
  explicit Relay(int target_port) : target_port_(target_port) {
    listen_ = listen_raw(&port_);
    thread_ = std::thread([this] { main(); });
  }
  ~Relay() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void limit(int64_t bytes) { limit_ = bytes; }
  int64_t forwarded() const { return forwarded_; }
  std::pair<std::string, std::string> recorded() {  // towards the server, and back
    std::lock_guard lock(mutex_);
    return {to_server_, to_client_};
  }
  void cut(bool reset) { cut_ = reset ? 2 : 1; }  // reset: RST; else FIN, as when a process dies
  // One bit of the byte with this index, counted from the beginning of the stream, arrives flipped. Before
  // the client connects.
  struct Flip {
    bool to_server = true;
    int64_t byte = -1;
    int bit = 0;
  };
  void flip(Flip flip) { flip_ = flip; }
  int64_t returned() const { return returned_; }  // bytes towards the client

 private:
  void main() {
    uv::Fd client(::accept(listen_.get(), nullptr, nullptr));
    uv::Fd server = connect_raw(target_port_);
    std::vector<char> buffer(16384);
    while (!stop_) {
      if (cut_ == 2) {
        linger hard{1, 0};
        setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        setsockopt(server.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
      }
      if (cut_) break;
      const int64_t room = limit_ - forwarded_;
      pollfd fds[2] = {{client.get(), static_cast<short>(room > 0 ? POLLIN : 0), 0},
                       {server.get(), POLLIN, 0}};
      if (::poll(fds, 2, 1) <= 0) continue;
      if (fds[0].revents & POLLIN) {
        const ssize_t n = ::recv(client.get(), buffer.data(), std::min<int64_t>(room, buffer.size()), 0);
        if (n <= 0) break;
        flip_in(true, buffer.data(), forwarded_, n);
        record(to_server_, buffer.data(), n);
        if (!all(server.get(), buffer.data(), n)) break;
        forwarded_ += n;
      }
      if (fds[1].revents & POLLIN) {
        const ssize_t n = ::recv(server.get(), buffer.data(), buffer.size(), 0);
        if (n <= 0) break;
        flip_in(false, buffer.data(), returned_, n);
        record(to_client_, buffer.data(), n);
        if (!all(client.get(), buffer.data(), n)) break;
        returned_ += n;
      }
    }
  }
  void flip_in(bool to_server, char* data, int64_t begin, ssize_t n) {
    if (to_server != flip_.to_server || flip_.byte < begin || flip_.byte >= begin + n) return;
    data[flip_.byte - begin] ^= static_cast<char>(1 << flip_.bit);
  }
  void record(std::string& to, const char* data, ssize_t n) {
    std::lock_guard lock(mutex_);
    constexpr size_t kMost = 1 << 16;
    to.append(data, std::min<size_t>(static_cast<size_t>(n), kMost - std::min(kMost, to.size())));
  }
  static bool all(int fd, const char* data, ssize_t n) {
    while (n > 0) {
      const ssize_t k = ::send(fd, data, n, MSG_NOSIGNAL);
      if (k <= 0) return false;
      data += k;
      n -= k;
    }
    return true;
  }

  const int target_port_;
  std::mutex mutex_;
  std::string to_server_, to_client_;
  int port_ = 0;
  uv::Fd listen_;
  std::atomic<int64_t> limit_{INT64_MAX}, forwarded_{0}, returned_{0};
  Flip flip_;  // before the thread has a client
  std::atomic<int> cut_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Sends a span, of which the relay holds back the end, revokes it, and writes over it: what arrives is what
// was sent.
inline void NetworkTest::revoke_half_sent_span(size_t nbytes) {
  Relay relay(port_of(listener->address()));
  connect(dial_options(*client), relay.address());
  ASSERT_TRUE(call(*client, *channel, Message(Empty{})).ok());
  std::vector<std::byte> data = pattern(nbytes, 3);
  const std::vector<std::byte> original = data;
  CopySink sink(data.size(), CopySink::Mode::kPlace);
  handler.bulk = [&](ServerChannel&, const BulkHeader&, size_t) -> OwnedSink* { return &sink; };
  bool complete = false;
  handler.landed = [&](const BulkHeader&) { complete = true; };
  relay.limit(relay.forwarded() + 300000);
  BulkHeader header;
  header.operation = 9;
  on(*client, [&] { channel->send(header, data, [](const Status&) {}); });
  constexpr std::ptrdiff_t kArrives = 200002;
  ASSERT_TRUE(eventually(
      *server, [&] { return std::equal(data.begin(), data.begin() + kArrives, sink.data.begin()); }));
  on(*client, [&] {
    channel->revoke(9);
    std::fill(data.begin(), data.end(), std::byte{0});
  });
  relay.limit(INT64_MAX);
  ASSERT_TRUE(eventually(*server, [&] { return complete || !handler.closes.empty(); }));
  EXPECT_TRUE(complete) << (handler.closes.empty() ? "" : handler.closes[0].message());
  EXPECT_TRUE(sink.data == original);
  EXPECT_TRUE(call(*client, *channel, Message(Empty{})).ok());
  end();
}

}  // namespace dsgd::transport::test
