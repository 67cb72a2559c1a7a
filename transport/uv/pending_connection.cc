#include "transport/uv/pending_connection.h"

#include <errno.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <utility>

#include "transport/schema/codec.h"
#include "transport/uv/network.h"

namespace dsgd::transport::uv {

namespace {

constexpr size_t kMaxDrained = 256 << 10;  // bytes of a connection that has failed

}  // namespace

Acceptor::PendingConnection::~PendingConnection() {
  if (timer_) acceptor_.loop_.cancel(timer_);
}

Status Acceptor::PendingConnection::start(Fd fd) {
  DSGD_RETURN_IF_ERROR(PollFd::make(acceptor_.loop_.port(), std::move(fd), this).into(&poll_));
  poll_->want_read(true);
  timer_ = acceptor_.loop_.schedule(acceptor_.loop_.now() + acceptor_.handshake_timeout_, [this] {
    timer_ = 0;
    close();
  });
  return {};
}

void Acceptor::PendingConnection::on_readable() {
  auto keep = shared_from_this();
  if (stage_ == Stage::kFirstByte && !begin()) return;
  if (stage_ == Stage::kTls && !secure()) return;
  if (stage_ == Stage::kFailed) return drain();
  Status error;
  switch (handshake_.read(stream(), stage_ == Stage::kProof ? "proof" : "hello", &error)) {
    case Handshake::Outcome::kBlocked:
      return;
    case Handshake::Outcome::kFailed:
      return refuse(error);
    case Handshake::Outcome::kDone:
      break;
  }
  stage_ == Stage::kProof ? on_proof() : on_hello();
}

void Acceptor::PendingConnection::on_writable() {
  poll_->want_write(false);
  on_readable();
}

// Tells from the first byte, which stays unread, whether the dialling side uses TLS. False: wait or done.
bool Acceptor::PendingConnection::begin() {
  uint8_t first = 0;
  ssize_t n;
  do {
    n = ::recv(poll_->fd(), &first, 1, MSG_PEEK);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (n <= 0) return close(), false;
  const bool uses_tls = first == Tls::kFirstByte, may_use_tls = acceptor_.tls_ != nullptr;
  if (uses_tls != may_use_tls) {
    fail(Status(Code::kUnauthorized, std::string(uses_tls ? "it uses TLS, and this process does not; "
                                                          : "it does not use TLS, and this process does; ") +
                                         Tls::kRemedy));
    return false;
  }
  if (!uses_tls) {
    stage_ = Stage::kHello;
    return true;
  }
  auto tls = acceptor_.tls_->open(Side::kAccepting);
  if (!tls.ok()) return fail(tls.status()), false;
  tls_ = std::move(tls).value();
  stage_ = Stage::kTls;
  return true;
}

bool Acceptor::PendingConnection::secure() {
  Status error;
  const auto outcome = tls_->handshake(poll_->fd(), &error);
  if (outcome == Tls::Outcome::kFailed) return fail(error), false;
  poll_->want_write(tls_->unsent() > 0);
  if (outcome == Tls::Outcome::kBlocked) return false;
  stage_ = Stage::kHello;
  return true;
}

// Ends a connection without an answer to its hello. The first bytes of the refusal tell the dialling side
// what this side uses. What the dialling side has sent is read first: the kernel would answer unread bytes
// with a reset, which can overtake the refusal.
void Acceptor::PendingConnection::fail(const Status& why) {
  if (why.code() != Code::kUnreachable) acceptor_.handler_->on_tls_failure(from_, why);
  if (!tls_) (void)send("refusal", acceptor_.tls_ ? Tls::refusal() : encode(Challenge{why, {}}));
  stage_ = Stage::kFailed;
  ::shutdown(poll_->fd(), SHUT_WR);
  drain();
}

void Acceptor::PendingConnection::drain() {
  std::array<std::byte, 4096> ignored;
  ssize_t n;
  while ((n = ::recv(poll_->fd(), ignored.data(), ignored.size(), 0)) > 0) {
    drained_ += static_cast<size_t>(n);
    if (drained_ > kMaxDrained) return close();
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  close();
}

void Acceptor::PendingConnection::on_hello() {
  hello_bytes_ = handshake_.take_received();
  auto hello = decode_hello(hello_bytes_);
  if (!hello.ok()) return refuse(hello.status());
  hello_ = std::move(hello).value();
  challenge_ = make_nonce(acceptor_.loop_);
  stage_ = Stage::kProof;
  if (!send("challenge", encode(Challenge{{}, challenge_}))) close();
}

void Acceptor::PendingConnection::on_proof() {
  AcceptHandler& handler = *acceptor_.handler_;
  auto proof = decode_proof(handshake_.received());
  if (!proof.ok()) return refuse(proof.status());
  if (!equal_proofs(proof.value(), prove_as(Side::kDialling)))
    return refuse(handler.on_wrong_token(hello_, from_));
  auto decision = handler.on_hello(hello_, from_);
  if (!decision.ok()) return refuse(decision.status());
  auto* network = static_cast<UvNetwork*>(decision.value().network);
  network->adopt(poll_->release(), {from_, hello_, prove_as(Side::kAccepting), tls_},
                 decision.value().handler);
  close();
}

Proof Acceptor::PendingConnection::prove_as(Side side) const {
  return prove(side, acceptor_.handler_->token(), hello_.job_nonce, hello_bytes_, challenge_);
}

// The messages are small and the socket's buffer is empty: one attempt is enough.
bool Acceptor::PendingConnection::send(const char* message, std::vector<uint8_t> bytes) {
  Status ignored;
  handshake_.to_send(std::move(bytes));
  return handshake_.write(stream(), message, &ignored) == Handshake::Outcome::kDone;
}

void Acceptor::PendingConnection::refuse(const Status& why) {
  if (stage_ == Stage::kProof) {
    (void)send("hello reply", encode(HelloReply{why, {}}));
  } else {
    (void)send("challenge", encode(Challenge{why, {}}));
  }
  close();
}

}  // namespace dsgd::transport::uv
