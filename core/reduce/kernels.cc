#include "core/reduce/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/base/half.h"
#include "core/reduce/clones.h"

namespace dsgd {
namespace {

// Integers wrap around: they are added and multiplied as unsigned.
template <typename T>
DSGD_INLINED T plus(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}
template <typename T>
DSGD_INLINED T times(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    // 1u: narrow types would be promoted to int, which does not wrap.
    return static_cast<T>(static_cast<U>(1u * static_cast<U>(a) * static_cast<U>(b)));
  } else {
    return a * b;
  }
}
// A NaN on either side wins, so that it is seen wherever it came from.
template <typename T>
DSGD_INLINED T least(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return b < a ? b : a;
  } else {
    return ((b < a) | (b != b)) ? (a != a ? a : b) : a;
  }
}
template <typename T>
DSGD_INLINED T greatest(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return b > a ? b : a;
  } else {
    return ((b > a) | (b != b)) ? (a != a ? a : b) : a;
  }
}

// a + b and b + a differ where both are NaN, least and greatest where zeros differ in sign.
template <typename T>
DSGD_INLINED T one_nan(T value) {
  return value == value ? value : std::numeric_limits<T>::quiet_NaN();
}
template <typename T>
DSGD_INLINED T symmetric_plus(T a, T b) {
  return one_nan(a + b);
}
template <typename T>
DSGD_INLINED T symmetric_times(T a, T b) {
  return one_nan(a * b);
}
template <typename T>
DSGD_INLINED T symmetric_least(T a, T b) {
  const T zero = std::signbit(a) ? a : b;  // where both are zero
  return one_nan(((a == b) & (a == T{0})) ? zero : least(a, b));
}
template <typename T>
DSGD_INLINED T symmetric_greatest(T a, T b) {
  const T zero = std::signbit(a) ? b : a;
  return one_nan(((a == b) & (a == T{0})) ? zero : greatest(a, b));
}

#define DSGD_REDUCE(function, type, operation)                                               \
  DSGD_CLONES void function(type* destination, const type* a, const type* b, size_t count) { \
    DSGD_INDEPENDENT                                                                         \
    for (size_t i = 0; i < count; ++i) destination[i] = operation(a[i], b[i]);               \
  }
#define DSGD_REDUCE_ALL(prefix, suffix, type)                   \
  DSGD_REDUCE(prefix##add_##suffix, type, prefix##plus)         \
  DSGD_REDUCE(prefix##minimum_##suffix, type, prefix##least)    \
  DSGD_REDUCE(prefix##maximum_##suffix, type, prefix##greatest) \
  DSGD_REDUCE(prefix##multiply_##suffix, type, prefix##times)

DSGD_REDUCE_ALL(, float32, float)
DSGD_REDUCE_ALL(, float64, double)
DSGD_REDUCE_ALL(, int32, int32_t)
DSGD_REDUCE_ALL(, int64, int64_t)
DSGD_REDUCE_ALL(, int8, int8_t)
DSGD_REDUCE_ALL(, uint8, uint8_t)
DSGD_REDUCE_ALL(, uint64, uint64_t)
DSGD_REDUCE_ALL(symmetric_, float32, float)
DSGD_REDUCE_ALL(symmetric_, float64, double)

#undef DSGD_REDUCE_ALL
#undef DSGD_REDUCE

template <typename T>
using Kernel = void (*)(T*, const T*, const T*, size_t);

template <typename T>
void dispatch(Reduction reduction, void* destination, const void* a, const void* b, size_t count,
              Kernel<T> sum, Kernel<T> minimum, Kernel<T> maximum, Kernel<T> product) {
  const Kernel<T> kernel = reduction == Reduction::kMin    ? minimum
                           : reduction == Reduction::kMax  ? maximum
                           : reduction == Reduction::kProd ? product
                                                           : sum;
  kernel(static_cast<T*>(destination), static_cast<const T*>(a), static_cast<const T*>(b), count);
}

#define DSGD_DIVIDE(suffix, type)                                            \
  DSGD_CLONES void divide_##suffix(type* data, size_t count, type divisor) { \
    for (size_t i = 0; i < count; ++i) data[i] /= divisor;                   \
  }
DSGD_DIVIDE(float32, float)
DSGD_DIVIDE(float64, double)
#undef DSGD_DIVIDE

// As weighted_set and weighted_add, with elements that are not finite as zero; returns how many there are.
// The counter has the width of the elements, so that both are in registers of one shape.
template <bool kAdd, typename Stored>
DSGD_INLINED uint64_t weighted_finite(Wide<Stored>* destination, const Stored* source, size_t count,
                                      Wide<Stored> c) {
  using T = Wide<Stored>;
  constexpr size_t kBlock = 1 << 16;
  uint64_t total = 0;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(count, begin + kBlock);
    std::conditional_t<sizeof(T) == sizeof(uint32_t), uint32_t, uint64_t> found = 0;
    DSGD_INDEPENDENT
    for (size_t i = begin; i < end; ++i) {
      const T element = widen(source[i]);
      const bool finite = is_finite(element);
      found += finite ? 0 : 1;
      const T product = c * (finite ? element : T{0});
      destination[i] = kAdd ? destination[i] + product : product;
    }
    total += found;
  }
  return total;
}

template <typename Stored>
void note(NonFinite* found, uint64_t non_finite, const Stored* data, size_t count) {
  if (non_finite == 0) return;
  const Stored* first =
      std::find_if(data, data + count, [](Stored element) { return !is_finite(widen(element)); });
  found->add({non_finite, static_cast<uint64_t>(first - data)}, 0);
}

#define DSGD_SCALE(suffix, stored)                                                                        \
  DSGD_CLONES void weighted_set_##suffix(Wide<stored>* destination, const stored* source, size_t count,   \
                                         Wide<stored> c) {                                                \
    DSGD_INDEPENDENT                                                                                      \
    for (size_t i = 0; i < count; ++i) destination[i] = c * widen(source[i]);                             \
  }                                                                                                       \
  DSGD_CLONES void weighted_add_##suffix(Wide<stored>* destination, const stored* source, size_t count,   \
                                         Wide<stored> c) {                                                \
    DSGD_INDEPENDENT                                                                                      \
    for (size_t i = 0; i < count; ++i) destination[i] += c * widen(source[i]);                            \
  }                                                                                                       \
  DSGD_CLONES uint64_t finite_set_##suffix(Wide<stored>* destination, const stored* source, size_t count, \
                                           Wide<stored> c) {                                              \
    return weighted_finite<false>(destination, source, count, c);                                         \
  }                                                                                                       \
  DSGD_CLONES uint64_t finite_add_##suffix(Wide<stored>* destination, const stored* source, size_t count, \
                                           Wide<stored> c) {                                              \
    return weighted_finite<true>(destination, source, count, c);                                          \
  }                                                                                                       \
  void weighted_set(Wide<stored>* destination, const stored* source, size_t count, Wide<stored> c,        \
                    NonFinite* found) {                                                                   \
    if (!found) return weighted_set_##suffix(destination, source, count, c);                              \
    note(found, finite_set_##suffix(destination, source, count, c), source, count);                       \
  }                                                                                                       \
  void weighted_add(Wide<stored>* destination, const stored* source, size_t count, Wide<stored> c,        \
                    NonFinite* found) {                                                                   \
    if (!found) return weighted_add_##suffix(destination, source, count, c);                              \
    note(found, finite_add_##suffix(destination, source, count, c), source, count);                       \
  }
DSGD_SCALE(float32, float)
DSGD_SCALE(float64, double)
DSGD_SCALE(float16, Float16)
DSGD_SCALE(bfloat16, Bfloat16)
#undef DSGD_SCALE

template <bool kRounds, typename Stored>
DSGD_INLINED void feed_back(Stored* narrowed, const float* source, const float* residual, float factor,
                            float* next, float* rounded, size_t count) {
  DSGD_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const float value = source[i] + factor * residual[i];
    const Stored stored = narrow<Stored>(value);
    const float widened = widen(stored), error = value - widened;
    narrowed[i].bits = stored.bits;  // a struct would keep the loop scalar
    next[i] = is_finite(error) ? error : 0.0f;
    if constexpr (kRounds) rounded[i] = widened;
  }
}

#define DSGD_FEED_BACK(suffix, stored)                                                                       \
  DSGD_CLONES void feed_back_##suffix(stored* narrowed, const float* source, const float* residual,          \
                                      float factor, float* next, size_t count) {                             \
    feed_back<false>(narrowed, source, residual, factor, next, nullptr, count);                              \
  }                                                                                                          \
  DSGD_CLONES void feed_back_round_##suffix(stored* narrowed, const float* source, const float* residual,    \
                                            float factor, float* next, float* rounded, size_t count) {       \
    feed_back<true>(narrowed, source, residual, factor, next, rounded, count);                               \
  }                                                                                                          \
  void feed_back_to(stored* narrowed, const float* source, const float* residual, float factor, float* next, \
                    float* rounded, size_t count) {                                                          \
    rounded ? feed_back_round_##suffix(narrowed, source, residual, factor, next, rounded, count)             \
            : feed_back_##suffix(narrowed, source, residual, factor, next, count);                           \
  }
DSGD_FEED_BACK(float16, Float16)
DSGD_FEED_BACK(bfloat16, Bfloat16)
#undef DSGD_FEED_BACK

#define DSGD_CONVERSIONS(suffix, stored)                                                        \
  DSGD_CLONES void widen_##suffix(float* destination, const stored* source, size_t count) {     \
    for (size_t i = 0; i < count; ++i) destination[i] = widen(source[i]);                       \
  }                                                                                             \
  DSGD_CLONES void narrow_##suffix(stored* destination, const float* source, size_t count) {    \
    for (size_t i = 0; i < count; ++i) destination[i] = narrow<stored>(source[i]);              \
  }                                                                                             \
  DSGD_CLONES void refresh_masters_##suffix(float* master, const float* value, size_t count) {  \
    DSGD_INDEPENDENT                                                                            \
    for (size_t i = 0; i < count; ++i) master[i] = current_master<stored>(master[i], value[i]); \
  }
DSGD_CONVERSIONS(float16, Float16)
DSGD_CONVERSIONS(bfloat16, Bfloat16)
#undef DSGD_CONVERSIONS

// Element i goes to lane i mod kLanes; the lanes are added in pairs at the end. The order does not depend on
// the width of the machine's registers, and the additions of different lanes do not wait for each other.
constexpr size_t kLanes = 16;

template <typename T>
DSGD_INLINED double squares(const T* data, size_t count) {
  double lanes[kLanes] = {};
  const size_t whole = count - count % kLanes;
  for (size_t i = 0; i < whole; i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double x = static_cast<double>(data[i + lane]);
      lanes[lane] += x * x;
    }
  for (size_t i = whole; i < count; ++i) {
    const double x = static_cast<double>(data[i]);
    lanes[i - whole] += x * x;
  }
  for (size_t width = kLanes / 2; width > 0; width /= 2)
    for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

DSGD_CLONES double squares_float32(const float* data, size_t count) { return squares(data, count); }
DSGD_CLONES double squares_float64(const double* data, size_t count) { return squares(data, count); }

}  // namespace

void reduce_to(DType dtype, Reduction reduction, void* destination, const void* a, const void* b,
               size_t count) {
#define DSGD_DISPATCH(suffix, type)                                                          \
  return dispatch<type>(reduction, destination, a, b, count, add_##suffix, minimum_##suffix, \
                        maximum_##suffix, multiply_##suffix)
  switch (dtype) {
    case DType::kFloat32:
      DSGD_DISPATCH(float32, float);
    case DType::kFloat64:
      DSGD_DISPATCH(float64, double);
    case DType::kInt32:
      DSGD_DISPATCH(int32, int32_t);
    case DType::kInt64:
      DSGD_DISPATCH(int64, int64_t);
    case DType::kUint8:
      DSGD_DISPATCH(uint8, uint8_t);
    case DType::kInt8:
      DSGD_DISPATCH(int8, int8_t);
    case DType::kUint64:
      DSGD_DISPATCH(uint64, uint64_t);
    case DType::kFloat16:
    case DType::kBfloat16:
      return;  // widened before
  }
#undef DSGD_DISPATCH
}

void reduce_symmetric(DType dtype, Reduction reduction, void* destination, const void* source, size_t count) {
  if (dtype == DType::kFloat32) {
    return dispatch<float>(reduction, destination, destination, source, count, symmetric_add_float32,
                           symmetric_minimum_float32, symmetric_maximum_float32, symmetric_multiply_float32);
  }
  if (dtype == DType::kFloat64) {
    return dispatch<double>(reduction, destination, destination, source, count, symmetric_add_float64,
                            symmetric_minimum_float64, symmetric_maximum_float64, symmetric_multiply_float64);
  }
  reduce_into(dtype, reduction, destination, source, count);
}

void reduce_into(DType dtype, Reduction reduction, void* destination, const void* source, size_t count) {
  reduce_to(dtype, reduction, destination, destination, source, count);
}

void divide(DType dtype, void* destination, size_t count, double divisor) {
  if (dtype == DType::kFloat32)
    divide_float32(static_cast<float*>(destination), count, static_cast<float>(divisor));
  else if (dtype == DType::kFloat64)
    divide_float64(static_cast<double*>(destination), count, divisor);
}

#define DSGD_BY_DTYPE(function)                                                                              \
  void function(DType dtype, void* destination, const void* source, size_t count, double c,                  \
                NonFinite* found) {                                                                          \
    if (dtype == DType::kFloat64) {                                                                          \
      return function(static_cast<double*>(destination), static_cast<const double*>(source), count, c,       \
                      found);                                                                                \
    }                                                                                                        \
    float* const sums = static_cast<float*>(destination);                                                    \
    const float weight = static_cast<float>(c);                                                              \
    if (dtype == DType::kFloat32) function(sums, static_cast<const float*>(source), count, weight, found);   \
    if (dtype == DType::kFloat16) function(sums, static_cast<const Float16*>(source), count, weight, found); \
    if (dtype == DType::kBfloat16)                                                                           \
      function(sums, static_cast<const Bfloat16*>(source), count, weight, found);                            \
  }
DSGD_BY_DTYPE(weighted_set)
DSGD_BY_DTYPE(weighted_add)
#undef DSGD_BY_DTYPE

void widen(DType dtype, float* destination, const void* source, size_t count) {
  dtype == DType::kFloat16 ? widen_float16(destination, static_cast<const Float16*>(source), count)
                           : widen_bfloat16(destination, static_cast<const Bfloat16*>(source), count);
}

void narrow(DType dtype, void* destination, const float* source, size_t count) {
  dtype == DType::kFloat16 ? narrow_float16(static_cast<Float16*>(destination), source, count)
                           : narrow_bfloat16(static_cast<Bfloat16*>(destination), source, count);
}

void narrow_with_residual(DType dtype, void* narrowed, const float* source, const float* residual,
                          float factor, float* next, float* rounded, size_t count) {
  dtype == DType::kFloat16
      ? feed_back_to(static_cast<Float16*>(narrowed), source, residual, factor, next, rounded, count)
      : feed_back_to(static_cast<Bfloat16*>(narrowed), source, residual, factor, next, rounded, count);
}

void refresh_masters(DType dtype, float* master, const float* value, size_t count) {
  dtype == DType::kFloat16 ? refresh_masters_float16(master, value, count)
                           : refresh_masters_bfloat16(master, value, count);
}

double sum_of_squares(DType dtype, const void* data, size_t count) {
  if (dtype == DType::kFloat32) return squares_float32(static_cast<const float*>(data), count);
  if (dtype == DType::kFloat64) return squares_float64(static_cast<const double*>(data), count);
  return 0;
}

}  // namespace dsgd
