// An object that every worker holds: bytes, or an array in row-major order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/text.h"

namespace dsgd {

struct Object {
  static constexpr size_t kLargest = size_t{1} << 30;
  static constexpr int32_t kNoType = -1;

  std::vector<uint8_t> bytes;
  int32_t dtype = kNoType;          // a DType, or kNoType: bytes that only the host understands
  std::vector<int64_t> shape = {};  // of the array; empty for a scalar and for bytes
};
using SharedObject = std::shared_ptr<const Object>;

// Returns why an object of `nbytes` bytes cannot have this dtype and shape; "" if it can.
inline std::string object_mismatch(int32_t dtype, std::span<const int64_t> shape, uint64_t nbytes) {
  if (shape.size() > kMaxDimensions) {
    return "ndim is " + std::to_string(shape.size()) + "; an object has at most " +
           std::to_string(kMaxDimensions) + " dimensions";
  }
  if (dtype == Object::kNoType)
    return shape.empty() ? "" : "it has a shape but no dtype; give a dtype, or ndim 0 for bytes";
  if (!valid_dtype(dtype))
    return "dtype " + std::to_string(dtype) + " is unknown; use a value of enum dsgd_dtype, or -1 for bytes";
  uint64_t needed = dtype_size(static_cast<DType>(dtype));
  bool empty = false, too_large = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) return "dimension " + std::to_string(dimension) + " is negative";
    empty |= dimension == 0;
    too_large |= __builtin_mul_overflow(needed, static_cast<uint64_t>(dimension), &needed);
  }
  if (empty) needed = 0;
  if (needed == nbytes && (empty || !too_large)) return "";
  return "the data has " + std::to_string(nbytes) + " bytes, but " + dtype_name(static_cast<DType>(dtype)) +
         ' ' + shape_text(shape) + " has " +
         (too_large && !empty ? "more than 2^64" : std::to_string(needed)) + "; give as many";
}

}  // namespace dsgd
