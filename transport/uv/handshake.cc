#include "transport/uv/handshake.h"

#include <errno.h>

#include <cstring>
#include <string>

#include "transport/schema/codec.h"
#include "transport/uv/frame_writer.h"

namespace dsgd::transport::uv {

Handshake::Outcome Handshake::write(Stream stream, const char* message, Status* error) {
  while (sent_ < out_.size() || stream.unsent() > 0) {
    iovec part{out_.data() + sent_, out_.size() - sent_};
    const ssize_t n = part.iov_len > 0 ? stream.send(&part, 1) : stream.flush() ? 0 : -1;
    if (n >= 0) {
      sent_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Outcome::kBlocked;
    } else if (errno != EINTR) {
      *error = stream.failure(Code::kUnreachable, std::string("sending the ") + message, errno);
      return Outcome::kFailed;
    }
  }
  return Outcome::kDone;
}

Handshake::Outcome Handshake::read(Stream stream, const char* message, Status* error) {
  auto number = [this](size_t index) {
    uint32_t value;
    std::memcpy(&value, in_.data() + index * sizeof value, sizeof value);
    return uint64_t{value};
  };
  for (;;) {
    // Bytes that are known to belong to the message: first one word, then the segment table, then all of it.
    size_t need = 8;
    if (got_ > 0 && !stream.tls && Tls::may_begin(in_[0])) {
      *error = Status(Code::kUnauthorized,
                      std::string("the peer uses TLS, and this process does not; ") + Tls::kRemedy);
      return Outcome::kFailed;
    }
    if (got_ >= 8) {
      const uint64_t segments = number(0) + 1;
      if (segments > FrameWriter::kMaxSegments) {
        *error = Status(Code::kIo,
                        std::string("the peer sent no valid ") + message + "; it may not be a dsgd process");
        return Outcome::kFailed;
      }
      need = (segments + 2) / 2 * 8;
      if (got_ >= need) {
        for (uint64_t i = 1; i <= segments; ++i) need += number(i) * 8;
        if (need > kMaxHelloBytes) {
          *error =
              Status(Code::kIo, std::string("the ") + message + " of the peer has " + std::to_string(need) +
                                    " bytes; at most " + std::to_string(kMaxHelloBytes) + " are accepted");
          return Outcome::kFailed;
        }
        if (got_ == need) return Outcome::kDone;
      }
    }
    in_.resize(need);
    const ssize_t n = stream.receive(in_.data() + got_, need - got_);
    if (n > 0) {
      got_ += static_cast<size_t>(n);
    } else if (n == 0) {
      *error = Status(Code::kUnreachable,
                      std::string("the peer closed the connection before its ") + message + " was complete");
      return Outcome::kFailed;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Outcome::kBlocked;
    } else if (errno != EINTR) {
      *error = stream.failure(Code::kUnreachable, std::string("receiving the ") + message, errno);
      return Outcome::kFailed;
    }
  }
}

}  // namespace dsgd::transport::uv
