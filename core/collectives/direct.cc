#include "core/collectives/direct.h"

#include <algorithm>
#include <cstring>

#include "core/collectives/mesh.h"

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

Direct::Direct(Mesh& mesh, const BulkHeader& shape, DirectPlan plan, bool hold, Done done)
    : Task(mesh, shape, std::move(done)), plan_(std::move(plan)), hold_(hold), rank_(mesh.rank()), size_(mesh.size()) {
  chunk_ = mesh.chunk_bytes() / std::max(plan_.element, plan_.result_element);
  first_ = plan_.bounds[rank_];
  last_ = plan_.bounds[rank_ + 1];
  if (!plan_.own) plan_.own = plan_.data + first_ * plan_.element;
}

uint64_t Direct::tag(const Mesh& mesh, const DirectPlan& plan) {
  uint64_t hash = 1469598103934665603ull;  // FNV-1a over the numbers
  auto mix = [&hash](uint64_t value) {
    for (int i = 0; i < 8; ++i) hash = (hash ^ ((value >> (8 * i)) & 255)) * 1099511628211ull;
  };
  mix(mesh.chunk_bytes());
  mix(plan.element * 16 + plan.result_element);
  mix(plan.reduce * 2 + plan.gather);
  for (size_t bound : plan.bounds) mix(bound);
  return hash;
}

size_t Direct::chunks_of(int32_t rank) const {
  return (plan_.bounds[rank + 1] - plan_.bounds[rank] + chunk_ - 1) / chunk_;
}

void Direct::start() {
  sends_to_.assign(size_, 0);
  to_gather_.assign(size_, 0);
  gathered_.resize(size_);
  sinks_.resize(size_);
  chunks_.resize(chunks_of(rank_));
  for (Chunk& chunk : chunks_) {
    chunk.parked.resize(size_);
    chunk.added.assign(size_, 0);
  }
  if (plan_.gather) {
    for (int32_t r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      to_gather_[r] = chunks_of(r);
      gathered_[r].assign(to_gather_[r], 0);
      gathering_ += to_gather_[r];
    }
  }
  if (plan_.reduce) {
    for (int32_t hop = 1; hop < size_; ++hop) {
      const int32_t owner = (rank_ + hop) % size_;
      for (size_t begin = plan_.bounds[owner]; begin < plan_.bounds[owner + 1]; begin += chunk_) {
        send_range(owner, kReduce, begin, std::min(begin + chunk_, plan_.bounds[owner + 1]));
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
  if (data.size() <= transport::kSmallBytes) return mesh_.send_small(rank, header, data);
  ++sends_;
  ++sends_to_[rank];
  mesh_.send(rank, header, data, [this, rank](const Status&) {
    --sends_;
    --sends_to_[rank];
    check_end();
  });
}

// The chunk that a header names, if offset and size are exactly those of a chunk that `source` may send.
bool Direct::locate(const BulkHeader& header, size_t nbytes, int32_t source, size_t* chunk) const {
  const bool reducing = header.phase == kReduce;
  if (header.phase > kGather || (reducing ? !plan_.reduce : !plan_.gather)) return false;
  const size_t element = reducing ? plan_.element : plan_.result_element;
  const int32_t owner = reducing ? rank_ : source;
  const size_t first = plan_.bounds[owner], last = plan_.bounds[owner + 1];
  if (header.offset % element != 0) return false;
  const size_t begin = header.offset / element;
  if (begin < first || begin >= last || (begin - first) % chunk_ != 0) return false;
  *chunk = (begin - first) / chunk_;
  return nbytes == (std::min(begin + chunk_, last) - begin) * element;
}

// Sums are ((g0 + g1) + g2) + ...: the first two in either order, since a + b = b + a bit for bit, then by rank.
bool Direct::eligible(const Chunk& chunk, int32_t source) const {
  if (chunk.added[source]) return false;
  if (!plan_.ordered) return true;
  if (chunk.landing) return false;
  if (chunk.count == 0) return source <= 1;
  if (chunk.count == 1) return source <= 1;
  return source == chunk.count;
}

// Where the next contribution to a chunk goes, and whether it is the first there. The own contribution lies in the
// slice from the beginning; when it is not among the first two of the order, the sum of those before it grows in a
// buffer of its own.
std::byte* Direct::target(size_t index, bool* copy) {
  Chunk& chunk = chunks_[index];
  const size_t begin = first_ + index * chunk_;
  std::byte* own = own_at(begin);
  *copy = false;
  if (!plan_.ordered || rank_ <= 1 || chunk.added[rank_]) return own;
  if (!chunk.prefix) {
    chunk.prefix.reset(new std::byte[(std::min(begin + chunk_, last_) - begin) * plan_.element]);
  }
  *copy = chunk.prefix_empty;
  return chunk.prefix.get();
}

transport::BulkSink* Direct::on_bulk(int32_t source, const BulkHeader& header, size_t nbytes) {
  size_t index;
  if (!locate(header, nbytes, source, &index)) return nullptr;  // told when it is complete
  Sink& sink = sinks_[source];
  if (header.phase == kGather) {
    sink.copy_to(plan_.result + header.offset);
    sink.landing.begin(header);
    return &sink;
  }
  Chunk& chunk = chunks_[index];
  if (!eligible(chunk, source)) return nullptr;
  bool copy;
  std::byte* place = target(index, &copy);
  chunk.landing = true;
  if (copy) {
    sink.copy_to(place);
  } else {
    sink.add_to(place, plan_.element, plan_.add);
  }
  sink.landing.begin(header);
  return &sink;
}

void Direct::on_chunk(int32_t source, const BulkHeader& header, std::unique_ptr<BulkReceipt> receipt) {
  size_t index;
  const bool landed = receipt->data().empty() && sinks_[source].landing.end(header);
  const size_t nbytes = receipt->data().size();
  if (!landed && !locate(header, nbytes, source, &index)) {
    receipt->finish(Status(Code::kInternal, "unexpected chunk"));
    return protocol_error(source, header, nbytes);
  }
  if (landed) {
    const size_t element = header.phase == kReduce ? plan_.element : plan_.result_element;
    index = (header.offset / element - plan_.bounds[header.phase == kReduce ? rank_ : source]) / chunk_;
  }
  if (header.phase == kGather) {
    if (gathered_[source][index]) {
      receipt->finish(Status(Code::kInternal, "chunk came twice"));
      return protocol_error(source, header, nbytes);
    }
    if (!landed) std::memcpy(plan_.result + header.offset, receipt->data().data(), nbytes);
    receipt->finish({});
    gathered_[source][index] = 1;
    --to_gather_[source];
    --gathering_;
    return check_end();
  }
  Chunk& chunk = chunks_[index];
  if (landed) {
    receipt->finish({});
    chunk.landing = false;
    added(index, source);
  } else {
    if (chunk.added[source] || chunk.parked[source]) {
      receipt->finish(Status(Code::kInternal, "chunk came twice"));
      return protocol_error(source, header, nbytes);
    }
    chunk.parked[source] = std::move(receipt);
  }
  advance(index);
  transform_ready();
  check_end();
}

void Direct::added(size_t index, int32_t source) {
  Chunk& chunk = chunks_[index];
  chunk.added[source] = 1;
  ++chunk.count;
  chunk.prefix_empty = false;
}

// Adds what waits and whose turn it is.
void Direct::advance(size_t index) {
  Chunk& chunk = chunks_[index];
  const size_t begin = first_ + index * chunk_;
  const size_t count = std::min(begin + chunk_, last_) - begin;
  for (bool progress = true; progress;) {
    progress = false;
    for (int32_t source = 0; source < size_; ++source) {
      if (!eligible(chunk, source)) continue;
      if (source == rank_) {
        if (chunk.prefix) {
          std::byte* own = own_at(begin);
          plan_.add(own, chunk.prefix.get(), count);  // a + b = b + a
          chunk.prefix.reset();
        }
      } else if (chunk.parked[source]) {
        bool copy;
        std::byte* place = target(index, &copy);
        const std::byte* data = chunk.parked[source]->data().data();
        if (copy) {
          std::memcpy(place, data, count * plan_.element);
        } else {
          plan_.add(place, data, count);
        }
        chunk.parked[source]->finish({});
        chunk.parked[source].reset();
      } else {
        continue;
      }
      added(index, source);
      progress = true;
    }
  }
}

// Results go out in the order of the slice, so that what describes a slice can stand at its head.
void Direct::transform_ready() {
  if (hold_) return;
  while (complete_ < chunks_.size() && (!plan_.reduce || chunks_[complete_].count == size_)) {
    const size_t index = complete_++;
    const size_t begin = first_ + index * chunk_, end = std::min(begin + chunk_, last_);
    if (plan_.reduce && plan_.transform) plan_.transform(begin, end);
    if (plan_.gather) {
      for (int32_t hop = 1; hop < size_; ++hop) send_range((rank_ + hop) % size_, kGather, begin, end);
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
    // What is parked has come, and only waits for its turn: on others.
    for (const Chunk& chunk : chunks_) waits = waits || (plan_.reduce && !chunk.added[r] && !chunk.parked[r]);
    if (waits) ranks.push_back(r);
  }
  return ranks;
}

}  // namespace dsgd
