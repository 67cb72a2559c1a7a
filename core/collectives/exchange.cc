#include "core/collectives/exchange.h"

#include "core/collectives/mesh.h"

namespace dsgd {

Exchange::Exchange(Mesh& mesh, const transport::BulkHeader& shape, std::vector<std::byte> mine, Gathered done)
    : Task(mesh, shape, [this, done = std::move(done)](const Status& status) { done(status, parts_); }),
      parts_(mesh.size()),
      have_(mesh.size(), 0),
      waiting_(mesh.size() - 1) {
  parts_[mesh.rank()] = std::move(mine);
  have_[mesh.rank()] = 1;
}

void Exchange::start() {
  const int32_t size = mesh_.size(), rank = mesh_.rank();
  if (parts_[rank].size() > transport::kSmallBytes) {  // told at once, rather than waited for until the deadline
    return mesh_.fail(*this, Status(Code::kInternal, name() + ": " + std::to_string(parts_[rank].size()) +
                                                         " bytes are too many for an exchange in one hop"));
  }
  for (int32_t hop = 1; hop < size; ++hop) {  // everybody begins with another peer
    mesh_.send_small((rank + hop) % size, shape_, parts_[rank]);
  }
  finish_if_complete();
}

void Exchange::on_chunk(int32_t source, const transport::BulkHeader& header,
                        std::unique_ptr<transport::BulkReceipt> receipt) {
  const auto data = receipt->data();
  if (have_[source] || header.offset != 0 || data.size() > transport::kSmallBytes) {
    receipt->finish(Status(Code::kInternal, "unexpected chunk"));
    return protocol_error(source, header, data.size());
  }
  parts_[source].assign(data.begin(), data.end());
  have_[source] = 1;
  --waiting_;
  receipt->finish({});
  finish_if_complete();
}

void Exchange::finish_if_complete() {
  if (waiting_ == 0) end({});
}

std::vector<int32_t> Exchange::missing() const {
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < static_cast<int32_t>(have_.size()); ++rank) {
    if (!have_[rank]) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace dsgd
