// Ring all-reduce (Patarasuk & Yuan 2009), pipelined by chunks: 2(W-1) rounds, each worker sends 2(W-1)/W of
// the data to its right neighbour only. The order of summation is fixed by the ring, so the same run gives
// the same bits.
#pragma once

#include "core/collectives/all_reduce.h"
#include "core/mesh/task.h"

namespace dsgd {

struct RingPlan {
  size_t count = 0;  // elements
  size_t element = 4;
  std::byte* data = nullptr;  // in place
  Add add;
};

class Ring final : public Task {
 public:
  Ring(Operations& operations, const transport::BulkHeader& shape, RingPlan plan, Done done,
       std::shared_ptr<const Group> group = nullptr);

  void start() override;
  std::optional<Landing> locate(int32_t source, const transport::BulkHeader& header, size_t nbytes) override;
  std::vector<int32_t> missing() const override;

 private:
  int32_t slice_sent(int32_t round) const;      // slice that this worker sends in a round
  int32_t slice_received(int32_t round) const;  // and the one it receives
  size_t chunks_of(int32_t slice) const;
  void send_chunk(int32_t round, size_t chunk);
  void received(int32_t round, size_t chunk);
  void check_end();

  RingPlan plan_;
  const int32_t rank_, size_, rounds_;
  const int32_t left_, right_;
  size_t chunk_ = 0;  // elements
  std::vector<size_t> bounds_;
  std::vector<std::vector<char>> have_;  // by round, by chunk: it has come, or is coming
  size_t to_receive_ = 0;
  size_t sends_ = 0;
};

// A row of the table (all_reduce.h).
Result<std::unique_ptr<Task>> make_ring_all_reduce(const AllReduceAlgorithm& algorithm, AllReduceCall call);

}  // namespace dsgd
