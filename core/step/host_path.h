// This worker's contribution to a bucket, made on the host: sum(c * g) over its replicas, and beside it,
// for each piece, a trailer: how many replicas contribute and the sum of their weights. Each device has added
// up its own replicas; the host adds up the devices' sums, in the order of the contexts. With reproducible=1
// the host adds up all gradients exactly, whatever device they come from.
#pragma once

#include <cstddef>

#include "core/step/sum_list.h"

namespace dsgd {

class HostPath {
 public:
  explicit HostPath(StepState& state) : state_(state) {}
  // The largest exponent of this worker's replicas, element by element; when reproducible.
  void raise_exponents(size_t bucket);
  void add_up(size_t bucket);
  // Where no host takes part (StepPath::alone_on_device), the means of the pieces instead.
  void write_trailers(size_t bucket);

 private:
  struct Elements {
    DType dtype;
    const std::byte* data;
  };
  Elements gradient_of(size_t bucket, uint32_t replica, const Piece& piece) const;
  // Calls use(elements, begin, count) for parts of a gradient that together are the whole. Where gradients
  // are checked, elements that are not finite are zero in the parts, and added to `found`.
  template <typename Use>
  void for_parts(const Elements& gradient, size_t count, NonFinite* found, Use use) const;
  void add_up_exactly(size_t bucket);
  void write_exact_trailers(size_t bucket);

  StepState& state_;
  SumList sums_;
};

}  // namespace dsgd
