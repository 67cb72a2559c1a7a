#include "core/collectives/range_transfers.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "core/collectives/chunks.h"
#include "core/mesh/operations.h"

namespace dsgd {

using transport::BulkHeader;

RangeTransfers::RangeTransfers(Operations& operations, const BulkHeader& shape,
                               std::vector<RangeTransfer> transfers, Done done,
                               std::shared_ptr<const Group> group)
    : Task(operations, shape, std::move(done), std::move(group)),
      index_(group_->own_index),
      chunk_(operations.peers().chunk_bytes()),
      to_receive_(static_cast<size_t>(group_->size())),
      sends_(to_receive_.size()) {
  size_t begin = 0;
  for (const RangeTransfer& transfer : transfers) {
    const size_t chunks = (transfer.nbytes + chunk_ - 1) / chunk_;
    if (transfer.from == index_ || transfer.to == index_)
      ranges_.push_back({transfer, begin, std::vector<char>(transfer.to == index_ ? chunks : 0)});
    if (transfer.to == index_) to_receive_[static_cast<size_t>(transfer.from)] += chunks;
    begin += transfer.nbytes;
  }
}

uint64_t RangeTransfers::tag(const Operations& operations, const std::vector<RangeTransfer>& transfers) {
  std::vector<uint64_t> numbers = {operations.peers().chunk_bytes()};
  for (const RangeTransfer& transfer : transfers)
    numbers.insert(numbers.end(), {static_cast<uint64_t>(transfer.from), static_cast<uint64_t>(transfer.to),
                                   transfer.nbytes});
  return XXH3_64bits(numbers.data(), numbers.size() * sizeof numbers[0]);
}

void RangeTransfers::start() {
  for (const Range& range : ranges_) {
    if (range.transfer.from != index_) continue;
    const int32_t to = range.transfer.to;
    for (size_t at = 0; at < range.transfer.nbytes; at += chunk_) {
      BulkHeader header = shape_;
      header.offset = range.begin + at;
      const std::span<const std::byte> data(range.transfer.data + at,
                                            std::min(chunk_, range.transfer.nbytes - at));
      if (data.size() <= transport::kSmallBytes) {
        send_small(to, header, data);
        continue;
      }
      ++sends_[static_cast<size_t>(to)];
      send(to, header, data, [this, to](const Status&) {
        --sends_[static_cast<size_t>(to)];
        check_end();
      });
    }
  }
  check_end();
}

std::optional<Landing> RangeTransfers::locate(int32_t source, const BulkHeader& header, size_t nbytes) {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), header.offset,
                                      [](size_t offset, const Range& range) { return offset < range.begin; });
  if (header.phase != 0 || after == ranges_.begin()) return {};
  Range& range = *std::prev(after);
  const RangeTransfer& transfer = range.transfer;
  if (transfer.to != index_ || transfer.from != source) return {};
  const auto chunk = chunk_index(range.begin, range.begin + transfer.nbytes, chunk_, header.offset, nbytes);
  if (!chunk || std::exchange(range.came[*chunk], 1)) return {};
  return Landing{.destination = transfer.data + (header.offset - range.begin), .landed = [this, source] {
                   --to_receive_[static_cast<size_t>(source)];
                   check_end();
                 }};
}

void RangeTransfers::check_end() {
  const auto none = [](const std::vector<size_t>& counts) {
    return std::all_of(counts.begin(), counts.end(), [](size_t count) { return count == 0; });
  };
  if (!ended() && none(to_receive_) && none(sends_)) end({});
}

std::vector<int32_t> RangeTransfers::missing() const {
  std::vector<int32_t> indices;
  for (size_t index = 0; index < sends_.size(); ++index) {
    if (to_receive_[index] > 0 || sends_[index] > 0) indices.push_back(static_cast<int32_t>(index));
  }
  return indices;
}

}  // namespace dsgd
