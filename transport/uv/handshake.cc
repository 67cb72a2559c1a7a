#include "transport/uv/handshake.h"

#include <errno.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "transport/schema/codec.h"
#include "transport/uv/frame_writer.h"
#include "transport/uv/guard.h"

namespace dsgd::transport::uv {

Handshake::Outcome Handshake::write(int fd, Status* error) {
  while (sent_ < out_.size()) {
    const ssize_t n = ::send(fd, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (n >= 0) {
      sent_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Outcome::kBlocked;
    } else if (errno != EINTR) {
      *error = Status(Code::kUnreachable, "sending the hello failed: " + errno_text(errno));
      return Outcome::kFailed;
    }
  }
  return Outcome::kDone;
}

Handshake::Outcome Handshake::read(int fd, Status* error) {
  auto number = [this](size_t index) {
    uint32_t value;
    std::memcpy(&value, in_.data() + index * sizeof value, sizeof value);
    return uint64_t{value};
  };
  for (;;) {
    // How much is known to belong to the message: the first word, then the table, then all of it.
    size_t need = 8;
    if (got_ >= 8) {
      const uint64_t segments = number(0) + 1;
      if (segments > FrameWriter::kMaxSegments) {
        *error = Status(Code::kIo, "what came is not a dsgd hello; is another program at this address?");
        return Outcome::kFailed;
      }
      need = (segments + 2) / 2 * 8;
      if (got_ >= need) {
        for (uint64_t i = 1; i <= segments; ++i) need += number(i) * 8;
        if (need > kMaxHelloBytes) {
          *error = Status(Code::kIo, "a hello of " + std::to_string(need) + " bytes came, at most " +
                                         std::to_string(kMaxHelloBytes) + " are accepted");
          return Outcome::kFailed;
        }
        if (got_ == need) return Outcome::kDone;
      }
    }
    in_.resize(need);
    const ssize_t n = ::recv(fd, in_.data() + got_, need - got_, 0);
    if (n > 0) {
      got_ += static_cast<size_t>(n);
    } else if (n == 0) {
      *error = Status(Code::kUnreachable, "the connection ended during the hello");
      return Outcome::kFailed;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Outcome::kBlocked;
    } else if (errno != EINTR) {
      *error = Status(Code::kUnreachable, "receiving the hello failed: " + errno_text(errno));
      return Outcome::kFailed;
    }
  }
}

}  // namespace dsgd::transport::uv
