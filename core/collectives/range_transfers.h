// Ranges of memory that each go from one worker to another, all in one operation: the means of a bucket to
// the workers that keep copies of the owners' state, and that state to those that keep it in a new view.
// Every worker knows all ranges. One round; each range travels once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/mesh/task.h"

namespace dsgd {

struct RangeTransfer {
  int32_t from, to;  // indices in the group
  std::byte* data;   // of the range, on this worker; not used where it neither sends nor receives
  size_t nbytes;
};

class RangeTransfers final : public Task {
 public:
  RangeTransfers(Operations& operations, const transport::BulkHeader& shape,
                 std::vector<RangeTransfer> transfers, Done done,
                 std::shared_ptr<const Group> group = nullptr);

  void start() override;
  std::optional<Landing> locate(int32_t source, const transport::BulkHeader& header, size_t nbytes) override;
  std::vector<int32_t> missing() const override;

  // Returns a digest of the ranges, for the shape's tag.
  static uint64_t tag(const Operations& operations, const std::vector<RangeTransfer>& transfers);

 private:
  void check_end();

  // A message's offset counts the bytes of all ranges, one after the other.
  struct Range {
    RangeTransfer transfer;
    size_t begin;
    std::vector<char> came;  // by chunk
  };
  const int32_t index_;
  const size_t chunk_;
  std::vector<Range> ranges_;       // that this worker sends or receives, by `begin`
  std::vector<size_t> to_receive_;  // by index, chunks
  std::vector<size_t> sends_;       // by index, not yet answered
};

}  // namespace dsgd
