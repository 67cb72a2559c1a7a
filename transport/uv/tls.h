// TLS on one connection: plain bytes on this side, records of TLS 1.3 on the socket.
#pragma once

#include <openssl/types.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/authentication.h"
#include "transport/base/status.h"

namespace dsgd::transport::uv {

struct OpenSsl;

// Used by one thread at a time. Plain bytes that send() has taken are encrypted already: the caller's memory
// is not read again. Records wait in a buffer until the socket takes them.
class Tls {
 public:
  // First byte of a stream that begins with TLS. A hello begins with its number of segments, which is less.
  static constexpr uint8_t kFirstByte = 0x16, kAlertByte = 0x15;
  static constexpr const char* kRemedy =
      "set `tls_cert`, `tls_key` and `tls_ca` on every process of the job, or on none";
  // An alert (protocol_version) in the clear, for a peer that does not use TLS.
  static std::vector<uint8_t> refusal() { return {kAlertByte, 3, 3, 0, 2, 2, 70}; }
  // True for the first byte of what a side with TLS sends.
  static bool may_begin(uint8_t first) { return first == kFirstByte || first == kAlertByte; }
  // Plain bytes after which the sender changes its key. RFC 8446, 5.5, allows AES-GCM about 2^38.
  static constexpr uint64_t kKeyBytes = uint64_t{1} << 37;

  static Result<std::shared_ptr<Tls>> make(const OpenSsl& library, SSL_CTX* context, Side side,
                                           uint64_t key_bytes = kKeyBytes);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  enum class Outcome { kDone, kBlocked, kFailed };
  Outcome handshake(int fd, Status* error);

  // As ::recv, with errno EPROTO after an error of TLS. It fills all of `to` if the bytes are there: after
  // fewer the next call tells the reason. `buffered_only`: nothing is read from the socket, so that the
  // socket stays readable as long as it has something.
  ssize_t receive(int fd, void* to, size_t n, bool buffered_only);
  // As ::sendmsg.
  ssize_t send(int fd, const iovec* parts, size_t count);
  // Writes the records that wait. False: the socket takes no more now (EAGAIN), or has failed.
  bool flush(int fd);
  size_t unsent() const { return out_end_ - out_begin_; }

  // The error of TLS that ended the connection, if any.
  const Status& error() const { return error_; }

 private:
  friend struct TlsSocket;
  static constexpr size_t kRecordBytes = 16 << 10;  // most plain bytes of a record
  static constexpr size_t kRecordRoom = 17 << 10;   // most bytes of a record
  static constexpr size_t kOutBytes = 8 * kRecordRoom;

  Tls(const OpenSsl& library, uint64_t key_bytes) : library_(library), key_bytes_(key_bytes) {}
  bool write_record(const void* data, size_t n);
  Status why(int code) const;

  const OpenSsl& library_;
  const uint64_t key_bytes_;
  SSL* ssl_ = nullptr;
  bool established_ = false;
  Status error_;

  // For the calls that OpenSSL makes for its bytes.
  int fd_ = -1;                       // -1: nothing is to be read
  int socket_error_ = 0;              // errno
  bool ended_ = false;                // the peer has ended the stream
  int first_byte_ = -1;               // of what was received
  std::unique_ptr<std::byte[]> out_;  // records that wait for the socket, made at the first one
  size_t out_begin_ = 0, out_end_ = 0;
  uint64_t sent_with_key_ = 0;
};

}  // namespace dsgd::transport::uv
