#include "core/step/node_path.h"

#include <utility>

namespace dsgd {

using device::Collective;
using device::Communicator;

namespace {

// Where trailers lie, as few ranges as can be.
std::vector<Slice> trailers_of(const Bucket& bucket) {
  std::vector<Slice> ranges;
  for (const Piece& piece : bucket.pieces) {
    if (ranges.empty() || ranges.back().end != piece.trailer)
      ranges.push_back({piece.trailer, piece.trailer});
    ranges.back().end += 2;
  }
  return ranges;
}

}  // namespace

Status NodePath::reduce(size_t index, Done done) {
  BucketBuffers& buffers = state_.buffers[index];
  host_.write_trailers(index);
  for (size_t p = 0; p < state_.contexts.size(); ++p) {
    Status status = devices_.fetch(index, p);
    if (status.ok()) status = add_trailers(index, p);
    if (status.ok()) status = state_.contexts[p].queue->record(*buffers.devices[p].summed);
    if (!status.ok()) return status;
  }
  const bool stays = state_.path.stays_on_device;
  Communicator::Work work = work_on(index, stays ? Collective::kAllReduce : Collective::kReduceScatter);
  for (DeviceBuffers& on_device : buffers.devices) work.after.push_back(on_device.summed.get());
  if (!stays) {
    work.behind = part_copies(index, false);
  } else if (state_.mesh) {
    fetch_trailers(index, &work);
  }
  enqueue(work, std::move(done));
  return {};
}

void NodePath::gather(size_t index, Done done) {
  Communicator::Work work = work_on(index, Collective::kAllGather);
  work.before = part_copies(index, true);
  fetch_trailers(index, &work);
  enqueue(work, std::move(done));
}

void NodePath::enqueue(const Communicator::Work& work, Done done) {
  queue_->enqueue(work, state_.request.deadline,
                  [this, call = state_.request.call, done = std::move(done)](const Status& status) {
                    if (state_.request.call == call) done(status);
                  });
}

// One device brings the trailers of all of this worker's; the others bring zeros.
Status NodePath::add_trailers(size_t index, size_t p) {
  if (!state_.mesh) return {};
  const Bucket& bucket = state_.plan[index];
  device::WorkQueue& queue = *state_.contexts[p].queue;
  std::byte* sums = bytes(state_.buffers[index].devices[p].sums);
  if (p > 0) {
    sums_.clear();
    for (const Slice& range : trailers_of(bucket))
      sums_.pieces.push_back({range.begin, range.count(), 0, 0, bucket.dtype});
    return queue.sum(bucket.dtype, sums_.pieces, sums_.terms, sums);
  }
  const size_t element = dtype_size(bucket.dtype);
  Status status;
  for (const Slice& range : trailers_of(bucket)) {
    const std::byte* from = bytes(state_.buffers[index].data) + range.begin * element;
    if (status.ok()) status = queue.copy(sums + range.begin * element, from, range.count() * element);
  }
  return status;
}

void NodePath::fetch_trailers(size_t index, Communicator::Work* work) {
  const Bucket& bucket = state_.plan[index];
  const size_t element = dtype_size(bucket.dtype);
  const BucketBuffers& buffers = state_.buffers[index];
  std::byte* sums = bytes(buffers.devices[0].sums);
  for (const Slice& range : trailers_of(bucket)) {
    const size_t offset = range.begin * element;
    work->behind.push_back({0, buffers.result_data() + offset, sums + offset, range.count() * element});
  }
}

// A collective on the bucket's sums, on all devices of this worker.
Communicator::Work NodePath::work_on(size_t index, Collective collective) {
  const Bucket& bucket = state_.plan[index];
  Communicator::Work work;
  work.collective = collective;
  work.dtype = bucket.dtype;
  work.count = collective == Collective::kAllReduce
                   ? bucket.elements
                   : Teams::device_part(state_.teams.member(state_.rank()), bucket.elements);
  for (DeviceBuffers& on_device : state_.buffers[index].devices) {
    work.buffers.push_back(on_device.sums.get());
    work.reached.push_back(on_device.reached.get());
  }
  return work;
}

// The parts of a bucket between the devices' memory and the host's.
std::vector<device::CollectiveCopy> NodePath::part_copies(size_t index, bool to_devices) {
  const Bucket& bucket = state_.plan[index];
  const BucketBuffers& buffers = state_.buffers[index];
  const size_t element = dtype_size(bucket.dtype);
  std::vector<device::CollectiveCopy> copies;
  for (size_t d = 0; d < state_.contexts.size(); ++d) {
    const Slice part =
        Teams::part(state_.teams.member(state_.rank()), static_cast<int32_t>(d), bucket.elements);
    if (part.count() == 0) continue;
    std::byte* here = buffers.result_data() + part.begin * element;
    std::byte* there = bytes(buffers.devices[d].sums) + part.begin * element;
    copies.push_back({static_cast<uint32_t>(d), to_devices ? there : here, to_devices ? here : there,
                      part.count() * element});
  }
  return copies;
}

}  // namespace dsgd
