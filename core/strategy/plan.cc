#include "core/strategy/plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/collectives/direct.h"
#include "core/strategy/hash_ring.h"

namespace dsgd {
namespace {

constexpr size_t kAlign = 16;  // elements; a cache line of float32
// Bucket sizes are multiples of this many elements, so that pieces are aligned.
constexpr size_t kGrain = 4096;
size_t aligned(size_t position) { return (position + kAlign - 1) / kAlign * kAlign; }

// Gives the pieces their places: for each owner its trailers, then its elements, so that the description of a
// slice arrives first. Without owners, slices cut anywhere.
void lay_out(Bucket& bucket, bool owned, const PlanOptions& options) {
  const int32_t workers = options.workers;
  std::stable_sort(bucket.pieces.begin(), bucket.pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.owner, a.copies) < std::tie(b.owner, b.copies);
  });
  bucket.bounds.assign(workers + 1, 0);
  size_t position = 0;
  for (size_t first = 0; first < bucket.pieces.size();) {
    size_t last = first;
    while (last < bucket.pieces.size() && bucket.pieces[last].owner == bucket.pieces[first].owner) ++last;
    for (size_t p = first; p < last; ++p, position += options.trailer) bucket.pieces[p].trailer = position;
    for (size_t p = first; p < last; ++p) {
      Piece& piece = bucket.pieces[p];
      piece.position = position = aligned(position);
      position += piece.count;
    }
    position = aligned(position);
    for (int32_t rank = bucket.pieces[first].owner; rank < workers; ++rank)
      bucket.bounds[rank + 1] = position;
    first = last;
  }
  bucket.elements = position;
  if (!owned) bucket.bounds = balanced_slices(bucket.elements, workers);
  const Piece* before = nullptr;
  for (const Piece& piece : bucket.pieces) {
    const bool goes_on = before && before->owner == piece.owner && before->copies == piece.copies;
    if (!goes_on) {
      for (int32_t keeper : piece.copies)
        bucket.copied.push_back({piece.owner, keeper, piece.position, piece.position});
    }
    for (size_t i = 0; i < piece.copies.size(); ++i)
      bucket.copied[bucket.copied.size() - 1 - i].end = piece.position + piece.count;
    before = &piece;
  }
  for (const Piece& piece : bucket.pieces) bucket.parameters.push_back(piece.parameter);
  std::sort(bucket.parameters.begin(), bucket.parameters.end());
  bucket.parameters.erase(std::unique(bucket.parameters.begin(), bucket.parameters.end()),
                          bucket.parameters.end());
}

}  // namespace

uint64_t Plan::digest() const {
  uint64_t digest = 0;
  const auto add = [&digest](uint64_t number) { digest = mix64(digest + mix64(number + 1)); };
  for (const Bucket& bucket : buckets) {
    add(bucket.schedule);
    add(bucket.elements);
    for (const Piece& piece : bucket.pieces) {
      for (uint64_t number : {static_cast<uint64_t>(piece.parameter), static_cast<uint64_t>(piece.begin),
                              static_cast<uint64_t>(piece.count), static_cast<uint64_t>(piece.owner)}) {
        add(number);
      }
      for (int32_t rank : piece.copies) add(static_cast<uint64_t>(rank));
    }
  }
  return digest;
}

// Functions cannot be compared, but what they answered can.
std::string Plan::describe() const {
  if (!strategy.strategy->registered && !strategy.algorithm->registered()) return strategy.describe();
  return strategy.describe() + " (answers " + std::to_string(digest()) + ")";
}

Result<Plan> make_plan(const std::vector<PlanParameter>& parameters, const StrategySpec& strategy,
                       const PlanOptions& options) {
  const Traits& traits = strategy.traits();
  const bool ranges = traits.key_ranges;
  const Traits::Owners owners_of = traits.owners
                                       ? traits.owners({options.workers, options.servers, strategy.copies,
                                                        options.numbers, strategy.options})
                                       : nullptr;

  Plan plan{strategy, {}};
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const size_t capacity = std::max(kGrain, options.bucket_bytes / dtype_size(dtype) / kGrain * kGrain);
    const size_t range = ranges ? std::min(kKeyRange, capacity) : capacity;
    Bucket bucket{dtype, {}, {}, {}};
    size_t filled = 0;
    auto close = [&] {
      if (bucket.pieces.empty()) return;
      lay_out(bucket, traits.owner_transforms(), options);
      plan.buckets.push_back(std::move(bucket));
      bucket = Bucket{dtype, {}, {}, {}};
      filled = 0;
    };
    // Last registered first: the backward pass ends with the first layer, so its gradients come last.
    for (uint32_t index = static_cast<uint32_t>(parameters.size()); index-- > 0;) {
      const PlanParameter& parameter = parameters[index];
      if (wide(parameter.dtype) != dtype || !parameter.planned || parameter.count == 0) continue;
      for (size_t begin = 0; begin < parameter.count;) {
        size_t count = std::min(range - (ranges ? begin % range : 0), parameter.count - begin);
        if (filled + count > capacity) {
          const size_t room = (capacity - filled) / kGrain * kGrain;
          if (ranges || room == 0) {
            close();
            continue;
          }
          count = room;
        }
        std::vector<int32_t> owners = {0};
        if (owners_of) {
          DSGD_RETURN_IF_ERROR(owners_of({index, parameter.name, begin, count, begin / range}).into(&owners));
          const int32_t owner = owners.front();
          if (owner < 0 || owner >= options.workers) {
            return Status(Code::kInvalidArgument,
                          "strategy '" + strategy.name() + "' gives elements " + std::to_string(begin) +
                              " to " + std::to_string(begin + count) + " of parameter '" + parameter.name +
                              "' to rank " + std::to_string(owner) + "; ranks are 0 .. " +
                              std::to_string(options.workers - 1))
                .with_parameter(parameter.name);
          }
        }
        bucket.pieces.push_back(
            {index, begin, count, 0, 0, owners.front(), {owners.begin() + 1, owners.end()}});
        filled += count;
        begin += count;
      }
    }
    close();
  }
  return plan;
}

}  // namespace dsgd
