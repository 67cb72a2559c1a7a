// Executes the schedule of an all-reduce (schedule.h). A transfer begins as soon as the earlier ones that
// touch its elements have ended; it does not wait for the rest of their round. It travels in chunks.
#pragma once

#include "core/collectives/all_reduce.h"
#include "core/collectives/schedule.h"
#include "core/mesh/task.h"

namespace dsgd {

struct ScheduledPlan {
  std::shared_ptr<const Schedule> schedule;
  size_t element = 4;         // bytes
  std::byte* data = nullptr;  // in place
  Combine add;
};

class Scheduled final : public Task {
 public:
  Scheduled(Operations& operations, const transport::BulkHeader& shape, ScheduledPlan plan, Done done,
            std::shared_ptr<const Group> group = nullptr);

  void start() override;
  std::optional<Landing> locate(int32_t source, const transport::BulkHeader& header, size_t nbytes) override;
  std::vector<int32_t> missing() const override;
  void drop_chunks(const Status& cause) override;

  // Returns a digest of the schedule, for the tag of the shape.
  static uint64_t tag(const Operations& operations, const Schedule& schedule);

 private:
  struct State {
    uint32_t waits_for = 0;
    size_t left = 0;  // chunks to receive, or sends not yet answered
    bool begun = false;
    std::vector<char> have;  // by chunk, of a receive
    // Chunks that came before their turn.
    std::vector<std::pair<size_t, std::unique_ptr<transport::BulkReceipt>>> parked;
    std::vector<std::byte> copy;  // of a send whose elements are overwritten while it travels
  };

  const Transfer& transfer(size_t entry) const { return plan_.schedule->entries[entry].transfer; }
  size_t chunks_of(size_t entry) const { return (transfer(entry).count + chunk_ - 1) / chunk_; }
  std::byte* address_of(size_t entry, size_t chunk) const {
    return plan_.data + (transfer(entry).begin + chunk * chunk_) * plan_.element;
  }

  void release(const std::vector<uint32_t>& entries);
  void begin_ready();
  void begin(size_t entry);
  void send_entry(size_t entry);
  Landing landing_of(size_t entry, size_t chunk) const;  // of a chunk whose transfer has begun
  void received(size_t entry);
  void check_end();

  ScheduledPlan plan_;
  const size_t chunk_;   // elements
  size_t copied_bytes_;  // a chunk of at most this size is copied and sent at once
  std::vector<State> states_;
  std::vector<std::vector<size_t>> receives_from_;  // by rank, by number: the entry
  std::vector<size_t> ready_;                       // entries that may begin
  bool beginning_ = false;
  size_t left_ = 0;  // entries not over
};

// A row of the table (all_reduce.h).
Result<std::unique_ptr<Task>> make_scheduled_all_reduce(const AllReduceAlgorithm& algorithm,
                                                        AllReduceCall call);

}  // namespace dsgd
