#include "transport/uv/dialler.h"

#include <errno.h>
#include <sys/socket.h>

#include <utility>

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
  if (options_.deadline != kNever) {
    timer_ = shared_.loop.schedule(options_.deadline, [this] {
      timer_ = 0;
      const char* what = resolution_                       ? "its name was not resolved"
                         : stage_ == Stage::kConnecting    ? "nobody answered"
                         : stage_ == Stage::kAwaitingReply ? "it accepted but did not answer the hello"
                                                           : "the connection was not ready";
      finish(Status(Code::kTimeout, "cannot connect to " + address_ + ": " + what + " in time" +
                                        (last_.ok() ? "" : " (before: " + last_.message() + ")")));
    });
  }
  auto numeric = numeric_addresses(parsed.value());
  if (!numeric.ok() || !numeric.value().empty()) return resolved(std::move(numeric));
  resolution_ = resolve(shared_.loop, parsed.value(), [this](Result<std::vector<SocketAddress>> addresses) {
    resolved(std::move(addresses));
  });
}

void Dialler::resolved(Result<std::vector<SocketAddress>> addresses) {
  auto keep = shared_from_this();
  resolution_.reset();
  if (!addresses.ok()) return finish(addresses.status());
  candidates_.assign(addresses.value().begin(), addresses.value().end());
  try_next();
}

void Dialler::try_next() {
  stage_ = Stage::kIdle;
  if (candidates_.empty()) {
    return finish(Status(Code::kUnreachable, "cannot connect to " + address_ + ": " + last_.message()));
  }
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
    return attempt_failed(Status(Code::kUnreachable, to_text(current_) + ": " + errno_text(error)));
  }
  auto poll = PollFd::make(shared_.loop.port(), std::move(fd).value(), this);
  if (!poll.ok()) return attempt_failed(poll.status());
  poll_ = std::move(poll).value();
  if (error == 0) return this->connected();
  stage_ = Stage::kConnecting;
  poll_->want_write(true);
}

void Dialler::connected() {
  stage_ = Stage::kSendingHello;
  handshake_ = Handshake();
  options_.hello.checksum = wants_checksums(shared_.checksum, poll_->fd());
  handshake_.to_send(encode(options_.hello));
  step();
}

void Dialler::attempt_failed(const Status& why) {
  last_ = why;
  poll_.reset();
  // From a task, so that a long list of addresses does not pile up on the stack.
  shared_.loop.post([self = shared_from_this()] {
    if (!self->finished_) self->try_next();
  });
}

void Dialler::step() {
  auto keep = shared_from_this();
  Status error;
  if (stage_ == Stage::kConnecting) {
    int code = 0;
    socklen_t length = sizeof code;
    getsockopt(poll_->fd(), SOL_SOCKET, SO_ERROR, &code, &length);
    if (code != 0)
      return attempt_failed(Status(Code::kUnreachable, to_text(current_) + ": " + errno_text(code)));
    poll_->want_write(false);
    return connected();
  }
  auto failed = [&] { attempt_failed(Status(error.code(), to_text(current_) + ": " + error.message())); };
  if (stage_ == Stage::kSendingHello) {
    const auto outcome = handshake_.write(poll_->fd(), &error);
    if (outcome == Handshake::Outcome::kFailed) return failed();
    poll_->want_write(outcome == Handshake::Outcome::kBlocked);
    if (outcome == Handshake::Outcome::kBlocked) return;
    stage_ = Stage::kAwaitingReply;
    poll_->want_read(true);
  }
  if (stage_ == Stage::kAwaitingReply) {
    const auto outcome = handshake_.read(poll_->fd(), &error);
    if (outcome == Handshake::Outcome::kFailed) return failed();
    if (outcome == Handshake::Outcome::kDone) replied();
  }
}

void Dialler::replied() {
  stage_ = Stage::kIdle;
  Status verdict;
  bool checksum = false;
  Status formed = decode_status(handshake_.received(), &verdict, &checksum);
  if (!formed.ok()) {
    return finish(
        Status(Code::kIo, "the answer of " + address_ + " to the hello is malformed: " + formed.message()));
  }
  if (!verdict.ok()) return finish(verdict);
  if (options_.hello.checksum && !checksum) {
    return finish(Status(Code::kIo, "the answer of " + address_ +
                                        " to the hello refuses checksums, which every version of dsgd gives if asked to; the answer "
                                        "may have been changed on its way"));
  }
  options_.hello.checksum = checksum;
  auto connection = ClientConnection::make(shared_, poll_->release(), to_text(current_), options_);
  poll_.reset();
  if (!connection.ok()) return finish(connection.status());
  connection_ = std::move(connection).value();
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
  resolution_.reset();
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
