#include "transport/uv/tls.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>

#include "transport/uv/guard.h"
#include "transport/uv/openssl.h"

namespace dsgd::transport::uv {

// OpenSSL's view of the socket: it reads from it, and writes into the buffer of the connection. Its own
// socket methods would raise SIGPIPE, and write each record with a system call.
struct TlsSocket {
  static const BIO_METHOD* method(const OpenSsl& library) {
    static BIO_METHOD* const made = [&library] {
      BIO_METHOD* method = library.BIO_meth_new(BIO_TYPE_SOURCE_SINK, "dsgd connection");
      if (method) {
        library.BIO_meth_set_read(method, read);
        library.BIO_meth_set_write(method, write);
        library.BIO_meth_set_ctrl(method, control);
      }
      return method;
    }();
    return made;
  }

  static Tls& owner(BIO* bio) {
    const auto library = load_openssl();
    return *static_cast<Tls*>(library.value()->BIO_get_data(bio));
  }

  static int read(BIO* bio, char* to, int n) {
    Tls& tls = owner(bio);
    tls.library_.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    ssize_t got = -1;
    errno = EAGAIN;
    if (tls.fd_ >= 0) {
      do {
        got = ::recv(tls.fd_, to, static_cast<size_t>(n), 0);
      } while (got < 0 && errno == EINTR);
    }
    if (got > 0) {
      if (tls.first_byte_ < 0) tls.first_byte_ = static_cast<uint8_t>(*to);
      return static_cast<int>(got);
    }
    if (got == 0) {
      tls.ended_ = true;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      tls.library_.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
    } else {
      tls.socket_error_ = errno;
    }
    return static_cast<int>(got);
  }

  static int write(BIO* bio, const char* data, int n) {
    Tls& tls = owner(bio);
    tls.library_.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    if (!tls.out_) tls.out_.reset(new (std::nothrow) std::byte[Tls::kOutBytes]);
    if (!tls.out_) {
      tls.socket_error_ = ENOMEM;
      return -1;
    }
    const size_t room = std::min(Tls::kOutBytes - tls.out_end_, static_cast<size_t>(n));
    if (room == 0) {
      tls.library_.BIO_set_flags(bio, BIO_FLAGS_WRITE | BIO_FLAGS_SHOULD_RETRY);
      return -1;
    }
    std::memcpy(tls.out_.get() + tls.out_end_, data, room);
    tls.out_end_ += room;
    return static_cast<int>(room);
  }

  static long control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return owner(bio).ended_ ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }
};

Result<std::shared_ptr<Tls>> Tls::make(const OpenSsl& library, SSL_CTX* context, Side side,
                                       uint64_t key_bytes) {
  std::shared_ptr<Tls> tls(new Tls(library, key_bytes));
  tls->ssl_ = library.SSL_new(context);
  const BIO_METHOD* method = TlsSocket::method(library);
  BIO* bio = tls->ssl_ && method ? library.BIO_new(method) : nullptr;
  if (!bio) return Status(Code::kNoMemory, "no memory for a TLS connection");
  library.BIO_set_data(bio, tls.get());
  library.BIO_set_init(bio, 1);
  library.SSL_set_bio(tls->ssl_, bio, bio);
  side == Side::kDialling ? library.SSL_set_connect_state(tls->ssl_)
                          : library.SSL_set_accept_state(tls->ssl_);
  return tls;
}

Tls::~Tls() {
  if (ssl_) library_.SSL_free(ssl_);
}

Tls::Outcome Tls::handshake(int fd, Status* error) {
  fd_ = fd;
  library_.ERR_clear_error();
  const int result = library_.SSL_do_handshake(ssl_);
  const int code = result == 1 ? SSL_ERROR_NONE : library_.SSL_get_error(ssl_, result);
  const bool flushed = flush(fd);
  if (code == SSL_ERROR_NONE) {
    established_ = true;
    return flushed ? Outcome::kDone : Outcome::kBlocked;
  }
  if (code == SSL_ERROR_WANT_READ || code == SSL_ERROR_WANT_WRITE) return Outcome::kBlocked;
  *error = error_ = why(code);
  return Outcome::kFailed;
}

ssize_t Tls::receive(int fd, void* to, size_t n, bool buffered_only) {
  fd_ = buffered_only ? -1 : fd;
  size_t total = 0;
  while (total < n && error_.ok() && !ended_) {
    library_.ERR_clear_error();
    size_t got = 0;
    const int result = library_.SSL_read_ex(ssl_, static_cast<std::byte*>(to) + total, n - total, &got);
    if (result == 1) {
      total += got;
      continue;
    }
    const int code = library_.SSL_get_error(ssl_, result);
    if (code == SSL_ERROR_WANT_READ || code == SSL_ERROR_WANT_WRITE) {
      if (total > 0) break;
      errno = EAGAIN;
      return -1;
    }
    if (code == SSL_ERROR_ZERO_RETURN) ended_ = true;
    if (!ended_) error_ = why(code);
    (void)flush(fd);  // an alert that tells the peer
  }
  if (total > 0 || error_.ok()) return static_cast<ssize_t>(total);
  errno = EPROTO;
  return -1;
}

ssize_t Tls::send(int fd, const iovec* parts, size_t count) {
  if (!error_.ok()) {
    errno = EPROTO;
    return -1;
  }
  if (!flush(fd)) return -1;
  std::array<std::byte, kRecordBytes> record;  // small parts share one
  size_t taken = 0, offset = 0;                // offset: in the first of the parts that are left
  while (count > 0 && kOutBytes - out_end_ >= kRecordRoom) {
    size_t gathered = 0;
    const void* data = nullptr;
    if (const size_t left = parts->iov_len - offset; left >= kRecordBytes || count == 1) {
      data = static_cast<const std::byte*>(parts->iov_base) + offset;
      gathered = std::min(left, kRecordBytes);
      offset += gathered;
    } else {
      data = record.data();
      while (count > 0 && gathered < kRecordBytes) {
        const size_t n = std::min(parts->iov_len - offset, kRecordBytes - gathered);
        std::memcpy(record.data() + gathered, static_cast<const std::byte*>(parts->iov_base) + offset, n);
        gathered += n;
        offset += n;
        if (offset < parts->iov_len) break;
        ++parts, --count, offset = 0;
      }
    }
    if (count > 0 && offset == parts->iov_len) ++parts, --count, offset = 0;
    if (gathered > 0 && !write_record(data, gathered)) {
      errno = EPROTO;
      return -1;
    }
    taken += gathered;
  }
  (void)flush(fd);
  return static_cast<ssize_t>(taken);
}

bool Tls::write_record(const void* data, size_t n) {
  library_.ERR_clear_error();
  if (sent_with_key_ + n > key_bytes_) {
    sent_with_key_ = 0;
    (void)library_.SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED);  // goes before the next record
  }
  size_t written = 0;
  const int result = library_.SSL_write_ex(ssl_, data, n, &written);
  if (result != 1) {
    error_ = why(library_.SSL_get_error(ssl_, result));
    return false;
  }
  sent_with_key_ += n;
  return true;
}

bool Tls::flush(int fd) {
  while (out_begin_ < out_end_) {
    const ssize_t n = ::send(fd, out_.get() + out_begin_, out_end_ - out_begin_, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    out_begin_ += static_cast<size_t>(n);
  }
  out_begin_ = out_end_ = 0;
  return true;
}

// The errors that wait are read here, so that none is left to the thread, which may be the host's.
Status Tls::why(int code) const {
  constexpr int kAlert = SSL_AD_REASON_OFFSET;  // reasons from here on are alerts of the peer
  const unsigned long first = library_.ERR_get_error();
  library_.ERR_clear_error();
  const int reason = ERR_GET_REASON(first);
  if (socket_error_ == ENOMEM || reason == ERR_R_MALLOC_FAILURE)
    return Status(Code::kNoMemory, "no memory for a TLS connection");
  if (socket_error_ != 0 || ended_) {
    const std::string what =
        ended_ ? "the peer closed the connection" : "the connection failed: " + errno_text(socket_error_);
    return Status(Code::kUnreachable,
                  what + (established_ ? "" : " during the TLS handshake; it may be without TLS: ") +
                      (established_ ? "" : kRemedy));
  }
  if (!established_ && first_byte_ >= 0 && !may_begin(static_cast<uint8_t>(first_byte_)))
    return Status(Code::kUnauthorized, std::string("the peer answers without TLS; ") + kRemedy);
  if (ERR_GET_LIB(first) == ERR_LIB_SSL && reason > kAlert) {
    const char* alert = library_.SSL_alert_desc_string_long(reason - kAlert);
    if (reason == kAlert + SSL_AD_BAD_RECORD_MAC)
      return Status(Code::kCorrupted, "the peer received a TLS record that had been changed on its way");
    return Status(Code::kUnauthorized, std::string("the peer refused the TLS connection: ") + alert +
                                           "; check that a CA of its `tls_ca` has signed `tls_cert` of this "
                                           "process, and that both are valid now");
  }
  // Not by the reason: the first error may be one of the key that should have signed the certificate.
  if (const long verified = library_.SSL_get_verify_result(ssl_); verified != X509_V_OK) {
    return Status(Code::kUnauthorized,
                  std::string("the certificate of the peer was refused: ") +
                      library_.X509_verify_cert_error_string(verified) +
                      "; check that a CA of `tls_ca` has signed it, and that both are valid now");
  }
  if (reason == SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC)
    return Status(Code::kCorrupted, "a received TLS record had been changed on its way");
  const char* text = library_.ERR_reason_error_string(first);
  return Status(established_ ? Code::kIo : Code::kUnauthorized,
                std::string("TLS failed: ") + (text ? text : "error " + std::to_string(code)) +
                    "; the peer may not be a dsgd process");
}

}  // namespace dsgd::transport::uv
