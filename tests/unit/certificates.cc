#include "tests/unit/certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>

namespace dsgd {

namespace {

void add_extension(X509* certificate, int kind, const std::string& text) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, text.c_str());
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

X509* make_certificate(const std::string& name, const std::string& host, int64_t seconds, EVP_PKEY* key,
                       X509* issuer, EVP_PKEY* issuer_key) {
  static std::atomic<long> serial{1};
  X509* certificate = X509_new();
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), seconds);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate, X509_get_subject_name(issuer ? issuer : certificate));
  if (!issuer) add_extension(certificate, NID_basic_constraints, "critical,CA:TRUE");
  if (!host.empty()) add_extension(certificate, NID_subject_alt_name, host);
  if (X509_sign(certificate, issuer_key, EVP_sha256()) == 0)
    throw std::runtime_error("a certificate cannot be signed");
  return certificate;
}

template <typename Write>
std::string pem(Write write) {
  BIO* memory = BIO_new(BIO_s_mem());
  write(memory);
  char* data = nullptr;
  const long n = BIO_get_mem_data(memory, &data);
  std::string text(data, static_cast<size_t>(n));
  BIO_free(memory);
  return text;
}

}  // namespace

TestAuthority::TestAuthority(std::string name) {
  std::string pattern = (std::filesystem::temp_directory_path() / "dsgd-tls-XXXXXX").string();
  if (!mkdtemp(pattern.data())) throw std::runtime_error("no directory for certificates");
  folder_ = pattern;
  key_ = EVP_EC_gen("P-256");
  if (name.empty()) name = "CA of " + folder_;
  certificate_ = make_certificate(name, "", 3600, key_, nullptr, key_);
  write_file(path("ca.pem"), pem([this](BIO* out) { PEM_write_bio_X509(out, certificate_); }));
}

TestAuthority::~TestAuthority() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
  std::filesystem::remove_all(folder_);
}

transport::TlsFiles TestAuthority::issue(const std::string& name, int64_t seconds, const std::string& host) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = make_certificate(name, host, seconds, key, certificate_, key_);
  const transport::TlsFiles files{path(name + ".pem"), path(name + ".key"), path("ca.pem")};
  write_file(files.cert, pem([certificate](BIO* out) { PEM_write_bio_X509(out, certificate); }));
  write_file(files.key, pem([key](BIO* out) {
               PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
             }));
  X509_free(certificate);
  EVP_PKEY_free(key);
  return files;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  std::filesystem::rename(path + ".new", path);
}

std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace dsgd
