// Accepts the connections of a listening socket. pending_connection.h has their handshakes.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>

#include "transport/network.h"
#include "transport/uv/bind.h"
#include "transport/uv/poll_fd.h"
#include "transport/uv/tls_context.h"
#include "transport/uv/uv_loop.h"

namespace dsgd::transport::uv {

struct AcceptCounters {
  std::atomic<uint64_t> accepted{0}, pauses{0};
};

class Acceptor final : private PollFd::Handler {
 public:
  // Bounds on the number of pending connections: those whose handshake is not finished. The number is half of
  // the descriptors that were free at the start and are not reserved for the job, within these bounds.
  static constexpr int64_t kFewestPending = 4, kMaxPending = 64;

  Acceptor(UvLoop& loop, BoundSocket socket, AcceptHandler* handler, const ListenOptions& options,
           AcceptCounters& counters, std::shared_ptr<TlsContext> tls);
  ~Acceptor() { stop(); }
  Status start();
  void stop();  // on the loop; the handler is asked no more, and the socket is closed

 private:
  class PendingConnection;
  void on_readable() override;
  void on_writable() override {}
  void pause();
  bool evict();  // closes a pending connection; false when there is none
  void done(PendingConnection* pending);

  UvLoop& loop_;
  BoundSocket socket_;
  AcceptHandler* handler_;
  const Duration handshake_timeout_;
  const size_t max_pending_;
  AcceptCounters& counters_;
  const std::shared_ptr<TlsContext> tls_;  // null: none
  std::unique_ptr<PollFd> poll_;
  TimerId timer_ = 0;
  std::list<std::shared_ptr<PendingConnection>> pending_;  // the oldest first
};

}  // namespace dsgd::transport::uv
