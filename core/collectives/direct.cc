#include "core/collectives/direct.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "core/mesh/operations.h"
#include "core/reduce/kernels.h"

namespace dsgd {

using transport::BulkHeader;
using transport::BulkReceipt;

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
      rank_(group_->own_place),
      size_(group_->size()) {
  chunk_ = operations.peers().chunk_bytes() / std::max(plan_.element, plan_.result_element);
  first_ = plan_.slices[rank_].begin;
  if (!plan_.own) plan_.own = plan_.data + first_ * plan_.element;
}

uint64_t Direct::tag(const Operations& operations, const DirectPlan& plan) {
  std::vector<uint64_t> numbers = {operations.peers().chunk_bytes(), plan.element, plan.result_element,
                                   plan.reduce, plan.gather};
  for (const std::vector<Slice>* slices : {&plan.slices, &plan.parts}) {
    for (const Slice& slice : *slices) numbers.insert(numbers.end(), {slice.begin, slice.end});
  }
  return XXH3_64bits(numbers.data(), numbers.size() * sizeof numbers[0]);
}

int32_t Direct::Segment::turn_of(int32_t rank) const {
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
  return at != ranks.end() && *at == rank ? static_cast<int32_t>(at - ranks.begin()) : -1;
}

void Direct::cut_slices() {
  size_t elements = 0;
  for (const Slice& slice : plan_.slices) elements = std::max(elements, slice.end);
  std::vector<size_t> bounds = {0, elements};
  for (const Slice& part : plan_.parts) bounds.insert(bounds.end(), {part.begin, part.end});
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  for (const Slice& slice : slices_between(bounds)) {
    Segment segment{slice, {}};
    for (int32_t r = 0; r < size_; ++r) {
      if (plan_.parts.empty() || (plan_.parts[r].begin <= slice.begin && slice.end <= plan_.parts[r].end))
        segment.ranks.push_back(r);
    }
    segments_.push_back(std::move(segment));
  }
  cuts_.resize(size_);
  for (int32_t owner = 0; owner < size_; ++owner) {
    for (const Segment& segment : segments_) {
      const size_t last = std::min(segment.slice.end, plan_.slices[owner].end);
      for (size_t begin = std::max(segment.slice.begin, plan_.slices[owner].begin); begin < last;
           begin += chunk_) {
        cuts_[owner].push_back({begin, std::min(begin + chunk_, last), &segment});
      }
    }
  }
}

bool Direct::find_cut(int32_t owner, size_t begin, size_t* index) const {
  const std::vector<Cut>& cuts = cuts_[owner];
  const auto at = std::lower_bound(cuts.begin(), cuts.end(), begin,
                                   [](const Cut& cut, size_t b) { return cut.begin < b; });
  *index = static_cast<size_t>(at - cuts.begin());
  return at != cuts.end() && at->begin == begin;
}

void Direct::start() {
  sends_to_.assign(size_, 0);
  to_gather_.assign(size_, 0);
  gathered_.resize(size_);
  cut_slices();
  chunks_.resize(cuts_[rank_].size());
  for (size_t c = 0; c < chunks_.size(); ++c) {
    const size_t contributions = cuts_[rank_][c].segment->ranks.size();
    chunks_[c].parked.resize(contributions);
    chunks_[c].came.assign(contributions, 0);
    chunks_[c].added.assign(contributions, 0);
    chunks_[c].own_turn = turn_of(c, rank_);
  }
  if (plan_.gather) {
    for (int32_t r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      gathered_[r].assign(cuts_[r].size(), 0);
      for (const Cut& cut : cuts_[r]) to_gather_[r] += cut.segment->turn_of(rank_) >= 0;
      gathering_ += to_gather_[r];
    }
  }
  if (plan_.reduce) {
    for (int32_t hop = 1; hop < size_; ++hop) {
      const int32_t owner = (rank_ + hop) % size_;
      for (const Cut& cut : cuts_[owner]) {
        if (cut.segment->turn_of(rank_) >= 0) send_range(owner, kReduce, cut.begin, cut.end);
      }
    }
    for (size_t c = 0; c < chunks_.size() && !ended(); ++c) advance(c);
  }
  transform_ready();
  check_end();
}

void Direct::release() {
  hold_ = false;
  transform_ready();
  check_end();
}

void Direct::send_range(int32_t rank, Phase phase, size_t begin, size_t end) {
  BulkHeader header = shape_;
  const size_t element = phase == kReduce ? plan_.element : plan_.result_element;
  const std::byte* base = phase == kReduce ? plan_.data : plan_.result;
  header.phase = phase;
  header.offset = begin * element;
  const std::span<const std::byte> data(base + begin * element, (end - begin) * element);
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
bool Direct::eligible(const Chunk& chunk, int32_t turn) const {
  if (chunk.added[turn]) return false;
  // If this rank contributes nothing, the first contribution is copied and later ones are added.
  if (!plan_.ordered) return chunk.own_turn >= 0 || !chunk.landing;
  if (chunk.landing) return false;
  if (chunk.count <= 1) return turn <= 1;
  return turn == chunk.count;
}

// Where the next contribution to a chunk goes. The own contribution lies in the slice from the beginning;
// when it is not among the first two of the order, the sum of those before it grows in a buffer of its own.
// The first one there is copied.
Landing Direct::landing_of(size_t index) {
  Chunk& chunk = chunks_[index];
  const Cut& cut = cuts_[rank_][index];
  std::byte* place = own_at(cut.begin);
  bool copy = chunk.own_turn < 0 && chunk.count == 0;
  if (plan_.ordered && chunk.own_turn > 1 && !chunk.added[chunk.own_turn]) {
    if (!chunk.prefix) chunk.prefix.reset(new std::byte[(cut.end - cut.begin) * plan_.element]);
    place = chunk.prefix.get();
    copy = chunk.prefix_empty;
  }
  return {.place = place, .add = copy ? nullptr : &plan_.add, .element = plan_.element};
}

std::optional<Landing> Direct::locate(int32_t source, const BulkHeader& header, size_t nbytes) {
  const bool reducing = header.phase == kReduce;
  if (header.phase > kGather || (reducing ? !plan_.reduce : !plan_.gather)) return {};
  const size_t element = reducing ? plan_.element : plan_.result_element;
  const int32_t owner = reducing ? rank_ : source, other = reducing ? source : rank_;
  size_t index;
  if (header.offset % element != 0 || !find_cut(owner, header.offset / element, &index)) return {};
  const Cut& cut = cuts_[owner][index];
  const int32_t turn = cut.segment->turn_of(other);
  if (nbytes != (cut.end - cut.begin) * element || turn < 0) return {};
  if (!reducing) {
    if (std::exchange(gathered_[source][index], 1)) return {};
    return Landing{.place = plan_.result + header.offset, .landed = [this, source] {
                     --to_gather_[source];
                     --gathering_;
                     check_end();
                   }};
  }
  Chunk& chunk = chunks_[index];
  if (chunk.came[turn]) return {};
  if (!eligible(chunk, turn)) {
    return Landing{.keep = [this, index, turn](std::unique_ptr<BulkReceipt> receipt) {
      chunks_[index].came[turn] = 1;
      chunks_[index].parked[turn] = std::move(receipt);
      go_on(index);
    }};
  }
  chunk.came[turn] = 1;
  Landing landing = landing_of(index);
  chunk.landing = true;
  landing.landed = [this, index, turn] {
    chunks_[index].landing = false;
    added(index, turn);
    go_on(index);
  };
  return landing;
}

void Direct::go_on(size_t index) {
  advance(index);
  transform_ready();
  check_end();
}

void Direct::added(size_t index, int32_t turn) {
  Chunk& chunk = chunks_[index];
  chunk.added[turn] = 1;
  ++chunk.count;
  chunk.prefix_empty = false;
}

// Adds what waits and whose turn it is.
void Direct::advance(size_t index) {
  Chunk& chunk = chunks_[index];
  const Cut& cut = cuts_[rank_][index];
  const size_t count = cut.end - cut.begin;
  const int32_t turns = static_cast<int32_t>(chunk.added.size());
  for (bool progress = true; progress;) {
    progress = false;
    for (int32_t turn = 0; turn < turns; ++turn) {
      if (!eligible(chunk, turn)) continue;
      if (turn == chunk.own_turn) {
        if (chunk.prefix) {
          plan_.add(own_at(cut.begin), chunk.prefix.get(), count);  // a + b = b + a
          chunk.prefix.reset();
        }
      } else if (chunk.parked[turn]) {
        landing_of(index).take(0, chunk.parked[turn]->data());
        chunk.parked[turn]->finish({});
        chunk.parked[turn].reset();
      } else {
        continue;
      }
      added(index, turn);
      progress = true;
    }
  }
}

// Results go out in the order of the slice, so that what describes a slice can stand at its head.
void Direct::transform_ready() {
  if (hold_) return;
  const auto contributions = [this](size_t index) {
    return static_cast<int32_t>(chunks_[index].added.size());
  };
  while (complete_ < chunks_.size() &&
         (!plan_.reduce || chunks_[complete_].count == contributions(complete_))) {
    const Cut& cut = cuts_[rank_][complete_++];
    if (plan_.reduce && plan_.transform) plan_.transform(cut.begin, cut.end);
    for (int32_t hop = 1; plan_.gather && hop < size_; ++hop) {
      const int32_t rank = (rank_ + hop) % size_;
      if (cut.segment->turn_of(rank) >= 0) send_range(rank, kGather, cut.begin, cut.end);
    }
  }
}

void Direct::check_end() {
  if (!ended() && !hold_ && complete_ == chunks_.size() && gathering_ == 0 && sends_ == 0) end({});
}

void Direct::drop_chunks(const Status& cause) {
  for (Chunk& chunk : chunks_) {
    for (auto& receipt : chunk.parked) {
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
    for (size_t c = 0; c < chunks_.size() && plan_.reduce && !waits; ++c) {
      const int32_t turn = turn_of(c, r);
      waits = turn >= 0 && !chunks_[c].added[turn] && !chunks_[c].parked[turn];
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
  direct.add = [dtype = plan.dtype, reduction = plan.reduction](void* destination, const void* source,
                                                                size_t count) {
    reduce_into(dtype, reduction, destination, source, count);
  };
  direct.transform = std::move(plan.finish);
  call.shape.algorithm = static_cast<uint8_t>(Algorithm::kDirect);
  call.shape.tag = Direct::tag(call.operations, direct);
  return std::unique_ptr<Task>(std::make_unique<Direct>(call.operations, call.shape, std::move(direct), false,
                                                        std::move(call.done), std::move(call.group)));
}

}  // namespace dsgd
