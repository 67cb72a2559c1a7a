// All that a peer may write to a socket: the hello, then RPC with calls and pushes whose payload lands. A
// real listener of the libuv network reads it; whatever comes, the connection ends and the next one works.
//
// The first byte says whether a right handshake is put before the input, so that the fuzzer need not find
// one, and whether that asks for checksums. The input is then a list of sections, two bytes of length before
// each, and each is sent with its CRC32C behind it, or with a wrong one where the length's highest bit is
// set.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/authentication.h"
#include "transport/base/crc32c.h"
#include "transport/network.h"
#include "transport/schema/codec.h"
#include "transport/uv/environment.h"

using namespace dsgd;
using namespace dsgd::transport;

namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

constexpr size_t kReceiveMemory = 4 << 20, kLargestFrame = 64 << 20;

// Lands chunks up to its size, in place or in pieces by turns, with all bounds checked by the sanitizer.
class Sink final : public BulkSink {
 public:
  explicit Sink(size_t nbytes) : data_(new std::byte[nbytes]), nbytes_(nbytes) {}
  std::byte* destination(size_t offset, size_t n) override {
    if (offset > nbytes_ || n > nbytes_ - offset) fail("a destination beyond the chunk");
    return ++turn_ % 2 == 0 ? data_.get() + offset : nullptr;
  }
  void take(size_t offset, std::span<const std::byte> piece) override {
    if (offset > nbytes_ || piece.size() > nbytes_ - offset) fail("a piece beyond the chunk");
    std::copy(piece.begin(), piece.end(), data_.get() + offset);
  }
  void landed() override {
    if (std::exchange(landed_, true)) fail("a chunk landed twice");
  }

 private:
  const std::unique_ptr<std::byte[]> data_;
  const size_t nbytes_;
  int turn_ = 0;
  bool landed_ = false;
};

class Handler final : public ServerHandler {
 public:
  Status on_open(ServerChannel&) override {
    ++open;
    return {};
  }
  void on_call(ServerChannel& channel, Message request, Responder respond) override {
    if (std::holds_alternative<Goodbye>(request)) return channel.close();
    if (std::holds_alternative<Watch>(request)) return;  // dropped
    respond(std::move(request));
  }
  std::unique_ptr<BulkSink> on_bulk(ServerChannel& channel, const BulkHeader& header,
                                    size_t nbytes) override {
    if (header.operation % 4 == 3) channel.discard(header.operation, Status(Code::kAborted, "fuzz"));
    if (header.operation % 4 == 0 || nbytes > kLargest) return nullptr;
    return std::make_unique<Sink>(nbytes);
  }
  void on_bulk_end(ServerChannel& channel, const BulkHeader& header,
                   std::unique_ptr<BulkReceipt> receipt) override {
    uint64_t sum = 0;
    for (std::byte b : receipt->data()) sum += static_cast<uint64_t>(b);
    if (sum % 7 == 1) return;  // dropped
    receipt->finish(sum % 7 == 2 ? Status(Code::kMismatch, "fuzz") : Status());
    if (header.count == 99) channel.discard(header.operation, Status(Code::kAborted, "fuzz"));
  }
  void on_close(ServerChannel&, const Status&) override { --open; }
  std::atomic<int> open{0};

 private:
  static constexpr size_t kLargest = 1 << 20;
};

class Server final : public AcceptHandler {
 public:
  Server() {
    environment_ = make_uv_environment();
    auto network = environment_->new_network("fuzz", kReceiveMemory);
    if (!network.ok()) fail(network.status().message().c_str());
    network_ = std::move(network).value();
    auto listener = network_->listen("127.0.0.1:0", this);
    if (!listener.ok()) fail(listener.status().message().c_str());
    listener_ = std::move(listener).value();
    const std::string address = listener_->address();
    port_ = static_cast<uint16_t>(std::atoi(address.c_str() + address.rfind(':') + 1));
    Hello hello;
    hello_ = encode(hello);
    hello.checksum = true;
    summed_hello_ = encode(hello);
  }
  const std::string& token() const override { return token_; }
  Status on_wrong_token(const Hello&, const std::string&) override {
    return Status(Code::kUnauthorized, "fuzz");
  }
  Result<Decision> on_hello(const Hello& hello, const std::string&) override {
    if (hello.rank == 5) return Status(Code::kUnauthorized, "fuzz");
    return Decision{network_.get(), &handler_};
  }

  // `checksums`: only with a greeting.
  void feed(bool greet, bool checksums, const uint8_t* data, size_t size) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) fail("no socket");
    // Thousands of connections a second would leave one source address no port that is not in TIME_WAIT.
    const int later = 1;
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &later, sizeof later);
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + ++connections_ % 10000);
    if (::bind(fd, reinterpret_cast<sockaddr*>(&from), sizeof from) != 0) fail("no source address");
    timeval patience{15, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port_);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int problem = ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 ? 0 : errno;
    if (problem == EINTR) {  // libFuzzer's alarm; the connection is made all the same
      pollfd made{fd, POLLOUT, 0};
      while (::poll(&made, 1, 15000) < 0 && errno == EINTR) continue;
      socklen_t length = sizeof problem;
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &length);
    }
    if (problem != 0)
      fail(("the listener takes no connection: " + std::string(std::strerror(problem))).c_str());
    bool open = true;
    std::vector<uint8_t> summed;
    if (greet && checksums) {
      summed = with_checksums(data, size);
      data = summed.data(), size = summed.size();
    }
    if (greet) open = this->greet(fd, checksums ? summed_hello_ : hello_);
    if (open) open = write(fd, data, size);
    ::shutdown(fd, SHUT_WR);
    // The server must end the connection: it has read all there is.
    uint8_t buffer[4096];
    for (;;) {
      const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
      if (n == 0 || (n < 0 && errno == ECONNRESET)) break;
      // libFuzzer's alarm, which a socket with a time limit does not survive.
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("the connection does not end");
    }
    ::close(fd);
    const auto counters = network_->counters();
    // A connection may hold one frame of the largest size whatever receive_memory says, and there is one at a
    // time.
    if (counters.pooled_peak > kReceiveMemory + kLargestFrame) fail("pooled memory is not bounded");
  }

 private:
  // A right handshake, up to the verdict.
  bool greet(int fd, const std::vector<uint8_t>& hello) {
    if (!write(fd, hello.data(), hello.size())) return false;
    std::vector<uint8_t> bytes(encode(Challenge()).size());
    if (::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL) != static_cast<ssize_t>(bytes.size()))
      return false;
    const auto challenge = decode_challenge(bytes);
    if (!challenge.ok()) fail("no challenge came");
    const auto proof = encode(prove(Side::kDialling, token_, "", hello, challenge.value().nonce));
    return write(fd, proof.data(), proof.size());
  }
  static std::vector<uint8_t> with_checksums(const uint8_t* data, size_t size) {
    std::vector<uint8_t> stream;
    while (size >= 2) {
      const bool wrong = data[1] >= 128;
      const size_t n = std::min<size_t>(size - 2, data[0] + (data[1] % 128) * 256);
      const uint32_t checksum = crc32c(0, data + 2, n) + wrong;
      stream.insert(stream.end(), data + 2, data + 2 + n);
      for (int byte = 0; byte < 4; ++byte) stream.push_back(static_cast<uint8_t>(checksum >> 8 * byte));
      data += 2 + n, size -= 2 + n;
    }
    return stream;
  }
  static bool write(int fd, const uint8_t* data, size_t size) {
    while (size > 0) {
      const ssize_t n = ::send(fd, data, size, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return false;
      data += n;
      size -= static_cast<size_t>(n);
    }
    return true;
  }

  Handler handler_;
  std::unique_ptr<Environment> environment_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Listener> listener_;
  uint16_t port_ = 0;
  uint32_t connections_ = 0;
  std::vector<uint8_t> hello_, summed_hello_;  // the second asks for checksums
  const std::string token_ = "secret";
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Never destroyed: its thread would outlive what static destructors take away.
  static Server* server = new Server;
  if (size == 0) return 0;
  server->feed(data[0] % 8 != 0, data[0] >= 128, data + 1, size - 1);
  return 0;
}
