// The plan of a strategy: how parameters are laid out in buckets and which rank owns which part of a bucket.
// All workers compute the same plan from the same inputs, so no plan is sent.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/reduce/exact_sum.h"
#include "core/strategy/strategies.h"
#include "transport/base/status.h"

namespace dsgd {

// A range of one parameter in a bucket. Positions count elements of the bucket.
struct Piece {
  uint32_t parameter;
  size_t begin, count;  // in the parameter
  size_t position;
  size_t trailer;                    // position of its trailer (count and sum of the weights in its sums)
  int32_t owner;                     // of the whole piece, if the strategy has owners
  std::vector<int32_t> copies = {};  // ranks that keep copies of its state
  bool is_kept_by(int32_t rank) const {
    return owner == rank || std::find(copies.begin(), copies.end(), rank) != copies.end();
  }
};

// Elements of a trailer: the number of contributing replicas and the sum of their weights; or, when
// reproducible, the digits of that sum (core/reduce/exact_sum.h). Divisors of 16, so that no trailer is cut.
inline constexpr size_t kTrailer = 2;
inline constexpr size_t kExactTrailer = kWeightDigits;
static_assert(16 % kExactTrailer == 0);

// Neighbouring pieces, with the padding between them, whose means one owner sends to one rank that keeps
// copies.
struct CopiedRange {
  int32_t owner, keeper;
  size_t begin, end;  // positions
};

struct Bucket {
  DType dtype;
  std::vector<Piece> pieces;         // by position
  std::vector<size_t> bounds;        // slices of the ranks, size + 1 positions
  std::vector<uint32_t> parameters;  // distinct, those with a piece here
  size_t elements = 0;               // with trailers and padding
  uint64_t schedule = 0;             // digest, of a registered algorithm
  std::vector<CopiedRange> copied = {};
};

struct Plan {
  StrategySpec strategy;
  std::vector<Bucket> buckets;
  uint64_t digest() const;       // of layout, owners and schedules
  std::string describe() const;  // the strategy, and the digest if the host's functions had a part in it
};

struct PlanParameter {  // what planning needs to know
  DType dtype;
  size_t count;
  bool planned;  // trained and not frozen
  std::string name = {};
};

struct PlanOptions {
  int32_t workers = 1;
  int32_t servers = 1;            // ranks 0 .. servers-1 hold server shards (ps)
  size_t bucket_bytes = 4 << 20;  // of parameter elements; exceeded only if it is less than 4096 elements
  size_t trailer = kTrailer;
  std::vector<int32_t> numbers = {};  // as in Placement
};

// Elements of one key range of the parameter servers.
inline constexpr size_t kKeyRange = 65536;

// Fails only where a registered strategy gives no owner.
Result<Plan> make_plan(const std::vector<PlanParameter>& parameters, const StrategySpec& strategy,
                       const PlanOptions& options);

}  // namespace dsgd
