#include "transport/authentication.h"

#include <sodium/crypto_auth_hmacsha256.h>
#include <sodium/utils.h>

#include <array>
#include <cstring>
#include <initializer_list>

namespace dsgd::transport {
namespace {

using Mac = decltype(Proof::mac);
static_assert(std::tuple_size_v<Mac> == crypto_auth_hmacsha256_BYTES);

using Bytes = std::span<const uint8_t>;

Bytes bytes_of(std::string_view text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

Mac hmac(Bytes key, std::initializer_list<Bytes> parts) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key.data(), key.size());
  for (Bytes part : parts) crypto_auth_hmacsha256_update(&state, part.data(), part.size());
  Mac mac;
  crypto_auth_hmacsha256_final(&state, mac.data());
  sodium_memzero(&state, sizeof state);
  return mac;
}

}  // namespace

Proof prove(Side side, std::string_view token, std::string_view job_nonce, std::span<const uint8_t> hello,
            const Nonce& challenge) {
  const std::string_view label = side == Side::kDialling ? "dsgd dialling side" : "dsgd accepting side";
  Mac key = hmac(bytes_of(token), {bytes_of("dsgd key"), bytes_of(job_nonce)});
  const Proof proof{hmac(key, {bytes_of(label), challenge, hello})};
  sodium_memzero(key.data(), key.size());
  return proof;
}

TokenDigest token_digest(std::string_view token, std::string_view job_nonce) {
  return hmac(bytes_of(token), {bytes_of("dsgd head state"), bytes_of(job_nonce)});
}

bool equal_proofs(const Proof& one, const Proof& other) {
  return sodium_memcmp(one.mac.data(), other.mac.data(), one.mac.size()) == 0;
}

Nonce make_nonce(Loop& loop) {
  Nonce nonce;
  for (size_t at = 0; at < nonce.size(); at += sizeof(uint64_t)) {
    const uint64_t bits = loop.random();
    std::memcpy(nonce.data() + at, &bits, sizeof bits);
  }
  return nonce;
}

Status not_proved(const std::string& address) {
  return Status(Code::kUnauthorized,
                "the process at " + address +
                    " has not proved that it knows the token: it is not of this job, or has another "
                    "token; give every process of the job the same `token` and `job`");
}

}  // namespace dsgd::transport
