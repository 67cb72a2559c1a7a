// Measures the time in which a TCP connection on loopback moves so many bytes both ways at once, between two
// threads. An all-reduce of as many bytes between two workers on one machine has to move them. Measured as in
// tests/bench/limits.c.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace dsgd {

class Wire {
 public:
  explicit Wire(size_t nbytes) : out_(2, std::vector<char>(nbytes, 1)), in_(2, std::vector<char>(nbytes)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    sockaddr* const at = reinterpret_cast<sockaddr*>(&address);
    const int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    ends_[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, at, length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, at, &length) != 0 || connect(ends_[0], at, length) != 0 ||
        (ends_[1] = accept(listener, nullptr, nullptr)) < 0) {
      fail("a connection over loopback");
    }
    close(listener);
    for (int end : ends_) {
      setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      fcntl(end, F_SETFL, O_NONBLOCK);
    }
  }
  ~Wire() {
    for (int end : ends_) close(end);
  }
  Wire(const Wire&) = delete;

  // Seconds.
  double exchange() {
    const auto begin = std::chrono::steady_clock::now();
    std::thread other([this] { transfer(1); });
    transfer(0);
    other.join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  [[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "gpu_bench: %s: %s\n", what, std::strerror(errno));
    std::exit(1);
  }
  static bool moved(ssize_t n, size_t* done) {
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) fail("a socket");
    if (n > 0) *done += static_cast<size_t>(n);
    return n > 0;
  }
  void transfer(size_t k) {
    const size_t all = out_[k].size();
    size_t sent = 0, received = 0;
    while (sent < all || received < all) {
      bool some = false;
      if (sent < all) some |= moved(send(ends_[k], out_[k].data() + sent, all - sent, MSG_NOSIGNAL), &sent);
      if (received < all)
        some |= moved(recv(ends_[k], in_[k].data() + received, all - received, 0), &received);
      if (some) continue;
      pollfd ready{ends_[k], static_cast<short>((sent < all ? POLLOUT : 0) | (received < all ? POLLIN : 0)),
                   0};
      if (poll(&ready, 1, 30'000) == 0) fail("a socket stood still for 30 s");
    }
  }

  int ends_[2] = {-1, -1};
  std::vector<std::vector<char>> out_, in_;  // by end
};

}  // namespace dsgd
