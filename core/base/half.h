// Half types and their conversions, by integer arithmetic that host and device share, so that their bits
// agree: to the nearest, ties to even; a NaN stays one. IEEE 754 binary16 (float16), and the upper half of a
// float32 (bfloat16).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__CUDACC__)
#define DSGD_CONVERT __host__ __device__ __forceinline__
#else
#define DSGD_CONVERT __attribute__((always_inline)) inline
#endif

namespace dsgd {

struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

namespace half {

DSGD_CONVERT uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
DSGD_CONVERT float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace half

// The type in which a stored type is added up and updated.
template <typename Stored>
using Wide =
    std::conditional_t<std::is_same_v<Stored, Float16> || std::is_same_v<Stored, Bfloat16>, float, Stored>;

DSGD_CONVERT float widen(float value) { return value; }
DSGD_CONVERT double widen(double value) { return value; }
DSGD_CONVERT float widen(Bfloat16 value) { return half::float_of(uint32_t{value.bits} << 16); }
DSGD_CONVERT float widen(Float16 value) {
  const uint32_t magnitude = value.bits & 0x7fffu;
  // Its exponent is 112 lower in a float32: a product by 2^112 sets that right, for subnormal numbers too.
  const uint32_t finite = half::bits_of(half::float_of(magnitude << 13) * 0x1p112f);
  const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;  // infinity and NaN
  return half::float_of(finite | special | (uint32_t{value.bits} & 0x8000u) << 16);
}

template <typename Stored>
DSGD_CONVERT Stored narrow(Wide<Stored> value) {
  if constexpr (std::is_same_v<Stored, Bfloat16>) {
    const uint32_t bits = half::bits_of(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded)};
  } else if constexpr (std::is_same_v<Stored, Float16>) {
    const uint32_t bits = half::bits_of(value), magnitude = bits & 0x7fffffffu;
    const uint32_t lower = magnitude - (uint32_t{112} << 23);  // the exponent
    const uint32_t normal = (lower + 0xfffu + ((lower >> 13) & 1u)) >> 13;
    // A float32 near 1/2 counts in units of 2^-24, the smallest float16: the sum rounds as it should.
    const uint32_t subnormal = half::bits_of(half::float_of(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
    result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // 65520 and more is infinity
    result = magnitude > 0x7f800000u ? 0x7e00u : result;
    return {static_cast<uint16_t>(result | (bits >> 16 & 0x8000u))};
  } else {
    return value;
  }
}

// Returns `master` if `value` is what it rounds to. Otherwise the host has written `value` since the last
// update: returns `value`.
template <typename Stored>
DSGD_CONVERT float current_master(float master, float value) {
  return half::bits_of(widen(narrow<Stored>(master))) == half::bits_of(value) ? master : value;
}

}  // namespace dsgd
