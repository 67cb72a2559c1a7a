// A listening socket and the hellos of those who have just connected.
#pragma once

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

class Acceptor final : private PollFd::Handler {
 public:
  static constexpr size_t kMaxGuests = 1024;  // connections that have not said hello yet

  Acceptor(UvLoop& loop, BoundSocket socket, AcceptHandler* handler, std::atomic<uint64_t>& pauses);
  ~Acceptor() { stop(); }
  Status start();
  void stop();  // on the loop; the handler is asked no more, and the socket is closed

 private:
  class Guest;
  void on_readable() override;
  void on_writable() override {}
  void pause();
  void done(Guest* guest);

  UvLoop& loop_;
  BoundSocket socket_;
  AcceptHandler* handler_;
  std::atomic<uint64_t>& pauses_;
  std::unique_ptr<PollFd> poll_;
  TimerId timer_ = 0;
  std::list<std::shared_ptr<Guest>> guests_;  // the oldest first
};

}  // namespace dsgd::transport::uv
