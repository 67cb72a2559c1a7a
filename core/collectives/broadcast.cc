#include "core/collectives/broadcast.h"

#include <algorithm>
#include <utility>

#include "core/collectives/chunks.h"
#include "core/mesh/operations.h"

namespace dsgd {

using transport::BulkHeader;

Broadcast::Broadcast(Operations& operations, const BulkHeader& shape, std::span<std::byte> data, Done done)
    : Task(operations, shape, std::move(done)),
      data_(data),
      rank_(operations.peers().rank()),
      size_(operations.peers().size()),
      position_((rank_ - shape.root + size_) % size_),
      small_(data.size() <= transport::kSmallBytes),
      chunk_(small_ ? transport::kSmallBytes : operations.peers().chunk_bytes()),
      have_((data.size() + chunk_ - 1) / chunk_, position_ == 0),
      to_receive_(position_ == 0 ? 0 : have_.size()) {}

void Broadcast::start() {
  if (position_ != 0 && !is_first_of_call(operation())) {  // else `Operations` sends it to all peers
    BulkHeader header = shape_;
    header.phase = kSignaturePhase;
    operations_.send_small(shape_.root, header, {});
  }
  for (size_t chunk = 0; position_ == 0 && chunk < have_.size(); ++chunk) forward(chunk);
  check_end();
}

void Broadcast::forward(size_t chunk) {
  BulkHeader header = shape_;
  header.offset = chunk * chunk_;
  const auto data = data_.subspan(header.offset, std::min(chunk_, data_.size() - header.offset));
  if (small_) {
    for (int32_t hop = 1; position_ == 0 && hop < size_; ++hop)
      operations_.send_small((rank_ + hop) % size_, header, data);
    return;
  }
  if (position_ + 1 == size_) return;
  const int32_t next = (rank_ + 1) % size_;
  if (data.size() <= transport::kSmallBytes) return operations_.send_small(next, header, data);
  ++sends_;
  operations_.send(next, header, data, [this](const Status&) {
    --sends_;
    check_end();
  });
}

std::optional<Landing> Broadcast::locate(int32_t source, const BulkHeader& header, size_t nbytes) {
  const int32_t from = small_ ? shape_.root : (rank_ + size_ - 1) % size_;
  if (header.phase != 0 || position_ == 0 || source != from) return {};
  const auto chunk = chunk_index(0, data_.size(), chunk_, header.offset, nbytes);
  if (!chunk || std::exchange(have_[*chunk], 1)) return {};
  return Landing{.place = data_.data() + header.offset,
                 .landed = [this, chunk = *chunk] { received(chunk); }};
}

void Broadcast::received(size_t chunk) {
  --to_receive_;
  forward(chunk);
  check_end();
}

void Broadcast::check_end() {
  if (!ended() && to_receive_ == 0 && sends_ == 0) end({});
}

std::vector<int32_t> Broadcast::missing() const {
  std::vector<int32_t> ranks;
  if (to_receive_ > 0) ranks.push_back(small_ ? shape_.root : (rank_ + size_ - 1) % size_);
  if (sends_ > 0) ranks.push_back((rank_ + 1) % size_);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace dsgd
