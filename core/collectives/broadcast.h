// Broadcast: small data goes from the root to all workers in one hop; large data goes down a chain root, root
// + 1, ... in pipelined chunks, so that each worker sends and receives it once, whatever their number.
#pragma once

#include "core/mesh/task.h"

namespace dsgd {

class Broadcast final : public Task {
 public:
  // The root of the shape is a rank of the group.
  Broadcast(Operations& operations, const transport::BulkHeader& shape, std::span<std::byte> data, Done done,
            std::shared_ptr<const Group> group = nullptr);

  void start() override;
  std::optional<Landing> locate(int32_t source, const transport::BulkHeader& header, size_t nbytes) override;
  std::vector<int32_t> missing() const override;

 private:
  void forward(size_t chunk);
  void received(size_t chunk);
  void check_end();

  std::span<std::byte> data_;
  const int32_t index_, size_, root_, position_;  // position in the chain, 0: root
  const bool small_;
  size_t chunk_;
  std::vector<char> have_;
  size_t to_receive_ = 0, sends_ = 0;
};

}  // namespace dsgd
