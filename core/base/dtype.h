// Element types and reductions, with the numbers of the C ABI.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsgd {

enum class DType : uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kInt32 = 2,
  kInt64 = 3,
  kUint8 = 4,
  kFloat16 = 5,
  kBfloat16 = 6,
  kInt8 = 7,
  kUint64 = 8,
};
enum class Reduction : uint8_t { kSum = 0, kMin = 1, kMax = 2, kProd = 3, kMean = 4 };

inline constexpr bool valid_dtype(int32_t dtype) { return dtype >= 0 && dtype <= 8; }
inline constexpr bool valid_reduction(int32_t reduction) { return reduction >= 0 && reduction <= 4; }
inline constexpr bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBfloat16; }
inline constexpr bool is_floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || is_half(dtype);
}
inline constexpr bool is_unsigned(DType dtype) { return dtype == DType::kUint8 || dtype == DType::kUint64; }
// Returns the dtype in which elements of `dtype` are summed and updated.
inline constexpr DType wide(DType dtype) { return is_half(dtype) ? DType::kFloat32 : dtype; }

inline constexpr size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kUint64:
      return 8;
    case DType::kInt8:
    case DType::kUint8:
      return 1;
    case DType::kFloat16:
    case DType::kBfloat16:
      return 2;
  }
  return 0;
}

inline constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUint8:
      return "uint8";
    case DType::kFloat16:
      return "float16";
    case DType::kBfloat16:
      return "bfloat16";
    case DType::kInt8:
      return "int8";
    case DType::kUint64:
      return "uint64";
  }
  return "unknown";
}

inline constexpr const char* reduction_name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
    case Reduction::kProd:
      return "prod";
    case Reduction::kMean:
      return "mean";
  }
  return "unknown";
}

}  // namespace dsgd
