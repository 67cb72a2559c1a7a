#include "core/step/state_copies.h"

#include <memory>

#include "core/collectives/range_transfers.h"

namespace dsgd {

void StateCopies::begin_step() {
  buckets_.assign(state_.plan.size(), {});
  made_here_ = 0;
  all_made_ = false;
}

void StateCopies::owner_done(size_t index) {
  if (are_due()) send_means(index);
}

void StateCopies::bucket_reduced(size_t index) {
  if (!are_due()) return;
  send_means(index);  // where this worker owns no part of the bucket
  make(index);
}

void StateCopies::send_means(size_t index) {
  if (!step_.runs() || std::exchange(buckets_[index].sending, true)) return;
  const Bucket& bucket = state_.plan[index];
  const size_t element = dtype_size(bucket.dtype);
  std::vector<RangeTransfer> transfers;
  for (const CopiedRange& range : bucket.copied) {
    transfers.push_back({group_.workers()->index_of(range.owner), group_.workers()->index_of(range.keeper),
                         bytes(state_.buffers[index].copied_means) + range.begin * element,
                         (range.end - range.begin) * element});
  }
  auto shape = shape_of(state_.numbers.copies(index), Kind::kBucket, bucket.dtype, Algorithm::kDirect,
                        bucket.elements);
  shape.tag = RangeTransfers::tag(state_.mesh->operations, transfers);
  tasks_.add(std::make_unique<RangeTransfers>(state_.mesh->operations, shape, std::move(transfers),
                                              step_.or_fail([this, index] {
                                                buckets_[index].received = true;
                                                make(index);
                                              }),
                                              group_.workers()));
}

// Needs the means of the bucket, and the reduced bucket, whose trailers tell which gradients were absent.
// Called when either of them is complete.
void StateCopies::make(size_t index) {
  BucketCopies& copies = buckets_[index];
  if (!step_.runs() || !state_.buffers[index].progress.reduced || !copies.received ||
      std::exchange(copies.made, true))
    return;
  commit_.update_copies(index);
  if (++made_here_ < state_.plan.size()) return;
  tasks_.exchange(state_.numbers.copies_made(), Kind::kBucket, DType::kUint8, 0, {}, [this](const auto&) {
    all_made_ = true;
    made_();
  });
}

}  // namespace dsgd
