// A digest of the bits of values. All NaNs count as one value, because a CPU and a GPU compute NaNs with
// different bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/dtype.h"

namespace dsgd {

class ValueDigest {
 public:
  ValueDigest();
  ~ValueDigest();
  // Values that follow those before; how they are split over calls does not matter. Any dtype.
  void add(DType dtype, const void* values, size_t count);
  uint64_t result() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace dsgd
