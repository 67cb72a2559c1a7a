// An accepted connection whose handshake is not finished.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/authentication.h"
#include "transport/uv/handshake.h"
#include "transport/uv/listener.h"
#include "transport/uv/poll_fd.h"
#include "transport/uv/stream.h"
#include "transport/uv/tls.h"

namespace dsgd::transport::uv {

class Acceptor::PendingConnection final : public std::enable_shared_from_this<Acceptor::PendingConnection>,
                                          private PollFd::Handler {
 public:
  PendingConnection(Acceptor& acceptor, std::string from) : acceptor_(acceptor), from_(std::move(from)) {}
  ~PendingConnection();
  Status start(Fd fd);
  // Reads a hello that arrived before the connection was accepted.
  void read_now() { on_readable(); }
  bool has_received() const {
    return stage_ == Stage::kTls || stage_ == Stage::kProof || handshake_.has_received();
  }

 private:
  enum class Stage { kFirstByte, kTls, kHello, kProof, kFailed };

  void on_readable() override;
  void on_writable() override;
  Stream stream() const { return {poll_->fd(), tls_.get()}; }
  bool begin();
  bool secure();
  void fail(const Status& why);
  void drain();
  void on_hello();
  void on_proof();
  Proof prove_as(Side side) const;
  bool send(const char* message, std::vector<uint8_t> bytes);
  void refuse(const Status& why);
  void close() { acceptor_.done(this); }

  Acceptor& acceptor_;
  const std::string from_;
  Handshake handshake_;
  Hello hello_;
  std::vector<uint8_t> hello_bytes_;
  Nonce challenge_{};
  Stage stage_ = Stage::kFirstByte;
  std::shared_ptr<Tls> tls_;  // null: none
  size_t drained_ = 0;
  std::unique_ptr<PollFd> poll_;
  TimerId timer_ = 0;
};

}  // namespace dsgd::transport::uv
