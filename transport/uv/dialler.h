// Opens one connection: resolves the name, tries each of its addresses in turn, and does the handshake.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/authentication.h"
#include "transport/network.h"
#include "transport/uv/address.h"
#include "transport/uv/client_connection.h"
#include "transport/uv/handshake.h"
#include "transport/uv/poll_fd.h"
#include "transport/uv/resolve.h"

namespace dsgd::transport::uv {

class Dialler final : public std::enable_shared_from_this<Dialler>, private PollFd::Handler {
 public:
  using Done =
      std::function<void(const std::shared_ptr<Dialler>&, Result<std::shared_ptr<ClientConnection>>)>;
  // `adopt` hands the connection to the network. `done` is called once, on the loop.
  Dialler(NetworkShared shared, std::string address, DialOptions options,
          std::function<void(std::shared_ptr<ClientConnection>)> adopt, Done done);
  void start();
  void abandon();  // ends the dial without calling `done`

 private:
  enum class Stage {
    kIdle,
    kConnecting,
    kSecuring,
    kSendingHello,
    kAwaitingChallenge,
    kSendingProof,
    kAwaitingReply
  };
  // Fires after 1/shares of the remaining time, so that each remaining address gets an equal part.
  void set_timer(size_t shares);
  std::string at_current(const std::string& what) const;
  void timed_out();
  void resolved(Result<std::vector<SocketAddress>> addresses);
  void try_next();
  void connected();
  bool secure();  // false: blocked, or the attempt has failed
  void say_hello();
  Stream stream() const { return {poll_->fd(), tls_.get()}; }
  void step();
  bool write(const char* message);  // false: blocked, or the attempt has failed
  bool read(const char* message);   // false: blocked, or the attempt has failed
  void finish_connecting();
  void send(Stage stage, std::vector<uint8_t> bytes);
  void challenged();
  Proof prove_as(Side side) const;
  void malformed(const Status& why);
  void replied();
  void attempt_failed(const Status& why);    // the next address may work
  void handshake_failed(const Status& why);  // unless the other side does not let this process in
  void finish(Result<std::shared_ptr<ClientConnection>> result);

  void on_readable() override { step(); }
  void on_writable() override { step(); }

  NetworkShared shared_;
  const std::string address_;
  DialOptions options_;
  std::function<void(std::shared_ptr<ClientConnection>)> adopt_;
  Done done_;
  std::shared_ptr<Resolver::Done> look_up_;
  std::deque<SocketAddress> candidates_;
  SocketAddress current_;
  std::unique_ptr<PollFd> poll_;
  std::shared_ptr<Tls> tls_;  // null: none
  Handshake handshake_;
  std::vector<uint8_t> hello_bytes_;
  Nonce challenge_{};
  Stage stage_ = Stage::kIdle;
  TimerId timer_ = 0;
  std::shared_ptr<ClientConnection> connection_;
  std::string failures_;               // of the addresses tried so far
  Code failure_ = Code::kUnreachable;  // of the last one
  bool finished_ = false;
};

}  // namespace dsgd::transport::uv
