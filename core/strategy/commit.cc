// From sums to new values. What an owner computes before the commit (the mean in `simple`, new values and state in `ps`)
// stays in buffers of the step; commit() alone changes the model.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/optimizer/apply.h"
#include "core/reduce/kernels.h"
#include "core/reduce/reproducible.h"
#include "core/strategy/step.h"

namespace dsgd {
namespace {

constexpr size_t kScratch = 8192;  // elements of a mean that stay in the cache between division and update

double read_element(DType dtype, const std::byte* data, size_t position) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, data + position * sizeof value, sizeof value);
    return value;
  }
  double value;
  std::memcpy(&value, data + position * sizeof value, sizeof value);
  return value;
}

void write_element(DType dtype, std::byte* data, size_t position, double value) {
  if (dtype == DType::kFloat32) {
    const float narrow = static_cast<float>(value);
    std::memcpy(data + position * sizeof narrow, &narrow, sizeof narrow);
  } else {
    std::memcpy(data + position * sizeof value, &value, sizeof value);
  }
}

}  // namespace

// How many replicas contribute to a piece and their weight. When all that have a weight do, the weight is the header's
// exact one; else the sum that travelled beside the data.
Step::PieceMean Step::piece_mean(const Bucket& bucket, const Buffers& buffers, const Piece& piece,
                                 bool from_result) const {
  double count, weight;
  if (options_.reproducible && !from_result) {
    int64_t pair[2];
    std::memcpy(pair, buffers.data.data() + piece.trailer * sizeof(int64_t), sizeof pair);
    count = static_cast<double>(pair[0]);
    weight = std::ldexp(static_cast<double>(pair[1]), -weight_shift());
  } else {
    const std::byte* data = options_.reproducible ? buffers.result.data() : buffers.data.data();
    count = read_element(bucket.dtype, data, piece.trailer);
    weight = read_element(bucket.dtype, data, piece.trailer + 1);
  }
  if (count == positive_) weight = total_weight_;
  return {count > 0, weight};
}

// mean[0 .. count) = the mean of elements [begin, begin + count) of the piece.
void Step::mean_of(const Bucket& bucket, const Buffers& buffers, const Piece& piece, size_t begin, size_t count,
                   double weight, void* mean) const {
  const size_t element = dtype_size(bucket.dtype);
  if (!options_.reproducible) {
    const std::byte* sum = buffers.data.data() + (piece.position + begin) * element;
    if (mean != sum) std::memcpy(mean, sum, count * element);
    return divide(bucket.dtype, mean, count, weight);
  }
  const int64_t* sums = reinterpret_cast<const int64_t*>(buffers.data.data()) + piece.position;
  for (size_t done = 0; done < count;) {
    const size_t at = begin + done, block = at / reproducible::kBlock;
    const size_t part = std::min(count - done, (block + 1) * reproducible::kBlock - at);
    reproducible::to_mean(bucket.dtype, sums + at, part, {buffers.exponents.data() + piece.block + block, 1},
                          total_replicas_, weight, static_cast<std::byte*>(mean) + done * element);
    done += part;
  }
}

// At the owner of [begin, end) of a bucket, in order: the sums are complete.
void Step::transform(size_t index, size_t begin, size_t end) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  const size_t element = dtype_size(bucket.dtype);
  std::byte* result = result_of(buffers);
  const bool update = updates_at_owner();
  alignas(64) std::array<std::byte, kScratch * sizeof(double)> scratch;
  double norm = 0;
  for (const Piece& piece : bucket.pieces) {
    // Trailers come first in a slice; they travel on, so that everybody knows what was absent.
    if (options_.reproducible && piece.trailer >= begin && piece.trailer < end) {
      int64_t pair[2];
      std::memcpy(pair, buffers.data.data() + piece.trailer * sizeof(int64_t), sizeof pair);
      write_element(bucket.dtype, result, piece.trailer, static_cast<double>(pair[0]));
      write_element(bucket.dtype, result, piece.trailer + 1,
                    std::ldexp(static_cast<double>(pair[1]), -weight_shift()));
    }
    const size_t first = std::max(begin, piece.position), last = std::min(end, piece.position + piece.count);
    if (first >= last) continue;
    const PieceMean mean = piece_mean(bucket, buffers, piece, false);
    const UpdateRule rule = model_.optimizer->rule(model_.updates[piece.parameter], model_.settings[piece.parameter]);
    for (size_t at = first; at < last;) {
      const size_t count = std::min(kScratch, last - at), offset = at - piece.position;
      std::byte* out = result + at * element;
      if (!update) {
        if (mean.present) mean_of(bucket, buffers, piece, offset, count, mean.weight, out);
      } else {
        const size_t place = (piece.begin + offset) * element;
        const std::byte* value = model_.bindings[0][piece.parameter].value + place;
        if (!mean.present) {
          std::memcpy(out, value, count * element);
        } else {
          mean_of(bucket, buffers, piece, offset, count, mean.weight, scratch.data());
          if (options_.gradient_norm) norm += sum_of_squares(bucket.dtype, scratch.data(), count);
          std::vector<const void*> state_in;
          std::vector<void*> state_out;
          for (size_t s = 0; s < model_.state[piece.parameter].size(); ++s) {
            state_in.push_back(model_.state[piece.parameter][s].get() + place);
            state_out.push_back(next_state_[piece.parameter][s].get() + place);
          }
          apply(rule, bucket.dtype, count, scratch.data(), value, out, state_in, state_out);
        }
      }
      at += count;
    }
  }
  if (options_.gradient_norm && update) buffers.norms.push_back(norm);
}

void Step::commit() {
  result_.applied = positive_ > 0;
  if (!result_.applied) return;
  std::vector<char> updated(model_.parameters.size(), 0);
  std::vector<double> norms;
  for (size_t b = 0; b < plan_.size(); ++b) commit_bucket(b, updated, norms);
  for (size_t p = 0; p < updated.size(); ++p) {
    if (!updated[p]) continue;
    ++model_.updates[p];
    if (updates_at_owner()) std::swap(model_.state[p], next_state_[p]);
  }
  if (options_.gradient_norm && !updates_at_owner()) {
    double total = 0;
    for (double norm : norms) total += norm;
    result_.gradient_norm = std::sqrt(total);
  }
}

void Step::commit_bucket(size_t index, std::vector<char>& updated, std::vector<double>& norms) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  const size_t element = dtype_size(bucket.dtype);
  const bool at_owner = updates_at_owner(), have_mean = transforms();
  for (const Piece& piece : bucket.pieces) {
    const PieceMean mean = piece_mean(bucket, buffers, piece, have_mean);
    if (!mean.present) continue;
    updated[piece.parameter] = 1;
    std::byte* result = result_of(buffers) + piece.position * element;
    const size_t place = piece.begin * element, nbytes = piece.count * element;
    if (!at_owner) {
      if (!have_mean) mean_of(bucket, buffers, piece, 0, piece.count, mean.weight, result);
      if (options_.gradient_norm) norms.push_back(sum_of_squares(bucket.dtype, result, piece.count));
    }
    if (model_.optimizer->is_none()) {
      for (auto& bindings : model_.bindings) std::memcpy(bindings[piece.parameter].gradient + place, result, nbytes);
      continue;
    }
    std::byte* value = model_.bindings[0][piece.parameter].value + place;
    if (at_owner) {
      std::memcpy(value, result, nbytes);
    } else {
      std::vector<const void*> state_in;
      std::vector<void*> state_out;
      for (StateBuffer& state : model_.state[piece.parameter]) {
        state_in.push_back(state.get() + place);
        state_out.push_back(state.get() + place);
      }
      apply(model_.optimizer->rule(model_.updates[piece.parameter], model_.settings[piece.parameter]), bucket.dtype,
            piece.count, result, value, value, state_in, state_out);
    }
    for (size_t r = 1; r < model_.bindings.size(); ++r) {
      std::memcpy(model_.bindings[r][piece.parameter].value + place, value, nbytes);
    }
  }
}

}  // namespace dsgd
