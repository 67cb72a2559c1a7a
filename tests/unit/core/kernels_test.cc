#include "core/reduce/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/base/half.h"

namespace dsgd {
namespace {

template <typename T>
constexpr DType dtype_of() {
  if (std::is_same_v<T, float>) return DType::kFloat32;
  if (std::is_same_v<T, double>) return DType::kFloat64;
  if (std::is_same_v<T, int32_t>) return DType::kInt32;
  if (std::is_same_v<T, int64_t>) return DType::kInt64;
  if (std::is_same_v<T, int8_t>) return DType::kInt8;
  if (std::is_same_v<T, uint64_t>) return DType::kUint64;
  return DType::kUint8;
}

// Any bit pattern of an integer; floats of many magnitudes.
template <typename T>
std::vector<T> random_values(size_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<T> values(count);
  for (T& value : values) {
    if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(generator());
    } else {
      const double unit = static_cast<double>(generator() >> 11) * 0x1p-53 - 0.5;
      value = static_cast<T>(std::ldexp(unit, static_cast<int>(generator() % 60) - 30));
    }
  }
  return values;
}

template <typename T>
std::vector<unsigned char> bits(const std::vector<T>& values) {
  std::vector<unsigned char> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Integers modulo 2^n, computed without the operations under test.
template <typename T>
T expected(Reduction reduction, T a, T b) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kMean:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<unsigned __int128>(a) + static_cast<unsigned __int128>(b));
      } else {
        return a + b;
      }
    case Reduction::kProd:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b));
      } else {
        return a * b;
      }
    case Reduction::kMin:
      return std::min(a, b);
    case Reduction::kMax:
      return std::max(a, b);
  }
  return a;
}

template <typename T>
class Kernels : public testing::Test {};
using AllTypes = testing::Types<float, double, int32_t, int64_t, uint8_t, int8_t, uint64_t>;
TYPED_TEST_SUITE(Kernels, AllTypes);

TYPED_TEST(Kernels, reduce_into_and_reduce_to_do_what_a_plain_loop_does) {
  using T = TypeParam;
  for (const Reduction reduction :
       {Reduction::kSum, Reduction::kMin, Reduction::kMax, Reduction::kProd, Reduction::kMean}) {
    for (const size_t count : {0, 1, 3, 7, 8, 15, 16, 17, 31, 64, 1000}) {
      // Offsets shift the buffers against the registers' width; guards show writes beyond the end.
      for (const size_t offset : {0, 1, 3}) {
        const std::vector<T> a = random_values<T>(count + offset, 1), b = random_values<T>(count + offset, 2);
        std::vector<T> to(count + offset + 1, T{77}), into = a, equal = b, want(count);
        for (size_t i = 0; i < count; ++i) want[i] = expected(reduction, a[offset + i], b[offset + i]);
        reduce_to(dtype_of<T>(), reduction, to.data() + offset, a.data() + offset, b.data() + offset, count);
        EXPECT_EQ(to.back(), T{77});
        EXPECT_EQ(bits(std::vector<T>(to.begin() + offset, to.end() - 1)), bits(want))
            << reduction_name(reduction);
        reduce_into(dtype_of<T>(), reduction, into.data() + offset, b.data() + offset, count);
        EXPECT_EQ(bits(std::vector<T>(into.begin() + offset, into.end())), bits(want))
            << reduction_name(reduction);
        // The destination may be either source.
        reduce_to(dtype_of<T>(), reduction, equal.data() + offset, a.data() + offset, equal.data() + offset,
                  count);
        EXPECT_EQ(bits(std::vector<T>(equal.begin() + offset, equal.end())), bits(want));
      }
    }
  }
}

template <typename T>
class FloatingKernels : public testing::Test {};
using FloatingTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(FloatingKernels, FloatingTypes);

TYPED_TEST(FloatingKernels, nan_wins_minimum_and_maximum_from_either_side) {
  using T = TypeParam;
  const T nan = std::numeric_limits<T>::quiet_NaN(), inf = std::numeric_limits<T>::infinity();
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    for (const size_t count : {1, 40}) {  // scalar and vector code
      std::vector<T> a(count, nan), b(count, T{1});
      reduce_into(dtype_of<T>(), reduction, a.data(), b.data(), count);
      for (T x : a) EXPECT_TRUE(std::isnan(x));
      reduce_into(dtype_of<T>(), reduction, b.data(), a.data(), count);
      for (T x : b) EXPECT_TRUE(std::isnan(x));
      std::vector<T> c(count, -inf), d(count, inf);
      reduce_into(dtype_of<T>(), reduction, c.data(), d.data(), count);
      for (T x : c) EXPECT_EQ(x, reduction == Reduction::kMin ? -inf : inf);
    }
  }
}

TYPED_TEST(FloatingKernels, divide_divides_in_the_elements_type) {
  using T = TypeParam;
  for (const double divisor : {3.0, 0.1, 1e-3, 7e5}) {
    std::vector<T> values = random_values<T>(100, 3), want = values;
    for (T& x : want) x /= static_cast<T>(divisor);
    divide(dtype_of<T>(), values.data(), values.size(), divisor);
    EXPECT_EQ(bits(values), bits(want));
  }
}

TYPED_TEST(FloatingKernels, weighted_sums_round_the_product_before_the_sum) {
  using T = TypeParam;
  for (const double c : {1.0, 0.1, 32.0, 1e-3}) {
    const std::vector<T> source = random_values<T>(103, 4), start = random_values<T>(103, 5);
    std::vector<T> set(source.size()), add = start;
    weighted_set(dtype_of<T>(), set.data(), source.data(), source.size(), c);
    weighted_add(dtype_of<T>(), add.data(), source.data(), source.size(), c);
    for (size_t i = 0; i < source.size(); ++i) {
      const volatile T product = static_cast<T>(c) * source[i];  // volatile: never fused
      EXPECT_EQ(set[i], product);
      EXPECT_EQ(add[i], start[i] + product);
    }
  }
}

// In every place of a register, and at the ends of the blocks in which they are counted.
template <typename Stored>
void check_non_finite() {
  using T = Wide<Stored>;
  constexpr size_t kCount = (1 << 17) + 37;
  const std::vector<T> drawn = random_values<T>(kCount, 6), start = random_values<T>(kCount, 7);
  std::vector<Stored> source;
  for (const T x : drawn) source.push_back(narrow<Stored>(std::fmod(x, T{1000})));
  const T none[] = {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                    -std::numeric_limits<T>::infinity()};
  const DType dtype = std::is_same_v<Stored, Float16>    ? DType::kFloat16
                      : std::is_same_v<Stored, Bfloat16> ? DType::kBfloat16
                                                         : dtype_of<T>();
  const auto sums = [&](bool add, NonFinite* found) {
    std::vector<T> sum = start;
    (add ? weighted_add : weighted_set)(dtype, sum.data(), source.data(), kCount, 0.3, found);
    return sum;
  };
  for (const bool add : {false, true}) {
    NonFinite found;
    EXPECT_EQ(bits(sums(add, &found)), bits(sums(add, nullptr)));
    EXPECT_EQ(found.count, 0u);
    EXPECT_EQ(found.first, ~uint64_t{0});
  }
  std::vector<size_t> places = {kCount - 1, 1 << 17, (1 << 16) + 1, 1 << 16, (1 << 16) - 1};
  for (size_t i = 40; i-- > 7;) places.push_back(i);
  size_t count = 0;
  for (const size_t place : places) {
    source[place] = narrow<Stored>(none[count++ % 3]);
    for (const bool add : {false, true}) {
      std::vector<Stored> zeroed = source;
      for (size_t p = 0; p < count; ++p) zeroed[places[p]] = Stored{};
      std::swap(zeroed, source);
      const std::vector<T> want = sums(add, nullptr);
      std::swap(zeroed, source);
      NonFinite found{3, 5};
      EXPECT_EQ(bits(sums(add, &found)), bits(want));
      EXPECT_EQ(found.count, 3 + count);
      EXPECT_EQ(found.first, 5u);
      NonFinite alone;
      (void)sums(add, &alone);
      EXPECT_EQ(alone.count, count);
      EXPECT_EQ(alone.first, place);
    }
  }
}

TEST(Kernels, elements_that_are_not_finite_count_as_zero_where_they_are_looked_for) {
  check_non_finite<float>();
  check_non_finite<double>();
  check_non_finite<Float16>();
  check_non_finite<Bfloat16>();
}

TYPED_TEST(FloatingKernels, weighted_set_overwrites_whatever_was_there) {
  using T = TypeParam;
  std::vector<T> destination(20, std::numeric_limits<T>::quiet_NaN());
  const std::vector<T> source(20, T{2});
  weighted_set(dtype_of<T>(), destination.data(), source.data(), source.size(), 0.5);
  EXPECT_EQ(destination, std::vector<T>(20, T{1}));
}

TYPED_TEST(FloatingKernels, sum_of_squares_adds_in_sixteen_lanes_and_then_in_pairs) {
  using T = TypeParam;
  for (const size_t count : {0, 1, 5, 16, 17, 1000}) {
    const std::vector<T> values = random_values<T>(count, 6);
    double lanes[16] = {}, plain = 0;
    for (size_t i = 0; i < count; ++i) {
      const volatile double square = static_cast<double>(values[i]) * static_cast<double>(values[i]);
      lanes[i % 16] += square;
      plain += square;
    }
    for (int width = 8; width > 0; width /= 2)
      for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    const double sum = sum_of_squares(dtype_of<T>(), values.data(), count);
    EXPECT_EQ(sum, lanes[0]) << count;
    EXPECT_NEAR(sum, plain, 1e-13 * plain) << count;
  }
}

TEST(Kernels, sum_of_squares_of_float32_does_not_overflow) {
  const std::vector<float> values(10, 1e30f);
  EXPECT_NEAR(sum_of_squares(DType::kFloat32, values.data(), values.size()), 1e61, 1e54);
}

TEST(Kernels, subnormal_numbers_are_kept) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  std::vector<float> a(33, tiny), b(33, tiny);
  reduce_into(DType::kFloat32, Reduction::kSum, a.data(), b.data(), a.size());
  for (float x : a) EXPECT_EQ(x, 2 * tiny);
}

template <typename Stored>
void feeds_back(DType dtype) {
  for (size_t count : {0, 1, 15, 16, 17, 100, 1000}) {
    const std::vector<float> source = random_values<float>(count, 3 + count),
                             residual = random_values<float>(count, 4 + count);
    std::vector<Stored> narrowed(count);
    std::vector<float> next(count), again(count), in_place = source;
    narrow_with_residual(dtype, narrowed.data(), source.data(), residual.data(), 0.75f, next.data(), nullptr,
                         count);
    for (size_t i = 0; i < count; ++i) {
      const float value = source[i] + 0.75f * residual[i];
      ASSERT_EQ(narrowed[i].bits, narrow<Stored>(value).bits);
      const float error = value - widen(narrowed[i]);
      ASSERT_EQ(next[i], std::isfinite(error) ? error : 0);
    }
    std::vector<Stored> same(count);
    narrow_with_residual(dtype, same.data(), in_place.data(), residual.data(), 0.75f, again.data(),
                         in_place.data(), count);
    ASSERT_EQ(bits(again), bits(next));
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(same[i].bits, narrowed[i].bits);
      ASSERT_EQ(half::bits_of(in_place[i]), half::bits_of(widen(same[i])));
    }
  }
  const float infinity = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
  for (const float value : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), largest}) {
    Stored narrowed;
    const float none = 0;
    float next = 1;
    narrow_with_residual(dtype, &narrowed, &value, &none, 1, &next, nullptr, 1);
    EXPECT_FALSE(std::isfinite(widen(narrowed)));
    EXPECT_EQ(next, 0) << "an error that is not finite would stay for ever";
  }
}

TEST(Kernels, narrow_with_residual_keeps_what_rounding_takes_away) {
  feeds_back<Float16>(DType::kFloat16);
  feeds_back<Bfloat16>(DType::kBfloat16);
}

TEST(ReduceSymmetric, GivesTheSameBitsInBothOrders) {
  const std::vector<uint32_t> odd = {0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000,
                                     0x7fc00000, 0xffc00000, 0x7fc12345, 0x7f812345, 0x00000001, 0x80000001};
  std::vector<uint32_t> a, b;
  for (uint32_t x : odd) {
    for (uint32_t y : odd) a.push_back(x), b.push_back(y);
  }
  for (Reduction reduction : {Reduction::kSum, Reduction::kMin, Reduction::kMax, Reduction::kProd}) {
    std::vector<uint32_t> ab = a, ba = b, plain = a;
    reduce_symmetric(DType::kFloat32, reduction, ab.data(), b.data(), a.size());
    reduce_symmetric(DType::kFloat32, reduction, ba.data(), a.data(), a.size());
    reduce_into(DType::kFloat32, reduction, plain.data(), b.data(), a.size());
    EXPECT_EQ(ab, ba) << static_cast<int>(reduction);
    for (size_t i = 0; i < a.size(); ++i) {
      const float symmetric = std::bit_cast<float>(ab[i]), usual = std::bit_cast<float>(plain[i]);
      EXPECT_TRUE(symmetric == usual || (symmetric != symmetric && usual != usual))
          << std::hex << a[i] << ' ' << b[i];
    }
  }
  std::vector<int64_t> integers = {5, -7}, others = {2, 9};
  reduce_symmetric(DType::kInt64, Reduction::kMax, integers.data(), others.data(), 2);
  EXPECT_EQ(integers, (std::vector<int64_t>{5, 9}));
}

}  // namespace
}  // namespace dsgd
