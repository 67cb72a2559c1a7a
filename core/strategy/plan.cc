#include "core/strategy/plan.h"

#include <algorithm>

#include "core/collectives/direct.h"
#include "core/config/config.h"
#include "core/reduce/reproducible.h"
#include "core/strategy/hash_ring.h"

namespace dsgd {
namespace {

constexpr size_t kAlign = 16;  // elements; a cache line of float32
size_t aligned(size_t position) { return (position + kAlign - 1) / kAlign * kAlign; }

// Gives the pieces their places: for each owner its trailers, then its elements, so that what describes a slice is the
// first that arrives of it. With allreduce, slices cut anywhere.
void lay_out(Bucket& bucket, StrategyKind kind, int32_t workers) {
  std::stable_sort(bucket.pieces.begin(), bucket.pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.owner < b.owner; });
  bucket.bounds.assign(workers + 1, 0);
  size_t position = 0;
  for (size_t first = 0; first < bucket.pieces.size();) {
    size_t last = first;
    while (last < bucket.pieces.size() && bucket.pieces[last].owner == bucket.pieces[first].owner) ++last;
    for (size_t p = first; p < last; ++p, position += 2) bucket.pieces[p].trailer = position;
    for (size_t p = first; p < last; ++p) {
      Piece& piece = bucket.pieces[p];
      piece.position = position = aligned(position);
      piece.block = bucket.blocks;
      bucket.blocks += reproducible::block_count(piece.count);
      position += piece.count;
    }
    position = aligned(position);
    for (int32_t rank = bucket.pieces[first].owner; rank < workers; ++rank) bucket.bounds[rank + 1] = position;
    first = last;
  }
  bucket.elements = position;
  if (kind == StrategyKind::kAllReduce) bucket.bounds = balanced_slices(bucket.elements, workers);
  for (const Piece& piece : bucket.pieces) bucket.parameters.push_back(piece.parameter);
  std::sort(bucket.parameters.begin(), bucket.parameters.end());
  bucket.parameters.erase(std::unique(bucket.parameters.begin(), bucket.parameters.end()), bucket.parameters.end());
}

}  // namespace

std::string StrategySpec::describe() const {
  switch (kind) {
    case StrategyKind::kSimple: return "simple";
    case StrategyKind::kPs: return "ps";
    case StrategyKind::kAllReduce: return "allreduce algorithm=" + algorithm;
  }
  return "";
}

Result<StrategySpec> StrategySpec::parse(const std::string& name, const std::string& options,
                                         const std::string& default_algorithm) {
  static const std::vector<std::string> kNames = {"simple", "ps", "allreduce", "mirrored", "multi_worker_mirrored"};
  StrategySpec spec;
  spec.algorithm = default_algorithm;
  if (name == "simple") {
    spec.kind = StrategyKind::kSimple;
  } else if (name == "ps") {
    spec.kind = StrategyKind::kPs;
  } else if (name == "allreduce" || name == "mirrored" || name == "multi_worker_mirrored") {
    spec.kind = StrategyKind::kAllReduce;
  } else {
    const std::string near = nearest_name(name, kNames);
    return Status(Code::kInvalidArgument, "there is no strategy '" + name + "'" +
                                              (near.empty() ? "" : "; did you mean '" + near + "'?") +
                                              "; strategies are simple, ps and allreduce (also called mirrored, multi_worker_mirrored)");
  }
  auto words = Options::parse(options, "strategy '" + name + "'");
  if (!words.ok()) return words.status();
  if (spec.kind == StrategyKind::kAllReduce) words->choice("algorithm", &spec.algorithm, {"auto", "direct", "ring"});
  Status status = words->finish();
  if (!status.ok()) return status;
  return spec;
}

std::vector<Bucket> make_plan(const std::vector<PlanParameter>& parameters, const StrategySpec& strategy,
                              const PlanOptions& options) {
  const bool ps = strategy.kind == StrategyKind::kPs;
  std::vector<int32_t> servers;
  for (int32_t server = 0; server < std::min(options.servers, options.workers); ++server) servers.push_back(server);
  const HashRing ring(ps ? servers : std::vector<int32_t>{0});

  std::vector<Bucket> plan;
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    // A multiple of the block, so that no block is split over two buckets.
    const size_t capacity = std::max(reproducible::kBlock, options.bucket_bytes / dtype_size(dtype) /
                                                               reproducible::kBlock * reproducible::kBlock);
    const size_t range = ps ? std::min(kKeyRange, capacity) : capacity;
    Bucket bucket{dtype, {}, {}, {}};
    size_t filled = 0, blocks = 0;
    auto close = [&] {
      if (bucket.pieces.empty()) return;
      lay_out(bucket, strategy.kind, options.workers);
      plan.push_back(std::move(bucket));
      bucket = Bucket{dtype, {}, {}, {}};
      filled = blocks = 0;
    };
    // Last registered first: the backward pass ends with the first layer, so its gradients come last.
    for (uint32_t index = static_cast<uint32_t>(parameters.size()); index-- > 0;) {
      const PlanParameter& parameter = parameters[index];
      if (parameter.dtype != dtype || !parameter.planned || parameter.count == 0) continue;
      for (size_t begin = 0; begin < parameter.count;) {
        size_t count = std::min(range - (ps ? begin % range : 0), parameter.count - begin);
        const size_t blocks_left = options.bucket_blocks - blocks;
        if (filled + count > capacity || reproducible::block_count(count) > blocks_left) {
          const size_t room = std::min((capacity - filled) / reproducible::kBlock, blocks_left) * reproducible::kBlock;
          if (ps || room == 0) {
            close();
            continue;
          }
          count = room;
        }
        const int32_t owner = ps ? ring.owner(range_key(index, begin / range)) : 0;
        bucket.pieces.push_back({index, begin, count, 0, 0, owner, 0});
        filled += count;
        blocks += reproducible::block_count(count);
        begin += count;
      }
    }
    close();
  }
  return plan;
}

}  // namespace dsgd
