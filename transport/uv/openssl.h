// The functions of OpenSSL that TLS needs. They are looked up at run time in the libssl of the system, so
// that libdsgd can be loaded without it, and so that packages which carry their other libraries inside need
// not carry one that is updated for its security.
#pragma once

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include "transport/base/status.h"

namespace dsgd::transport::uv {

// Functions only: OpenSSL's macros stand for calls that the linker would have to resolve.
#define DSGD_OPENSSL_FUNCTIONS(F)        \
  F(BIO_clear_flags)                     \
  F(BIO_get_data)                        \
  F(BIO_meth_new)                        \
  F(BIO_meth_set_ctrl)                   \
  F(BIO_meth_set_read)                   \
  F(BIO_meth_set_write)                  \
  F(BIO_new)                             \
  F(BIO_set_data)                        \
  F(BIO_set_flags)                       \
  F(BIO_set_init)                        \
  F(ERR_clear_error)                     \
  F(ERR_get_error)                       \
  F(ERR_reason_error_string)             \
  F(OPENSSL_init_ssl)                    \
  F(SSL_CTX_ctrl)                        \
  F(SSL_CTX_free)                        \
  F(SSL_CTX_load_verify_file)            \
  F(SSL_CTX_new)                         \
  F(SSL_CTX_set_ciphersuites)            \
  F(SSL_CTX_set_default_passwd_cb)       \
  F(SSL_CTX_set_default_read_buffer_len) \
  F(SSL_CTX_set_num_tickets)             \
  F(SSL_CTX_set_options)                 \
  F(SSL_CTX_set_verify)                  \
  F(SSL_CTX_use_PrivateKey_file)         \
  F(SSL_CTX_use_certificate_chain_file)  \
  F(SSL_alert_desc_string_long)          \
  F(SSL_do_handshake)                    \
  F(SSL_free)                            \
  F(SSL_get_error)                       \
  F(SSL_get_verify_result)               \
  F(SSL_key_update)                      \
  F(SSL_new)                             \
  F(SSL_read_ex)                         \
  F(SSL_set_accept_state)                \
  F(SSL_set_bio)                         \
  F(SSL_set_connect_state)               \
  F(SSL_write_ex)                        \
  F(TLS_method)                          \
  F(X509_verify_cert_error_string)

struct OpenSsl {
#define DSGD_OPENSSL_MEMBER(name) decltype(&::name) name = nullptr;
  DSGD_OPENSSL_FUNCTIONS(DSGD_OPENSSL_MEMBER)
#undef DSGD_OPENSSL_MEMBER
};

// Loads the library, once in a process. Any thread.
Result<const OpenSsl*> load_openssl();

}  // namespace dsgd::transport::uv
