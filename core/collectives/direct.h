// Direct reduce-scatter and all-gather over given slices: two rounds, every owner adds the contributions to
// its slice in rank order (so the bits do not depend on arrival), then gives the result to all. One state
// machine serves all-reduce, reduce-scatter, all-gather and the buckets of the strategies: with balanced
// slices it is the direct all-reduce, with all elements in rank 0's slice it is `simple`, with slices placed
// by consistent hashing and an update at the owner it is the parameter server's push and pull. If workers
// have already reduced within their node, each contributes and receives only its part: the phase between
// nodes of a hierarchical all-reduce. Ranges of float32 elements can travel as halves; they are added up in
// float32.
#pragma once

#include "core/collectives/all_reduce.h"
#include "core/mesh/task.h"

namespace dsgd {

struct Slice {
  size_t begin = 0, end = 0;  // elements
  size_t count() const { return end - begin; }
};

// Float32 elements that travel in another type, in each phase: a half type, or kFloat32.
struct WireRange {
  Slice range;
  DType sent = DType::kFloat32, returned = DType::kFloat32;
};

struct DirectPlan {
  std::vector<Slice> slices;      // by index: the elements it owns; together all elements, each once
  std::vector<Slice> parts = {};  // by index: the elements it contributes and gets; empty: all
  size_t element = 4;             // bytes of an element in the reduce phase
  std::byte* data = nullptr;      // contributions, at their positions
  std::byte* own = nullptr;       // this rank's slice, where its sum is made; null: its range of `data`
  bool reduce = true;             // false: the own slice of `result` already holds the results
  bool ordered = true;            // false: the sum does not depend on the order (integers)
  // add(destination, source, count): destination += source, in elements
  Combine add;
  bool gather = true;
  size_t result_element = 4;    // bytes of an element in the gather phase
  std::byte* result = nullptr;  // at their positions; may be `data` when the sizes are equal
  // Called for consecutive ranges of the own slice, from its beginning, once their sums are complete: turns
  // sums (in data) into results (in result). Empty: sums are the results.
  std::function<void(size_t begin, size_t end)> transform;
  std::vector<WireRange> wire = {};  // by position; elements outside travel as they are
  // The halves of these ranges, at their positions: contributions, and results that `transform` writes there.
  std::byte* halves = nullptr;
};

// Bounds of slices of near equal size, at multiples of 16 elements: size + 1 positions.
std::vector<size_t> balanced_slices(size_t count, int32_t size);
// The slices between bounds.
std::vector<Slice> slices_between(const std::vector<size_t>& bounds);

class Direct final : public Task {
 public:
  // `hold`: sums are made but not transformed until release() is called (a step's header must come first).
  Direct(Operations& operations, const transport::BulkHeader& shape, DirectPlan plan, bool hold, Done done,
         std::shared_ptr<const Group> group = nullptr);
  void release();

  void start() override;
  std::optional<Landing> locate(int32_t source, const transport::BulkHeader& header, size_t nbytes) override;
  std::vector<int32_t> missing() const override;
  void drop_chunks(const Status& cause) override;

  // Returns a digest of the other properties that must agree, for the shape's tag.
  static uint64_t tag(const Operations& operations, const DirectPlan& plan);

 private:
  enum Phase : uint16_t { kReduce = 0, kGather = 1 };
  // Elements that the same ranks contribute to and get, in order.
  struct Segment {
    Slice slice;
    std::vector<int32_t> ranks;
    DType wire[2];                        // by phase; kFloat32: as they are
    int32_t turn_of(int32_t rank) const;  // its index among them; -1 if it is not among them
  };
  // The range of an owner's slice that one message carries.
  struct Chunk {
    size_t begin, end;
    const Segment* segment;
  };
  // The state of the sum of one chunk of the own slice.
  struct Sum {
    std::vector<std::unique_ptr<transport::BulkReceipt>> parked;  // by turn, arrived before it
    std::vector<char> received, is_added;                         // by turn
    int32_t added_count = 0;
    int32_t own_turn = -1;
    bool landing = false;                 // a contribution is being added right now
    std::unique_ptr<std::byte[]> prefix;  // sum of the ranks before ours, until ours is added
    bool prefix_empty = true;
  };

  void cut_chunks();
  // Finds the chunk of `owner` that begins at `begin`.
  bool find_chunk(int32_t owner, size_t begin, size_t* index) const;
  int32_t turn_of(size_t chunk, int32_t source) const {
    return chunks_[rank_][chunk].segment->turn_of(source);
  }
  std::byte* own_at(size_t position) const { return plan_.own + (position - first_) * plan_.element; }
  bool eligible(const Sum& sum, int32_t turn) const;
  size_t element(Phase phase) const { return phase == kReduce ? plan_.element : plan_.result_element; }
  size_t wire_element(const Segment& segment, Phase phase) const;  // bytes
  // Parts of locate(). Return none if the chunk has come before.
  std::optional<Landing> locate_contribution(size_t chunk, int32_t turn);
  std::optional<Landing> locate_result(int32_t owner, size_t chunk);
  Landing landing_of(size_t chunk);
  void note_added(size_t chunk, int32_t turn);
  void advance_and_finish(size_t chunk);
  void advance(size_t chunk);
  void transform_ready();
  void check_end();
  void send_chunk(int32_t rank, Phase phase, const Chunk& chunk);

  DirectPlan plan_;
  bool hold_;
  const int32_t rank_, size_;
  size_t first_ = 0;  // of the own slice
  std::vector<Segment> segments_;
  std::vector<std::vector<Chunk>> chunks_;   // by owner
  std::vector<Sum> sums_;                    // by chunk of the own slice
  size_t complete_ = 0;                      // chunks of the own slice that are transformed and published
  std::vector<std::vector<char>> gathered_;  // by owner, by chunk: it has come, or is coming
  std::vector<size_t> to_gather_;            // by owner, chunks still to come
  size_t gathering_ = 0;
  size_t sends_ = 0;  // zero-copy sends not yet answered
  std::vector<size_t> sends_to_;
};

// A row of the table (all_reduce.h).
Result<std::unique_ptr<Task>> make_direct_all_reduce(const AllReduceAlgorithm& algorithm, AllReduceCall call);

}  // namespace dsgd
