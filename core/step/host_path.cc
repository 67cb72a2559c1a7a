#include "core/step/host_path.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/reduce/exact_sum.h"
#include "core/reduce/kernels.h"
#include "core/reduce/reproducible.h"

namespace dsgd {
namespace {

template <typename T>
void write_trailer(std::byte* data, size_t position, double count, double weight) {
  const T pair[2] = {static_cast<T>(count), static_cast<T>(weight)};
  std::memcpy(data + position * sizeof(T), pair, sizeof pair);
}

}  // namespace

HostPath::Elements HostPath::gradient_of(size_t index, uint32_t replica, const Piece& piece) const {
  const auto [context, k] = state_.where[replica];
  if (state_.contexts[context].is_host())
    return {state_.model.parameters[piece.parameter]->dtype, state_.gradient_at(replica, piece)};
  const DType dtype = state_.plan[index].dtype;
  return {dtype,
          bytes(state_.buffers[index].devices[context].fetched[k]) + piece.position * dtype_size(dtype)};
}

void HostPath::raise_exponents(size_t index) {
  const Bucket& bucket = state_.plan[index];
  std::memset(state_.exponents_at(index, 0), 0,
              bucket.elements * dtype_size(reproducible::exponent_type(bucket.dtype)));
  for (const Piece& piece : bucket.pieces) {
    for (uint32_t r = 0; r < state_.model.replicas.size(); ++r) {
      const double weight = state_.weight_of(r, piece.parameter);
      if (weight == 0) continue;
      const Elements gradient = gradient_of(index, r, piece);
      reproducible::raise_exponents(gradient.dtype, gradient.data, piece.count, weight,
                                    state_.exponents_at(index, piece.position));
    }
  }
}

void HostPath::add_up(size_t index) {
  if (state_.options.reproducible) return add_up_exactly(index);
  const Bucket& bucket = state_.plan[index];
  BucketBuffers& buffers = state_.buffers[index];
  for (size_t p = 0; p < state_.contexts.size(); ++p) {
    if (state_.contexts[p].is_host()) {
      sums_.list_gradients(state_, index, state_.contexts[p]);
      state_.contexts[p].queue->sum(bucket.dtype, sums_.pieces, sums_.terms, buffers.data.get());
    } else if (buffers.devices[p].fetched_sums) {
      reduce_into(bucket.dtype, Reduction::kSum, buffers.data.get(), buffers.devices[p].fetched_sums.get(),
                  bucket.elements);
    }
  }
}

void HostPath::add_up_exactly(size_t index) {
  const Bucket& bucket = state_.plan[index];
  for (const Piece& piece : bucket.pieces) {
    std::byte* const sums = state_.data_at(index, piece.position);
    std::memset(sums, 0, piece.count * dtype_size(state_.data_type(bucket)));
    for (uint32_t r = 0; r < state_.model.replicas.size(); ++r) {
      const double weight = state_.weight_of(r, piece.parameter);
      if (weight == 0) continue;
      const Elements gradient = gradient_of(index, r, piece);
      reproducible::accumulate(gradient.dtype, gradient.data, piece.count, weight,
                               state_.exponents_at(index, piece.position), state_.total_replicas, sums);
    }
  }
}

void HostPath::write_trailers(size_t index) {
  if (state_.options.reproducible) return write_exact_trailers(index);
  const Bucket& bucket = state_.plan[index];
  BucketBuffers& buffers = state_.buffers[index];
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Piece& piece = bucket.pieces[i];
    int contributing = 0;
    double weight_sum = 0;
    for (uint32_t r = 0; r < state_.model.replicas.size(); ++r) {
      const double weight = state_.weight_of(r, piece.parameter);
      if (weight == 0) continue;
      ++contributing;
      weight_sum += weight;
    }
    if (state_.path.alone_on_device) {
      const double weight = state_.takes_all_weights(contributing) ? state_.total_weight : weight_sum;
      buffers.means[i] = {contributing > 0, weight * state_.model.loss_scale.factor()};
    } else if (bucket.dtype == DType::kFloat32) {
      write_trailer<float>(bytes(buffers.data), piece.trailer, contributing, weight_sum);
    } else {
      write_trailer<double>(bytes(buffers.data), piece.trailer, contributing, weight_sum);
    }
  }
}

// The sum of the weights of the replicas that contribute, in digits that are added up as the data are.
void HostPath::write_exact_trailers(size_t index) {
  const Bucket& bucket = state_.plan[index];
  for (const Piece& piece : bucket.pieces) {
    WeightDigits digits{};
    for (uint32_t r = 0; r < state_.model.replicas.size(); ++r)
      add_weight(digits, state_.weight_of(r, piece.parameter));
    std::byte* const to = state_.data_at(index, piece.trailer);
    if (state_.data_type(bucket) == DType::kInt64) {
      std::memcpy(to, digits.data(), sizeof digits);
    } else {
      std::array<int32_t, kWeightDigits> narrow;
      std::copy(digits.begin(), digits.end(), narrow.begin());
      std::memcpy(to, narrow.data(), sizeof narrow);
    }
  }
}

}  // namespace dsgd
