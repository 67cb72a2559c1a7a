// What this worker contributes to a bucket: sum(c * g) over its replicas, and beside it, for each piece, how many replicas
// contribute and the sum of their weights. A weight of 0 never reads the gradient (0 * NaN is NaN).

#include <cmath>
#include <cstring>
#include <span>

#include "core/reduce/kernels.h"
#include "core/reduce/reproducible.h"
#include "core/strategy/step.h"

namespace dsgd {
namespace {

template <typename T>
void write_trailer(std::byte* data, size_t position, double count, double weight) {
  const T pair[2] = {static_cast<T>(count), static_cast<T>(weight)};
  std::memcpy(data + position * sizeof(T), pair, sizeof pair);
}

}  // namespace

double Step::replica_weight(uint32_t replica, uint32_t parameter) const {
  return request_.absent[replica][parameter] ? 0 : request_.weights[replica];
}

// Weights as integers, in units of 2^-shift, so that their sum does not depend on the order either.
int Step::weight_shift() const {
  int exponent = 0;
  std::frexp(largest_weight_, &exponent);
  int headroom = 1;
  while ((uint64_t{1} << headroom) < total_replicas_) ++headroom;
  return 61 - headroom - exponent;
}

void Step::raise_exponents(size_t index) {
  const Bucket& bucket = plan_[index];
  std::vector<int32_t>& exponents = buffers_[index].exponents;
  std::fill(exponents.begin(), exponents.end(), reproducible::kZero);
  for (const Piece& piece : bucket.pieces) {
    const std::span<int32_t> blocks(exponents.data() + piece.block, reproducible::block_count(piece.count));
    for (uint32_t r = 0; r < model_.replicas.size(); ++r) {
      const double weight = replica_weight(r, piece.parameter);
      if (weight == 0) continue;
      const std::byte* gradient = model_.bindings[r][piece.parameter].gradient + piece.begin * dtype_size(bucket.dtype);
      reproducible::raise_exponents(bucket.dtype, gradient, piece.count, weight, blocks);
    }
  }
}

void Step::contribute(size_t index) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  const size_t element = data_element(bucket);
  for (const Piece& piece : bucket.pieces) {
    std::byte* sum = buffers.data.data() + piece.position * element;
    const std::span<const int32_t> blocks =
        options_.reproducible ? std::span<const int32_t>(buffers.exponents.data() + piece.block,
                                                         reproducible::block_count(piece.count))
                              : std::span<const int32_t>();
    int contributing = 0;
    double weight_sum = 0;
    int64_t weight_units = 0;
    if (options_.reproducible) std::memset(sum, 0, piece.count * element);
    for (uint32_t r = 0; r < model_.replicas.size(); ++r) {
      const double weight = replica_weight(r, piece.parameter);
      if (weight == 0) continue;
      const std::byte* gradient = model_.bindings[r][piece.parameter].gradient + piece.begin * dtype_size(bucket.dtype);
      if (options_.reproducible) {
        reproducible::accumulate(bucket.dtype, gradient, piece.count, weight, blocks, total_replicas_,
                                 reinterpret_cast<int64_t*>(sum));
        weight_units += std::llrint(std::ldexp(weight, weight_shift()));
      } else if (contributing == 0) {
        weighted_set(bucket.dtype, sum, gradient, piece.count, weight);
      } else {
        weighted_add(bucket.dtype, sum, gradient, piece.count, weight);
      }
      ++contributing;
      weight_sum += weight;
    }
    if (contributing == 0 && !options_.reproducible) std::memset(sum, 0, piece.count * element);
    if (options_.reproducible) {
      const int64_t pair[2] = {contributing, weight_units};
      std::memcpy(buffers.data.data() + piece.trailer * element, pair, sizeof pair);
    } else if (bucket.dtype == DType::kFloat32) {
      write_trailer<float>(buffers.data.data(), piece.trailer, contributing, weight_sum);
    } else {
      write_trailer<double>(buffers.data.data(), piece.trailer, contributing, weight_sum);
    }
  }
}

}  // namespace dsgd
