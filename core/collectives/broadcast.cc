#include "core/collectives/broadcast.h"

#include <algorithm>
#include <utility>

#include "core/base/sort_unique.h"
#include "core/collectives/chunks.h"
#include "core/mesh/operations.h"

namespace dsgd {

using transport::BulkHeader;

Broadcast::Broadcast(Operations& operations, const BulkHeader& shape, std::span<std::byte> data, Done done,
                     std::shared_ptr<const Group> group)
    : Task(operations, shape, std::move(done), std::move(group)),
      data_(data),
      index_(group_->own_index),
      size_(group_->size()),
      root_(group_->index_of(shape.root)),
      position_((index_ - root_ + size_) % size_),
      small_(data.size() <= transport::kSmallBytes),
      chunk_(small_ ? transport::kSmallBytes : operations.peers().chunk_bytes()),
      have_((data.size() + chunk_ - 1) / chunk_, position_ == 0),
      to_receive_(position_ == 0 ? 0 : have_.size()) {}

void Broadcast::start() {
  if (position_ != 0 && !is_first_of_call(operation())) {  // else `Operations` sends it to all peers
    BulkHeader header = shape_;
    header.phase = kSignaturePhase;
    send_small(root_, header, {});
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
      send_small((index_ + hop) % size_, header, data);
    return;
  }
  if (position_ + 1 == size_) return;
  const int32_t next = (index_ + 1) % size_;
  if (data.size() <= transport::kSmallBytes) return send_small(next, header, data);
  ++sends_;
  send(next, header, data, [this](const Status&) {
    --sends_;
    check_end();
  });
}

std::optional<Landing> Broadcast::locate(int32_t source, const BulkHeader& header, size_t nbytes) {
  const int32_t from = small_ ? root_ : (index_ + size_ - 1) % size_;
  if (header.phase != 0 || position_ == 0 || source != from) return {};
  const auto chunk = chunk_index(0, data_.size(), chunk_, header.offset, nbytes);
  if (!chunk || std::exchange(have_[*chunk], 1)) return {};
  return Landing{.destination = data_.data() + header.offset,
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
  std::vector<int32_t> indices;
  if (to_receive_ > 0) indices.push_back(small_ ? root_ : (index_ + size_ - 1) % size_);
  if (sends_ > 0) indices.push_back((index_ + 1) % size_);
  sort_unique(indices);
  return indices;
}

}  // namespace dsgd
