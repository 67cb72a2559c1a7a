// A listening socket and the hellos of those who have just connected.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>

#include "transport/network.h"
#include "transport/uv/address.h"
#include "transport/uv/handshake.h"
#include "transport/uv/poll_fd.h"

namespace dsgd::transport::uv {

// Binds and listens; any thread. Names the address and the remedy when it cannot.
struct BoundSocket {
  Fd fd;
  std::string address;
  std::string unlink_path;  // of a Unix socket
  uint64_t device = 0, inode = 0;
};
Result<BoundSocket> bind_and_listen(const std::string& address);

struct AcceptCounters {
  std::atomic<uint64_t> accepted{0}, pauses{0};
};

class Acceptor final : private PollFd::Handler {
 public:
  // Bounds on the number of guests: connections whose handshake is not finished. Between the two it is half of the
  // descriptors that were free at the start and are not reserved for the job.
  static constexpr int64_t kFewestGuests = 4, kMostGuests = 64;

  Acceptor(UvLoop& loop, BoundSocket socket, AcceptHandler* handler, const ListenOptions& options,
           AcceptCounters& counters);
  ~Acceptor() { stop(); }
  Status start();
  void stop();  // on the loop; the handler is asked no more, and the socket is closed

 private:
  class Guest;
  void on_readable() override;
  void on_writable() override {}
  void pause();
  bool evict();  // closes one guest; false when there is none
  void done(Guest* guest);

  UvLoop& loop_;
  BoundSocket socket_;
  AcceptHandler* handler_;
  const Duration handshake_timeout_;
  const size_t max_guests_;
  AcceptCounters& counters_;
  std::unique_ptr<PollFd> poll_;
  TimerId timer_ = 0;
  std::list<std::shared_ptr<Guest>> guests_;  // the oldest first
};

}  // namespace dsgd::transport::uv
