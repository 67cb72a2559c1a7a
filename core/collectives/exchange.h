// One-hop all-gather of at most kSmallBytes per worker: each worker sends its bytes to every other worker,
// the fastest way for small data. Carries step headers, barriers, signatures and small all-reduces.
#pragma once

#include "core/collectives/all_reduce.h"
#include "core/mesh/task.h"

namespace dsgd {

class Exchange final : public Task {
 public:
  // Bytes of each worker, by index; valid during the call.
  using Gathered = std::function<void(const Status&, const std::vector<std::vector<std::byte>>&)>;
  // Sizes may differ from rank to rank; a size that must be equal belongs in the shape. `optional`: workers
  // that closed their session before this call are skipped; their bytes are empty.
  Exchange(Operations& operations, const transport::BulkHeader& shape, std::vector<std::byte> mine,
           Gathered done, std::shared_ptr<const Group> group = nullptr, bool optional = false);

  void start() override;
  std::optional<Landing> locate(int32_t source, const transport::BulkHeader& header, size_t nbytes) override;
  std::vector<int32_t> missing() const override;
  bool leave_out(int32_t index) override;

 private:
  void check_end();
  std::vector<std::vector<std::byte>> parts_;
  std::vector<char> have_;
  int32_t waiting_;
  const bool optional_;
};

// All-reduce of at most kSmallBytes: every worker adds the contributions of all, in rank order.
std::unique_ptr<Task> make_one_hop_all_reduce(AllReduceCall call);

}  // namespace dsgd
