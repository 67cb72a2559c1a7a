#include "transport/uv/listener.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "transport/uv/address.h"
#include "transport/uv/descriptors.h"
#include "transport/uv/pending_connection.h"

namespace dsgd::transport::uv {

namespace {

constexpr Duration kPause = std::chrono::milliseconds(100);

}  // namespace

Acceptor::Acceptor(UvLoop& loop, BoundSocket socket, AcceptHandler* handler, const ListenOptions& options,
                   AcceptCounters& counters, std::shared_ptr<TlsContext> tls)
    : loop_(loop),
      socket_(std::move(socket)),
      handler_(handler),
      handshake_timeout_(options.handshake_timeout),
      max_pending_(static_cast<size_t>(
          std::clamp((free_descriptors() - options.reserved_descriptors) / 2, kFewestPending, kMaxPending))),
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
    Fd fd = above_standard_streams([this, &from] {
      return ::accept4(poll_->fd(), from.room(), &from.length, SOCK_NONBLOCK | SOCK_CLOEXEC);
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
