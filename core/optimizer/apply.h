// A rule carried out on host memory.
#pragma once

#include <cstddef>
#include <span>

#include "core/base/dtype.h"
#include "core/optimizer/rule.h"

namespace dsgd {

// Updates `count` elements in host memory. Values and state are read from *_in and written to *_out, which
// may be the same buffer but may not overlap otherwise. `gradient` is the mean. Buffers hold `dtype` (float32
// or float64).
void apply(const UpdateRule& rule, DType dtype, size_t count, const void* gradient, const void* value_in,
           void* value_out, std::span<const void* const> state_in, std::span<void* const> state_out);

}  // namespace dsgd
