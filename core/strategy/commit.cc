// From sums to new values. What an owner computes before the commit (the mean in `simple`, new values and state in `ps`)
// stays in buffers of the step; commit() alone changes the model. Owners work on the host; what all workers do alike is done by
// each device for its replicas.

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
  if (stays_on_device() && !mesh_) return buffers.means[static_cast<size_t>(&piece - bucket.pieces.data())];
  double count, weight;
  if (options_.reproducible && !from_result) {
    int64_t pair[2];
    std::memcpy(pair, bytes(buffers.data) + piece.trailer * sizeof(int64_t), sizeof pair);
    count = static_cast<double>(pair[0]);
    weight = std::ldexp(static_cast<double>(pair[1]), -weight_shift());
  } else {
    const std::byte* data = result_of(buffers);
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
    const std::byte* sum = bytes(buffers.data) + (piece.position + begin) * element;
    if (mean != sum) std::memcpy(mean, sum, count * element);
    return divide(bucket.dtype, mean, count, weight);
  }
  const int64_t* sums = static_cast<const int64_t*>(buffers.data.get()) + piece.position;
  for (size_t done = 0; done < count;) {
    const size_t at = begin + done, block = at / reproducible::kBlock;
    const size_t part = std::min(count - done, (block + 1) * reproducible::kBlock - at);
    reproducible::to_mean(bucket.dtype, sums + at, part, {buffers.exponents.data() + piece.block + block, 1},
                          total_replicas_, weight, static_cast<std::byte*>(mean) + done * element);
    done += part;
  }
}

// Elements [begin, begin + count) of a piece's values, in the bucket's type; `scratch` has room for them.
const void* Step::owned_values(size_t index, const Piece& piece, size_t begin, size_t count, float* scratch) const {
  if (buffers_[index].values) return bytes(buffers_[index].values) + (piece.position + begin) * dtype_size(plan_[index].dtype);
  const DType dtype = model_.parameters[piece.parameter]->dtype;
  const std::byte* value = model_.bindings[places_.front().replicas[0]][piece.parameter].value + (piece.begin + begin) * dtype_size(dtype);
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
    // Trailers come first in a slice; they travel on, so that everybody knows what was absent.
    if (options_.reproducible && piece.trailer >= begin && piece.trailer < end) {
      int64_t pair[2];
      std::memcpy(pair, bytes(buffers.data) + piece.trailer * sizeof(int64_t), sizeof pair);
      write_element(bucket.dtype, result, piece.trailer, static_cast<double>(pair[0]));
      write_element(bucket.dtype, result, piece.trailer + 1,
                    std::ldexp(static_cast<double>(pair[1]), -weight_shift()));
    }
    const size_t first = std::max(begin, piece.position), last = std::min(end, piece.position + piece.count);
    if (first >= last) continue;
    const PieceMean mean = piece_mean(bucket, buffers, piece, false);
    const UpdateRule rule = model_.optimizer->rule(model_.updates[piece.parameter], model_.settings[piece.parameter]);
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
          if (options_.gradient_norm) norm += sum_of_squares(bucket.dtype, scratch.data(), count);
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
            std::array<uint16_t, kScratch> narrowed;  // what travels is what values will be
            narrow(dtype, narrowed.data(), master, count);
            widen(dtype, reinterpret_cast<float*>(out), narrowed.data(), count);
          }
        }
      }
      at += count;
    }
  }
  if (options_.gradient_norm && update) buffers.norms.push_back(norm);
}

Status Step::commit() {
  result_.applied = positive_ > 0;
  if (!result_.applied) return {};
  std::vector<char> updated(model_.parameters.size(), 0);
  std::vector<double> norms;
  for (size_t b = 0; b < plan_.size(); ++b) {
    if (Status status = commit_bucket(b, updated, norms); !status.ok()) return status;
  }
  for (size_t p = 0; p < updated.size(); ++p) {
    if (!updated[p]) continue;
    ++model_.updates[p];
    if (updates_at_owner()) std::swap(host_state_[p], next_state_[p]);
  }
  if (options_.gradient_norm && !updates_at_owner() && !norms_on_device()) {
    double total = 0;
    for (double norm : norms) total += norm;
    result_.gradient_norm = std::sqrt(total);
  }
  return give_to_streams();
}

// What the sums of a bucket make of the model, on all devices alike.
Status Step::commit_bucket(size_t index, std::vector<char>& updated, std::vector<double>& norms) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  const size_t element = dtype_size(bucket.dtype);
  const bool have_mean = transforms() || options_.reproducible;  // in result_of(), before the update
  std::vector<PieceMean> means;
  for (const Piece& piece : bucket.pieces) {
    const PieceMean mean = piece_mean(bucket, buffers, piece, transforms());
    means.push_back(mean);
    if (!mean.present) continue;
    updated[piece.parameter] = 1;
    if (updates_at_owner() || norms_on_device() || (!options_.reproducible && !options_.gradient_norm)) continue;
    std::byte* result = result_of(buffers) + piece.position * element;
    if (options_.reproducible && !transforms()) mean_of(bucket, buffers, piece, 0, piece.count, mean.weight, result);
    if (!options_.gradient_norm) continue;
    const double divisor = have_mean ? 1 : mean.weight;
    norms.push_back(sum_of_squares(bucket.dtype, result, piece.count) / (divisor * divisor));
  }
  if (norms_on_device()) {
    if (Status status = enter_squares(index, means, have_mean); !status.ok()) return status;
  }
  for (size_t p = 0; p < places_.size(); ++p) {
    Place& place = places_[p];
    const void* sums = result_of(buffers);
    if (!place.is_host()) {
      sums = buffers.at[p].sums.get();
      if (!stays_on_device() && !in_team()) {
        Status status = place.queue->copy(buffers.at[p].sums.get(), result_of(buffers), bucket.elements * element);
        if (!status.ok()) return status;
      }
    }
    make_updates(index, place, means, have_mean);
    if (Status status = place.queue->update(bucket.dtype, update_pieces_, targets_, sums); !status.ok()) return status;
  }
  return {};
}

// All devices have the same sums; the first one computes with them, and the host has the result when the step ends.
Status Step::enter_squares(size_t index, const std::vector<PieceMean>& means, bool have_mean) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  square_pieces_.clear();
  buffers.divisors.clear();
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Piece& piece = bucket.pieces[i];
    square_pieces_.push_back({piece.position, piece.count});
    buffers.divisors.push_back(!means[i].present ? 0 : have_mean ? 1 : means[i].weight);
  }
  double* const sums = static_cast<double*>(buffers.squares_there.get());
  device::WorkQueue& queue = *places_.front().queue;
  Status status = queue.squares(bucket.dtype, square_pieces_, buffers.at.front().sums.get(),
                                static_cast<double*>(buffers.squares_scratch.get()), sums);
  return status.ok() ? queue.copy(buffers.squares_here.get(), sums, buffers.square_ranges * sizeof(double)) : status;
}

double Step::norm_of_devices() const {
  double total = 0;
  for (size_t b = 0; b < plan_.size(); ++b) {
    const double* sums = static_cast<const double*>(buffers_[b].squares_here.get());
    for (size_t i = 0; i < plan_[b].pieces.size(); ++i) {
      const double divisor = buffers_[b].divisors[i];
      double of_piece = 0;
      for (uint32_t range = device::square_ranges(plan_[b].pieces[i].count); range > 0; --range) of_piece += *sums++;
      if (divisor > 0) total += of_piece / (divisor * divisor);
    }
  }
  return std::sqrt(total);
}

void Step::make_updates(size_t index, Place& place, const std::vector<PieceMean>& means, bool have_mean) {
  using device::Action;
  const Bucket& bucket = plan_[index];
  const size_t element = dtype_size(bucket.dtype);
  const bool none = model_.optimizer->is_none();
  const Action action = updates_at_owner() || (none && have_mean) ? Action::kCopy : none ? Action::kMean : Action::kUpdate;
  update_pieces_.clear();
  targets_.clear();
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Piece& piece = bucket.pieces[i];
    if (!means[i].present) continue;
    const DType dtype = model_.parameters[piece.parameter]->dtype;
    const size_t begin = piece.begin * dtype_size(dtype);
    device::UpdatePiece update{piece.position, piece.count, have_mean ? 1 : means[i].weight, static_cast<uint32_t>(targets_.size()),
                               static_cast<uint32_t>(place.replicas.size()), action, {}, {}, dtype, nullptr};
    for (uint32_t r : place.replicas) {
      const Binding& binding = model_.bindings[r][piece.parameter];
      targets_.push_back((none ? binding.gradient : binding.value) + begin);
    }
    if (action == Action::kUpdate) {
      update.rule = model_.optimizer->rule(model_.updates[piece.parameter], model_.settings[piece.parameter]);
      const auto& state = state_at(place)[piece.parameter];
      for (size_t s = 0; s < state.size(); ++s) {
        void* elements = bytes(state[s]) + piece.begin * element;
        (s < update.rule.state_count ? update.state[s] : update.master) = elements;
      }
    }
    update_pieces_.push_back(update);
  }
}

// What the host enters from now on into its default stream, and into those on which it marked gradients, sees the new values.
Status Step::give_to_streams() {
  for (Place& place : places_) {
    if (place.is_host()) continue;
    Status status = place.queue->record(*place.reached);
    if (status.ok()) status = place.device->stream_wait(nullptr, *place.reached);
    if (!status.ok()) return status;
    for (uint32_t r : place.replicas) {
      for (void* stream : model_.stream_marks[r].streams) {
        status = place.device->stream_wait(stream, *place.reached);
        if (!status.ok()) return status;
      }
    }
  }
  return {};
}

}  // namespace dsgd
