#include "core/mesh/signature.h"

#include <algorithm>
#include <utility>

#include "core/mesh/task.h"
#include "transport/schema/codec.h"

namespace dsgd {
namespace {

constexpr size_t kShownCounts = 32;  // longer lists are cut

// All counts, or the first one that differs from the other side's.
std::string counts_text(const std::vector<uint64_t>& counts, const std::vector<uint64_t>& other) {
  if (counts.size() > kShownCounts && counts.size() == other.size()) {
    const size_t rank = static_cast<size_t>(std::mismatch(counts.begin(), counts.end(), other.begin()).first -
                                            counts.begin());
    if (rank < counts.size())
      return "count " + std::to_string(counts[rank]) + " for rank " + std::to_string(rank);
  }
  std::string text;
  for (size_t rank = 0; rank < std::min(counts.size(), kShownCounts); ++rank) {
    text += (rank ? ", " : "") + std::to_string(counts[rank]);
  }
  return "counts [" + text + (counts.size() > kShownCounts ? ", ..." : "") + "]";
}

// Settings that the host does not pass with the call.
std::string settings_text(const Signature& one, const Signature& other) {
  if (one.header.algorithm != other.header.algorithm) {
    return std::string(" with algorithm ") + algorithm_name(static_cast<Algorithm>(one.header.algorithm));
  }
  if (one.chunk_bytes != 0 && other.chunk_bytes != 0 && one.chunk_bytes != other.chunk_bytes) {
    return " with chunks of " + std::to_string(one.chunk_bytes) + " bytes (from receive_memory)";
  }
  return " with other counts, sizes or settings";
}

}  // namespace

bool same_operation(const transport::BulkHeader& one, const transport::BulkHeader& other) {
  return one.kind == other.kind && one.dtype == other.dtype && one.reduction == other.reduction &&
         one.algorithm == other.algorithm && one.root == other.root && one.count == other.count &&
         one.tag == other.tag;
}

std::vector<std::byte> signature_payload(const Signature& signature) {
  return transport::encode(transport::OperationCounts{signature.chunk_bytes, signature.counts});
}

bool read_signature(const transport::BulkHeader& header, std::span<const std::byte> payload, size_t workers,
                    Signature* signature) {
  auto counts = transport::decode_operation_counts(payload);
  if (!counts.ok() || (!counts->counts.empty() && counts->counts.size() != workers)) return false;
  *signature = {header, counts->chunk_bytes, std::move(counts->counts)};
  return true;
}

std::string disagreement(int32_t rank, const Signature& one, int32_t other_rank, const Signature& other) {
  if (other_rank < rank) return disagreement(other_rank, other, rank, one);
  const auto parts = [](const Signature& side, const Signature& against) {
    return side.counts.empty() ? std::string() : counts_text(side.counts, against.counts);
  };
  std::string first = describe(one.header, parts(one, other)),
              second = describe(other.header, parts(other, one));
  if (first == second) first += settings_text(one, other), second += settings_text(other, one);
  const auto is_step = [](const Signature& side) {
    return static_cast<Kind>(side.header.kind) == Kind::kHeader;
  };
  return "workers disagree: rank " + std::to_string(rank) + " calls " + first + ", rank " +
         std::to_string(other_rank) + " calls " + second +
         "; all workers must call the same operations in the same order" +
         (is_step(one) != is_step(other) ? std::string("; ") + kUnevenDataAdvice : std::string());
}

}  // namespace dsgd
