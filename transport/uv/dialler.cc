#include "transport/uv/dialler.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>

#include "transport/authentication.h"
#include "transport/schema/codec.h"
#include "transport/uv/guard.h"

namespace dsgd::transport::uv {

Dialler::Dialler(NetworkShared shared, std::string address, DialOptions options,
                 std::function<void(std::shared_ptr<ClientConnection>)> adopt, Done done)
    : shared_(shared),
      address_(std::move(address)),
      options_(std::move(options)),
      adopt_(std::move(adopt)),
      done_(std::move(done)) {}

void Dialler::start() {
  auto parsed = parse_address(address_);
  if (!parsed.ok()) return finish(parsed.status());
  set_timer(1);
  auto numeric = numeric_addresses(parsed.value());
  if (!numeric.ok() || !numeric.value().empty()) return resolved(std::move(numeric));
  look_up_ = shared_.resolver.resolve(parsed.value(),
                                      [this](Addresses addresses) { resolved(std::move(addresses)); });
}

void Dialler::set_timer(size_t shares) {
  if (options_.deadline == kNever) return;
  if (timer_) shared_.loop.cancel(timer_);
  const Time now = shared_.loop.now();
  const Duration left = std::max(options_.deadline - now, Duration(0));
  timer_ = shared_.loop.schedule(now + left / shares, [this] {
    timer_ = 0;
    timed_out();
  });
}

// A name may have several addresses, so the one that was tried is told, too.
std::string Dialler::at_current(const std::string& what) const {
  const std::string tried = to_text(current_);
  return tried == address_ ? what : tried + ": " + what;
}

void Dialler::timed_out() {
  if (look_up_ || connection_) {
    const char* what = look_up_ ? "its name was not resolved" : "the RPC session was not established";
    return finish(Status(Code::kTimeout, "cannot connect to " + address_ + ": " + what + " in time"));
  }
  const char* what = stage_ == Stage::kConnecting
                         ? "no answer"
                         : "it accepted the connection but did not complete the handshake";
  attempt_failed(Status(Code::kTimeout, at_current(what + std::string(" in time"))));
}

void Dialler::resolved(Result<std::vector<SocketAddress>> addresses) {
  auto keep = shared_from_this();
  look_up_.reset();
  if (!addresses.ok()) return finish(addresses.status());
  candidates_.assign(addresses.value().begin(), addresses.value().end());
  try_next();
}

void Dialler::try_next() {
  stage_ = Stage::kIdle;
  if (candidates_.empty()) {
    return finish(Status(failure_, "cannot connect to " + address_ + ": " + failures_));
  }
  set_timer(candidates_.size());
  current_ = candidates_.front();
  candidates_.pop_front();
  auto fd = make_socket(current_.family());
  if (!fd.ok()) return attempt_failed(fd.status());
  tune_socket(fd.value().get(), current_.family());
  int connected;
  do {
    connected = ::connect(fd.value().get(), current_.get(), current_.length);
  } while (connected != 0 && errno == EINTR);
  const int error = connected == 0 ? 0 : errno;
  if (error != 0 && error != EINPROGRESS) {
    // EAGAIN: the backlog of a Unix socket is full, which does not resolve by polling.
    return attempt_failed(Status(Code::kUnreachable, at_current(errno_text(error))));
  }
  auto poll = PollFd::make(shared_.loop.port(), std::move(fd).value(), this);
  if (!poll.ok()) return attempt_failed(poll.status());
  poll_ = std::move(poll).value();
  if (error == 0) return this->connected();
  stage_ = Stage::kConnecting;
  poll_->want_write(true);
}

void Dialler::connected() {
  tls_.reset();
  if (!shared_.tls) return say_hello();
  auto tls = shared_.tls->open(Side::kDialling);
  if (!tls.ok()) return finish(tls.status());
  tls_ = std::move(tls).value();
  stage_ = Stage::kSecuring;
  poll_->want_read(true);
  step();
}

bool Dialler::secure() {
  Status error;
  const auto outcome = tls_->handshake(poll_->fd(), &error);
  if (outcome == Tls::Outcome::kFailed) {
    handshake_failed(error);
    return false;
  }
  poll_->want_write(tls_->unsent() > 0);
  return outcome == Tls::Outcome::kDone;
}

void Dialler::say_hello() {
  handshake_ = Handshake();
  options_.hello.checksum = wants_checksums(shared_.checksum, stream());
  options_.hello.nonce = make_nonce(shared_.loop);
  hello_bytes_ = encode(options_.hello);
  send(Stage::kSendingHello, hello_bytes_);
}

void Dialler::send(Stage stage, std::vector<uint8_t> bytes) {
  stage_ = stage;
  handshake_.to_send(std::move(bytes));
  step();
}

void Dialler::attempt_failed(const Status& why) {
  if (timer_) shared_.loop.cancel(std::exchange(timer_, 0));
  failure_ = why.code() == Code::kTimeout ? Code::kTimeout : Code::kUnreachable;
  failures_ += (failures_.empty() ? "" : "; ") + why.message();
  poll_.reset();
  // From a task, so that a long list of addresses does not pile up on the stack.
  shared_.loop.post([self = shared_from_this()] {
    if (!self->finished_) self->try_next();
  });
}

void Dialler::handshake_failed(const Status& why) {
  const Status here(why.code(), at_current(why.message()));
  if (why.code() != Code::kUnauthorized) return attempt_failed(here);
  finish(Status(why.code(), "cannot connect to " + address_ + ": " + here.message()));
}

void Dialler::step() {
  auto keep = shared_from_this();
  switch (stage_) {
    case Stage::kIdle:
      return;
    case Stage::kConnecting:
      return finish_connecting();
    case Stage::kSecuring:
      if (secure()) say_hello();
      return;
    case Stage::kSendingHello:
      if (!write("hello")) return;
      stage_ = Stage::kAwaitingChallenge;
      [[fallthrough]];
    case Stage::kAwaitingChallenge:
      if (read("challenge")) challenged();
      return;
    case Stage::kSendingProof:
      if (!write("proof")) return;
      stage_ = Stage::kAwaitingReply;
      [[fallthrough]];
    case Stage::kAwaitingReply:
      if (read("hello reply")) replied();
      return;
  }
}

void Dialler::finish_connecting() {
  int code = 0;
  socklen_t length = sizeof code;
  getsockopt(poll_->fd(), SOL_SOCKET, SO_ERROR, &code, &length);
  if (code != 0) return attempt_failed(Status(Code::kUnreachable, at_current(errno_text(code))));
  poll_->want_write(false);
  connected();
}

bool Dialler::write(const char* message) {
  Status error;
  const auto outcome = handshake_.write(stream(), message, &error);
  if (outcome == Handshake::Outcome::kFailed) {
    handshake_failed(error);
    return false;
  }
  const bool done = outcome == Handshake::Outcome::kDone;
  poll_->want_write(!done);
  poll_->want_read(done);
  return done;
}

bool Dialler::read(const char* message) {
  Status error;
  const auto outcome = handshake_.read(stream(), message, &error);
  if (outcome == Handshake::Outcome::kFailed) handshake_failed(error);
  return outcome == Handshake::Outcome::kDone;
}

namespace {

// A refusal in the challenge comes before any proof of the token, so its code and its other fields are not
// trusted. A listener sends one only for a hello that it cannot read.
Status unproved(const std::string& address, const Status& refused) {
  std::string message = refused.message();
  std::replace(message.begin(), message.end(), '\n', ' ');
  return Status(Code::kIo, "the process at " + address + " cannot read the hello: " + message);
}

}  // namespace

void Dialler::challenged() {
  auto challenge = decode_challenge(handshake_.take_received());
  if (!challenge.ok()) return malformed(challenge.status());
  if (const Status& refused = challenge.value().refused; !refused.ok())
    return finish(unproved(address_, refused));
  challenge_ = challenge.value().nonce;
  send(Stage::kSendingProof, encode(prove_as(Side::kDialling)));
}

Proof Dialler::prove_as(Side side) const {
  return prove(side, options_.token, options_.hello.job_nonce, hello_bytes_, challenge_);
}

void Dialler::malformed(const Status& why) {
  finish(Status(Code::kIo, "the answer of " + address_ + " to the hello is malformed: " + why.message()));
}

void Dialler::replied() {
  stage_ = Stage::kIdle;
  auto reply = decode_hello_reply(handshake_.received());
  if (!reply.ok()) return malformed(reply.status());
  if (!reply.value().status.ok()) return finish(reply.value().status);
  if (!equal_proofs(reply.value().proof, prove_as(Side::kAccepting))) return finish(not_proved(address_));
  const bool checksum = reply.value().checksum;
  if (options_.hello.checksum && !checksum) {
    return finish(Status(
        Code::kIo, "the answer of " + address_ +
                       " to the hello accepts no checksums although this side asked for them; the answer may "
                       "have been changed in transit"));
  }
  options_.hello.checksum = checksum;
  auto connection = ClientConnection::make(shared_, poll_->release(), tls_, to_text(current_), options_);
  poll_.reset();
  if (!connection.ok()) return finish(connection.status());
  connection_ = std::move(connection).value();
  set_timer(1);
  adopt_(connection_);
  connection_->start([self = shared_from_this()](Status status) {
    if (status.ok()) {
      self->finish(std::exchange(self->connection_, nullptr));
    } else {
      self->connection_ = nullptr;
      const Code code = status.code() == Code::kCorrupted ? Code::kCorrupted : Code::kUnreachable;
      self->finish(Status(code, "cannot connect to " + self->address_ + ": " + status.message()));
    }
  });
}

void Dialler::abandon() {
  auto keep = shared_from_this();
  done_ = nullptr;
  finish(Status(Code::kClosed, "the network was closed"));
}

void Dialler::finish(Result<std::shared_ptr<ClientConnection>> result) {
  if (finished_) return;
  finished_ = true;
  look_up_.reset();
  if (timer_) shared_.loop.cancel(std::exchange(timer_, 0));
  // As a task: this may be a callback of the descriptor, or inside dial().
  shared_.loop.post([self = shared_from_this(), result = std::move(result)]() mutable {
    self->poll_.reset();
    if (self->connection_) std::exchange(self->connection_, nullptr)->release(false);
    if (auto done = std::exchange(self->done_, nullptr)) {
      done(self, std::move(result));
    } else if (result.ok()) {
      result.value()->release(false);
    }
  });
}

}  // namespace dsgd::transport::uv
