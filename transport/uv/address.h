// Addresses as text: "host:port", "[v6]:port", "unix:/path".
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>
#include <vector>

#include "transport/base/status.h"
#include "transport/uv/fd.h"

namespace dsgd::transport::uv {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  // Room for a system call that sets the address, with `length` as its length.
  sockaddr* room() {
    length = sizeof storage;
    return reinterpret_cast<sockaddr*>(&storage);
  }
  template <typename Specific>  // sockaddr_in, sockaddr_in6 or sockaddr_un
  const Specific& as() const {
    return reinterpret_cast<const Specific&>(storage);
  }
  template <typename Specific>
  Specific& as() {
    return reinterpret_cast<Specific&>(storage);
  }
};

struct ParsedAddress {
  bool is_unix = false;
  std::string host, port;  // of TCP
  std::string path;        // of a Unix socket
};

Result<ParsedAddress> parse_address(const std::string& text);
Result<SocketAddress> unix_address(const std::string& path);
// For addresses that need no look-up: numbers, "localhost" and Unix sockets.
Result<std::vector<SocketAddress>> numeric_addresses(const ParsedAddress& address);  // empty: a name
std::string to_text(const SocketAddress& address);
std::string to_text(const std::string& host, const std::string& port);

Result<Fd> make_socket(int family);    // not blocking, close-on-exec
void tune_socket(int fd, int family);  // of a connection
// False where the two ends of a connection have the same address, or a loopback one, or are a Unix socket's.
bool leaves_machine(const SocketAddress& own, const SocketAddress& peer);
bool leaves_machine(int fd);  // true if the ends are not known

}  // namespace dsgd::transport::uv
