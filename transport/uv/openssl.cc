#include "transport/uv/openssl.h"

#include "transport/uv/loaded_library.h"

namespace dsgd::transport::uv {

namespace {

Result<OpenSsl> look_up() {
  LoadedLibrary library("libssl.so.3");
  OpenSsl functions;
#define DSGD_OPENSSL_LOOK_UP(name) library.find(functions.name, #name);
  DSGD_OPENSSL_FUNCTIONS(DSGD_OPENSSL_LOOK_UP)
#undef DSGD_OPENSSL_LOOK_UP
  DSGD_RETURN_IF_ERROR(library.status(
      "TLS needs OpenSSL 3.0 or later",
      "install it (Debian's package libssl3), or set none of `tls_cert`, `tls_key` and `tls_ca`"));
  // Its clean-up at exit would take from loops that still run what they use.
  if (functions.OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr) != 1)
    return Status(Code::kUnsupported, "OpenSSL cannot be initialized");
  return functions;
}

}  // namespace

Result<const OpenSsl*> load_openssl() {
  static const Result<OpenSsl>& loaded = *new Result<OpenSsl>(look_up());  // usable until the process ends
  if (!loaded.ok()) return loaded.status();
  return &loaded.value();
}

}  // namespace dsgd::transport::uv
