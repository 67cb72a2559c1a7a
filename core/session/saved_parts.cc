#include "core/session/saved_parts.h"

#include <algorithm>
#include <utility>

namespace dsgd {
namespace {

constexpr uint64_t kUncut = 1 << 20;  // bytes: tensors up to this size are not cut

// Tensors that all workers have, one after the other.
class EvenSplit {
 public:
  EvenSplit(int32_t rank, int32_t size, std::vector<SavedPart>* parts)
      : rank_(rank), size_(size), parts_(*parts) {}
  void add(uint32_t parameter, int32_t state, uint64_t count, size_t element) {
    tensors_.push_back({{parameter, state, 0, count}, element});
    total_ += count * element;
  }
  void finish() {
    const uint64_t each = std::max<uint64_t>((total_ + size_ - 1) / size_, 1);
    uint64_t position = 0;
    for (const auto& [tensor, element] : tensors_) {
      SavedPart own = tensor;
      own.count = 0;
      for (uint64_t begin = 0; begin < tensor.count || begin == 0;) {
        const uint64_t count = std::min(kUncut / element, tensor.count - begin);
        if (std::min<uint64_t>(position / each, size_ - 1) == static_cast<uint64_t>(rank_)) {
          if (own.count == 0) own.begin = begin;
          own.count += count;
          if (tensor.count == 0) parts_.push_back(own);
        }
        position += count * element;
        begin += std::max<uint64_t>(count, 1);
      }
      if (own.count > 0) parts_.push_back(own);
    }
  }

 private:
  const int32_t rank_;
  const uint64_t size_;
  std::vector<SavedPart>& parts_;
  std::vector<std::pair<SavedPart, size_t>> tensors_;  // with the size of an element
  uint64_t total_ = 0;
};

}  // namespace

std::string state_name(const Optimizer& optimizer, int32_t state) {
  const auto names = optimizer.state_names();
  return static_cast<size_t>(state) < names.size() ? names[static_cast<size_t>(state)] : "master_value";
}

std::vector<const Piece*> key_ranges(const Plan& plan) {
  std::vector<const Piece*> ranges;
  for (const Bucket& bucket : plan.buckets) {
    for (const Piece& piece : bucket.pieces) ranges.push_back(&piece);
  }
  std::sort(ranges.begin(), ranges.end(), [](const Piece* a, const Piece* b) {
    return std::pair(a->parameter, a->begin) < std::pair(b->parameter, b->begin);
  });
  return ranges;
}

std::vector<std::pair<uint64_t, uint64_t>> owned_ranges(const Plan& plan, uint32_t parameter, int32_t rank,
                                                        bool with_copies) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const Bucket& bucket : plan.buckets) {
    for (const Piece& piece : bucket.pieces) {
      if (piece.parameter == parameter && (with_copies ? piece.is_kept_by(rank) : piece.owner == rank))
        ranges.emplace_back(piece.begin, piece.begin + piece.count);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  std::vector<std::pair<uint64_t, uint64_t>> merged;
  for (const auto& range : ranges) {
    if (!merged.empty() && merged.back().second == range.first) {
      merged.back().second = range.second;
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

std::vector<SavedPart> saved_parts(const Model& model, const std::vector<size_t>& states, const Plan* owners,
                                   int32_t rank, int32_t size) {
  std::vector<SavedPart> parts;
  EvenSplit even(rank, size, &parts);
  for (const auto& parameter : model.parameters) {
    const uint32_t p = parameter->index;
    if (parameter->trained) {
      even.add(p, -1, parameter->count, dtype_size(parameter->dtype));
    } else if (rank == 0) {
      parts.push_back({p, -1, 0, parameter->count});
    }
    for (size_t s = 0; parameter->trained && s < states[p]; ++s) {
      const auto state = static_cast<int32_t>(s);
      if (!owners) {
        even.add(p, state, parameter->count, dtype_size(wide(parameter->dtype)));
        continue;
      }
      for (const auto& [begin, end] : owned_ranges(*owners, p, rank))
        parts.push_back({p, state, begin, end - begin});
    }
  }
  even.finish();
  return parts;
}

}  // namespace dsgd
