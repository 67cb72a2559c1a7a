// Mutual proof that both sides of a connection know the job's token. The token itself never travels.
//
//   dialling side:   Hello with a nonce
//   accepting side:  Challenge with a nonce
//   dialling side:   its proof
//   accepting side:  HelloReply with a proof of its own
//
// A proof is an HMAC-SHA-256 over both nonces and every byte of the hello. It is good for this connection,
// job, role, rank and worker only, so a recorded stream is refused when it is sent again. An eavesdropper
// cannot compute the token, but can try guesses, so the token must be random. Without TLS nothing after the
// handshake is encrypted or authenticated.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "transport/loop.h"
#include "transport/messages.h"

namespace dsgd::transport {

enum class Side : uint8_t { kDialling, kAccepting };

// `job_nonce`: of the hello; empty before the job runs. The key derives from it and the token. `hello`: as it
// travels, with the nonce of the dialling side. `challenge`: the nonce of the accepting side.
Proof prove(Side side, std::string_view token, std::string_view job_nonce, std::span<const uint8_t> hello,
            const Nonce& challenge);

// A keyed hash of the job's nonce under the token. A head keeps it, to recognize the token; it is no key and
// no proof.
TokenDigest token_digest(std::string_view token, std::string_view job_nonce);

// Takes the same time whether and wherever the two differ.
bool equal_proofs(const Proof& one, const Proof& other);

Nonce make_nonce(Loop& loop);

// The error of a dial whose other side accepted without the right proof.
Status not_proved(const std::string& address);

}  // namespace dsgd::transport
