// The signature of an operation: everything that must be equal on all workers. The header of each chunk
// carries it, with a digest in place of the counts; the full signature travels only after two headers
// differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transport/messages.h"

namespace dsgd {

// Phase of a chunk that carries the sender's signature and no data of the operation. With an empty payload
// the header is the signature. Otherwise the payload holds the counts, and the sender has found a worker
// whose signature differs.
inline constexpr uint16_t kSignaturePhase = 0xffff;

struct Signature {
  transport::BulkHeader header;
  uint64_t chunk_bytes = 0;
  std::vector<uint64_t> counts;  // elements of each rank, where the operation has parts of given sizes
};

// Returns whether both headers describe the same operation. Source, phase and offset are not part of the
// signature.
bool same_operation(const transport::BulkHeader& one, const transport::BulkHeader& other);

std::vector<std::byte> signature_payload(const Signature& signature);
// Fails if the payload is malformed.
bool read_signature(const transport::BulkHeader& header, std::span<const std::byte> payload, size_t workers,
                    Signature* signature);

// "workers disagree: rank 0 calls all-gather (int64, counts [7, 0]), rank 1 calls ...; all workers must call
// ..."
std::string disagreement(int32_t rank, const Signature& one, int32_t other_rank, const Signature& other);

}  // namespace dsgd
