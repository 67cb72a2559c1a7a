// The promises of network.h and loop.h, as tests that every implementation passes. An implementation adds a
// program of the suite's sources and one file of its own that instantiates it (see sim_instance.cc):
//
//   INSTANTIATE_TEST_SUITE_P(Sim, Conformance, testing::Values(TransportUnderTest{"seed1", [] { return ...;
//   }}), name_of);
//
// Rules that the tests rely on beside the headers' words:
//   - calls do not wait behind chunks that wait for their window;
//   - one connection may hold one pooled chunk even when `receive_memory` is used up, else it waits without
//   reading.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/network.h"

namespace dsgd::transport {

using namespace std::chrono_literals;

// Longer than anything here takes; reached only by a failure.
inline constexpr Duration kPatience = 30s;

// Two processes (environments), or what stands for them.
class TestWorld {
 public:
  virtual ~TestWorld() = default;
  virtual Environment& environment(int which) = 0;  // 0 dials, 1 listens
  virtual std::string listen_address() = 0;         // port 0, reachable from environment 0
  virtual std::string unix_path() = 0;  // "/tmp/…", free, in both environments the same file system; "": none
};

struct TransportUnderTest {
  std::string name;
  std::function<std::unique_ptr<TestWorld>()> make;
};
inline void PrintTo(const TransportUnderTest& transport, std::ostream* out) { *out << transport.name; }
inline std::string name_of(const testing::TestParamInfo<TransportUnderTest>& info) { return info.param.name; }

// Runs `body` on the loop and waits for its end.
template <typename F>
void on(Network& network, F&& body) {
  std::atomic<bool> done{false};
  network.loop().post([&] {
    body();
    done = true;
  });
  if (network.loop().wait(done, network.loop().now() + kPatience)) return;
  std::fprintf(stderr, "the loop does not run its tasks\n");
  std::abort();
}

// Waits until the predicate, looked at on the loop, holds; false when it does not in kPatience.
bool until(Network& network, const std::function<bool()>& predicate);

// Pattern bytes, different for each seed.
std::vector<std::byte> bytes_of(size_t n, uint64_t seed);

// A sink that asks for pieces, places or both, and checks what the header says of them.
class TestSink {
 public:
  enum class Mode { kPlace, kTake, kMixed };
  TestSink(Mode mode, size_t nbytes) : mode_(mode), data_(nbytes) {}
  std::byte* destination(size_t offset, size_t n);
  void take(size_t offset, std::span<const std::byte> piece);

  const std::vector<std::byte>& data() const { return data_; }
  int uses() const { return uses_; }
  std::function<void()> on_use;  // after each destination() or take()

 private:
  void check(size_t offset, size_t n);
  const Mode mode_;
  std::vector<std::byte> data_;
  size_t next_ = 0;
  int uses_ = 0;
};

// The accepting side: remembers what comes. Its members are touched on the serving network's loop.
class Recorder : public ServerHandler {
 public:
  struct Chunk {
    BulkHeader header;
    std::vector<std::byte> data;
    bool landed = false;
  };
  Status on_open(ServerChannel& channel) override;
  void on_call(ServerChannel& channel, Message request, Responder respond) override;
  std::unique_ptr<BulkSink> on_bulk(ServerChannel& channel, const BulkHeader& header, size_t nbytes) override;
  void on_bulk_end(ServerChannel& channel, const BulkHeader& header,
                   std::unique_ptr<BulkReceipt> receipt) override;
  void on_close(ServerChannel& channel, const Status& why) override;

  // Reactions of the server; the defaults answer Empty, receive into pooled memory and finish with OK.
  std::function<void(ServerChannel&, Message, Responder)> answer;
  std::function<TestSink*(ServerChannel&, const BulkHeader&, size_t)> choose_sink;
  std::function<void(ServerChannel&, const BulkHeader&, std::unique_ptr<BulkReceipt>)> receive;

  Network* network = nullptr;  // where its callbacks must run
  std::vector<ServerChannel*> channels;
  std::vector<std::string> order;  // "call 3", "chunk 5"
  std::vector<Chunk> chunks;
  std::vector<size_t> asked;  // sizes given to on_bulk
  std::vector<Status> closed;
  std::vector<Hello> hellos;
  Status refusal;  // what on_open returns
  int off_loop = 0;

 private:
  void check_loop() { off_loop += network != nullptr && !network->loop().on_loop() ? 1 : 0; }
};

class Acceptor final : public AcceptHandler {
 public:
  const std::string& token() const override { return secret; }
  Result<Decision> on_hello(const Hello&, const std::string&) override {
    if (!verdict.ok()) return verdict;
    return Decision{network, handler};
  }
  Status on_wrong_token(const Hello& hello, const std::string&) override {
    return Status(Code::kUnauthorized, "worker '" + hello.worker_id + "' has another token");
  }
  std::string secret;
  Network* network = nullptr;
  ServerHandler* handler = nullptr;
  Status verdict;
};

// A dialled channel with what its callbacks said. Used on the dialling network's loop.
struct Client {
  std::unique_ptr<ClientChannel> channel;
  std::vector<Status> closed;
  std::vector<std::pair<uint64_t, Status>> refused;
};

class Conformance : public testing::TestWithParam<TransportUnderTest> {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Dials `address` (default: the listener's).
  std::shared_ptr<Client> dial(DialOptions options = {}, std::string address = {});
  Status dial_error(const std::string& address, DialOptions options = {});
  // A call to and fro: what was sent before it has arrived.
  void ping(Client& client);
  Status call(Client& client, Message request);
  // Sends a chunk; its end is added to `ends` (made on the dialling loop).
  void send(Client& client, uint64_t operation, std::span<const std::byte> data, std::vector<Status>* ends);
  // Waits, on either side, for a condition on what its loop touches.
  bool client_until(const std::function<bool()>& predicate) { return until(*dialling_, predicate); }
  bool server_until(const std::function<bool()>& predicate) { return until(*serving_, predicate); }
  // Closes a channel on its loop, as its owner does before the network ends.
  void drop(std::shared_ptr<Client>& client);

  // A sink that lives as long as the networks.
  TestSink* sink(TestSink::Mode mode, size_t nbytes) {
    return sinks_.emplace_back(std::make_unique<TestSink>(mode, nbytes)).get();
  }

  std::unique_ptr<TestWorld> world_;
  std::vector<std::unique_ptr<TestSink>> sinks_;
  Recorder recorder_;
  Acceptor acceptor_;
  std::unique_ptr<Network> serving_, dialling_;
  std::unique_ptr<Listener> listener_;
  std::vector<std::shared_ptr<Client>> clients_;
};

}  // namespace dsgd::transport
