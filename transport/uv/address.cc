#include "transport/uv/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <uv.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

#include "transport/uv/guard.h"

namespace dsgd::transport::uv {

namespace {

constexpr int kUnixBufferBytes = 4 << 20;  // TCP's are tuned by the kernel, which does it better

}  // namespace

Result<ParsedAddress> parse_address(const std::string& text) {
  auto invalid = [&text](const std::string& why) {
    return Status(Code::kInvalidArgument,
                  "address '" + text + "' " + why + "; give host:port, [ipv6]:port or unix:/path");
  };
  ParsedAddress parsed;
  if (text.rfind("unix:", 0) == 0) {
    parsed.is_unix = true;
    parsed.path = text.substr(5);
    if (parsed.path.empty()) return invalid("has no path");
    // Later connections go to the same socket, even if the host has changed its directory.
    std::error_code error;
    const std::string absolute = std::filesystem::absolute(parsed.path, error);
    if (!error && absolute.size() < sizeof(sockaddr_un::sun_path)) parsed.path = absolute;
    return parsed;
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return invalid("has no port");
  parsed.host = text.substr(0, colon);
  parsed.port = text.substr(colon + 1);
  if (parsed.host.size() >= 2 && parsed.host.front() == '[' && parsed.host.back() == ']') {
    parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
  } else if (parsed.host.find(':') != std::string::npos) {
    return invalid("has an IPv6 host without brackets");
  }
  if (parsed.port.empty() || parsed.port.size() > 5 ||
      parsed.port.find_first_not_of("0123456789") != std::string::npos || std::stoi(parsed.port) > 65535) {
    return invalid("has no port between 0 and 65535");
  }
  return parsed;
}

Result<SocketAddress> unix_address(const std::string& path) {
  SocketAddress address;
  auto& name = address.as<sockaddr_un>();
  if (path.size() >= sizeof name.sun_path) {
    return Status(Code::kInvalidArgument, "the Unix socket path '" + path + "' has " +
                                              std::to_string(path.size()) + " bytes, at most " +
                                              std::to_string(sizeof name.sun_path - 1) +
                                              " are possible; choose a shorter directory");
  }
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  address.length = sizeof name;
  return address;
}

namespace {

std::optional<SocketAddress> numeric_address(const std::string& host, int port) {
  SocketAddress address;
  if (uv_ip4_addr(host.c_str(), port, &address.as<sockaddr_in>()) == 0) {
    address.length = sizeof(sockaddr_in);
  } else if (uv_ip6_addr(host.c_str(), port, &address.as<sockaddr_in6>()) == 0) {
    address.length = sizeof(sockaddr_in6);
  } else {
    return std::nullopt;
  }
  return address;
}

}  // namespace

Result<std::vector<SocketAddress>> numeric_addresses(const ParsedAddress& address) {
  if (address.is_unix) {
    auto one = unix_address(address.path);
    if (!one.ok()) return one.status();
    return std::vector<SocketAddress>{one.value()};
  }
  const int port = std::stoi(address.port);
  // localhost is always the loopback address (RFC 6761); minimal systems have no hosts file.
  if (address.host == "localhost")
    return std::vector{*numeric_address("127.0.0.1", port), *numeric_address("::1", port)};
  if (const auto one = numeric_address(address.host, port)) return std::vector{*one};
  return std::vector<SocketAddress>{};
}

std::string to_text(const std::string& host, const std::string& port) {
  return host.find(':') == std::string::npos ? host + ":" + port : "[" + host + "]:" + port;
}

std::string to_text(const SocketAddress& address) {
  if (address.family() == AF_UNIX) {
    return std::string("unix:") + address.as<sockaddr_un>().sun_path;
  }
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(address.get(), address.length, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "(unknown address)";
  }
  return to_text(host, port);
}

// ---- sockets

Result<Fd> make_socket(int family) {
  Fd fd = above_standard_streams(
      [family] { return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!fd) {
    return Status(Code::kLimit, "cannot open a socket: " + errno_text(errno) +
                                    (errno == EMFILE ? "; raise the limit of open files (ulimit -n)" : ""));
  }
  return fd;
}

void tune_socket(int fd, int family) {
  if (family == AF_UNIX) {
    const int bytes = kUnixBufferBytes;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  } else {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
}

namespace {

std::string_view bytes_of(const SocketAddress& address) {
  const auto view = [](const auto& bytes) {
    return std::string_view(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  };
  if (address.family() == AF_INET) return view(address.as<sockaddr_in>().sin_addr);
  const auto& ip = address.as<sockaddr_in6>().sin6_addr;
  return IN6_IS_ADDR_V4MAPPED(&ip) ? view(ip).substr(12) : view(ip);
}

bool is_loopback(const SocketAddress& address) {
  const std::string_view bytes = bytes_of(address);
  if (bytes.size() == sizeof(in_addr)) return bytes[0] == 127;
  return IN6_IS_ADDR_LOOPBACK(&address.as<sockaddr_in6>().sin6_addr);
}

}  // namespace

bool leaves_machine(const SocketAddress& own, const SocketAddress& peer) {
  if (own.family() == AF_UNIX) return false;
  return !is_loopback(peer) && bytes_of(own) != bytes_of(peer);
}

bool leaves_machine(int fd) {
  SocketAddress own, peer;
  if (getsockname(fd, own.room(), &own.length) != 0 || getpeername(fd, peer.room(), &peer.length) != 0)
    return true;
  return leaves_machine(own, peer);
}

}  // namespace dsgd::transport::uv
