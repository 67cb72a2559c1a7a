#include "core/collectives/ring.h"

#include <algorithm>
#include <utility>

#include "core/collectives/chunks.h"
#include "core/collectives/direct.h"
#include "core/mesh/operations.h"
#include "core/reduce/kernels.h"

namespace dsgd {

using transport::BulkHeader;

Ring::Ring(Operations& operations, const BulkHeader& shape, RingPlan plan, Done done,
           std::shared_ptr<const Group> group)
    : Task(operations, shape, std::move(done), std::move(group)),
      plan_(std::move(plan)),
      rank_(group_->own_place),
      size_(group_->size()),
      rounds_(2 * (size_ - 1)),
      left_((rank_ + size_ - 1) % size_),
      right_((rank_ + 1) % size_),
      chunk_(operations.peers().chunk_bytes() / plan_.element),
      bounds_(balanced_slices(plan_.count, size_)) {}

// Rounds 0 .. W-2 reduce: in round s this worker sends slice rank - s and adds slice rank - s - 1. It then
// owns the sum of slice rank + 1, and rounds W-1 .. 2W-3 pass the sums around the same way.
int32_t Ring::slice_sent(int32_t round) const { return ((rank_ - round) % size_ + size_) % size_; }
int32_t Ring::slice_received(int32_t round) const { return ((rank_ - round - 1) % size_ + size_) % size_; }
size_t Ring::chunks_of(int32_t slice) const {
  return (bounds_[slice + 1] - bounds_[slice] + chunk_ - 1) / chunk_;
}

void Ring::start() {
  have_.resize(rounds_);
  for (int32_t round = 0; round < rounds_; ++round) {
    const size_t chunks = chunks_of(slice_received(round));
    have_[round].assign(chunks, 0);
    to_receive_ += chunks;
  }
  if (rounds_ > 0) {
    for (size_t chunk = 0; chunk < chunks_of(slice_sent(0)); ++chunk) send_chunk(0, chunk);
  }
  check_end();
}

void Ring::send_chunk(int32_t round, size_t chunk) {
  const int32_t slice = slice_sent(round);
  const size_t begin = bounds_[slice] + chunk * chunk_, end = std::min(begin + chunk_, bounds_[slice + 1]);
  BulkHeader header = shape_;
  header.phase = static_cast<uint16_t>(round);
  header.offset = begin * plan_.element;
  const std::span<const std::byte> data(plan_.data + header.offset, (end - begin) * plan_.element);
  if (data.size() <= transport::kSmallBytes) return send_small(right_, header, data);
  ++sends_;
  send(right_, header, data, [this](const Status&) {
    --sends_;
    check_end();
  });
}

std::optional<Landing> Ring::locate(int32_t source, const BulkHeader& header, size_t nbytes) {
  const int32_t round = header.phase;
  if (source != left_ || round >= rounds_) return {};
  const int32_t slice = slice_received(round);
  const size_t element = plan_.element;
  const auto chunk = chunk_index(bounds_[slice] * element, bounds_[slice + 1] * element, chunk_ * element,
                                 header.offset, nbytes);
  if (!chunk || std::exchange(have_[round][*chunk], 1)) return {};
  return Landing{.place = plan_.data + header.offset,
                 .add = round < size_ - 1 ? &plan_.add : nullptr,
                 .element = element,
                 .landed = [this, round, chunk = *chunk] { received(round, chunk); }};
}

void Ring::received(int32_t round, size_t chunk) {
  --to_receive_;
  if (round + 1 < rounds_) send_chunk(round + 1, chunk);
  check_end();
}

void Ring::check_end() {
  if (!ended() && to_receive_ == 0 && sends_ == 0) end({});
}

std::vector<int32_t> Ring::missing() const {
  std::vector<int32_t> ranks;
  if (to_receive_ > 0) ranks.push_back(left_);
  if (sends_ > 0 && (ranks.empty() || right_ != left_)) ranks.push_back(right_);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

Result<std::unique_ptr<Task>> make_ring_all_reduce(const AllReduceAlgorithm&, AllReduceCall call) {
  AllReducePlan& plan = call.plan;
  call.shape.algorithm = static_cast<uint8_t>(Algorithm::kRing);
  call.shape.tag = call.operations.peers().chunk_bytes();
  const auto add = [dtype = plan.dtype, reduction = plan.reduction](void* destination, const void* source,
                                                                    size_t count) {
    reduce_into(dtype, reduction, destination, source, count);
  };
  RingPlan ring{plan.count, dtype_size(plan.dtype), plan.data, add};
  return std::unique_ptr<Task>(std::make_unique<Ring>(call.operations, call.shape, std::move(ring),
                                                      finish_all(plan, std::move(call.done)),
                                                      std::move(call.group)));
}

}  // namespace dsgd
