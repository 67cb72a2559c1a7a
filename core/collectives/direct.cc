#include "core/collectives/direct.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "core/base/sort_unique.h"
#include "core/mesh/operations.h"
#include "core/reduce/kernels.h"

namespace dsgd {

using transport::BulkHeader;
using transport::BulkReceipt;

namespace {

// Writes a chunk of halves as float32, or adds it to float32 elements. The weight of 1 leaves values
// unchanged.
template <DType kHalf>
const Combine& widening(bool adds) {
  static const auto* const kSet = new Combine([](void* destination, const void* source, size_t count) {
    weighted_set(kHalf, destination, source, count, 1);
  });
  static const auto* const kAdd = new Combine([](void* destination, const void* source, size_t count) {
    weighted_add(kHalf, destination, source, count, 1);
  });
  return adds ? *kAdd : *kSet;
}

const Combine& widening(DType half, bool adds) {
  return half == DType::kFloat16 ? widening<DType::kFloat16>(adds) : widening<DType::kBfloat16>(adds);
}

}  // namespace

std::vector<size_t> balanced_slices(size_t count, int32_t size) {
  constexpr size_t kAlign = 16;  // a cache line of float32
  const size_t blocks = (count + kAlign - 1) / kAlign;
  std::vector<size_t> bounds(size + 1);
  for (int32_t r = 0; r <= size; ++r) {
    bounds[r] = std::min(count, blocks * static_cast<size_t>(r) / static_cast<size_t>(size) * kAlign);
  }
  return bounds;
}

std::vector<Slice> slices_between(const std::vector<size_t>& bounds) {
  std::vector<Slice> slices;
  for (size_t i = 1; i < bounds.size(); ++i) slices.push_back({bounds[i - 1], bounds[i]});
  return slices;
}

Direct::Direct(Operations& operations, const BulkHeader& shape, DirectPlan plan, bool hold, Done done,
               std::shared_ptr<const Group> group)
    : Task(operations, shape, std::move(done), std::move(group)),
      plan_(std::move(plan)),
      hold_(hold),
      rank_(group_->own_index),
      size_(group_->size()) {
  first_ = plan_.slices[rank_].begin;
  if (!plan_.own) plan_.own = plan_.data + first_ * plan_.element;
}

uint64_t Direct::tag(const Operations& operations, const DirectPlan& plan) {
  std::vector<uint64_t> numbers = {operations.peers().chunk_bytes(), plan.element, plan.result_element,
                                   plan.reduce, plan.gather};
  for (const std::vector<Slice>* slices : {&plan.slices, &plan.parts}) {
    for (const Slice& slice : *slices) numbers.insert(numbers.end(), {slice.begin, slice.end});
  }
  for (const WireRange& wire : plan.wire) {
    numbers.insert(numbers.end(), {wire.range.begin, wire.range.end, static_cast<uint64_t>(wire.sent),
                                   static_cast<uint64_t>(wire.returned)});
  }
  return XXH3_64bits(numbers.data(), numbers.size() * sizeof numbers[0]);
}

int32_t Direct::Segment::turn_of(int32_t rank) const { return index_in(ranks, rank); }

size_t Direct::wire_element(const Segment& segment, Phase phase) const {
  return is_half(segment.wire[phase]) ? dtype_size(segment.wire[phase]) : element(phase);
}

void Direct::cut_chunks() {
  size_t elements = 0;
  for (const Slice& slice : plan_.slices) elements = std::max(elements, slice.end);
  std::vector<size_t> bounds = {0, elements};
  for (const Slice& part : plan_.parts) bounds.insert(bounds.end(), {part.begin, part.end});
  for (const WireRange& wire : plan_.wire) bounds.insert(bounds.end(), {wire.range.begin, wire.range.end});
  sort_unique(bounds);
  for (const Slice& slice : slices_between(bounds)) {
    Segment segment{slice, {}, {DType::kFloat32, DType::kFloat32}};
    for (const WireRange& wire : plan_.wire) {
      if (wire.range.begin > slice.begin || slice.end > wire.range.end) continue;
      segment.wire[kReduce] = wire.sent;
      segment.wire[kGather] = wire.returned;
    }
    for (int32_t r = 0; r < size_; ++r) {
      if (plan_.parts.empty() || (plan_.parts[r].begin <= slice.begin && slice.end <= plan_.parts[r].end))
        segment.ranks.push_back(r);
    }
    segments_.push_back(std::move(segment));
  }
  chunks_.resize(size_);
  for (int32_t owner = 0; owner < size_; ++owner) {
    for (const Segment& segment : segments_) {
      const size_t chunk_elements = operations_.peers().chunk_bytes() /
                                    std::max(wire_element(segment, kReduce), wire_element(segment, kGather));
      const size_t last = std::min(segment.slice.end, plan_.slices[owner].end);
      for (size_t begin = std::max(segment.slice.begin, plan_.slices[owner].begin); begin < last;
           begin += chunk_elements) {
        chunks_[owner].push_back({begin, std::min(begin + chunk_elements, last), &segment});
      }
    }
  }
}

bool Direct::find_chunk(int32_t owner, size_t begin, size_t* index) const {
  const std::vector<Chunk>& chunks = chunks_[owner];
  const auto at = std::lower_bound(chunks.begin(), chunks.end(), begin,
                                   [](const Chunk& chunk, size_t b) { return chunk.begin < b; });
  *index = static_cast<size_t>(at - chunks.begin());
  return at != chunks.end() && at->begin == begin;
}

void Direct::start() {
  sends_to_.assign(size_, 0);
  to_gather_.assign(size_, 0);
  gathered_.resize(size_);
  cut_chunks();
  sums_.resize(chunks_[rank_].size());
  for (size_t c = 0; c < sums_.size(); ++c) {
    const size_t contributions = chunks_[rank_][c].segment->ranks.size();
    sums_[c].parked.resize(contributions);
    sums_[c].received.assign(contributions, 0);
    sums_[c].is_added.assign(contributions, 0);
    sums_[c].own_turn = turn_of(c, rank_);
  }
  if (plan_.gather) {
    for (int32_t r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      gathered_[r].assign(chunks_[r].size(), 0);
      for (const Chunk& chunk : chunks_[r]) to_gather_[r] += chunk.segment->turn_of(rank_) >= 0;
      gathering_ += to_gather_[r];
    }
  }
  if (plan_.reduce) {
    for (int32_t hop = 1; hop < size_; ++hop) {
      const int32_t owner = (rank_ + hop) % size_;
      for (const Chunk& chunk : chunks_[owner]) {
        if (chunk.segment->turn_of(rank_) >= 0) send_chunk(owner, kReduce, chunk);
      }
    }
    for (size_t c = 0; c < sums_.size() && !ended(); ++c) advance(c);
  }
  transform_ready();
  check_end();
}

void Direct::release() {
  hold_ = false;
  transform_ready();
  check_end();
}

// header.offset counts bytes of elements in memory, even if the data travel as halves.
void Direct::send_chunk(int32_t rank, Phase phase, const Chunk& chunk) {
  BulkHeader header = shape_;
  const std::byte* base = is_half(chunk.segment->wire[phase]) ? plan_.halves
                          : phase == kReduce                  ? plan_.data
                                                              : plan_.result;
  const size_t bytes = wire_element(*chunk.segment, phase);
  header.phase = phase;
  header.offset = chunk.begin * element(phase);
  const std::span<const std::byte> data(base + chunk.begin * bytes, (chunk.end - chunk.begin) * bytes);
  if (data.size() <= transport::kSmallBytes) return send_small(rank, header, data);
  ++sends_;
  ++sends_to_[rank];
  send(rank, header, data, [this, rank](const Status&) {
    --sends_;
    --sends_to_[rank];
    check_end();
  });
}

// Sums are ((g0 + g1) + g2) + ...: the first two in either order, since a + b = b + a bit for bit, then by
// rank.
bool Direct::eligible(const Sum& sum, int32_t turn) const {
  if (sum.is_added[turn]) return false;
  // The order is free. Exception: without an own contribution the first chunk initialises the sum; later
  // chunks must wait until it has landed.
  if (!plan_.ordered) return sum.own_turn >= 0 || !sum.landing;
  if (sum.landing) return false;
  if (sum.added_count <= 1) return turn <= 1;
  return turn == sum.added_count;
}

// Returns the destination of the next contribution. This rank's own contribution lies in the slice from the
// start. If it is not among the first two in order, the contributions before it are summed in `prefix`, of
// which the first is copied.
Landing Direct::landing_of(size_t index) {
  Sum& sum = sums_[index];
  const Chunk& chunk = chunks_[rank_][index];
  std::byte* destination = own_at(chunk.begin);
  bool copy = sum.own_turn < 0 && sum.added_count == 0;
  if (plan_.ordered && sum.own_turn > 1 && !sum.is_added[sum.own_turn]) {
    if (!sum.prefix) sum.prefix.reset(new std::byte[(chunk.end - chunk.begin) * plan_.element]);
    destination = sum.prefix.get();
    copy = sum.prefix_empty;
  }
  const DType wire = chunk.segment->wire[kReduce];
  if (!is_half(wire))
    return {.destination = destination, .combine = copy ? nullptr : &plan_.add, .element = plan_.element};
  const size_t half = dtype_size(wire);
  return {.destination = destination,
          .combine = &widening(wire, !copy),
          .element = half,
          .widening = plan_.element / half};
}

std::optional<Landing> Direct::locate(int32_t source, const BulkHeader& header, size_t nbytes) {
  if (header.phase > kGather || !(header.phase == kReduce ? plan_.reduce : plan_.gather)) return {};
  const Phase phase = static_cast<Phase>(header.phase);
  const int32_t owner = phase == kReduce ? rank_ : source, other = phase == kReduce ? source : rank_;
  size_t index;
  if (header.offset % element(phase) != 0 || !find_chunk(owner, header.offset / element(phase), &index))
    return {};
  const Chunk& chunk = chunks_[owner][index];
  const int32_t turn = chunk.segment->turn_of(other);
  if (nbytes != (chunk.end - chunk.begin) * wire_element(*chunk.segment, phase) || turn < 0) return {};
  return phase == kReduce ? locate_contribution(index, turn) : locate_result(source, index);
}

std::optional<Landing> Direct::locate_contribution(size_t index, int32_t turn) {
  Sum& sum = sums_[index];
  if (sum.received[turn]) return {};
  if (!eligible(sum, turn)) {
    return Landing{.keep = [this, index, turn](std::unique_ptr<BulkReceipt> receipt) {
      sums_[index].received[turn] = 1;
      sums_[index].parked[turn] = std::move(receipt);
      advance_and_finish(index);
    }};
  }
  sum.received[turn] = 1;
  Landing landing = landing_of(index);
  sum.landing = true;
  landing.landed = [this, index, turn] {
    sums_[index].landing = false;
    note_added(index, turn);
    advance_and_finish(index);
  };
  return landing;
}

std::optional<Landing> Direct::locate_result(int32_t owner, size_t index) {
  if (std::exchange(gathered_[owner][index], 1)) return {};
  const Chunk& chunk = chunks_[owner][index];
  Landing landing{.destination = plan_.result + chunk.begin * plan_.result_element};
  if (const DType wire = chunk.segment->wire[kGather]; is_half(wire)) {
    landing.combine = &widening(wire, false);
    landing.element = dtype_size(wire);
    landing.widening = plan_.result_element / landing.element;
  }
  landing.landed = [this, owner] {
    --to_gather_[owner];
    --gathering_;
    check_end();
  };
  return landing;
}

void Direct::advance_and_finish(size_t index) {
  advance(index);
  transform_ready();
  check_end();
}

void Direct::note_added(size_t index, int32_t turn) {
  Sum& sum = sums_[index];
  sum.is_added[turn] = 1;
  ++sum.added_count;
  sum.prefix_empty = false;
}

// Adds parked contributions, and the own one, in order, as far as their turns have come.
void Direct::advance(size_t index) {
  Sum& sum = sums_[index];
  const Chunk& chunk = chunks_[rank_][index];
  const size_t count = chunk.end - chunk.begin;
  const int32_t turns = static_cast<int32_t>(sum.is_added.size());
  for (bool progress = true; progress;) {
    progress = false;
    for (int32_t turn = 0; turn < turns; ++turn) {
      if (!eligible(sum, turn)) continue;
      if (turn == sum.own_turn) {
        if (sum.prefix) {
          plan_.add(own_at(chunk.begin), sum.prefix.get(), count);  // a + b = b + a
          sum.prefix.reset();
        }
      } else if (sum.parked[turn]) {
        landing_of(index).write(0, sum.parked[turn]->data());
        sum.parked[turn]->finish({});
        sum.parked[turn].reset();
      } else {
        continue;
      }
      note_added(index, turn);
      progress = true;
    }
  }
}

// The trailer of a slice comes first in the slice, so results are sent in order.
void Direct::transform_ready() {
  if (hold_) return;
  while (complete_ < sums_.size()) {
    const Sum& sum = sums_[complete_];
    if (plan_.reduce && static_cast<size_t>(sum.added_count) < sum.is_added.size()) return;
    const Chunk& chunk = chunks_[rank_][complete_++];
    if (plan_.reduce && plan_.transform) plan_.transform(chunk.begin, chunk.end);
    for (int32_t hop = 1; plan_.gather && hop < size_; ++hop) {
      const int32_t rank = (rank_ + hop) % size_;
      if (chunk.segment->turn_of(rank) >= 0) send_chunk(rank, kGather, chunk);
    }
  }
}

void Direct::check_end() {
  if (!ended() && !hold_ && complete_ == sums_.size() && gathering_ == 0 && sends_ == 0) end({});
}

void Direct::drop_chunks(const Status& cause) {
  for (Sum& sum : sums_) {
    for (auto& receipt : sum.parked) {
      if (receipt) receipt->finish(cause);
      receipt.reset();
    }
  }
}

std::vector<int32_t> Direct::missing() const {
  std::vector<int32_t> ranks;
  for (int32_t r = 0; r < size_; ++r) {
    if (r == rank_ || sends_to_.empty()) continue;
    bool waits = to_gather_[r] > 0 || sends_to_[r] > 0;
    // Parked chunks have arrived and wait for their turn, not for rank r.
    for (size_t c = 0; c < sums_.size() && plan_.reduce && !waits; ++c) {
      const int32_t turn = turn_of(c, r);
      waits = turn >= 0 && !sums_[c].is_added[turn] && !sums_[c].parked[turn];
    }
    if (waits) ranks.push_back(r);
  }
  return ranks;
}

Result<std::unique_ptr<Task>> make_direct_all_reduce(const AllReduceAlgorithm&, AllReduceCall call) {
  AllReducePlan& plan = call.plan;
  DirectPlan direct;
  direct.slices = slices_between(balanced_slices(plan.count, call.group->size()));
  direct.element = direct.result_element = dtype_size(plan.dtype);
  direct.data = direct.result = plan.data;
  direct.ordered = is_floating(plan.dtype);
  direct.add = std::bind_front(reduce_into, plan.dtype, plan.reduction);
  direct.transform = std::move(plan.finish);
  call.shape.algorithm = static_cast<uint8_t>(Algorithm::kDirect);
  call.shape.tag = Direct::tag(call.operations, direct);
  return std::unique_ptr<Task>(std::make_unique<Direct>(call.operations, call.shape, std::move(direct), false,
                                                        std::move(call.done), std::move(call.group)));
}

}  // namespace dsgd
