// Element types and reductions, with the numbers of the C ABI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

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

inline constexpr size_t kMaxDimensions = 64;  // of a parameter or an object

inline constexpr bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBfloat16; }
inline constexpr bool is_floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || is_half(dtype);
}
inline constexpr bool is_unsigned(DType dtype) { return dtype == DType::kUint8 || dtype == DType::kUint64; }
// Returns the dtype in which elements of `dtype` are summed and updated.
inline constexpr DType wide(DType dtype) { return is_half(dtype) ? DType::kFloat32 : dtype; }

struct DTypeRow {
  const char* name;
  size_t size;  // bytes of an element
};
inline constexpr DTypeRow kDTypeRows[] = {{"float32", 4},  {"float64", 8}, {"int32", 4},
                                          {"int64", 8},    {"uint8", 1},   {"float16", 2},
                                          {"bfloat16", 2}, {"int8", 1},    {"uint64", 8}};
inline constexpr const char* kReductionNames[] = {"sum", "min", "max", "prod", "mean"};

inline constexpr bool valid_dtype(int32_t dtype) {
  return dtype >= 0 && dtype < static_cast<int32_t>(std::size(kDTypeRows));
}
inline constexpr bool valid_reduction(int32_t reduction) {
  return reduction >= 0 && reduction < static_cast<int32_t>(std::size(kReductionNames));
}

// Another worker may send a number that is in no table; it has size 0 and the name "unknown".
inline constexpr size_t dtype_size(DType dtype) {
  const auto number = static_cast<int32_t>(dtype);
  return valid_dtype(number) ? kDTypeRows[number].size : 0;
}
inline constexpr const char* dtype_name(DType dtype) {
  const auto number = static_cast<int32_t>(dtype);
  return valid_dtype(number) ? kDTypeRows[number].name : "unknown";
}
inline constexpr const char* reduction_name(Reduction reduction) {
  const auto number = static_cast<int32_t>(reduction);
  return valid_reduction(number) ? kReductionNames[number] : "unknown";
}

}  // namespace dsgd
