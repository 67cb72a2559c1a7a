// The bytes of one connection: those of its socket, or those of the TLS on it.
#pragma once

#include <errno.h>
#include <sys/socket.h>

#include <string>

#include "transport/base/status.h"
#include "transport/uv/guard.h"
#include "transport/uv/tls.h"

namespace dsgd::transport::uv {

struct Stream {
  Stream(int fd, Tls* tls = nullptr) : fd(fd), tls(tls) {}  // NOLINT: a socket is a stream

  // As ::recv. `buffered_only`: nothing is taken from the socket.
  ssize_t receive(void* to, size_t n, bool buffered_only = false) const {
    if (tls) return tls->receive(fd, to, n, buffered_only);
    if (!buffered_only) return ::recv(fd, to, n, 0);
    errno = EAGAIN;
    return -1;
  }
  // As ::sendmsg, without SIGPIPE.
  ssize_t send(iovec* parts, size_t count) const {
    if (tls) return tls->send(fd, parts, count);
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    return ::sendmsg(fd, &message, MSG_NOSIGNAL);
  }
  // Bytes that send() has taken may still wait for the socket. False, as of send(), with errno.
  bool flush() const { return !tls || tls->flush(fd); }
  size_t unsent() const { return tls ? tls->unsent() : 0; }

  // The error after a call that has returned -1 and left `error` in errno. `what`: "receiving the hello".
  Status failure(Code code, const std::string& what, int error) const {
    if (!tls || tls->error().ok()) return Status(code, what + " failed: " + errno_text(error));
    const Status& why = tls->error();
    const bool handshake = code == Code::kUnreachable;
    const bool particular = why.code() == Code::kCorrupted || why.code() == Code::kNoMemory;
    return Status(handshake || particular ? why.code() : code, what + " failed: " + why.message());
  }

  int fd;
  Tls* tls;  // null: none
};

}  // namespace dsgd::transport::uv
