// The part of a step that teams of devices do: add up a bucket among themselves, and gather what came of it.

#include <utility>

#include "core/step/step.h"

namespace dsgd {

using device::Collective;
using device::Communicator;

// All members begin the same collectives in the same order: first the sums of all buckets, then what is
// gathered of them.
void Step::fetch_together(size_t index) {
  Buffers& buffers = buffers_[index];
  write_trailers(index);
  for (size_t p = 0; p < contexts_.size(); ++p) {
    Status status = enqueue_fetch(index, p);
    if (status.ok()) status = enqueue_trailers(index, p);
    if (status.ok()) status = contexts_[p].queue->record(*buffers.at[p].summed);
    if (!status.ok()) return device_failed(status);
  }
  Communicator::Work work =
      work_on(index, stays_on_device() ? Collective::kAllReduce : Collective::kReduceScatter);
  for (AtDevice& at : buffers.at) work.after.push_back(at.summed.get());
  if (!stays_on_device()) {
    work.behind = part_copies(index, false);
  } else if (mesh_) {
    fetch_trailers(index, &work);
  }
  collective_queue_->enqueue(work, request_.deadline,
                             [this, index, call = request_.call](const Status& status) {
                               if (!done_ || request_.call != call) return;
                               if (!status.ok()) return team_failed(status);
                               stays_on_device() ? bucket_done(index, {}) : reduce(index);
                             });
}

// Where trailers lie, as few ranges as can be.
std::vector<Slice> Step::trailers_of(const Bucket& bucket) {
  std::vector<Slice> ranges;
  for (const Piece& piece : bucket.pieces) {
    if (ranges.empty() || ranges.back().end != piece.trailer)
      ranges.push_back({piece.trailer, piece.trailer});
    ranges.back().end += 2;
  }
  return ranges;
}

// One device brings the trailers of all of this worker's; the others bring zeros.
Status Step::enqueue_trailers(size_t index, size_t p) {
  if (!mesh_) return {};
  const Bucket& bucket = plan_[index];
  std::byte* sums = bytes(buffers_[index].at[p].sums);
  if (p > 0) {
    sum_pieces_.clear();
    for (const Slice& range : trailers_of(bucket))
      sum_pieces_.push_back({range.begin, range.count(), 0, 0, bucket.dtype});
    return contexts_[p].queue->sum(bucket.dtype, sum_pieces_, {}, sums);
  }
  const size_t element = dtype_size(bucket.dtype);
  Status status;
  for (const Slice& range : trailers_of(bucket)) {
    const std::byte* from = bytes(buffers_[index].data) + range.begin * element;
    if (status.ok())
      status = contexts_[p].queue->copy(sums + range.begin * element, from, range.count() * element);
  }
  return status;
}

void Step::fetch_trailers(size_t index, Communicator::Work* work) {
  const size_t element = dtype_size(plan_[index].dtype);
  std::byte* sums = bytes(buffers_[index].at[0].sums);
  for (const Slice& range : trailers_of(plan_[index])) {
    const size_t offset = range.begin * element;
    work->behind.push_back({0, result_of(buffers_[index]) + offset, sums + offset, range.count() * element});
  }
}

// A collective on the bucket's sums, on all devices of this worker.
Communicator::Work Step::work_on(size_t index, Collective collective) {
  const Bucket& bucket = plan_[index];
  Communicator::Work work;
  work.collective = collective;
  work.dtype = bucket.dtype;
  work.count = collective == Collective::kAllReduce
                   ? bucket.elements
                   : Teams::device_part(teams_.member(rank()), bucket.elements);
  for (AtDevice& at : buffers_[index].at) {
    work.buffers.push_back(at.sums.get());
    work.reached.push_back(at.reached.get());
  }
  return work;
}

// The parts of a bucket between the devices' memory and the host's.
std::vector<device::CollectiveCopy> Step::part_copies(size_t index, bool to_devices) {
  const size_t element = dtype_size(plan_[index].dtype);
  std::vector<device::CollectiveCopy> copies;
  for (size_t d = 0; d < contexts_.size(); ++d) {
    const Slice part = Teams::part(teams_.member(rank()), static_cast<int32_t>(d), plan_[index].elements);
    if (part.count() == 0) continue;
    std::byte* here = result_of(buffers_[index]) + part.begin * element;
    std::byte* there = bytes(buffers_[index].at[d].sums) + part.begin * element;
    copies.push_back({static_cast<uint32_t>(d), to_devices ? there : here, to_devices ? here : there,
                      part.count() * element});
  }
  return copies;
}

// Results return once the sums of all buckets have begun, so their order is the same on all workers.
void Step::launch_gathers() {
  if (!in_team() || stays_on_device() || next_ < plan_.size()) return;
  while (done_ && next_gather_ < plan_.size() && buffers_[next_gather_].travelled)
    gather_together(next_gather_++);
}

void Step::gather_together(size_t index) {
  Communicator::Work work = work_on(index, Collective::kAllGather);
  work.before = part_copies(index, true);
  fetch_trailers(index, &work);
  collective_queue_->enqueue(work, request_.deadline, [this, call = request_.call](const Status& status) {
    if (!done_ || request_.call != call) return;
    if (!status.ok()) return team_failed(status);
    ++reduced_;
    finish();
  });
}

// A device does not show which peer it waits for. So each worker announces that it has enqueued all its work;
// the error of this exchange names the workers that have not.
void Step::tell_all_enqueued() {
  if (!mesh_ || std::exchange(all_enqueued_, true)) return;
  ++open_;
  const auto shape =
      shape_of(operation_of(plan_.size(), true), Kind::kBucket, DType::kUint8, Algorithm::kOneHop, 0);
  exchange(shape, {}, [this](const Status& status, const auto&) {
    if (!done_) return;
    if (!status.ok()) return fail(status);
    --open_;
    finish();
  });
}

// NCCL does not report which peer is missing. Waits for the head or the exchange above to name it, then
// fails.
void Step::team_failed(const Status& cause) {
  const bool late = cause.code() == Code::kTimeout, lost = cause.code() == Code::kWorkerLost;
  if (!mesh_ || !(late || lost)) return device_failed(cause);
  if (patience_) return;
  const transport::Duration patience = late ? std::chrono::milliseconds(50) : options_.lease;
  patience_ = loop_.schedule(loop_.now() + patience, [this, cause] {
    patience_ = 0;
    device_failed(cause);
  });
}

}  // namespace dsgd
