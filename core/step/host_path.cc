#include "core/step/host_path.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/reduce/exact_sum.h"
#include "core/reduce/kernels.h"
#include "core/reduce/reproducible.h"

namespace dsgd {

HostPath::Elements HostPath::gradient_of(size_t index, uint32_t replica, const Piece& piece) const {
  const auto [context, k] = state_.location_of_replica[replica];
  if (state_.contexts[context].is_host())
    return {state_.model.parameters[piece.parameter]->dtype, state_.gradient_at(replica, piece)};
  const DType dtype = state_.plan[index].dtype;
  return {dtype,
          bytes(state_.buffers[index].devices[context].fetched[k]) + piece.position * dtype_size(dtype)};
}

template <typename Use>
void HostPath::for_parts(const Elements& gradient, size_t count, NonFinite* found, Use use) const {
  if (!state_.options.checks_gradients()) return use(gradient, 0, count);
  constexpr size_t kPart = 4096;  // elements that stay in the cache
  alignas(64) std::array<std::byte, kPart * sizeof(double)> finite;
  for (size_t begin = 0; begin < count; begin += kPart) {
    const size_t some = std::min(kPart, count - begin);
    NonFinite in_part;
    // A weight of 1 keeps the bits; half types are widened.
    weighted_set(gradient.dtype, finite.data(), gradient.data + begin * dtype_size(gradient.dtype), some, 1,
                 &in_part);
    found->add(in_part, begin);
    use(Elements{wide(gradient.dtype), finite.data()}, begin, some);
  }
}

void HostPath::raise_exponents(size_t index) {
  const Bucket& bucket = state_.plan[index];
  std::vector<NonFinite>& found = state_.buffers[index].non_finite;
  std::fill(found.begin(), found.end(), NonFinite());
  std::memset(state_.exponents_at(index, 0), 0,
              bucket.elements * dtype_size(reproducible::exponent_type(bucket.dtype)));
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Piece& piece = bucket.pieces[i];
    for (uint32_t r = 0; r < state_.model.replicas.size(); ++r) {
      const double weight = state_.weight_of(r, piece.parameter);
      if (weight == 0) continue;
      for_parts(gradient_of(index, r, piece), piece.count, found.data() + i,
                [&](const Elements& part, size_t begin, size_t count) {
                  reproducible::raise_exponents(part.dtype, part.data, count, weight,
                                                state_.exponents_at(index, piece.position + begin));
                });
    }
  }
}

void HostPath::add_up(size_t index) {
  if (state_.options.reproducible) return add_up_exactly(index);
  const Bucket& bucket = state_.plan[index];
  BucketBuffers& buffers = state_.buffers[index];
  for (size_t c = 0; c < state_.contexts.size(); ++c) {
    if (state_.contexts[c].is_host()) {
      sums_.list_gradients(state_, index, state_.contexts[c]);
      std::fill(buffers.non_finite.begin(), buffers.non_finite.end(), NonFinite());
      state_.contexts[c].queue->sum(bucket.dtype, sums_.pieces, sums_.terms, buffers.data.get(),
                                    state_.options.checks_gradients() ? buffers.non_finite.data() : nullptr);
    } else if (buffers.devices[c].fetched_sums) {
      reduce_into(bucket.dtype, Reduction::kSum, buffers.data.get(), buffers.devices[c].fetched_sums.get(),
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
      NonFinite counted;  // by raise_exponents()
      for_parts(gradient_of(index, r, piece), piece.count, &counted,
                [&](const Elements& part, size_t begin, size_t count) {
                  reproducible::accumulate(part.dtype, part.data, count, weight,
                                           state_.exponents_at(index, piece.position + begin),
                                           state_.total_replicas,
                                           state_.data_at(index, piece.position + begin));
                });
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
    } else {
      write_element(bucket.dtype, bytes(buffers.data), piece.trailer, contributing);
      write_element(bucket.dtype, bytes(buffers.data), piece.trailer + 1, weight_sum);
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
