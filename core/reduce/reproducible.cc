#include "core/reduce/reproducible.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/reduce/clones.h"
#include "core/reduce/kernels.h"

namespace dsgd::reproducible {
namespace {

constexpr size_t kBlock = 4096;          // elements that are widened at a time
constexpr uint32_t kNarrowReplicas = 8;  // whose sums of float32 keep 24 bits in 32-bit integers
constexpr uint64_t kInfinity = 0x7ff0000000000000;
constexpr int kBias = 1023;

// Returns the exponent field of a product after a small part, 2^-27 of its power of two, is added to its
// magnitude. So the product is below 2^(field - 1022) by a margin, and rounding the scaled product to an
// integer cannot reach the next power of two.
DSGD_INLINED int32_t exponent_field(uint64_t magnitude) {
  return static_cast<int32_t>((magnitude + (uint64_t{1} << 25)) >> 52);
}

// Traits of an element's type for the functions below: its exponents as they travel, and how they scale it.
template <typename T>
struct Format;

// One byte for two powers of two: code k stands for products below 2^(2k - 316), which holds all products of
// a float32 and a weight. 255: not finite.
template <>
struct Format<float> {
  using Code = uint8_t;
  static constexpr int32_t kNotFinite = 255;
  static DSGD_INLINED int32_t code(uint64_t magnitude) {
    const int32_t code = (exponent_field(magnitude) - 705) >> 1;
    return code < 0 ? 0 : code > kNotFinite ? kNotFinite : code;
  }
  static DSGD_INLINED double shifted(double value, int64_t code, int64_t shift, int64_t sign) {
    return value *
           std::bit_cast<double>(static_cast<uint64_t>(kBias + shift + sign * (2 * code - 316)) << 52);
  }
};

// The exponent field itself: products below 2^(code - 1022). 2048: not finite.
template <>
struct Format<double> {
  using Code = int32_t;
  static constexpr int32_t kNotFinite = 2048;
  static DSGD_INLINED int32_t code(uint64_t magnitude) {
    return magnitude >= kInfinity ? kNotFinite : exponent_field(magnitude);
  }
  // In two factors, since the exponents that occur reach beyond those of a double. Multiplying by both is
  // exact unless the final result is subnormal.
  static DSGD_INLINED double shifted(double value, int64_t code, int64_t shift, int64_t sign) {
    const int64_t exponent = shift + sign * (code - 1022), half = exponent >> 1;
    return value * std::bit_cast<double>(static_cast<uint64_t>(kBias + half) << 52) *
           std::bit_cast<double>(static_cast<uint64_t>(kBias + exponent - half) << 52);
  }
};

// Constants of conversions between doubles and integers. Few machines have a vector instruction for 64-bit
// integers, so an addition does it: value + kSigned has the integer nearest to `value` (ties to even) in the
// low bits of its mantissa.
constexpr double kSigned = 0x1.8p52;  // holds integers of magnitude below 2^51
constexpr uint64_t kSignedBits = 0x4338000000000000;
constexpr uint64_t kLowBits = 0x4330000000000000;  // of 2^52, which holds 32 unsigned bits
// The high bits of 2^84 + 2^63, which holds 32 signed bits in units of 2^32.
constexpr uint64_t kHighBits = 0x4530000080000000;
constexpr double kHighAndLow = 0x1p84 + 0x1p63 + 0x1p52;

// Nearest integer to a value within the range of the type, ties to even.
template <typename Sum>
DSGD_INLINED uint64_t to_integer(double value) {
  if constexpr (sizeof(Sum) == 4) {
    return std::bit_cast<uint64_t>(value + kSigned);  // its low 32 bits
  } else {
    // The high part is a multiple of 2^32 and the rest is exact, so that only the rest is rounded.
    const double high = value * 0x1p-32 + kSigned;
    const double low = (value - (high - kSigned) * 0x1p32) + kSigned;
    return ((std::bit_cast<uint64_t>(high) - kSignedBits) << 32) +
           (std::bit_cast<uint64_t>(low) - kSignedBits);
  }
}

// The double nearest to an integer: both halves are exact, and their sum is rounded once.
DSGD_INLINED double to_double(int64_t integer) {
  const auto bits = static_cast<uint64_t>(integer);
  const double high = std::bit_cast<double>((bits >> 32) ^ kHighBits);
  const double low = std::bit_cast<double>((bits & 0xffffffff) | kLowBits);
  return (high - kHighAndLow) + low;
}
DSGD_INLINED double to_double(int32_t integer) { return integer; }

// Bits of a scaled product: as many as leave room for the sum of all replicas' and the sign.
template <typename Sum>
int64_t bits_of(uint32_t replicas) {
  return std::numeric_limits<Sum>::digits - std::bit_width(replicas - 1);
}

template <typename T>
DSGD_INLINED void raise(const T* gradient, size_t count, double c, typename Format<T>::Code* exponents) {
  DSGD_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const uint64_t magnitude = std::bit_cast<uint64_t>(c * static_cast<double>(gradient[i])) << 1 >> 1;
    const int32_t code = Format<T>::code(magnitude), before = exponents[i];
    exponents[i] = static_cast<typename Format<T>::Code>(code > before ? code : before);
  }
}

// An element whose exponent is kNotFinite may get any integer: divide() makes its mean NaN.
template <typename T, typename Sum>
DSGD_INLINED void add(const T* gradient, size_t count, double c, const typename Format<T>::Code* exponents,
                      int64_t bits, Sum* sums) {
  using Bits = std::make_unsigned_t<Sum>;
  DSGD_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const double product = c * static_cast<double>(gradient[i]);
    const uint64_t integer = to_integer<Sum>(Format<T>::shifted(product, exponents[i], bits, -1));
    sums[i] = static_cast<Sum>(static_cast<Bits>(sums[i]) + static_cast<Bits>(integer));
  }
}

// `weight` is `divisor` * 2^`exponent`, so that neither very large nor very small ones overflow on the way.
template <typename T, typename Sum>
DSGD_INLINED void divide(const Sum* sums, size_t count, const typename Format<T>::Code* exponents,
                         int64_t shift, double divisor, T* mean) {
  // Bits are selected, not numbers: the compiler would not compute a number that is then not used, and not
  // vectorise.
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr Bits kNan = std::bit_cast<Bits>(std::numeric_limits<T>::quiet_NaN());
  DSGD_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const T value = static_cast<T>(Format<T>::shifted(to_double(sums[i]) / divisor, exponents[i], shift, 1));
    const Bits mask = -static_cast<Bits>(exponents[i] == Format<T>::kNotFinite);
    mean[i] = std::bit_cast<T>((std::bit_cast<Bits>(value) & ~mask) | (kNan & mask));
  }
}

#define DSGD_REPRODUCIBLE(suffix, T, Sum)                                                                    \
  DSGD_CLONES void add_##suffix(const T* gradient, size_t count, double c, const Format<T>::Code* exponents, \
                                int64_t bits, Sum* sums) {                                                   \
    add(gradient, count, c, exponents, bits, sums);                                                          \
  }                                                                                                          \
  DSGD_CLONES void divide_##suffix(const Sum* sums, size_t count, const Format<T>::Code* exponents,          \
                                   int64_t shift, double divisor, T* mean) {                                 \
    divide(sums, count, exponents, shift, divisor, mean);                                                    \
  }
DSGD_REPRODUCIBLE(float32_narrow, float, int32_t)
DSGD_REPRODUCIBLE(float32, float, int64_t)
DSGD_REPRODUCIBLE(float64, double, int64_t)
#undef DSGD_REPRODUCIBLE

DSGD_CLONES void raise_float32(const float* gradient, size_t count, double c, uint8_t* exponents) {
  raise(gradient, count, c, exponents);
}
DSGD_CLONES void raise_float64(const double* gradient, size_t count, double c, int32_t* exponents) {
  raise(gradient, count, c, exponents);
}

// Calls use(elements, begin, count) for float32 gradients at once, and for half types block by block,
// widened.
template <typename Use>
void in_float32(DType dtype, const void* gradient, size_t count, Use use) {
  if (dtype == DType::kFloat32) return use(static_cast<const float*>(gradient), size_t{0}, count);
  alignas(64) float widened[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t block = std::min(kBlock, count - begin);
    widen(dtype, widened, static_cast<const std::byte*>(gradient) + begin * dtype_size(dtype), block);
    use(widened, begin, block);
  }
}

}  // namespace

DType exponent_type(DType dtype) { return dtype == DType::kFloat64 ? DType::kInt32 : DType::kUint8; }
DType sum_type(DType dtype, uint32_t replicas) {
  return dtype == DType::kFloat64 || replicas > kNarrowReplicas ? DType::kInt64 : DType::kInt32;
}

void raise_exponents(DType dtype, const void* gradient, size_t count, double c, void* exponents) {
  if (dtype == DType::kFloat64) {
    return raise_float64(static_cast<const double*>(gradient), count, c, static_cast<int32_t*>(exponents));
  }
  in_float32(dtype, gradient, count, [c, exponents](const float* elements, size_t begin, size_t part) {
    raise_float32(elements, part, c, static_cast<uint8_t*>(exponents) + begin);
  });
}

void accumulate(DType dtype, const void* gradient, size_t count, double c, const void* exponents,
                uint32_t replicas, void* sums) {
  if (dtype == DType::kFloat64) {
    return add_float64(static_cast<const double*>(gradient), count, c, static_cast<const int32_t*>(exponents),
                       bits_of<int64_t>(replicas), static_cast<int64_t*>(sums));
  }
  const bool narrow = sum_type(dtype, replicas) == DType::kInt32;
  in_float32(dtype, gradient, count, [=](const float* elements, size_t begin, size_t part) {
    const uint8_t* codes = static_cast<const uint8_t*>(exponents) + begin;
    if (narrow) {
      add_float32_narrow(elements, part, c, codes, bits_of<int32_t>(replicas),
                         static_cast<int32_t*>(sums) + begin);
    } else {
      add_float32(elements, part, c, codes, bits_of<int64_t>(replicas), static_cast<int64_t*>(sums) + begin);
    }
  });
}

void to_mean(DType dtype, const void* sums, size_t count, const void* exponents, uint32_t replicas,
             double weight, void* mean) {
  int weight_exponent;
  const double divisor = std::frexp(weight, &weight_exponent);
  const int64_t shift = -weight_exponent;
  if (dtype == DType::kFloat64) {
    divide_float64(static_cast<const int64_t*>(sums), count, static_cast<const int32_t*>(exponents),
                   shift - bits_of<int64_t>(replicas), divisor, static_cast<double*>(mean));
  } else if (sum_type(dtype, replicas) == DType::kInt32) {
    divide_float32_narrow(static_cast<const int32_t*>(sums), count, static_cast<const uint8_t*>(exponents),
                          shift - bits_of<int32_t>(replicas), divisor, static_cast<float*>(mean));
  } else {
    divide_float32(static_cast<const int64_t*>(sums), count, static_cast<const uint8_t*>(exponents),
                   shift - bits_of<int64_t>(replicas), divisor, static_cast<float*>(mean));
  }
}

}  // namespace dsgd::reproducible
