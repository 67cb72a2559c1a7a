// The sums that a device's work queue computes in one call: ranges of a bucket, and the terms of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/device/device.h"
#include "core/step/step_state.h"

namespace dsgd {

struct SumList {
  std::vector<device::SumPiece> pieces;
  std::vector<device::Term> terms;

  void clear() { pieces.clear(), terms.clear(); }
  // `count` elements of one tensor, as they are: the weight of 1 leaves their bits unchanged.
  void add_copy(size_t position, size_t count, DType dtype, const std::byte* from) {
    pieces.push_back({position, count, static_cast<uint32_t>(terms.size()), 1, dtype});
    terms.push_back({from, 1});
  }
  // The weighted gradients of a bucket, of the context's replicas that contribute. A weight of 0 never reads
  // the gradient (0 * NaN is NaN).
  void list_gradients(const StepState& state, size_t bucket, const DeviceContext& context) {
    clear();
    for (const Piece& piece : state.plan[bucket].pieces) {
      const uint32_t first = static_cast<uint32_t>(terms.size());
      for (uint32_t replica : context.replicas) {
        const double weight = state.weight_of(replica, piece.parameter);
        if (weight != 0) terms.push_back({state.gradient_at(replica, piece), weight * state.sum_scale});
      }
      pieces.push_back({piece.position, piece.count, first, static_cast<uint32_t>(terms.size()) - first,
                        state.model.parameters[piece.parameter]->dtype});
    }
  }
  // The gradients of one replica, unweighted, where it contributes.
  void list_gradients_of(const StepState& state, size_t bucket, uint32_t replica) {
    clear();
    for (const Piece& piece : state.plan[bucket].pieces) {
      if (state.weight_of(replica, piece.parameter) == 0) continue;
      add_copy(piece.position, piece.count, state.model.parameters[piece.parameter]->dtype,
               state.gradient_at(replica, piece));
    }
  }
};

}  // namespace dsgd
