// The plan of a strategy: how parameters are laid out in buckets and which rank owns which part of a bucket. All workers
// compute the same plan from the same facts, so nothing of it travels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/strategy/strategies.h"
#include "transport/base/status.h"

namespace dsgd {

// A range of one parameter in a bucket. Positions count elements of the bucket.
struct Piece {
  uint32_t parameter;
  size_t begin, count;  // in the parameter; begin is a multiple of reproducible::kBlock
  size_t position;
  size_t trailer;  // position of two elements: number of contributing replicas, sum of their weights
  int32_t owner;   // of the whole piece, unless the strategy is allreduce
  size_t block;    // first of its reproducible blocks in the bucket's list
};

struct Bucket {
  DType dtype;
  std::vector<Piece> pieces;       // by position
  std::vector<size_t> bounds;      // slices of the ranks, size + 1 positions
  std::vector<uint32_t> parameters;  // distinct, those with a piece here
  size_t elements = 0;             // with trailers and padding
  size_t blocks = 0;
  uint64_t schedule = 0;           // digest, of a registered algorithm
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
  int32_t servers = 1;              // ranks 0 .. servers-1 hold server shards (ps)
  size_t bucket_bytes = 4 << 20;    // of parameter elements; never exceeded
  size_t bucket_blocks = SIZE_MAX;  // reproducible blocks; never exceeded: their exponents travel in one message
};

// Elements of one key range of the parameter servers.
inline constexpr size_t kKeyRange = 65536;

// Fails only where a registered strategy gives no owner.
Result<Plan> make_plan(const std::vector<PlanParameter>& parameters, const StrategySpec& strategy,
                       const PlanOptions& options);

}  // namespace dsgd
