// Certificates for tests of TLS, made when the test runs.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <string>

#include "transport/network.h"

namespace dsgd {

// A CA with a directory of its own, which goes with it.
class TestAuthority {
 public:
  TestAuthority() : TestAuthority("") {}
  explicit TestAuthority(std::string name);  // "": a name that no other has
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  // Writes a new key and a certificate that this CA has signed, in place of those of that name, if any. It is
  // valid from an hour ago until `seconds` from now. `host`: its subjectAltName, for example "IP:127.0.0.1";
  // "": it has none.
  transport::TlsFiles issue(const std::string& name, int64_t seconds = 3600, const std::string& host = "");
  std::string path(const std::string& file) const { return folder_ + "/" + file; }

 private:
  std::string folder_;
  EVP_PKEY* key_;
  X509* certificate_;
};

void write_file(const std::string& path, const std::string& text);  // renamed into place, as a whole
std::string read_file(const std::string& path);

}  // namespace dsgd
