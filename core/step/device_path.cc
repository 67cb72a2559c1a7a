#include "core/step/device_path.h"

#include <cmath>
#include <mutex>
#include <utility>

#include "core/base/join.h"

namespace dsgd {

// The last step may have ended before its updates did. What one device writes to the host now, another may
// still be reading.
Status DevicePath::begin_step() {
  if (std::exchange(previous_step_skipped_, false)) {
    for (DeviceContext& context : state_.contexts) {
      if (Status status = context.align(); !status.ok()) return status;
    }
  }
  for (DeviceContext& context : state_.contexts) {
    for (DeviceContext& other : state_.contexts) {
      if (&context == &other || context.is_host() || other.is_host()) continue;
      if (Status status = context.queue->wait(*other.reached); !status.ok()) return status;
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
          if (Status status = follow_streams(index, context); !status.ok()) return status;
        }
        return Status();
      },
      std::move(then));
}

Status DevicePath::fetch(size_t index, size_t p) {
  const Bucket& bucket = state_.plan[index];
  const size_t nbytes = bucket.elements * dtype_size(bucket.dtype);
  BucketBuffers& buffers = state_.buffers[index];
  DeviceBuffers& here = buffers.devices[p];
  DeviceContext& context = state_.contexts[p];
  if (buffers.values && p == state_.where[0].first) {  // by way of the memory of the sums
    if (Status status = fetch_values(index, p); !status.ok()) return status;
  }
  if (!state_.options.reproducible) {
    sums_.list_gradients(state_, index, context);
    Status status = context.queue->sum(bucket.dtype, sums_.pieces, sums_.terms, here.sums.get());
    if (!status.ok() || state_.path.in_team || state_.path.stays_on_device) return status;
  } else {
    // Exact sums are the host's work, whatever device a gradient comes from.
    for (size_t k = 0; k < context.replicas.size(); ++k) {
      sums_.list_gradients_of(state_, index, context.replicas[k]);
      if (sums_.pieces.empty()) continue;
      Status status = context.queue->sum(bucket.dtype, sums_.pieces, sums_.terms, here.sums.get());
      if (status.ok()) status = context.queue->copy(here.fetched[k].get(), here.sums.get(), nbytes);
      if (!status.ok()) return status;
    }
  }
  Status status = context.queue->record(*here.summed);
  if (status.ok()) status = context.to_host->wait(*here.summed);
  if (!status.ok() || state_.options.reproducible) return status;
  return context.to_host->copy((here.fetched_sums ? here.fetched_sums : buffers.data).get(), here.sums.get(),
                               nbytes);
}

// The gradients of a bucket are there, and nothing reads its values any more, when what the host has enqueued
// before it marked them is done. Values change in replicas that contribute nothing, too.
Status DevicePath::follow_streams(size_t index, DeviceContext& context) {
  bool followed = false;
  for (uint32_t r : context.replicas) {
    for (uint32_t parameter : state_.plan[index].parameters) {
      const bool in_marks = state_.marks.has_stream(r, parameter) && !state_.request.wait_for_devices;
      if (in_marks || std::exchange(followed, true)) continue;
      if (Status status = context.follow_default_stream(); !status.ok()) return status;
    }
    if (Status status = state_.marks.follow_streams(r, static_cast<uint32_t>(index), *context.queue);
        !status.ok())
      return status;
  }
  return {};
}

// Values that this owner will update, to the host.
Status DevicePath::fetch_values(size_t index, size_t p) {
  const Bucket& bucket = state_.plan[index];
  const int32_t rank = state_.rank();
  sums_.clear();
  for (const Piece& piece : bucket.pieces) {
    if (piece.owner != rank) continue;
    sums_.add_copy(piece.position, piece.count, state_.model.parameters[piece.parameter]->dtype,
                   state_.value_at(state_.contexts[p].replicas[0], piece));
  }
  if (sums_.terms.empty()) return {};
  device::WorkQueue& queue = *state_.contexts[p].queue;
  std::byte* sums = bytes(state_.buffers[index].devices[p].sums);
  Status status = queue.sum(bucket.dtype, sums_.pieces, sums_.terms, sums);
  if (!status.ok()) return status;
  const size_t element = dtype_size(bucket.dtype), own = static_cast<size_t>(rank);
  const size_t begin = bucket.bounds[own] * element, end = bucket.bounds[own + 1] * element;
  return queue.copy(bytes(state_.buffers[index].values) + begin, sums + begin, end - begin);
}

void DevicePath::when_fetched(size_t index, std::function<void()> fetched,
                              std::function<void(const Status&)> failed) {
  BucketBuffers& buffers = state_.buffers[index];
  buffers.fetching = static_cast<int>(state_.contexts.size()) - (state_.path.host_has_replicas ? 1 : 0);
  if (buffers.fetching == 0) return fetched();
  for (size_t p = 0; p < state_.contexts.size(); ++p) {
    DeviceContext& context = state_.contexts[p];
    if (context.is_host()) continue;
    waiter_.after(context.device->name(), *context.to_host, *buffers.devices[p].reached,
                  state_.request.deadline,
                  [this, index, call = state_.request.call, fetched, failed](const Status& status) {
                    if (state_.request.call != call) return;
                    if (!status.ok()) return failed(status);
                    if (--state_.buffers[index].fetching == 0) fetched();
                  });
  }
}

Status DevicePath::return_results(size_t index) {
  const Bucket& bucket = state_.plan[index];
  BucketBuffers& buffers = state_.buffers[index];
  if (std::exchange(buffers.returned, true)) return {};
  Status status;
  for (size_t p = 0; p < state_.contexts.size() && status.ok(); ++p) {
    if (state_.contexts[p].is_host()) continue;
    device::WorkQueue& queue = *state_.contexts[p].from_host;
    status = queue.copy(buffers.devices[p].sums.get(), buffers.result_data(),
                        bucket.elements * dtype_size(bucket.dtype));
    if (status.ok()) status = queue.record(*buffers.devices[p].returned);
  }
  return status;
}

Status DevicePath::add_squares(size_t index) {
  const Bucket& bucket = state_.plan[index];
  BucketBuffers& buffers = state_.buffers[index];
  square_pieces_.clear();
  for (const Piece& piece : bucket.pieces) square_pieces_.push_back({piece.position, piece.count});
  double* const sums = static_cast<double*>(buffers.squares_there.get());
  device::WorkQueue& queue = *state_.contexts.front().queue;
  Status status = queue.squares(bucket.dtype, square_pieces_, buffers.devices.front().sums.get(), sums);
  return status.ok() ? queue.copy(buffers.squares_here.get(), sums, buffers.square_ranges * sizeof(double))
                     : status;
}

double DevicePath::norm() const {
  double total = 0;
  for (size_t b = 0; b < state_.plan.size(); ++b) {
    const double* sums = static_cast<const double*>(state_.buffers[b].squares_here.get());
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
    if (Status status = context.queue->record(*context.reached); !status.ok()) return status;
    if (Status status = context.device->stream_wait(nullptr, *context.reached); !note(status)) return status;
    for (uint32_t r : context.replicas) {
      if (Status status = state_.marks.order_streams_after(r, *context.reached); !note(status)) return status;
    }
  }
  return in_use;
}

void DevicePath::when_reached(transport::Time deadline, std::function<void(const Status&)> then) {
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
