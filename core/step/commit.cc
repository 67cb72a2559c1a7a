#include "core/step/commit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/optimizer/apply.h"
#include "core/reduce/exact_sum.h"
#include "core/reduce/kernels.h"
#include "core/reduce/reproducible.h"

namespace dsgd {
namespace {

constexpr size_t kScratch = 8192;  // elements of a mean that stay in the cache between division and update

}  // namespace

void Commit::begin_step() {
  clip_divisor_ = 1;
  squares_ = 0;
  exact_squares_ = {};
}

// The exact sum of the weights of the replicas that contribute to a piece, rounded once; 0: none does.
double Commit::exact_weight(size_t index, const Piece& piece) const {
  WeightDigits digits;
  const std::byte* from = state_.data_at(index, piece.trailer);
  if (state_.data_type(state_.plan[index]) == DType::kInt64) {
    std::memcpy(digits.data(), from, sizeof digits);
  } else {
    std::array<int32_t, kWeightDigits> narrow;
    std::memcpy(narrow.data(), from, sizeof narrow);
    std::copy(narrow.begin(), narrow.end(), digits.begin());
  }
  return weight_of(digits);
}

// Returns whether a replica contributes to a piece, and the divisor of its sum. If all replicas that have a
// weight contribute, or the others count as zero, the weight is the header's exact sum; else the sum that
// travelled in the trailer. `from_result`: reads the trailer from the results, not from exact sums.
PieceMean Commit::piece_mean(size_t index, const Piece& piece, bool from_result) const {
  double count, weight;
  if (state_.options.reproducible && !from_result) {
    weight = exact_weight(index, piece);
    count = weight > 0 ? 1 : 0;
    if (state_.options.absent_is_zero && count > 0) weight = state_.total_weight;
  } else {
    const DType dtype = state_.plan[index].dtype;
    const std::byte* data = state_.buffers[index].result_data();
    count = read_element(dtype, data, piece.trailer);
    weight = read_element(dtype, data, piece.trailer + 1);
    if (state_.takes_all_weights(count)) weight = state_.total_weight;
  }
  return {count > 0, weight * state_.sum_scale * state_.model.loss_scale.factor()};
}

// mean[0 .. count) = the mean of elements [begin, begin + count) of the piece.
void Commit::mean_of(size_t index, const Piece& piece, size_t begin, size_t count, double weight,
                     void* mean) const {
  const DType dtype = state_.plan[index].dtype;
  const std::byte* sums = state_.data_at(index, piece.position + begin);
  if (!state_.options.reproducible) {
    if (mean != sums) std::memcpy(mean, sums, count * dtype_size(dtype));
    return divide(dtype, mean, count, weight);
  }
  reproducible::to_mean(dtype, sums, count, state_.exponents_at(index, piece.position + begin),
                        state_.total_replicas, weight, mean);
}

// Elements [begin, begin + count) of a piece's values, in the bucket's type; `scratch` has room for them.
const void* Commit::owned_values(size_t index, const Piece& piece, size_t begin, size_t count,
                                 float* scratch) const {
  if (state_.buffers[index].values)
    return bytes(state_.buffers[index].values) +
           (piece.position + begin) * dtype_size(state_.plan[index].dtype);
  const DType dtype = state_.model.parameters[piece.parameter]->dtype;
  const std::byte* value =
      state_.value_at(state_.contexts.front().replicas[0], piece) + begin * dtype_size(dtype);
  if (!is_half(dtype)) return value;
  widen(dtype, scratch, value, count);
  return scratch;
}

void Commit::transform(size_t index, size_t begin, size_t end) {
  const Bucket& bucket = state_.plan[index];
  const size_t element = dtype_size(bucket.dtype);
  std::byte* result = state_.buffers[index].result_data();
  const bool update = state_.path.updates_at_owner;
  double norm = 0;
  for (const Piece& piece : bucket.pieces) {
    // Trailers come first in a slice; they travel with the result, so that every worker knows which gradients
    // were absent.
    if (state_.options.reproducible && piece.trailer >= begin && piece.trailer < end) {
      const double weight = exact_weight(index, piece);
      write_element(bucket.dtype, result, piece.trailer, weight > 0 ? 1 : 0);
      write_element(bucket.dtype, result, piece.trailer + 1, weight);
    }
    const size_t first = std::max(begin, piece.position), last = std::min(end, piece.position + piece.count);
    if (first >= last) continue;
    const PieceMean mean = piece_mean(index, piece, false);
    for (size_t at = first; at < last;) {
      const size_t count = std::min(kScratch, last - at), offset = at - piece.position;
      std::byte* out = result + at * element;
      if (update) {
        update_owned(index, piece, offset, count, mean, out, &norm);
      } else if (mean.present) {
        mean_of(index, piece, offset, count, mean.weight, out);
      }
      at += count;
    }
  }
  if (state_.path.measures_norm && update) state_.buffers[index].progress.norms.push_back(norm);
}

// out[0 .. count) = the new values of elements [begin, begin + count) of a piece, kScratch at most. Adds the
// squares of their mean to the norm: to `norm`, or to exact_squares_.
void Commit::update_owned(size_t index, const Piece& piece, size_t begin, size_t count, const PieceMean& mean,
                          std::byte* out, double* norm) {
  const DType dtype = state_.plan[index].dtype;
  const size_t element = dtype_size(dtype);
  if (!mean.present) {
    alignas(64) std::array<float, kScratch> widened;
    std::memcpy(out, owned_values(index, piece, begin, count, widened.data()), count * element);
    return;
  }
  alignas(64) std::array<std::byte, kScratch * sizeof(double)> scratch;
  std::byte* const kept = bytes(state_.buffers[index].copied_means);
  std::byte* const means = kept ? kept + (piece.position + begin) * element : scratch.data();
  mean_of(index, piece, begin, count, mean.weight, means);
  if (state_.path.measures_norm && state_.options.reproducible)
    add_squares(exact_squares_, dtype, means, count);
  if (state_.path.measures_norm && !state_.options.reproducible) *norm += sum_of_squares(dtype, means, count);
  update_range(index, piece, begin, count, means, out);
}

// From the mean of elements [begin, begin + count) of a piece, kScratch at most: their new values, in the
// bucket's type, and their new state.
void Commit::update_range(size_t index, const Piece& piece, size_t begin, size_t count, const std::byte* mean,
                          std::byte* out) {
  const DType wide_dtype = state_.plan[index].dtype;
  const DType dtype = state_.model.parameters[piece.parameter]->dtype;
  const size_t element = dtype_size(wide_dtype), byte_offset = (piece.begin + begin) * element;
  const UpdateRule rule = state_.model.optimizer->rule(state_.model.updates[piece.parameter],
                                                       state_.model.settings[piece.parameter]);
  alignas(64) std::array<float, kScratch> widened;
  const void* value = owned_values(index, piece, begin, count, widened.data());
  std::vector<const void*> state_in;
  std::vector<void*> state_out;
  for (const Memory& tensor : optimizer_state_.on_host()[piece.parameter])
    state_in.push_back(bytes(tensor) + byte_offset);
  for (const Memory& tensor : optimizer_state_.next()[piece.parameter])
    state_out.push_back(bytes(tensor) + byte_offset);
  if (!is_half(dtype)) return apply(rule, wide_dtype, count, mean, value, out, state_in, state_out);
  float* const master = static_cast<float*>(state_out.back());
  std::memcpy(master, state_in.back(), count * element);
  refresh_masters(dtype, master, static_cast<const float*>(value), count);
  state_in.pop_back(), state_out.pop_back();
  apply(rule, wide_dtype, count, mean, master, master, state_in, state_out);
  std::array<uint16_t, kScratch> narrowed;  // the values that the others get
  narrow(dtype, narrowed.data(), master, count);
  widen(dtype, reinterpret_cast<float*>(out), narrowed.data(), count);
}

void Commit::update_copies(size_t index) {
  const Bucket& bucket = state_.plan[index];
  const std::byte* const means = bytes(state_.buffers[index].copied_means);
  alignas(64) std::array<std::byte, kScratch * sizeof(double)> values;  // which come from the owner
  for (const Piece& piece : bucket.pieces) {
    if (piece.owner == state_.rank() || !piece.is_kept_by(state_.rank())) continue;
    if (!piece_mean(index, piece, true).present) continue;
    for (size_t begin = 0; begin < piece.count; begin += kScratch) {
      update_range(index, piece, begin, std::min(kScratch, piece.count - begin),
                   means + (piece.position + begin) * dtype_size(bucket.dtype), values.data());
    }
  }
}

Status Commit::measure(size_t index) {
  const Bucket& bucket = state_.plan[index];
  BucketBuffers& buffers = state_.buffers[index];
  const size_t element = dtype_size(bucket.dtype);
  if (state_.path.updates_early) {
    buffers.means.assign(bucket.pieces.size(),
                         {true, state_.total_weight * state_.model.loss_scale.factor()});
  } else if (!state_.path.alone_on_device) {
    buffers.means.clear();
    for (const Piece& piece : bucket.pieces)
      buffers.means.push_back(piece_mean(index, piece, state_.path.transforms));
  }
  if (state_.path.norms_on_device) return devices_.add_squares(index);
  if (state_.path.updates_at_owner || (!state_.options.reproducible && !state_.path.measures_norm)) return {};
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Piece& piece = bucket.pieces[i];
    const PieceMean& mean = buffers.means[i];
    if (!mean.present) continue;
    std::byte* result = buffers.result_data() + piece.position * element;
    if (state_.options.reproducible && !state_.path.transforms)
      mean_of(index, piece, 0, piece.count, mean.weight, result);
    if (!state_.path.measures_norm) continue;
    if (state_.options.reproducible) {  // of means, in any order
      add_squares(exact_squares_, bucket.dtype, result, piece.count);
      continue;
    }
    const double divisor = state_.path.have_mean ? 1 : mean.weight;
    squares_ += sum_of_squares(bucket.dtype, result, piece.count) / (divisor * divisor);
  }
  return {};
}

double Commit::norm_on_host() const {
  return std::sqrt(state_.options.reproducible ? squares_of(exact_squares_) : squares_);
}

// One number, the sum of squares; or its exact digits.
std::vector<std::byte> Commit::norm_part() const {
  if (state_.options.reproducible) {
    std::vector<std::byte> part(sizeof exact_squares_);
    std::memcpy(part.data(), exact_squares_.data(), part.size());
    return part;
  }
  double sum = 0;
  for (const BucketBuffers& buffers : state_.buffers) {
    for (double norm : buffers.progress.norms) sum += norm;
  }
  std::vector<std::byte> part(sizeof sum);
  std::memcpy(part.data(), &sum, sizeof sum);
  return part;
}

Status Commit::add_norm_parts(const std::vector<std::vector<std::byte>>& parts) {
  const bool exact = state_.options.reproducible;
  squares_ = 0;
  exact_squares_ = {};
  for (const auto& part : parts) {
    if (part.size() != (exact ? sizeof exact_squares_ : sizeof squares_))
      return Status(Code::kInternal, "a worker sent a norm of " + std::to_string(part.size()) + " bytes");
    if (exact) {
      SquareDigits theirs;
      std::memcpy(theirs.data(), part.data(), sizeof theirs);
      for (size_t k = 0; k < kSquareDigits; ++k) exact_squares_[k] += theirs[k];
    } else {
      double theirs;
      std::memcpy(&theirs, part.data(), sizeof theirs);
      squares_ += theirs;
    }
  }
  return {};
}

// The same on all workers, since all have the same sums, or the same sum of what owners have measured.
bool Commit::apply_norm() {
  double& norm = state_.result.gradient_norm;
  if (state_.model.loss_scale.on()) {
    // float32 sums divided by a weight below 1 may overflow, so a norm beyond float32's range counts as
    // infinite.
    const bool narrow = std::any_of(state_.plan.begin(), state_.plan.end(),
                                    [](const Bucket& bucket) { return bucket.dtype == DType::kFloat32; });
    if (narrow && norm > std::numeric_limits<float>::max()) norm = std::numeric_limits<double>::infinity();
    const bool finite = std::isfinite(norm);
    state_.model.loss_scale.stepped(finite);
    if (!finite) return false;
  }
  if (state_.path.clips) {
    // As torch.nn.utils.clip_grad_norm_ does.
    const double divisor = (norm + 1e-6) / state_.model.optimizer->clip_norm();
    // A NaN norm makes every gradient NaN, as in torch.
    if (!(divisor <= 1)) clip_divisor_ = divisor;
  }
  return true;
}

Status Commit::update(size_t index) {
  const Bucket& bucket = state_.plan[index];
  BucketBuffers& buffers = state_.buffers[index];
  if (state_.path.returns_results) DSGD_RETURN_IF_ERROR(devices_.return_results(index));
  for (size_t c = 0; c < state_.contexts.size(); ++c) {
    DeviceContext& context = state_.contexts[c];
    const void* sums = context.is_host() ? buffers.result_data() : buffers.devices[c].sums.get();
    if (!context.is_host() && state_.path.returns_results)
      DSGD_RETURN_IF_ERROR(context.queue->wait(*buffers.devices[c].returned));
    if (state_.path.updates_early) DSGD_RETURN_IF_ERROR(context.queue->wait(*buffers.devices[c].reached));
    list_updates(index, context);
    const bool read_by_streams = noted_ && &context == &state_.contexts.front() && !context.is_host();
    if (read_by_streams) DSGD_RETURN_IF_ERROR(context.queue->wait(*context.staged));
    DSGD_RETURN_IF_ERROR(context.queue->update(bucket.dtype, update_pieces_, targets_, sums));
    if (read_by_streams) DSGD_RETURN_IF_ERROR(context.queue->record(*context.reached));
  }
  return {};
}

void Commit::list_updates(size_t index, DeviceContext& context) {
  using device::Action;
  const Bucket& bucket = state_.plan[index];
  const size_t element = dtype_size(bucket.dtype);
  const std::vector<PieceMean>& means = state_.buffers[index].means;
  const bool none = state_.model.optimizer->is_none();
  const Action action = state_.path.updates_at_owner || (none && state_.path.have_mean) ? Action::kCopy
                        : none                                                          ? Action::kMean
                                                                                        : Action::kUpdate;
  update_pieces_.clear();
  targets_.clear();
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Piece& piece = bucket.pieces[i];
    if (!means[i].present) continue;
    const DType dtype = state_.model.parameters[piece.parameter]->dtype;
    const size_t begin = piece.begin * dtype_size(dtype);
    device::UpdatePiece update{piece.position,
                               piece.count,
                               (state_.path.have_mean ? 1 : means[i].weight) * clip_divisor_,
                               static_cast<uint32_t>(targets_.size()),
                               static_cast<uint32_t>(context.replicas.size()),
                               action,
                               {},
                               {},
                               dtype,
                               nullptr};
    for (uint32_t r : context.replicas) {
      const Binding& binding = state_.model.bindings[r][piece.parameter];
      targets_.push_back((none ? binding.gradient : binding.value) + begin);
    }
    if (action == Action::kUpdate) {
      update.rule = state_.model.optimizer->rule(state_.model.updates[piece.parameter],
                                                 state_.model.settings[piece.parameter]);
      const auto& state = optimizer_state_.of(context)[piece.parameter];
      for (size_t s = 0; s < state.size(); ++s) {
        void* elements = bytes(state[s]) + piece.begin * element;
        if (s < update.rule.state_count) {
          update.state[s] = elements;
        } else {
          update.master = elements;
        }
      }
    }
    if (noted_ && &context == &state_.contexts.front())
      note_update(piece, update, state_.buffers[index].result_data() + piece.position * element);
    update_pieces_.push_back(update);
  }
}

void Commit::note_update(const Piece& piece, const device::UpdatePiece& update, const std::byte* sums) const {
  using transport::StateParts;
  const ParameterSettings& settings = state_.model.settings[piece.parameter];
  noted_({update.action == device::Action::kUpdate ? StateParts::Kind::kUpdate : StateParts::Kind::kValues,
          piece.parameter, piece.begin, piece.count, state_.model.updates[piece.parameter],
          state_.model.optimizer->learning_rate(), settings.rate, settings.decay, update.divisor},
         sums);
}

std::vector<char> Commit::finish() {
  std::vector<char> has_mean(state_.model.parameters.size(), 0);
  for (size_t b = 0; b < state_.plan.size(); ++b) {
    for (size_t i = 0; i < state_.plan[b].pieces.size(); ++i) {
      if (state_.buffers[b].means[i].present) has_mean[state_.plan[b].pieces[i].parameter] = 1;
    }
  }
  for (size_t p = 0; p < has_mean.size(); ++p) {
    if (!has_mean[p]) continue;
    ++state_.model.updates[p];
    if (state_.path.updates_at_owner) optimizer_state_.take_next(p);
  }
  return has_mean;
}

}  // namespace dsgd
