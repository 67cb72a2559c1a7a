// What this worker contributes to a bucket: sum(c * g) over its replicas, and beside it, for each piece, how
// many replicas contribute and the sum of their weights. A weight of 0 never reads the gradient (0 * NaN is
// NaN). Each device adds up its own replicas; the host adds up the devices' sums, in the order of the places.

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "core/reduce/exact_sum.h"
#include "core/reduce/kernels.h"
#include "core/reduce/reproducible.h"
#include "core/step/step.h"

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

// ---- from devices to the host

void Step::fetch(size_t index) {
  Buffers& buffers = buffers_[index];
  buffers.fetching = static_cast<int>(contexts_.size()) - (host_has_replicas() ? 1 : 0);
  if (buffers.fetching == 0) return fetched(index);
  for (size_t p = 0; p < contexts_.size(); ++p) {
    if (contexts_[p].is_host()) continue;
    if (Status status = enqueue_fetch(index, p); !status.ok()) return device_failed(status);
  }
  if (stays_on_device()) return contribute(index);
  for (size_t p = 0; p < contexts_.size() && done_; ++p) {
    if (contexts_[p].is_host()) continue;
    waiter_.after(contexts_[p].device->name(), *contexts_[p].to_host, *buffers.at[p].reached,
                  request_.deadline, [this, index, call = request_.call](const Status& status) {
                    if (!done_ || request_.call != call) return;
                    if (!status.ok()) return device_failed(status);
                    if (--buffers_[index].fetching == 0) fetched(index);
                  });
  }
}

// Pieces and terms of the bucket for the replicas of a place, or for one of them with weight 1.
void Step::make_terms(size_t index, const DeviceContext& context, bool weighted, uint32_t only) {
  sum_pieces_.clear();
  terms_.clear();
  for (const Piece& piece : plan_[index].pieces) {
    const DType dtype = model_.parameters[piece.parameter]->dtype;
    const uint32_t first = static_cast<uint32_t>(terms_.size());
    for (uint32_t r : context.replicas) {
      const double weight = replica_weight(r, piece.parameter);
      if (weight == 0 || (!weighted && r != only)) continue;
      const std::byte* gradient =
          model_.bindings[r][piece.parameter].gradient + piece.begin * dtype_size(dtype);
      terms_.push_back({gradient, weighted ? weight : 1});
    }
    const uint32_t count = static_cast<uint32_t>(terms_.size()) - first;
    if (weighted || count > 0) sum_pieces_.push_back({piece.position, piece.count, first, count, dtype});
  }
}

Status Step::enqueue_fetch(size_t index, size_t p) {
  const Bucket& bucket = plan_[index];
  const size_t nbytes = bucket.elements * dtype_size(bucket.dtype);
  Buffers& buffers = buffers_[index];
  AtDevice& at = buffers.at[p];
  DeviceContext& context = contexts_[p];
  if (Status status = follow_streams(index, context); !status.ok()) return status;
  if (buffers.values && p == where_[0].first) {  // by way of the memory of the sums
    if (Status status = enqueue_values(index, p); !status.ok()) return status;
  }
  if (!options_.reproducible) {
    make_terms(index, context, true, 0);
    Status status = context.queue->sum(bucket.dtype, sum_pieces_, terms_, at.sums.get());
    if (!status.ok() || in_team() || stays_on_device()) return status;
  } else {
    // Exact sums are the host's work, whatever device a gradient comes from.
    for (size_t k = 0; k < context.replicas.size(); ++k) {
      make_terms(index, context, false, context.replicas[k]);
      if (sum_pieces_.empty()) continue;
      Status status = context.queue->sum(bucket.dtype, sum_pieces_, terms_, at.sums.get());
      if (status.ok()) status = context.queue->copy(at.fetched[k].get(), at.sums.get(), nbytes);
      if (!status.ok()) return status;
    }
  }
  Status status = context.queue->record(*at.summed);
  if (status.ok()) status = context.to_host->wait(*at.summed);
  if (!status.ok() || options_.reproducible) return status;
  return context.to_host->copy((at.fetched_sums ? at.fetched_sums : buffers.data).get(), at.sums.get(),
                               nbytes);
}

// The gradients of a bucket are there, and nothing reads its values any more, when what the host has enqueued
// before it marked them is done. Values change in replicas that contribute nothing, too.
Status Step::follow_streams(size_t index, DeviceContext& context) {
  bool followed = false;
  for (uint32_t r : context.replicas) {
    const StreamMarks& marks = model_.stream_marks[r];
    for (uint32_t parameter : plan_[index].parameters) {
      const bool in_marks = marks.marked[parameter] && !request_.wait_for_devices;
      if (in_marks || std::exchange(followed, true)) continue;
      if (Status status = context.follow_default_stream(); !status.ok()) return status;
    }
    const StreamMarks::OfBucket& of_bucket = marks.buckets[index];
    for (size_t s = 0; s < of_bucket.streams.size(); ++s) {
      if (Status status = context.queue->wait(*of_bucket.marks[s]); !status.ok()) return status;
    }
  }
  return {};
}

// Values that this owner will update, on the host.
Status Step::enqueue_values(size_t index, size_t p) {
  const Bucket& bucket = plan_[index];
  const size_t element = dtype_size(bucket.dtype), rank = static_cast<size_t>(mesh_->rank());
  sum_pieces_.clear();
  terms_.clear();
  for (const Piece& piece : bucket.pieces) {
    if (piece.owner != mesh_->rank()) continue;
    const DType dtype = model_.parameters[piece.parameter]->dtype;
    sum_pieces_.push_back({piece.position, piece.count, static_cast<uint32_t>(terms_.size()), 1, dtype});
    terms_.push_back(
        {model_.bindings[contexts_[p].replicas[0]][piece.parameter].value + piece.begin * dtype_size(dtype),
         1});
  }
  if (terms_.empty()) return {};
  std::byte* sums = bytes(buffers_[index].at[p].sums);
  Status status = contexts_[p].queue->sum(bucket.dtype, sum_pieces_, terms_, sums);
  if (!status.ok()) return status;
  const size_t begin = bucket.bounds[rank] * element, end = bucket.bounds[rank + 1] * element;
  return contexts_[p].queue->copy(bytes(buffers_[index].values) + begin, sums + begin, end - begin);
}

void Step::fetched(size_t index) {
  if (options_.reproducible) {
    raise_exponents(index);
    return exchange_exponents(index);
  }
  contribute(index);
}

Step::Elements Step::gradient_of(size_t index, uint32_t replica, const Piece& piece) const {
  const auto [context, k] = where_[replica];
  if (!contexts_[context].is_host()) {
    const DType dtype = plan_[index].dtype;
    return {dtype, bytes(buffers_[index].at[context].fetched[k]) + piece.position * dtype_size(dtype)};
  }
  const DType dtype = model_.parameters[piece.parameter]->dtype;
  return {dtype, model_.bindings[replica][piece.parameter].gradient + piece.begin * dtype_size(dtype)};
}

// ---- what travels

// The largest of this worker's replicas, element by element.
void Step::raise_exponents(size_t index) {
  const Bucket& bucket = plan_[index];
  const Buffers& buffers = buffers_[index];
  std::memset(buffers.exponents.get(), 0,
              bucket.elements * dtype_size(reproducible::exponent_type(bucket.dtype)));
  for (const Piece& piece : bucket.pieces) {
    for (uint32_t r = 0; r < model_.replicas.size(); ++r) {
      const double weight = replica_weight(r, piece.parameter);
      if (weight == 0) continue;
      const Elements gradient = gradient_of(index, r, piece);
      reproducible::raise_exponents(gradient.dtype, gradient.data, piece.count, weight,
                                    exponents_at(bucket, buffers, piece.position));
    }
  }
}

void Step::add_up(size_t index) {
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  for (size_t p = 0; p < contexts_.size(); ++p) {
    if (contexts_[p].is_host()) {
      make_terms(index, contexts_[p], true, 0);
      contexts_[p].queue->sum(bucket.dtype, sum_pieces_, terms_, buffers.data.get());
    } else if (buffers.at[p].fetched_sums) {
      reduce_into(bucket.dtype, Reduction::kSum, buffers.data.get(), buffers.at[p].fetched_sums.get(),
                  bucket.elements);
    }
  }
}

void Step::add_up_exactly(size_t index) {
  const Bucket& bucket = plan_[index];
  const Buffers& buffers = buffers_[index];
  for (const Piece& piece : bucket.pieces) {
    std::byte* const sums = data_at(bucket, buffers, piece.position);
    std::memset(sums, 0, piece.count * dtype_size(data_type(bucket)));
    for (uint32_t r = 0; r < model_.replicas.size(); ++r) {
      const double weight = replica_weight(r, piece.parameter);
      if (weight == 0) continue;
      const Elements gradient = gradient_of(index, r, piece);
      reproducible::accumulate(gradient.dtype, gradient.data, piece.count, weight,
                               exponents_at(bucket, buffers, piece.position), total_replicas_, sums);
    }
  }
}

// The sum of the weights of the replicas that contribute, in digits that are added up as the data are.
void Step::write_exact_trailers(size_t index) {
  const Bucket& bucket = plan_[index];
  for (const Piece& piece : bucket.pieces) {
    WeightDigits digits{};
    for (uint32_t r = 0; r < model_.replicas.size(); ++r)
      add_weight(digits, replica_weight(r, piece.parameter));
    std::byte* const to = data_at(bucket, buffers_[index], piece.trailer);
    if (data_type(bucket) == DType::kInt64) {
      std::memcpy(to, digits.data(), sizeof digits);
    } else {
      std::array<int32_t, kWeightDigits> narrow;
      std::copy(digits.begin(), digits.end(), narrow.begin());
      std::memcpy(to, narrow.data(), sizeof narrow);
    }
  }
}

void Step::write_trailers(size_t index) {
  if (options_.reproducible) return write_exact_trailers(index);
  const Bucket& bucket = plan_[index];
  Buffers& buffers = buffers_[index];
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Piece& piece = bucket.pieces[i];
    int contributing = 0;
    double weight_sum = 0;
    for (uint32_t r = 0; r < model_.replicas.size(); ++r) {
      const double weight = replica_weight(r, piece.parameter);
      if (weight == 0) continue;
      ++contributing;
      weight_sum += weight;
    }
    if (alone_on_device()) {
      const double weight = takes_all_weights(contributing) ? total_weight_ : weight_sum;
      buffers.means[i] = {contributing > 0, weight * model_.loss_scale.factor()};
    } else if (bucket.dtype == DType::kFloat32) {
      write_trailer<float>(bytes(buffers.data), piece.trailer, contributing, weight_sum);
    } else {
      write_trailer<double>(bytes(buffers.data), piece.trailer, contributing, weight_sum);
    }
  }
}

void Step::contribute(size_t index) {
  if (!stays_on_device()) options_.reproducible ? add_up_exactly(index) : add_up(index);
  write_trailers(index);
  reduce(index);
}

}  // namespace dsgd
