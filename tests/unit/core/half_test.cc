// Conversions of half types against their definition: round to nearest, ties to even.
#include "core/base/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace dsgd {
namespace {

struct Format {
  int exponent_bits, fraction_bits;
};

// Returns the value of the bits of a positive number.
double value_of(Format f, uint32_t bits) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> f.fraction_bits);
  const double fraction = static_cast<double>(bits & ((1u << f.fraction_bits) - 1));
  if (exponent == 0) return std::ldexp(fraction, 1 - bias - f.fraction_bits);
  return std::ldexp(fraction + static_cast<double>(1u << f.fraction_bits), exponent - bias - f.fraction_bits);
}

// By search among all finite numbers, and the one that would come after them, which stands for infinity.
uint32_t nearest(Format f, double magnitude) {
  const uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.fraction_bits;
  uint32_t low = 0, high = infinity;
  while (low < high) {
    const uint32_t middle = (low + high + 1) / 2;
    if (value_of(f, middle) <= magnitude) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (low == infinity) return infinity;
  const double below = magnitude - value_of(f, low), above = value_of(f, low + 1) - magnitude;
  return below < above || (below == above && low % 2 == 0) ? low : low + 1;
}

template <typename Stored>
void widens(Format f) {
  const uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.fraction_bits;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = widen(Stored{static_cast<uint16_t>(bits)});
    const uint32_t magnitude = bits & 0x7fffu;
    ASSERT_EQ(std::signbit(wide), bits >= 0x8000) << bits;
    if (magnitude > infinity) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_TRUE(std::isnan(widen(narrow<Stored>(wide)))) << bits;
      continue;
    }
    const double expected =
        magnitude == infinity ? std::numeric_limits<double>::infinity() : value_of(f, magnitude);
    ASSERT_EQ(std::fabs(wide), expected) << bits;
    ASSERT_EQ(narrow<Stored>(wide).bits, bits);
  }
}

template <typename Stored>
void narrows(Format f) {
  std::mt19937 random(5);
  std::vector<float> numbers = {
      0.0f,     std::numeric_limits<float>::max(),     std::numeric_limits<float>::denorm_min(), 65519.996f,
      65520.0f, std::numeric_limits<float>::infinity()};
  // Halfway between neighbours, and beside that.
  for (uint32_t bits = 0; bits < 0x7fff; bits += 1 + bits / 200) {
    const double halfway = (value_of(f, bits) + value_of(f, bits + 1)) / 2;
    if (halfway > std::numeric_limits<float>::max()) break;
    const float middle = static_cast<float>(halfway);
    numbers.insert(numbers.end(), {middle, std::nextafterf(middle, 0.0f), std::nextafterf(middle, 1e38f)});
  }
  for (int i = 0; i < 100'000; ++i)
    numbers.push_back(half::float_of(static_cast<uint32_t>(random()) & 0x7fffffffu));
  for (float number : numbers) {
    if (std::isnan(number)) {
      ASSERT_TRUE(std::isnan(widen(narrow<Stored>(number))));
      continue;
    }
    const uint32_t expected =
        std::isinf(number) ? ((1u << f.exponent_bits) - 1) << f.fraction_bits : nearest(f, number);
    ASSERT_EQ(narrow<Stored>(number).bits, expected) << number;
    ASSERT_EQ(narrow<Stored>(-number).bits, expected | 0x8000u) << -number;
  }
}

TEST(Half, WidensExactlyAndBack) {
  widens<Float16>({5, 10});
  widens<Bfloat16>({8, 7});
}

TEST(Half, NarrowsToTheNearestAndTiesToEven) {
  narrows<Float16>({5, 10});
  narrows<Bfloat16>({8, 7});
}

TEST(Half, AMasterValueIsResetWhenTheStoredValueWasWrittenByTheHost) {
  const float master = 1.0009f;  // between two float16
  const float rounded = widen(narrow<Float16>(master));
  ASSERT_NE(rounded, master);
  EXPECT_EQ(current_master<Float16>(master, rounded), master);
  EXPECT_EQ(current_master<Float16>(master, 2.0f), 2.0f);
  EXPECT_TRUE(std::signbit(current_master<Bfloat16>(0.0f, -0.0f)));
  EXPECT_TRUE(std::isnan(current_master<Bfloat16>(1.0f, std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace dsgd
