#include "core/reduce/reproducible.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/reduce/clones.h"
#include "core/reduce/kernels.h"

namespace dsgd::reproducible {
namespace {

// Largest magnitude as bits without the sign: ordered like the magnitudes themselves, with infinity and NaN
// on top.
template <typename T, typename Bits>
DSGD_INLINED Bits largest_magnitude(const T* data, size_t count) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();
  Bits largest = 0;
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i, sizeof bits);
    bits &= kMagnitude;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

DSGD_CLONES int32_t largest_float32(const float* data, size_t count) {
  return largest_magnitude<float, int32_t>(data, count);
}
DSGD_CLONES int64_t largest_float64(const double* data, size_t count) {
  return largest_magnitude<double, int64_t>(data, count);
}

Exponent exponent_of(double magnitude) {
  if (!std::isfinite(magnitude)) return kNotFinite;
  if (magnitude == 0) return kZero;
  int exponent;
  std::frexp(magnitude, &exponent);  // magnitude = m * 2^exponent, 1/2 <= m < 1, for subnormal numbers too
  return exponent;
}

// A block of gradients in the type that it is added up in.
const void* widened(DType dtype, const void* gradient, size_t begin, size_t count, float* scratch) {
  const std::byte* block = static_cast<const std::byte*>(gradient) + begin * dtype_size(dtype);
  if (!is_half(dtype)) return block;
  widen(dtype, scratch, block, count);
  return scratch;
}

// c*g is monotone in |g|, and so is its rounding: the largest |g| gives the largest |c*g|.
double largest_product(DType dtype, const void* gradient, size_t count, double c) {
  if (dtype == DType::kFloat32)
    return std::fabs(c) * std::bit_cast<float>(largest_float32(static_cast<const float*>(gradient), count));
  return std::fabs(c) * std::bit_cast<double>(largest_float64(static_cast<const double*>(gradient), count));
}

// Products are below 2^exponent, so scaled ones are at most 2^(62-h) after rounding, and 2^h >= replicas of
// them at most 2^62.
int shift_of(Exponent exponent, uint32_t replicas) {
  const int headroom = replicas > 1 ? std::bit_width(replicas - 1) : 0;
  return 62 - headroom - exponent;
}

// 2^exponent as two factors, since the exponents that occur reach beyond those of a double. Multiplying by
// both is exact unless the final result is out of range.
struct Scale {
  explicit Scale(int exponent) {
    constexpr int kLimit = 1022;
    const int first = std::clamp(exponent, -kLimit, kLimit);
    one = std::ldexp(1.0, first);
    two = std::ldexp(1.0, std::clamp(exponent - first, -kLimit, kLimit));
  }
  double one, two;
};

// Conversions between double and int64 that vectorise on every machine: few have an instruction for them.
// Adding such a number puts an integer into the low bits of a double's mantissa, rounded to nearest even.
constexpr double kSigned = 0x1.8p52;  // holds integers of magnitude below 2^51
constexpr uint64_t kSignedBits = 0x4338000000000000;
constexpr uint64_t kLowBits = 0x4330000000000000;  // of 2^52, which holds 32 unsigned bits
constexpr uint64_t kHighBits =
    0x4530000080000000;  // of 2^84 + 2^63, which holds 32 signed bits in units of 2^32
constexpr double kHighAndLow = 0x1p84 + 0x1p63 + 0x1p52;

// Nearest integer to value, ties to even; |value| <= 2^62. The high part is a multiple of 2^32 and the rest
// is exact, so that only the rest is rounded.
DSGD_INLINED uint64_t to_integer(double value) {
  const double high = value * 0x1p-32 + kSigned;
  const double low = (value - (high - kSigned) * 0x1p32) + kSigned;
  return ((std::bit_cast<uint64_t>(high) - kSignedBits) << 32) + (std::bit_cast<uint64_t>(low) - kSignedBits);
}

// The double nearest to an integer: both halves are exact, and their sum is rounded once.
DSGD_INLINED double to_double(int64_t integer) {
  const auto bits = static_cast<uint64_t>(integer);
  const double high = std::bit_cast<double>((bits >> 32) ^ kHighBits);
  const double low = std::bit_cast<double>((bits & 0xffffffff) | kLowBits);
  return (high - kHighAndLow) + low;
}

template <typename T>
DSGD_INLINED void add_scaled(const T* gradient, size_t count, double c, Scale scale, int64_t* sums) {
  DSGD_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const double product = c * static_cast<double>(gradient[i]);
    const uint64_t integer = to_integer(product * scale.one * scale.two);
    sums[i] = static_cast<int64_t>(static_cast<uint64_t>(sums[i]) + integer);
  }
}
template <typename T>
DSGD_INLINED void mean_of(const int64_t* sums, size_t count, double divisor, Scale scale, T* mean) {
  DSGD_INDEPENDENT
  for (size_t i = 0; i < count; ++i)
    mean[i] = static_cast<T>(to_double(sums[i]) / divisor * scale.one * scale.two);
}

DSGD_CLONES void add_float32(const float* gradient, size_t count, double c, Scale scale, int64_t* sums) {
  add_scaled(gradient, count, c, scale, sums);
}
DSGD_CLONES void add_float64(const double* gradient, size_t count, double c, Scale scale, int64_t* sums) {
  add_scaled(gradient, count, c, scale, sums);
}
DSGD_CLONES void mean_float32(const int64_t* sums, size_t count, double divisor, Scale scale, float* mean) {
  mean_of(sums, count, divisor, scale, mean);
}
DSGD_CLONES void mean_float64(const int64_t* sums, size_t count, double divisor, Scale scale, double* mean) {
  mean_of(sums, count, divisor, scale, mean);
}

// The mean of one block whose exponent is a number: sums * 2^-shift / weight. The weight's exponent joins the
// shift, so that neither very large nor very small weights overflow on the way.
template <typename T>
void mean_of_block(const int64_t* sums, size_t count, int shift, double weight, T* mean) {
  int weight_exponent;
  const double divisor = std::frexp(weight, &weight_exponent);
  const Scale scale(-shift - weight_exponent);
  if constexpr (sizeof(T) == sizeof(float))
    mean_float32(sums, count, divisor, scale, mean);
  else
    mean_float64(sums, count, divisor, scale, mean);
}

template <typename T>
void means(const int64_t* sums, size_t count, std::span<const Exponent> exponents, uint32_t replicas,
           double weight, T* mean) {
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t block = std::min(kBlock, count - begin);
    const Exponent exponent = exponents[begin / kBlock];
    if (exponent == kNotFinite)
      std::fill_n(mean + begin, block, std::numeric_limits<T>::quiet_NaN());
    else if (exponent == kZero)
      std::fill_n(mean + begin, block, T{0});
    else
      mean_of_block(sums + begin, block, shift_of(exponent, replicas), weight, mean + begin);
  }
}

}  // namespace

void raise_exponents(DType dtype, const void* gradient, size_t count, double c,
                     std::span<Exponent> exponents) {
  alignas(64) float scratch[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t block = std::min(kBlock, count - begin);
    const double largest = largest_product(wide(dtype), widened(dtype, gradient, begin, block, scratch), block, c);
    Exponent& exponent = exponents[begin / kBlock];
    exponent = std::max(exponent, exponent_of(largest));
  }
}

void accumulate(DType dtype, const void* gradient, size_t count, double c,
                std::span<const Exponent> exponents, uint32_t replicas, int64_t* sums) {
  alignas(64) float scratch[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const Exponent exponent = exponents[begin / kBlock];
    if (exponent == kNotFinite || exponent == kZero) continue;
    const size_t block = std::min(kBlock, count - begin);
    const Scale scale(shift_of(exponent, replicas));
    const void* from = widened(dtype, gradient, begin, block, scratch);
    if (wide(dtype) == DType::kFloat32)
      add_float32(static_cast<const float*>(from), block, c, scale, sums + begin);
    else
      add_float64(static_cast<const double*>(from), block, c, scale, sums + begin);
  }
}

void to_mean(DType dtype, const int64_t* sums, size_t count, std::span<const Exponent> exponents,
             uint32_t replicas, double weight, void* mean) {
  if (dtype == DType::kFloat32)
    means(sums, count, exponents, replicas, weight, static_cast<float*>(mean));
  else
    means(sums, count, exponents, replicas, weight, static_cast<double*>(mean));
}

}  // namespace dsgd::reproducible
