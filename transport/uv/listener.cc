#include "transport/uv/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "transport/authentication.h"
#include "transport/schema/codec.h"
#include "transport/uv/descriptors.h"
#include "transport/uv/guard.h"
#include "transport/uv/network.h"

namespace dsgd::transport::uv {

namespace {

constexpr int kBacklog = 1024;
constexpr Duration kPause = std::chrono::milliseconds(100);
constexpr size_t kMostDrained = 256 << 10;  // bytes of a connection that has failed

Status in_use(const std::string& address) {
  return Status(Code::kAddressInUse,
                "address " + address +
                    " is in use by another process; choose another port, or port 0 for any free one");
}

const char* path_of(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_un*>(&address.storage)->sun_path;
}

// The socket file of a process that has died stays behind. It may be removed if no process listens on it.
bool is_stale(const SocketAddress& address) {
  struct stat info{};
  // Any other file is kept.
  if (::stat(path_of(address), &info) != 0 || !S_ISSOCK(info.st_mode)) return false;
  auto probe = make_socket(AF_UNIX);
  if (!probe.ok()) return false;
  return ::connect(probe.value().get(), address.get(), address.length) != 0 && errno == ECONNREFUSED;
}

// A Unix socket between bind() and listen() looks stale. Two processes that replace the same stale socket
// could remove each other's new one. So one process at a time binds in a directory: it holds a lock on the
// directory. If it cannot get the lock within kTries milliseconds, it continues without.
class DirectoryLock {
 public:
  explicit DirectoryLock(const SocketAddress& address) {
    constexpr int kTries = 1000;  // one per millisecond; the process that holds the lock may be stopped
    if (address.family() != AF_UNIX) return;
    const std::string path = path_of(address);
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    folder_ = above_standard_streams(
        [&folder] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    for (int i = 0; folder_ && ::flock(folder_.get(), LOCK_EX | LOCK_NB) != 0 && i < kTries; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  Fd folder_;
};

Status bind_once(const SocketAddress& address, const std::string& text, BoundSocket* bound,
                 bool* both_refused) {
  const DirectoryLock lock(address);
  auto fd = make_socket(address.family());
  if (!fd.ok()) return fd.status();
  const int on = 1;
  if (address.family() != AF_UNIX) setsockopt(fd.value().get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int failed = ::bind(fd.value().get(), address.get(), address.length);
  if (failed != 0 && errno == EADDRINUSE && address.family() == AF_UNIX && is_stale(address)) {
    ::unlink(path_of(address));
    failed = ::bind(fd.value().get(), address.get(), address.length);
  }
  if (failed == 0) {
    failed = ::listen(fd.value().get(), kBacklog);
    *both_refused = failed != 0 && errno == EADDRINUSE;
  }
  if (failed != 0) {
    if (errno == EADDRINUSE) return in_use(text);
    if (errno == EADDRNOTAVAIL) {
      return Status(Code::kUnreachable, "cannot listen on " + text +
                                            ": this machine does not have that address; use one of its own");
    }
    const char* remedy = errno == EACCES   ? "; choose a port above 1023, or a folder that you may write to"
                         : errno == ENOENT ? "; make the folder first"
                                           : "";
    return Status(Code::kIo, "cannot listen on " + text + ": " + errno_text(errno) + remedy);
  }
  bound->fd = std::move(fd).value();
  return {};
}

// bind() can succeed and listen() still fail with EADDRINUSE when another process does the same at the same
// time. Linux may refuse both. Tries again; the last process to try succeeds.
Status bind_one(const SocketAddress& address, const std::string& text, BoundSocket* bound) {
  constexpr int kTries = 1000;
  Status status;
  bool both_refused = true;
  for (int i = 0; both_refused && i < kTries; ++i) {
    both_refused = false;
    status = bind_once(address, text, bound, &both_refused);
  }
  return status;
}

}  // namespace

Result<BoundSocket> bind_and_listen(const std::string& address, const std::shared_ptr<ResolveLimit>& limit) {
  auto parsed = parse_address(address);
  if (!parsed.ok()) return parsed.status();
  auto candidates =
      parsed.value().is_unix ? numeric_addresses(parsed.value()) : resolve_now(parsed.value(), true, limit);
  if (!candidates.ok()) return candidates.status();
  BoundSocket bound;
  Status status;
  // Takes the first address that this machine has. An address in use ends the search: if two processes ask
  // for "localhost:7700", the second must not take [::1] because the first has 127.0.0.1.
  for (const SocketAddress& candidate : candidates.value()) {
    status = bind_one(candidate, address, &bound);
    if (status.code() != Code::kUnreachable && status.code() != Code::kLimit) break;
  }
  if (!status.ok()) return status;
  if (parsed.value().is_unix) {
    bound.address = "unix:" + parsed.value().path;
    bound.unlink_path = parsed.value().path;
    struct stat info{};
    if (::stat(bound.unlink_path.c_str(), &info) == 0) {
      bound.device = info.st_dev;
      bound.inode = info.st_ino;
    }
  } else {
    SocketAddress real;
    real.length = sizeof real.storage;
    getsockname(bound.fd.get(), reinterpret_cast<sockaddr*>(&real.storage), &real.length);
    bound.address = to_text(real);
  }
  return bound;
}

// ---- connections whose handshake is not finished

class Acceptor::PendingConnection final : public std::enable_shared_from_this<Acceptor::PendingConnection>,
                                          private PollFd::Handler {
 public:
  PendingConnection(Acceptor& acceptor, std::string from) : acceptor_(acceptor), from_(std::move(from)) {}
  ~PendingConnection() {
    if (timer_) acceptor_.loop_.cancel(timer_);
  }

  Status start(Fd fd) {
    DSGD_RETURN_IF_ERROR(PollFd::make(acceptor_.loop_.port(), std::move(fd), this).into(&poll_));
    poll_->want_read(true);
    timer_ = acceptor_.loop_.schedule(acceptor_.loop_.now() + acceptor_.handshake_timeout_, [this] {
      timer_ = 0;
      close();
    });
    return {};
  }
  // Reads a hello that arrived before the connection was accepted.
  void read_now() { on_readable(); }
  bool has_received() const {
    return stage_ == Stage::kTls || stage_ == Stage::kProof || handshake_.has_received();
  }

 private:
  enum class Stage { kFirstByte, kTls, kHello, kProof, kFailed };

  void on_readable() override {
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
    if (stage_ == Stage::kProof) {
      on_proof();
    } else {
      on_hello();
    }
  }
  void on_writable() override {
    poll_->want_write(false);
    on_readable();
  }
  Stream stream() const { return {poll_->fd(), tls_.get()}; }

  // Tells from the first byte, which stays unread, whether the dialling side uses TLS. False: wait or done.
  bool begin() {
    uint8_t first = 0;
    ssize_t n;
    do {
      n = ::recv(poll_->fd(), &first, 1, MSG_PEEK);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n <= 0) return close(), false;
    const bool uses_tls = first == Tls::kFirstByte, may_use_tls = acceptor_.tls_ != nullptr;
    if (uses_tls != may_use_tls) {
      fail(
          Status(Code::kUnauthorized, std::string(uses_tls ? "it uses TLS, and this process does not; "
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

  bool secure() {
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
  void fail(const Status& why) {
    if (why.code() != Code::kUnreachable) acceptor_.handler_->on_tls_failure(from_, why);
    if (!tls_) (void)send("refusal", acceptor_.tls_ ? Tls::refusal() : encode(Challenge{why, {}}));
    stage_ = Stage::kFailed;
    ::shutdown(poll_->fd(), SHUT_WR);
    drain();
  }

  void drain() {
    std::array<std::byte, 4096> ignored;
    ssize_t n;
    while ((n = ::recv(poll_->fd(), ignored.data(), ignored.size(), 0)) > 0) {
      drained_ += static_cast<size_t>(n);
      if (drained_ > kMostDrained) return close();
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    close();
  }

  void on_hello() {
    hello_bytes_ = handshake_.take_received();
    auto hello = decode_hello(hello_bytes_);
    if (!hello.ok()) return refuse(hello.status());
    hello_ = std::move(hello).value();
    challenge_ = make_nonce(acceptor_.loop_);
    stage_ = Stage::kProof;
    if (!send("challenge", encode(Challenge{{}, challenge_}))) close();
  }

  void on_proof() {
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

  Proof prove_as(Side side) const {
    return prove(side, acceptor_.handler_->token(), hello_.job_nonce, hello_bytes_, challenge_);
  }

  // The messages are small and the socket's buffer is empty: one attempt is enough.
  bool send(const char* message, std::vector<uint8_t> bytes) {
    Status ignored;
    handshake_.to_send(std::move(bytes));
    return handshake_.write(stream(), message, &ignored) == Handshake::Outcome::kDone;
  }

  void refuse(const Status& why) {
    if (stage_ == Stage::kProof) {
      (void)send("hello reply", encode(HelloReply{why, {}}));
    } else {
      (void)send("challenge", encode(Challenge{why, {}}));
    }
    close();
  }

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

// ---- the listening socket

Acceptor::Acceptor(UvLoop& loop, BoundSocket socket, AcceptHandler* handler, const ListenOptions& options,
                   AcceptCounters& counters, std::shared_ptr<TlsContext> tls)
    : loop_(loop),
      socket_(std::move(socket)),
      handler_(handler),
      handshake_timeout_(options.handshake_timeout),
      max_pending_(static_cast<size_t>(
          std::clamp((free_descriptors() - options.reserved_descriptors) / 2, kFewestPending, kMostPending))),
      counters_(counters),
      tls_(std::move(tls)) {}

void Acceptor::stop() {
  if (timer_) loop_.cancel(std::exchange(timer_, 0));
  pending_.clear();
  // Removes the socket file only if it is still ours, and before the socket is closed, so that no other
  // process can replace it meanwhile.
  const std::string path = std::exchange(socket_.unlink_path, {});
  struct stat info{};
  if (!path.empty() && ::stat(path.c_str(), &info) == 0 && info.st_dev == socket_.device &&
      info.st_ino == socket_.inode) {
    ::unlink(path.c_str());
  }
  poll_.reset();
}

Status Acceptor::start() {
  DSGD_RETURN_IF_ERROR(PollFd::make(loop_.port(), std::move(socket_.fd), this).into(&poll_));
  poll_->want_read(true);
  return {};
}

void Acceptor::on_readable() {
  for (int i = 0; i < 16; ++i) {
    SocketAddress from;
    from.length = sizeof from.storage;
    Fd fd = above_standard_streams([this, &from] {
      return ::accept4(poll_->fd(), reinterpret_cast<sockaddr*>(&from.storage), &from.length,
                       SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      if (evict()) continue;
      return pause();
    }
    counters_.accepted.fetch_add(1, std::memory_order_relaxed);
    if (pending_.size() >= max_pending_) evict();
    tune_socket(fd.get(), from.family());
    const bool is_unix = from.family() == AF_UNIX;
    auto pending = std::make_shared<PendingConnection>(*this, is_unix ? socket_.address : to_text(from));
    if (!pending->start(std::move(fd)).ok()) continue;
    pending_.push_back(pending);
    if (!loop_.port().guarded([&pending] { pending->read_now(); })) done(pending.get());
  }
}

// Silent connections go first, so that they cannot push out those whose handshake is under way; then the
// oldest.
bool Acceptor::evict() {
  if (pending_.empty()) return false;
  auto victim = std::find_if(pending_.begin(), pending_.end(),
                             [](const auto& pending) { return !pending->has_received(); });
  pending_.erase(victim == pending_.end() ? pending_.begin() : victim);
  return true;
}

// There are no descriptors or memory now. Connections wait in the backlog, and the loop does not spin.
void Acceptor::pause() {
  counters_.pauses.fetch_add(1, std::memory_order_relaxed);
  poll_->want_read(false);
  if (timer_) return;
  timer_ = loop_.schedule(loop_.now() + kPause, [this] {
    timer_ = 0;
    poll_->want_read(true);
  });
}

void Acceptor::done(PendingConnection* pending) {
  pending_.remove_if([pending](const auto& other) { return other.get() == pending; });
}

}  // namespace dsgd::transport::uv
