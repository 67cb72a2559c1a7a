// The certificate, key and CAs of this process, read again when their files change.
#pragma once

#include <sys/stat.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "transport/network.h"
#include "transport/uv/origin.h"
#include "transport/uv/tls.h"

namespace dsgd::transport::uv {

class TlsContext {
 public:
  using Warn = std::function<void(const std::string&)>;

  // Reads the files. Loads OpenSSL.
  static Result<std::shared_ptr<TlsContext>> load(const TlsFiles& files, Warn warn);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // TLS for a new connection, by the files as they are now. Any thread.
  Result<std::shared_ptr<Tls>> open(Side side);

 private:
  // The fields by which versions of a file differ.
  struct Version {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    int64_t modified = 0, changed = 0;  // nanoseconds
    bool operator==(const Version&) const = default;
  };
  using Versions = std::array<Version, 3>;

  TlsContext(const OpenSsl& library, TlsFiles files, Warn warn)
      : library_(library), files_(std::move(files)), warn_(std::move(warn)) {}
  Versions versions() const;
  Result<SSL_CTX*> read() const;
  Status read_into(SSL_CTX* context) const;

  const Origin origin_{};
  const OpenSsl& library_;
  const TlsFiles files_;
  const Warn warn_;
  std::mutex mutex_;  // guards what follows
  SSL_CTX* context_ = nullptr;
  Versions versions_{};                               // that were last read, with or without success
  std::chrono::steady_clock::time_point found_at_{};  // versions_
  Status unusable_;  // why those files are not used; OK: they are, or the warning was given
};

}  // namespace dsgd::transport::uv
