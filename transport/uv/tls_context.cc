#include "transport/uv/tls_context.h"

#include <errno.h>

#include <utility>

#include "transport/uv/guard.h"
#include "transport/uv/openssl.h"

namespace dsgd::transport::uv {

namespace {

// Bytes that one read of a socket may bring. Large enough for several records.
constexpr size_t kReadBytes = 128 << 10;
// Files that do not fit together may be those of a replacement that has not ended, so the warning waits.
constexpr std::chrono::seconds kReplacing(1);
// The fast ones first: where both sides have the same list, the first is taken.
constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

int no_passphrase(char*, int, int, void*) { return 0; }  // OpenSSL's own would ask at the terminal

}  // namespace

Result<std::shared_ptr<TlsContext>> TlsContext::load(const TlsFiles& files, Warn warn) {
  const auto library = load_openssl();
  if (!library.ok()) return library.status();
  std::shared_ptr<TlsContext> self(new TlsContext(*library.value(), files, std::move(warn)));
  self->versions_ = self->versions();
  auto context = self->read();
  if (!context.ok()) return context.status();
  self->context_ = context.value();
  return self;
}

TlsContext::~TlsContext() {
  if (context_ && !origin_.is_gone()) library_.SSL_CTX_free(context_);
}

Result<std::shared_ptr<Tls>> TlsContext::open(Side side) {
  std::unique_lock lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (const Versions found = versions(); found != versions_) {
    versions_ = found;
    found_at_ = now;
    auto context = read();
    unusable_ = context.status();
    if (context.ok()) library_.SSL_CTX_free(std::exchange(context_, context.value()));
  }
  std::string warning;
  if (!unusable_.ok() && now - found_at_ >= kReplacing)
    warning = std::exchange(unusable_, Status()).message() + "; the certificate before it stays in use";
  auto tls = Tls::make(library_, context_, side);
  lock.unlock();
  if (!warning.empty() && warn_) warn_(warning);
  return tls;
}

TlsContext::Versions TlsContext::versions() const {
  Versions versions;
  const std::string* names[] = {&files_.cert, &files_.key, &files_.ca};
  for (size_t i = 0; i < versions.size(); ++i) {
    struct stat info{};
    if (::stat(names[i]->c_str(), &info) != 0) continue;
    const auto nanoseconds = [](const timespec& time) {
      return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
    };
    versions[i] = {info.st_dev, info.st_ino, info.st_size, nanoseconds(info.st_mtim),
                   nanoseconds(info.st_ctim)};
  }
  return versions;
}

Result<SSL_CTX*> TlsContext::read() const {
  library_.ERR_clear_error();
  SSL_CTX* context = library_.SSL_CTX_new(library_.TLS_method());
  if (!context) return Status(Code::kNoMemory, "no memory for TLS");
  Status status = read_into(context);
  library_.ERR_clear_error();
  if (status.ok()) return context;
  library_.SSL_CTX_free(context);
  return status;
}

Status TlsContext::read_into(SSL_CTX* context) const {
  // Both sides are of dsgd, so nothing older is needed, and there are neither tickets nor sessions to resume:
  // each connection checks the certificates.
  library_.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr);
  library_.SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
  library_.SSL_CTX_set_num_tickets(context, 0);
  // A side that has ended its stream still reads. RPC's goodbye tells a whole stream from one that was cut.
  library_.SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
  library_.SSL_CTX_ctrl(context, SSL_CTRL_MODE, SSL_MODE_NO_AUTO_CHAIN, nullptr);  // only what the file has
  library_.SSL_CTX_ctrl(context, SSL_CTRL_SET_READ_AHEAD, 1, nullptr);
  library_.SSL_CTX_set_default_read_buffer_len(context, kReadBytes);
  library_.SSL_CTX_set_ciphersuites(context, kCiphers);
  library_.SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  library_.SSL_CTX_set_default_passwd_cb(context, no_passphrase);

  const auto refuse = [this](const char* key, const std::string& file, const char* wanted) {
    const char* reason = library_.ERR_reason_error_string(library_.ERR_get_error());
    return Status(Code::kInvalidArgument, std::string(key) + " = '" + file + "' cannot be used: " +
                                              (reason ? reason : "unknown error") + "; give " + wanted)
        .with_parameter(key);
  };
  const std::pair<const char*, const std::string*> named[] = {
      {"tls_cert", &files_.cert}, {"tls_key", &files_.key}, {"tls_ca", &files_.ca}};
  for (const auto& [key, file] : named) {
    struct stat info{};
    const bool found = ::stat(file->c_str(), &info) == 0;
    if (found && S_ISREG(info.st_mode)) continue;
    return Status(Code::kInvalidArgument, std::string(key) + " = '" + *file + "' cannot be read: " +
                                              (found ? "it is not a file" : errno_text(errno)) +
                                              "; give the path of a PEM file")
        .with_parameter(key);
  }
  if (library_.SSL_CTX_use_certificate_chain_file(context, files_.cert.c_str()) != 1)
    return refuse("tls_cert", files_.cert, "a PEM file with the certificate of this process");
  if (library_.SSL_CTX_use_PrivateKey_file(context, files_.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return refuse("tls_key", files_.key,
                  "a PEM file with the private key of `tls_cert`, without a passphrase");
  if (library_.SSL_CTX_load_verify_file(context, files_.ca.c_str()) != 1)
    return refuse("tls_ca", files_.ca, "a PEM file with the certificates of CAs");
  return {};
}

}  // namespace dsgd::transport::uv
