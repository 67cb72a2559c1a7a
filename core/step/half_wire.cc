#include "core/step/half_wire.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/reduce/kernels.h"

namespace dsgd {
namespace {

constexpr size_t kHalf = 2;  // bytes

// Calls use(piece, begin, count) for the pieces in a range of a bucket; `begin`: in the piece.
template <typename Use>
void for_pieces(const Bucket& bucket, size_t begin, size_t end, Use use) {
  for (const Piece& piece : bucket.pieces) {
    const size_t first = std::max(begin, piece.position), last = std::min(end, piece.position + piece.count);
    if (first < last) use(piece, first - piece.position, last - first);
  }
}

}  // namespace

// All elements but trailers, in few ranges: pieces of one owner come behind its trailers, and the padding
// between them is zero.
Status HalfWire::make_buffers() {
  state_.sum_scale = 1;
  ranges_.assign(state_.plan.size(), {});
  residuals_.resize(state_.model.parameters.size());
  if (!state_.path.narrows) return {};
  const auto make = [this](size_t nbytes, Memory* memory) -> Status {
    state_.buffer_bytes += nbytes;
    *memory = untouched_memory(nbytes);
    if (*memory) return {};
    return Status(Code::kNoMemory, "cpu: no memory for " + std::to_string(nbytes) +
                                       " bytes, which gradients that travel as halves need");
  };
  for (size_t b = 0; b < state_.plan.size(); ++b) {
    const Bucket& bucket = state_.plan[b];
    if (bucket.dtype != DType::kFloat32) continue;
    DSGD_RETURN_IF_ERROR(make(bucket.elements * kHalf, &state_.buffers[b].halves));
    for (const Piece& piece : bucket.pieces) {
      const Parameter& parameter = *state_.model.parameters[piece.parameter];
      const DType returned = state_.path.updates_at_owner ? parameter.dtype : state_.options.wire;
      WireRange* last = ranges_[b].empty() ? nullptr : &ranges_[b].back();
      if (!last || last->returned != returned || piece.trailer > last->range.begin) {
        ranges_[b].push_back({{piece.position, 0}, state_.options.wire, returned});
        last = &ranges_[b].back();
      }
      last->range.end = piece.position + piece.count;
      Residual& residual = residuals_[piece.parameter];
      if (piece.begin > 0 || parameter.count == 0) continue;
      if (residual.kept) {
        state_.buffer_bytes += parameter.state_nbytes();
      } else {
        DSGD_RETURN_IF_ERROR(make(parameter.state_nbytes(), &residual.kept));
      }
      DSGD_RETURN_IF_ERROR(make(parameter.state_nbytes(), &residual.next));
    }
  }
  return {};
}

void HalfWire::begin_step() {
  if (!state_.path.narrows) return;
  int exponent = 0;
  const double part = std::frexp(state_.total_weight, &exponent);  // in [1/2, 1), or 0
  if (part == 0.5) --exponent;
  state_.sum_scale = std::ldexp(1, -exponent);
  unit_ = state_.total_weight * state_.sum_scale * state_.model.loss_scale.factor();
}

void HalfWire::round_contributions(size_t index, int32_t own_index, DirectPlan* plan) {
  if (ranges_[index].empty()) return;
  plan->wire = ranges_[index];
  plan->halves = bytes(state_.buffers[index].halves);
  const Slice own = plan->slices[static_cast<size_t>(own_index)];
  const Slice part = plan->parts.empty() ? Slice{0, state_.plan[index].elements}
                                         : plan->parts[static_cast<size_t>(own_index)];
  round(index, part.begin, std::min(part.end, own.begin), false);
  round(index, std::max(part.begin, own.end), part.end, false);
}

void HalfWire::round_results(size_t index, size_t begin, size_t end) {
  if (ranges_[index].empty()) return;
  if (!state_.path.updates_at_owner) return round(index, begin, end, true);
  const BucketBuffers& buffers = state_.buffers[index];
  for_pieces(state_.plan[index], begin, end, [&](const Piece& piece, size_t offset, size_t count) {
    const DType dtype = state_.model.parameters[piece.parameter]->dtype;
    if (!is_half(dtype)) return;
    const size_t at = piece.position + offset;  // values that are exact in their type
    narrow(dtype, bytes(buffers.halves) + at * kHalf,
           reinterpret_cast<const float*>(buffers.result_data()) + at, count);
  });
}

void HalfWire::round(size_t index, size_t begin, size_t end, bool in_place) {
  const BucketBuffers& buffers = state_.buffers[index];
  for_pieces(state_.plan[index], begin, end, [&](const Piece& piece, size_t offset, size_t count) {
    const Residual& residual = residuals_[piece.parameter];
    const size_t at = piece.position + offset, in_parameter = piece.begin + offset;
    float* const sums = static_cast<float*>(buffers.data.get()) + at;
    const double factor = residual.unit > 0 ? unit_ / residual.unit : 1;
    narrow_with_residual(state_.options.wire, bytes(buffers.halves) + at * kHalf, sums,
                         static_cast<const float*>(residual.kept.get()) + in_parameter,
                         static_cast<float>(factor), static_cast<float*>(residual.next.get()) + in_parameter,
                         in_place ? sums : nullptr, count);
  });
}

void HalfWire::finish(const std::vector<char>& changed) {
  if (!state_.path.narrows) return;
  for (size_t p = 0; p < changed.size(); ++p) {
    if (!changed[p] || !residuals_[p].kept) continue;
    std::swap(residuals_[p].kept, residuals_[p].next);
    residuals_[p].unit = unit_;
  }
}

}  // namespace dsgd
