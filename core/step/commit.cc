// From sums to new values. What an owner computes before the commit (the mean in `simple`, new values and
// state in `ps`) stays in buffers of the step; commit() alone changes the model. Owners work on the host;
// what all workers do alike is done by each device for its replicas.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/optimizer/apply.h"
#include "core/reduce/exact_sum.h"
#include "core/reduce/kernels.h"
#include "core/reduce/reproducible.h"
#include "core/step/step.h"

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

// The exact sum of the weights of the replicas that contribute to a piece, rounded once; 0: none does.
double Step::exact_weight(const Bucket& bucket, const Buffers& buffers, const Piece& piece) const {
  WeightDigits digits;
  const std::byte* from = data_at(bucket, buffers, piece.trailer);
  if (data_type(bucket) == DType::kInt64) {
    std::memcpy(digits.data(), from, sizeof digits);
  } else {
    std::array<int32_t, kWeightDigits> narrow;
    std::memcpy(narrow.data(), from, sizeof narrow);
    std::copy(narrow.begin(), narrow.end(), digits.begin());
  }
  return weight_of(digits);
}

// How many replicas contribute to a piece and their weight. When all that have a weight do, or the others
// count as zero, the weight is the header's exact one; else the sum that travelled beside the data.
Step::PieceMean Step::piece_mean(const Bucket& bucket, const Buffers& buffers, const Piece& piece,
                                 bool from_result) const {
  double count, weight;
  if (options_.reproducible && !from_result) {
    weight = exact_weight(bucket, buffers, piece);
    count = weight > 0 ? 1 : 0;
    if (options_.absent_is_zero && count > 0) weight = total_weight_;
  } else {
    const std::byte* data = result_of(buffers);
    count = read_element(bucket.dtype, data, piece.trailer);
    weight = read_element(bucket.dtype, data, piece.trailer + 1);
    if (takes_all_weights(count)) weight = total_weight_;
  }
  return {count > 0, weight * model_.loss_scale.factor()};
}

// mean[0 .. count) = the mean of elements [begin, begin + count) of the piece.
void Step::mean_of(const Bucket& bucket, const Buffers& buffers, const Piece& piece, size_t begin,
                   size_t count, double weight, void* mean) const {
  const std::byte* sums = data_at(bucket, buffers, piece.position + begin);
  if (!options_.reproducible) {
    if (mean != sums) std::memcpy(mean, sums, count * dtype_size(bucket.dtype));
    return divide(bucket.dtype, mean, count, weight);
  }
  reproducible::to_mean(bucket.dtype, sums, count, exponents_at(bucket, buffers, piece.position + begin),
                        total_replicas_, weight, mean);
}

// Elements [begin, begin + count) of a piece's values, in the bucket's type; `scratch` has room for them.
const void* Step::owned_values(size_t index, const Piece& piece, size_t begin, size_t count,
                               float* scratch) const {
  if (buffers_[index].values)
    return bytes(buffers_[index].values) + (piece.position + begin) * dtype_size(plan_[index].dtype);
  const DType dtype = model_.parameters[piece.parameter]->dtype;
  const std::byte* value = model_.bindings[contexts_.front().replicas[0]][piece.parameter].value +
                           (piece.begin + begin) * dtype_size(dtype);
  if (!is_half(dtype)) return value;
  widen(dtype, scratch, value, count);
  return scratch;
}

// At the owner of [begin, end) of a bucket, in order: the sums are complete.
void Step::transform(size_t index, size_t begin, size_t end) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  const size_t element = dtype_size(bucket.dtype);
  std::byte* result = result_of(buffers);
  const bool update = updates_at_owner();
  alignas(64) std::array<std::byte, kScratch * sizeof(double)> scratch;
  alignas(64) std::array<float, kScratch> widened;
  double norm = 0;
  for (const Piece& piece : bucket.pieces) {
    // Trailers come first in a slice; they travel with the result, so that every worker knows which gradients
    // were absent.
    if (options_.reproducible && piece.trailer >= begin && piece.trailer < end) {
      const double weight = exact_weight(bucket, buffers, piece);
      write_element(bucket.dtype, result, piece.trailer, weight > 0 ? 1 : 0);
      write_element(bucket.dtype, result, piece.trailer + 1, weight);
    }
    const size_t first = std::max(begin, piece.position), last = std::min(end, piece.position + piece.count);
    if (first >= last) continue;
    const PieceMean mean = piece_mean(bucket, buffers, piece, false);
    const UpdateRule rule =
        model_.optimizer->rule(model_.updates[piece.parameter], model_.settings[piece.parameter]);
    const DType dtype = model_.parameters[piece.parameter]->dtype;
    for (size_t at = first; at < last;) {
      const size_t count = std::min(kScratch, last - at), offset = at - piece.position;
      std::byte* out = result + at * element;
      if (!update) {
        if (mean.present) mean_of(bucket, buffers, piece, offset, count, mean.weight, out);
      } else {
        const size_t place = (piece.begin + offset) * element;
        const void* value = owned_values(index, piece, offset, count, widened.data());
        if (!mean.present) {
          std::memcpy(out, value, count * element);
        } else {
          mean_of(bucket, buffers, piece, offset, count, mean.weight, scratch.data());
          if (measures_norm() && options_.reproducible)
            add_squares(exact_squares_, bucket.dtype, scratch.data(), count);
          if (measures_norm() && !options_.reproducible)
            norm += sum_of_squares(bucket.dtype, scratch.data(), count);
          std::vector<const void*> state_in;
          std::vector<void*> state_out;
          for (size_t s = 0; s < host_state_[piece.parameter].size(); ++s) {
            state_in.push_back(bytes(host_state_[piece.parameter][s]) + place);
            state_out.push_back(bytes(next_state_[piece.parameter][s]) + place);
          }
          if (!is_half(dtype)) {
            apply(rule, bucket.dtype, count, scratch.data(), value, out, state_in, state_out);
          } else {
            float* const master = static_cast<float*>(state_out.back());
            std::memcpy(master, state_in.back(), count * element);
            follow(dtype, master, static_cast<const float*>(value), count);
            state_in.pop_back(), state_out.pop_back();
            apply(rule, bucket.dtype, count, scratch.data(), master, master, state_in, state_out);
            std::array<uint16_t, kScratch> narrowed;  // the values that the others get
            narrow(dtype, narrowed.data(), master, count);
            widen(dtype, reinterpret_cast<float*>(out), narrowed.data(), count);
          }
        }
      }
      at += count;
    }
  }
  if (measures_norm() && update) buffers.norms.push_back(norm);
}

// With a loss scale, or with clipping, nothing changes before the norm of the whole gradient is known; else
// each bucket is updated in turn.
void Step::commit() {
  if (positive_ == 0) return all_done();
  squares_ = 0;
  const bool check = norm_comes_first();
  for (size_t b = 0; b < plan_.size(); ++b) {
    Status status = measure(b);
    if (status.ok() && !check) status = update(b);
    if (!status.ok()) return device_failed(status);
  }
  if (measures_norm() && !updates_at_owner() && !norms_on_device()) {
    result_.gradient_norm = std::sqrt(options_.reproducible ? squares_of(exact_squares_) : squares_);
  }
  if (!check) return updated();
  if (!norms_on_device()) return update_by_norm();
  when_reached(request_.deadline, [this](const Status& status) {
    if (!done_) return;
    if (!status.ok()) return device_failed(status);
    result_.gradient_norm = norm_of_devices();
    update_by_norm();
  });
}

// Finds which parameters of a bucket have a mean, and adds the bucket's part of the norm.
Status Step::measure(size_t index) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  const size_t element = dtype_size(bucket.dtype);
  if (!alone_on_device()) {
    buffers.means.clear();
    for (const Piece& piece : bucket.pieces)
      buffers.means.push_back(piece_mean(bucket, buffers, piece, transforms()));
  }
  if (norms_on_device()) return enqueue_squares(index);
  if (updates_at_owner() || (!options_.reproducible && !measures_norm())) return {};
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Piece& piece = bucket.pieces[i];
    const PieceMean& mean = buffers.means[i];
    if (!mean.present) continue;
    std::byte* result = result_of(buffers) + piece.position * element;
    if (options_.reproducible && !transforms())
      mean_of(bucket, buffers, piece, 0, piece.count, mean.weight, result);
    if (!measures_norm()) continue;
    if (options_.reproducible) {  // of means, in any order
      add_squares(exact_squares_, bucket.dtype, result, piece.count);
      continue;
    }
    const double divisor = have_mean() ? 1 : mean.weight;
    squares_ += sum_of_squares(bucket.dtype, result, piece.count) / (divisor * divisor);
  }
  return {};
}

// All devices have the same sums; the first one computes with them.
Status Step::enqueue_squares(size_t index) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  square_pieces_.clear();
  for (const Piece& piece : bucket.pieces) square_pieces_.push_back({piece.position, piece.count});
  double* const sums = static_cast<double*>(buffers.squares_there.get());
  device::WorkQueue& queue = *contexts_.front().queue;
  Status status = queue.squares(bucket.dtype, square_pieces_, buffers.at.front().sums.get(), sums);
  return status.ok() ? queue.copy(buffers.squares_here.get(), sums, buffers.square_ranges * sizeof(double))
                     : status;
}

double Step::norm_of_devices() const {
  double total = 0;
  for (size_t b = 0; b < plan_.size(); ++b) {
    const double* sums = static_cast<const double*>(buffers_[b].squares_here.get());
    for (size_t i = 0; i < plan_[b].pieces.size(); ++i) {
      const PieceMean& mean = buffers_[b].means[i];
      const double divisor = have_mean() ? 1 : mean.weight;
      double of_piece = 0;
      for (uint32_t range = device::square_ranges(plan_[b].pieces[i].count); range > 0; --range)
        of_piece += *sums++;
      if (mean.present) total += of_piece / (divisor * divisor);
    }
  }
  return std::sqrt(total);
}

// The same on all workers, since all have the same sums, or the same sum of what owners have measured.
void Step::update_by_norm() {
  double& norm = result_.gradient_norm;
  if (model_.loss_scale.on()) {
    // float32 sums divided by a weight below 1 may overflow, so a norm beyond float32's range counts as
    // infinite.
    const bool narrow = std::any_of(plan_.begin(), plan_.end(),
                                    [](const Bucket& bucket) { return bucket.dtype == DType::kFloat32; });
    if (narrow && norm > std::numeric_limits<float>::max()) norm = std::numeric_limits<double>::infinity();
    const bool finite = std::isfinite(norm);
    model_.loss_scale.stepped(finite);
    if (!finite) return end();
  }
  if (clips()) {
    // As torch.nn.utils.clip_grad_norm_ does.
    const double divisor = (norm + 1e-6) / model_.optimizer->clip_norm();
    // NaN, too: all becomes NaN, as there.
    if (!(divisor <= 1)) clip_divisor_ = divisor;
  }
  for (size_t b = 0; b < plan_.size(); ++b) {
    if (Status status = update(b); !status.ok()) return device_failed(status);
  }
  updated();
}

// A bucket's results, to the devices: as soon as they are final, while other buckets still travel.
Status Step::return_results(size_t index) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  if (std::exchange(buffers.returned, true)) return {};
  Status status;
  for (size_t p = 0; p < contexts_.size() && status.ok(); ++p) {
    if (contexts_[p].is_host()) continue;
    device::WorkQueue& queue = *contexts_[p].from_host;
    status =
        queue.copy(buffers.at[p].sums.get(), result_of(buffers), bucket.elements * dtype_size(bucket.dtype));
    if (status.ok()) status = queue.record(*buffers.at[p].returned);
  }
  return status;
}

// What the sums of a bucket make of the model, on all devices alike.
Status Step::update(size_t index) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  const transport::Time begun = loop_.now();
  if (returns_results()) {
    if (Status status = return_results(index); !status.ok()) return status;
  }
  for (size_t p = 0; p < contexts_.size(); ++p) {
    DeviceContext& context = contexts_[p];
    const void* sums = context.is_host() ? result_of(buffers) : buffers.at[p].sums.get();
    if (!context.is_host() && returns_results()) {
      if (Status status = context.queue->wait(*buffers.at[p].returned); !status.ok()) return status;
    }
    make_updates(index, context);
    if (Status status = context.queue->update(bucket.dtype, update_pieces_, targets_, sums); !status.ok())
      return status;
  }
  trace_bucket(index, "update", begun, loop_.now());
  return {};
}

// All updates are done, or enqueued in the devices' queues.
void Step::updated() {
  result_.applied = true;
  std::vector<char> has_mean(model_.parameters.size(), 0);
  for (size_t b = 0; b < plan_.size(); ++b) {
    for (size_t i = 0; i < plan_[b].pieces.size(); ++i) {
      if (buffers_[b].means[i].present) has_mean[plan_[b].pieces[i].parameter] = 1;
    }
  }
  for (size_t p = 0; p < has_mean.size(); ++p) {
    if (!has_mean[p]) continue;
    ++model_.updates[p];
    if (updates_at_owner()) std::swap(host_state_[p], next_state_[p]);
  }
  sync_untrained();
}

void Step::deliver_values() {
  if (Status status = order_streams_after_update(); !status.ok()) return device_failed(status);
  // Part of the step's result, so it is waited for.
  const bool norm = norms_on_device() && !norm_comes_first();
  if (!request_.wait_for_devices && !norm) return end();
  end_when_reached(norm);
}

void Step::make_updates(size_t index, DeviceContext& context) {
  using device::Action;
  const Bucket& bucket = plan_[index];
  const size_t element = dtype_size(bucket.dtype);
  const std::vector<PieceMean>& means = buffers_[index].means;
  const bool none = model_.optimizer->is_none();
  const Action action = updates_at_owner() || (none && have_mean()) ? Action::kCopy
                        : none                                      ? Action::kMean
                                                                    : Action::kUpdate;
  update_pieces_.clear();
  targets_.clear();
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Piece& piece = bucket.pieces[i];
    if (!means[i].present) continue;
    const DType dtype = model_.parameters[piece.parameter]->dtype;
    const size_t begin = piece.begin * dtype_size(dtype);
    device::UpdatePiece update{piece.position,
                               piece.count,
                               (have_mean() ? 1 : means[i].weight) * clip_divisor_,
                               static_cast<uint32_t>(targets_.size()),
                               static_cast<uint32_t>(context.replicas.size()),
                               action,
                               {},
                               {},
                               dtype,
                               nullptr};
    for (uint32_t r : context.replicas) {
      const Binding& binding = model_.bindings[r][piece.parameter];
      targets_.push_back((none ? binding.gradient : binding.value) + begin);
    }
    if (action == Action::kUpdate) {
      update.rule = model_.optimizer->rule(model_.updates[piece.parameter], model_.settings[piece.parameter]);
      const auto& state = state_at(context)[piece.parameter];
      for (size_t s = 0; s < state.size(); ++s) {
        void* elements = bytes(state[s]) + piece.begin * element;
        if (s < update.rule.state_count) {
          update.state[s] = elements;
        } else {
          update.master = elements;
        }
      }
    }
    update_pieces_.push_back(update);
  }
}

// Orders the new values before all work that the host enqueues from now on into its default stream and into
// the streams on which it marked gradients.
Status Step::order_streams_after_update() {
  for (DeviceContext& context : contexts_) {
    if (context.is_host()) continue;
    Status status = context.queue->record(*context.reached);
    if (status.ok()) status = context.device->stream_wait(nullptr, *context.reached);
    if (!status.ok()) return status;
    std::lock_guard lock(model_.streams_mutex);
    for (uint32_t r : context.replicas) {
      for (void* stream : model_.stream_marks[r].streams) {
        status = context.device->stream_wait(stream, *context.reached);
        if (!status.ok()) return status;
      }
    }
  }
  return {};
}

}  // namespace dsgd
