#include "core/step/device_path.h"

#include <cmath>
#include <utility>

#include "core/base/join.h"

namespace dsgd {

// Orders each device behind the last update of every other device: a device may still read the host memory
// that another one writes in this step.
Status DevicePath::begin_step() {
  if (std::exchange(previous_step_skipped_, false)) {
    for (DeviceContext& context : state_.contexts) DSGD_RETURN_IF_ERROR(context.align());
  }
  for (DeviceContext& context : state_.contexts) {
    for (DeviceContext& other : state_.contexts) {
      if (&context == &other || context.is_host() || other.is_host()) continue;
      DSGD_RETURN_IF_ERROR(context.queue->wait(*other.reached));
    }
  }
  return {};
}

void DevicePath::follow_streams(size_t index, std::function<void(const Status&)> then) {
  waiter_.when_usable(
      state_.request.deadline,
      [this, index] {
        for (DeviceContext& context : state_.contexts) {
          if (context.is_host()) continue;
          DSGD_RETURN_IF_ERROR(follow_streams(index, context));
        }
        return Status();
      },
      std::move(then));
}

Status DevicePath::fetch(size_t index, size_t c) {
  const Bucket& bucket = state_.plan[index];
  const size_t nbytes = bucket.elements * dtype_size(bucket.dtype);
  BucketBuffers& buffers = state_.buffers[index];
  DeviceBuffers& on_device = buffers.devices[c];
  DeviceContext& context = state_.contexts[c];
  if (buffers.values && c == state_.location_of_replica[0].first) {  // uses the buffer of the sums as scratch
    DSGD_RETURN_IF_ERROR(fetch_values(index, c));
  }
  if (!state_.options.reproducible) {
    sums_.list_gradients(state_, index, context);
    Status status = sum(index, c);
    if (!status.ok() || state_.path.in_team || state_.path.stays_on_device) return status;
  } else {
    // Exact sums are the host's work, whatever device a gradient comes from.
    for (size_t k = 0; k < context.replicas.size(); ++k) {
      sums_.list_gradients_of(state_, index, context.replicas[k]);
      if (sums_.pieces.empty()) continue;
      DSGD_RETURN_IF_ERROR(context.queue->sum(bucket.dtype, sums_.pieces, sums_.terms, on_device.sums.get()));
      DSGD_RETURN_IF_ERROR(context.queue->copy(on_device.fetched[k].get(), on_device.sums.get(), nbytes));
    }
  }
  DSGD_RETURN_IF_ERROR(context.queue->record(*on_device.summed));
  DSGD_RETURN_IF_ERROR(context.to_host->wait(*on_device.summed));
  if (state_.options.reproducible) return {};
  return context.to_host->copy((on_device.fetched_sums ? on_device.fetched_sums : buffers.data).get(),
                               on_device.sums.get(), nbytes);
}

Status DevicePath::sum(size_t index, size_t c) {
  DeviceBuffers& on_device = state_.buffers[index].devices[c];
  device::WorkQueue& queue = *state_.contexts[c].queue;
  auto* const counts = static_cast<NonFinite*>(on_device.device_non_finite.get());
  const size_t nbytes = state_.plan[index].pieces.size() * sizeof(NonFinite);
  if (counts) DSGD_RETURN_IF_ERROR(queue.copy(counts, on_device.host_zero_counts.get(), nbytes));
  DSGD_RETURN_IF_ERROR(
      queue.sum(state_.plan[index].dtype, sums_.pieces, sums_.terms, on_device.sums.get(), counts));
  return counts ? queue.copy(on_device.host_non_finite.get(), counts, nbytes) : Status();
}

// The host marks a gradient behind the work that computes it and that reads the values. When that work has
// ended, the step may read the gradients of the bucket and change its values. It changes values also in
// replicas that contribute nothing.
Status DevicePath::follow_streams(size_t index, DeviceContext& context) {
  bool without_stream = false;
  for (uint32_t r : context.replicas) {
    for (uint32_t parameter : state_.plan[index].parameters)
      without_stream |= state_.request.wait_for_devices || !state_.marks.has_stream(r, parameter);
    DSGD_RETURN_IF_ERROR(state_.marks.follow_streams(r, static_cast<uint32_t>(index), *context.queue));
  }
  return without_stream ? context.follow_default_stream() : Status();
}

// Values that this owner will update, to the host.
Status DevicePath::fetch_values(size_t index, size_t c) {
  const Bucket& bucket = state_.plan[index];
  const int32_t rank = state_.rank();
  sums_.clear();
  for (const Piece& piece : bucket.pieces) {
    if (!piece.is_kept_by(rank)) continue;
    sums_.add_copy(piece.position, piece.count, state_.model.parameters[piece.parameter]->dtype,
                   state_.value_at(state_.contexts[c].replicas[0], piece));
  }
  if (sums_.terms.empty()) return {};
  device::WorkQueue& queue = *state_.contexts[c].queue;
  std::byte* sums = bytes(state_.buffers[index].devices[c].sums);
  DSGD_RETURN_IF_ERROR(queue.sum(bucket.dtype, sums_.pieces, sums_.terms, sums));
  const size_t element = dtype_size(bucket.dtype), own = static_cast<size_t>(rank);
  const auto copy = [&](size_t first, size_t last) {
    std::byte* const values = bytes(state_.buffers[index].values);
    return queue.copy(values + first * element, sums + first * element, (last - first) * element);
  };
  for (const CopiedRange& range : bucket.copied) {
    if (range.keeper == rank) DSGD_RETURN_IF_ERROR(copy(range.begin, range.end));
  }
  return copy(bucket.bounds[own], bucket.bounds[own + 1]);
}

void DevicePath::when_fetched(size_t index, std::function<void()> fetched,
                              std::function<void(const Status&)> failed) {
  BucketBuffers& buffers = state_.buffers[index];
  buffers.progress.fetching =
      static_cast<int>(state_.contexts.size()) - (state_.path.host_has_replicas ? 1 : 0);
  if (buffers.progress.fetching == 0) return fetched();
  for (size_t c = 0; c < state_.contexts.size(); ++c) {
    DeviceContext& context = state_.contexts[c];
    if (context.is_host()) continue;
    waiter_.after(context.device->name(), *context.to_host, *buffers.devices[c].reached,
                  state_.request.deadline,
                  [this, index, call = state_.request.call, fetched, failed](const Status& status) {
                    if (state_.request.call != call) return;
                    if (!status.ok()) return failed(status);
                    if (--state_.buffers[index].progress.fetching == 0) fetched();
                  });
  }
}

Status DevicePath::return_results(size_t index) {
  const Bucket& bucket = state_.plan[index];
  BucketBuffers& buffers = state_.buffers[index];
  if (std::exchange(buffers.progress.returned, true)) return {};
  for (size_t c = 0; c < state_.contexts.size(); ++c) {
    if (state_.contexts[c].is_host()) continue;
    device::WorkQueue& queue = *state_.contexts[c].from_host;
    DSGD_RETURN_IF_ERROR(queue.copy(buffers.devices[c].sums.get(), buffers.result_data(),
                                    bucket.elements * dtype_size(bucket.dtype)));
    DSGD_RETURN_IF_ERROR(queue.record(*buffers.devices[c].returned));
  }
  return {};
}

Status DevicePath::add_squares(size_t index) {
  const Bucket& bucket = state_.plan[index];
  BucketBuffers& buffers = state_.buffers[index];
  square_pieces_.clear();
  for (const Piece& piece : bucket.pieces) square_pieces_.push_back({piece.position, piece.count});
  double* const sums = static_cast<double*>(buffers.device_squares.get());
  device::WorkQueue& queue = *state_.contexts.front().queue;
  DSGD_RETURN_IF_ERROR(queue.squares(bucket.dtype, square_pieces_, buffers.devices.front().sums.get(), sums));
  return queue.copy(buffers.host_squares.get(), sums, buffers.square_ranges * sizeof(double));
}

double DevicePath::norm() const {
  double total = 0;
  for (size_t b = 0; b < state_.plan.size(); ++b) {
    const double* sums = static_cast<const double*>(state_.buffers[b].host_squares.get());
    for (size_t i = 0; i < state_.plan[b].pieces.size(); ++i) {
      const PieceMean& mean = state_.buffers[b].means[i];
      const double divisor = state_.path.have_mean ? 1 : mean.weight;
      double of_piece = 0;
      for (uint32_t range = device::square_ranges(state_.plan[b].pieces[i].count); range > 0; --range)
        of_piece += *sums++;
      if (mean.present) total += of_piece / (divisor * divisor);
    }
  }
  return std::sqrt(total);
}

Status DevicePath::order_streams_after_update() {
  Status in_use;
  const auto note = [&in_use](const Status& status) {
    if (status.code() == Code::kState) in_use = status;
    return status.ok() || status.code() == Code::kState;
  };
  for (DeviceContext& context : state_.contexts) {
    if (context.is_host()) continue;
    DSGD_RETURN_IF_ERROR(context.queue->record(*context.reached));
    if (Status status = context.device->stream_wait(nullptr, *context.reached); !note(status)) return status;
    for (uint32_t r : context.replicas) {
      if (Status status = state_.marks.order_streams_after(r, *context.reached); !note(status)) return status;
    }
  }
  return in_use;
}

void DevicePath::when_queues_done(transport::Time deadline, std::function<void(const Status&)> then) {
  const auto reached = join(state_.contexts.size(), std::move(then));
  for (DeviceContext& context : state_.contexts)
    waiter_.after(context.device->name(), *context.queue, *context.reached, deadline, reached);
}

void DevicePath::when_devices_done(device::Waiter& waiter, std::function<void(const Status&)> then) {
  if (state_.contexts.empty()) return then({});  // nothing was enqueued before dsgd_start
  const auto ended = join(state_.contexts.size(), std::move(then));
  for (DeviceContext& context : state_.contexts) {
    if (Status status = context.follow_copies(); !status.ok()) {
      ended(status);
    } else {
      waiter.after(context.device->name(), *context.queue, *context.last_use, transport::kNever, ended);
    }
  }
}

}  // namespace dsgd
