#include "core/step/team_path.h"

#include <utility>

namespace dsgd {

using device::Collective;
using device::Communicator;

Status TeamPath::reduce(size_t index, Done done, std::function<void()> enqueued) {
  BucketBuffers& buffers = state_.buffers[index];
  const bool trailers = state_.mesh && !state_.path.updates_early;
  if (!state_.path.updates_early) host_.write_trailers(index);
  for (size_t c = 0; c < state_.contexts.size(); ++c) {
    DSGD_RETURN_IF_ERROR(devices_.fetch(index, c));
    if (trailers) DSGD_RETURN_IF_ERROR(add_trailers(index, c));
    DSGD_RETURN_IF_ERROR(state_.contexts[c].queue->record(*buffers.devices[c].summed));
  }
  const bool stays = state_.path.stays_on_device;
  Communicator::Work work = work_on(index, stays ? Collective::kAllReduce : Collective::kReduceScatter);
  for (DeviceBuffers& on_device : buffers.devices) work.wait_for.push_back(on_device.summed.get());
  if (!stays) {
    work.copies_after = part_copies(index, false);
  } else if (trailers) {
    fetch_trailers(index, &work);
  }
  enqueue(work, std::move(done), std::move(enqueued));
  return {};
}

void TeamPath::gather(size_t index, Done done) {
  Communicator::Work work = work_on(index, Collective::kAllGather);
  work.copies_before = part_copies(index, true);
  fetch_trailers(index, &work);
  enqueue(work, std::move(done));
}

void TeamPath::enqueue(const Communicator::Work& work, Done done, std::function<void()> enqueued) {
  const uint64_t call = state_.request.call;
  std::function<void()> in_this_step;
  if (enqueued) {
    in_this_step = [this, call, enqueued = std::move(enqueued)] {
      if (state_.request.call == call) enqueued();
    };
  }
  queue_->enqueue(
      work, state_.request.deadline,
      [this, call, done = std::move(done)](const Status& status) {
        if (state_.request.call == call || !status.ok()) done(status);
      },
      std::move(in_this_step));
}

// Copies the worker's trailers to its first device and zeros to the others.
Status TeamPath::add_trailers(size_t index, size_t c) {
  const Bucket& bucket = state_.plan[index];
  device::WorkQueue& queue = *state_.contexts[c].queue;
  std::byte* sums = bytes(state_.buffers[index].devices[c].sums);
  if (c > 0) {
    sums_.clear();
    for (const Slice& range : trailers_of(bucket))
      sums_.pieces.push_back({range.begin, range.count(), 0, 0, bucket.dtype});
    return queue.sum(bucket.dtype, sums_.pieces, sums_.terms, sums);
  }
  const size_t element = dtype_size(bucket.dtype);
  for (const Slice& range : trailers_of(bucket)) {
    const std::byte* from = bytes(state_.buffers[index].data) + range.begin * element;
    DSGD_RETURN_IF_ERROR(queue.copy(sums + range.begin * element, from, range.count() * element));
  }
  return {};
}

void TeamPath::fetch_trailers(size_t index, Communicator::Work* work) {
  const Bucket& bucket = state_.plan[index];
  const size_t element = dtype_size(bucket.dtype);
  const BucketBuffers& buffers = state_.buffers[index];
  std::byte* sums = bytes(buffers.devices[0].sums);
  for (const Slice& range : trailers_of(bucket)) {
    const size_t offset = range.begin * element;
    work->copies_after.push_back({0, buffers.result_data() + offset, sums + offset, range.count() * element});
  }
}

// A collective on the bucket's sums, on all devices of this worker.
Communicator::Work TeamPath::work_on(size_t index, Collective collective) {
  const Bucket& bucket = state_.plan[index];
  Communicator::Work work;
  work.collective = collective;
  work.dtype = bucket.dtype;
  work.count = collective == Collective::kAllReduce
                   ? bucket.elements
                   : Teams::device_part(state_.teams.member(state_.rank()), bucket.elements);
  for (DeviceBuffers& on_device : state_.buffers[index].devices) {
    work.buffers.push_back(on_device.sums.get());
    work.done_events.push_back(on_device.reached.get());
  }
  return work;
}

// The parts of a bucket between the devices' memory and the host's.
std::vector<device::CollectiveCopy> TeamPath::part_copies(size_t index, bool to_devices) {
  const Bucket& bucket = state_.plan[index];
  const BucketBuffers& buffers = state_.buffers[index];
  const size_t element = dtype_size(bucket.dtype);
  std::vector<device::CollectiveCopy> copies;
  for (size_t d = 0; d < state_.contexts.size(); ++d) {
    const Slice part =
        Teams::part(state_.teams.member(state_.rank()), static_cast<int32_t>(d), bucket.elements);
    if (part.count() == 0) continue;
    std::byte* on_host = buffers.result_data() + part.begin * element;
    std::byte* on_device = bytes(buffers.devices[d].sums) + part.begin * element;
    copies.push_back({static_cast<uint32_t>(d), to_devices ? on_device : on_host,
                      to_devices ? on_host : on_device, part.count() * element});
  }
  return copies;
}

}  // namespace dsgd
