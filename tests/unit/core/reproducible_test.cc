#include "core/reduce/reproducible.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "core/base/half.h"
#include "core/reduce/exact_sum.h"
#include "core/reduce/kernels.h"

namespace dsgd::reproducible {
namespace {

// Of 113 bits, so that its own errors do not count.
#ifdef __SIZEOF_FLOAT128__
using Precise = __float128;
#else
using Precise = long double;
#endif

template <typename T>
constexpr DType kDType = sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;

template <typename T>
struct Replica {
  std::vector<T> gradient;
  double weight;
};

// Replicas of elements over `span` powers of two up to 2^`top`, some of them zero, with weights of
// `weight_span` powers.
template <typename T>
std::vector<Replica<T>> random_replicas(size_t replicas, size_t count, int span, int top, int weight_span,
                                        uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto number = [&random](int powers, int largest) {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
    return std::ldexp(unit, largest - static_cast<int>(random() % static_cast<uint64_t>(powers + 1)));
  };
  std::vector<Replica<T>> all(replicas);
  for (auto& replica : all) {
    replica.weight = std::max(std::fabs(number(weight_span, weight_span / 2)), 0x1p-60);
    for (size_t i = 0; i < count; ++i) {
      const double element = number(span, top);
      replica.gradient.push_back(random() % 50 == 0 ? T{0} : static_cast<T>(element));
    }
  }
  return all;
}

using Bytes = std::vector<std::byte>;

template <typename T>
struct Outcome {
  Bytes exponents, sums;
  std::vector<T> mean;
};

// Adds the replicas in `order`, in workers of `per_worker` replicas each whose partial results are then
// combined from the last worker to the first. `total` replicas share the job.
template <typename T>
Outcome<T> reduce(const std::vector<Replica<T>>& replicas, const std::vector<size_t>& order,
                  size_t per_worker, uint32_t total = 0) {
  const size_t count = replicas[0].gradient.size();
  if (total == 0) total = static_cast<uint32_t>(replicas.size());
  const DType exponent = exponent_type(kDType<T>), sum = sum_type(kDType<T>, total);
  Outcome<T> out{Bytes(count * dtype_size(exponent)), Bytes(count * dtype_size(sum)), std::vector<T>(count)};
  const auto workers = [&](auto use) {
    for (size_t first = 0; first < order.size(); first += per_worker) {
      use(first, std::min(order.size(), first + per_worker));
    }
  };
  workers([&](size_t first, size_t last) {
    Bytes local(out.exponents.size());
    for (size_t i = first; i < last; ++i) {
      raise_exponents(kDType<T>, replicas[order[i]].gradient.data(), count, replicas[order[i]].weight,
                      local.data());
    }
    reduce_into(exponent, Reduction::kMax, out.exponents.data(), local.data(), count);
  });
  std::vector<Bytes> partial;
  WeightDigits weight{};
  workers([&](size_t first, size_t last) {
    partial.emplace_back(out.sums.size());
    for (size_t i = first; i < last; ++i) {
      const Replica<T>& replica = replicas[order[i]];
      accumulate(kDType<T>, replica.gradient.data(), count, replica.weight, out.exponents.data(), total,
                 partial.back().data());
      add_weight(weight, replica.weight);
    }
  });
  for (auto worker = partial.rbegin(); worker != partial.rend(); ++worker) {
    reduce_into(sum, Reduction::kSum, out.sums.data(), worker->data(), count);
  }
  to_mean(kDType<T>, out.sums.data(), count, out.exponents.data(), total, weight_of(weight), out.mean.data());
  return out;
}

std::vector<size_t> in_order(size_t n) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T>
class Reproducible : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Reproducible, Types);

TYPED_TEST(Reproducible, AnyOrderAndAnySplitOverWorkersGiveTheSameBits) {
  using T = TypeParam;
  std::mt19937_64 random(7);
  for (const size_t count : {1, 5, 4095, 8209}) {
    for (const size_t replicas : {1, 2, 3, 8, 9, 15}) {
      const auto all = random_replicas<T>(replicas, count, 200, 100, 30, count * 31 + replicas);
      std::vector<size_t> order = in_order(replicas);
      const Outcome<T> reference = reduce(all, order, replicas);
      for (const size_t per_worker : {1, 2, 3, 5}) {
        std::shuffle(order.begin(), order.end(), random);
        const Outcome<T> other = reduce(all, order, per_worker);
        EXPECT_EQ(other.exponents, reference.exponents);
        EXPECT_EQ(other.sums, reference.sums);
        EXPECT_TRUE(same_bits(other.mean, reference.mean))
            << count << " elements, " << replicas << " replicas";
      }
    }
  }
}

// An element's result depends on its own summands alone.
TYPED_TEST(Reproducible, ElementsAloneGiveTheBitsThatTheyGiveAmongOthers) {
  using T = TypeParam;
  const size_t count = 5000;
  const auto all = random_replicas<T>(4, count, 200, 100, 10, 99);
  const Outcome<T> whole = reduce(all, in_order(4), 4);
  for (size_t i = 0; i < count; i += 7) {
    auto part = all;
    for (size_t r = 0; r < all.size(); ++r) part[r].gradient = {all[r].gradient[i]};
    EXPECT_TRUE(same_bits(reduce(part, in_order(4), 4).mean, {whole.mean[i]})) << i;
  }
}

// The bound of reproducible.h, and the rounding of the mean.
template <typename T>
void is_as_exact_as_promised(const std::vector<Replica<T>>& all, uint32_t total) {
  using Limits = std::numeric_limits<T>;
  const auto magnitude = [](Precise value) { return value < 0 ? -value : value; };
  const std::vector<T> mean = reduce(all, in_order(all.size()), 2, total).mean;
  const double h = std::bit_width(total - 1), unit = Limits::epsilon() / 2;
  const double bits = sizeof(T) == 8 ? h - 63 : total <= 8 ? h - 30 : h - 62;
  for (size_t i = 0; i < mean.size(); ++i) {
    Precise exact = 0, weight = 0, largest = 0, size = 0;
    for (const auto& replica : all) {
      const Precise product = static_cast<Precise>(replica.weight) * replica.gradient[i];
      exact += product;
      weight += replica.weight;
      largest = std::max(largest, magnitude(product));
      size += magnitude(product);
    }
    exact /= weight;
    const Precise products = size * 0x1p-53 + all.size() * static_cast<Precise>(0x1p-1074);
    const Precise sums = largest * total * std::exp2(bits) * (1 + 0x1p-26) + products;
    // The sum of weights is rounded to a double; so are the sum, if it has 64 bits, the quotient, and the
    // mean at last.
    const Precise rounding = magnitude(exact) * (unit + 4 * 0x1p-53) + Limits::denorm_min();
    ASSERT_LE(magnitude(mean[i] - exact), sums / weight + rounding)
        << mean[i] << " instead of " << static_cast<double>(exact) << ", " << total << " replicas";
  }
}

TYPED_TEST(Reproducible, TheErrorIsWithinItsBoundForAnyMixOfMagnitudes) {
  using T = TypeParam;
  for (const size_t replicas : {1, 2, 3, 4, 5, 7, 8, 9, 16, 33}) {
    // With subnormal numbers.
    const int lowest = sizeof(T) == 4 ? 298 : 2100, highest = sizeof(T) == 4 ? 127 : 980;
    for (const auto& [span, top] : {std::pair{0, 0}, {8, 4}, {60, 0}, {250, 125}, {lowest, highest}}) {
      for (const int weight_span : {0, 80}) {
        const uint64_t seed = replicas * 1000 + static_cast<uint64_t>(span);
        is_as_exact_as_promised(random_replicas<T>(replicas, 700, span, top, weight_span, seed),
                                static_cast<uint32_t>(replicas));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Up to 8 replicas, the most that 32-bit sums are for, a float32 sum loses no more than one rounding of its
// largest product.
TEST(Reproducible, SumsOfEightReplicasHaveTheErrorOfOneRounding) {
  EXPECT_EQ(sum_type(DType::kFloat32, 8), DType::kInt32);
  EXPECT_EQ(sum_type(DType::kFloat32, 9), DType::kInt64);
  EXPECT_EQ(8 * std::exp2(3 - 30), 0x1p-24);
  // Products of which each loses half a unit in the same direction, beside a largest one at the low end of
  // its exponent.
  for (const float largest : {1.0f, 2.0f}) {
    std::vector<Replica<float>> all(8, {{0x1p-27f}, 1});
    all[0].gradient = {largest};
    is_as_exact_as_promised(all, 8);
  }
}

TYPED_TEST(Reproducible, CancellationLeavesAnErrorRelativeToTheLargestProduct) {
  using T = TypeParam;
  std::vector<Replica<T>> all(3, {{T{0}, T{0}}, 1});
  all[0].gradient = {T{1e30f}, T{1}}, all[1].gradient = {-T{1e30f}, -T{1}}, all[2].gradient = {T{1}, T{0.5}};
  const Outcome<T> out = reduce(all, in_order(3), 1);
  EXPECT_EQ(out.mean[0], T{0});  // 1 is below what one rounding of 1e30 leaves
  EXPECT_EQ(out.mean[1], static_cast<T>(0.5 / 3));
  is_as_exact_as_promised(all, 3);
}

TYPED_TEST(Reproducible, NanAndInfinityMakeTheirElementNanAndNoOther) {
  using T = TypeParam;
  const T infinity = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const size_t count = 300, bad = 77;
  auto all = random_replicas<T>(3, count, 10, 5, 3, 11);
  const Outcome<T> good = reduce(all, in_order(3), 1);
  T all_ones;
  std::memset(&all_ones, 0xff, sizeof all_ones);
  for (const T element : {infinity, -infinity, nan, -nan, all_ones}) {
    all[1].gradient[bad] = element;
    const Outcome<T> out = reduce(all, in_order(3), 1);
    for (size_t i = 0; i < count; ++i) {
      if (i == bad) {
        EXPECT_TRUE(std::isnan(out.mean[i]));
      } else {
        EXPECT_EQ(std::memcmp(&out.mean[i], &good.mean[i], sizeof(T)), 0) << i;
      }
    }
  }
}

TYPED_TEST(Reproducible, ZerosOfBothSignsHaveThePositiveZeroAsMean) {
  using T = TypeParam;
  const Outcome<T> out =
      reduce<T>({{{T{0}, -T{0}, -T{0}, T{1}}, 3}, {{T{0}, -T{0}, T{0}, -T{1}}, 3}}, in_order(2), 1);
  EXPECT_TRUE(same_bits(out.mean, std::vector<T>(4, T{0})));
}

TYPED_TEST(Reproducible, NoElementsAreFine) {
  raise_exponents(kDType<TypeParam>, nullptr, 0, 1, nullptr);
  accumulate(kDType<TypeParam>, nullptr, 0, 1, nullptr, 3, nullptr);
  to_mean(kDType<TypeParam>, nullptr, 0, nullptr, 3, 2, nullptr);
}

// The mean of equal gradients is that gradient, wherever in the range it lies. Sums of float64 with more
// digits than a double has are rounded before they are divided: one unit in the last place.
TYPED_TEST(Reproducible, MeansOfSubnormalAndExtremeNumbersAreRight) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  for (const T magnitude : {Limits::denorm_min(), 3 * Limits::denorm_min(), Limits::min(), Limits::min() / 8,
                            std::nextafter(Limits::min(), T{0}), T{1}, Limits::max() / 8, Limits::max()}) {
    for (const size_t replicas : {1, 3, 4, 9, 16}) {
      const std::vector<Replica<T>> all(replicas, {{-magnitude, magnitude}, 1});
      const Outcome<T> out = reduce(all, in_order(replicas), 1);
      const bool exact = sizeof(T) == 4 || std::has_single_bit(replicas);
      const T unit = exact ? T{0} : magnitude - std::nextafter(magnitude, T{0});
      EXPECT_LE(std::fabs(out.mean[0] + magnitude), unit) << replicas << " replicas of " << magnitude;
      EXPECT_EQ(out.mean[0], -out.mean[1]);
    }
  }
}

TYPED_TEST(Reproducible, AllowedWeightsNeitherOverflowNorLoseBits) {
  using T = TypeParam;
  for (const double weight : {1e-12 / 1024, 1e-12, 0.1, 1e12}) {
    for (const T gradient :
         {std::numeric_limits<float>::denorm_min(), 1.0f, -0.25f, std::numeric_limits<float>::max()}) {
      const std::vector<Replica<T>> all(4, {{gradient}, weight});
      EXPECT_EQ(reduce(all, in_order(4), 1).mean[0], gradient) << weight;
    }
  }
  // A product beyond a double is not finite.
  const std::vector<Replica<double>> beyond(2, {{1e300}, 1e12});
  EXPECT_TRUE(std::isnan(reduce(beyond, in_order(2), 1).mean[0]));
}

// All products just below a power of two, where rounding is most likely to carry.
TYPED_TEST(Reproducible, IntegersDoNotOverflowWithAnyNumberOfReplicas) {
  using T = TypeParam;
  for (const uint32_t replicas : {1u, 2u, 3u, 4u, 7u, 8u, 9u, 1000u, 65535u, 65536u}) {
    for (const T below : {std::nextafter(T{1}, T{0}), std::nextafter(T{2}, T{0})}) {
      // As a product of a float32, too, it has 53 bits.
      for (const double weight : {1.0, std::nextafter(1.0, 0.0)}) {
        const std::vector<T> gradient{below, -below, below / 3};
        Bytes exponents(3 * dtype_size(exponent_type(kDType<T>))),
            sums(3 * dtype_size(sum_type(kDType<T>, replicas)));
        raise_exponents(kDType<T>, gradient.data(), 3, weight, exponents.data());
        for (uint32_t r = 0; r < replicas; ++r) {
          accumulate(kDType<T>, gradient.data(), 3, weight, exponents.data(), replicas, sums.data());
        }
        std::vector<T> mean(3);
        to_mean(kDType<T>, sums.data(), 3, exponents.data(), replicas, replicas * weight, mean.data());
        const double error =
            sizeof(T) == 4 ? 0x1p-24 : replicas * std::exp2(std::bit_width(replicas - 1) - 63.0) + 0x1p-52;
        for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(mean[i], gradient[i], 2 * error) << replicas;
      }
    }
  }
}

// Vectors and single elements, aligned or not, and half types block by block.
TYPED_TEST(Reproducible, BitsDoNotDependOnHowElementsAreGrouped) {
  using T = TypeParam;
  const size_t count = 4200;
  const auto all = random_replicas<T>(2, count, 100, 50, 5, 3);
  for (const uint32_t replicas : {2u, 9u}) {
    const Outcome<T> whole = reduce(all, in_order(2), 2, replicas);
    const size_t code = dtype_size(exponent_type(kDType<T>)), sum = dtype_size(sum_type(kDType<T>, replicas));
    Bytes exponents(count * code), sums(count * sum);
    std::vector<T> mean(count);
    const double weight = all[0].weight + all[1].weight;
    for (size_t begin = 0, part = 1; begin < count; begin += part, part = part % 37 + 1) {
      const size_t size = std::min(part, count - begin);
      for (const auto& r : all)
        raise_exponents(kDType<T>, r.gradient.data() + begin, size, r.weight,
                        exponents.data() + begin * code);
      for (const auto& r : all) {
        accumulate(kDType<T>, r.gradient.data() + begin, size, r.weight, exponents.data() + begin * code,
                   replicas, sums.data() + begin * sum);
      }
      to_mean(kDType<T>, sums.data() + begin * sum, size, exponents.data() + begin * code, replicas, weight,
              mean.data() + begin);
    }
    EXPECT_EQ(exponents, whole.exponents);
    EXPECT_EQ(sums, whole.sums);
    EXPECT_TRUE(same_bits(mean, whole.mean));
  }
}

template <typename Half>
void half_is_added_as_float32(DType dtype) {
  const size_t count = 9000;
  std::vector<Half> stored(count);
  std::vector<float> widened(count);
  for (size_t i = 0; i < count; ++i) {
    stored[i].bits = static_cast<uint16_t>(i * 7919);
    widened[i] = widen(stored[i]);
  }
  Bytes exponents[2] = {Bytes(count), Bytes(count)}, sums[2] = {Bytes(count * 4), Bytes(count * 4)};
  raise_exponents(dtype, stored.data(), count, 0.3, exponents[0].data());
  raise_exponents(DType::kFloat32, widened.data(), count, 0.3, exponents[1].data());
  EXPECT_EQ(exponents[0], exponents[1]);
  accumulate(dtype, stored.data(), count, 0.3, exponents[0].data(), 2, sums[0].data());
  accumulate(DType::kFloat32, widened.data(), count, 0.3, exponents[1].data(), 2, sums[1].data());
  EXPECT_EQ(sums[0], sums[1]);
}
TEST(Reproducible, HalfTypesAreAddedAsFloat32) {
  half_is_added_as_float32<Float16>(DType::kFloat16);
  half_is_added_as_float32<Bfloat16>(DType::kBfloat16);
}

TEST(Reproducible, ConversionsAgreeWithTheMachinesOwn) {
  std::mt19937_64 random(17);
  const size_t count = 4096;
  std::vector<double> gradient(count);
  for (double& g : gradient) {  // from far below one unit to the largest of its exponent
    g = std::ldexp(static_cast<double>(random() >> 11) * 0x1p-52 - 1, -static_cast<int>(random() % 70));
  }
  std::vector<int32_t> exponents(count, 1022);  // products below 1
  std::vector<int64_t> sums(count);
  accumulate(DType::kFloat64, gradient.data(), count, 1, exponents.data(), 2, sums.data());
  for (size_t i = 0; i < count; ++i)
    EXPECT_EQ(sums[i], std::llrint(std::ldexp(gradient[i], 62))) << gradient[i];

  std::vector<float> narrow(gradient.begin(), gradient.end());
  std::vector<uint8_t> codes(count, 158);  // products below 2^(2 * 158 - 316) = 1
  std::vector<int32_t> narrow_sums(count);
  accumulate(DType::kFloat32, narrow.data(), count, 1, codes.data(), 2, narrow_sums.data());
  for (size_t i = 0; i < count; ++i)
    EXPECT_EQ(narrow_sums[i], std::llrint(std::ldexp(narrow[i], 30))) << narrow[i];

  for (int64_t& sum : sums) sum = static_cast<int64_t>(random()) >> (1 + random() % 62);
  sums[0] = int64_t{1} << 62, sums[1] = -sums[0], sums[2] = 0, sums[3] = -1, sums[4] = (int64_t{1} << 53) + 1;
  std::vector<double> mean(count);
  to_mean(DType::kFloat64, sums.data(), count, exponents.data(), 2, 1, mean.data());
  for (size_t i = 0; i < count; ++i)
    EXPECT_EQ(mean[i], std::ldexp(static_cast<double>(sums[i]), -62)) << sums[i];
}

// ---- weights

TEST(WeightSum, IsTheExactSumRoundedOnceInAnyOrder) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 2000; ++round) {
    const size_t count = 1 + random() % 40;
    const int span = round % 3 == 0 ? 3 : 80;  // few powers of two make ties likely
    std::vector<double> weights;
    __int128 exact = 0;  // in units of 2^-92, where all bits are
    for (size_t i = 0; i < count; ++i) {
      const int exponent = static_cast<int>(random() % static_cast<uint64_t>(span)) - 40;
      // Few bits, or all; multiples of 2^-92 and below 2^32 in sum.
      const double mantissa = static_cast<double>(round % 2 ? (random() >> 11) : (random() % 8 << 50));
      const double weight = std::ldexp(mantissa, std::clamp(exponent - 52, -92, -27));
      weights.push_back(weight);
      exact += static_cast<__int128>(std::ldexp(weight, 92 - 64)) << 64;
      const double rest = weight - std::ldexp(std::floor(std::ldexp(weight, 92 - 64)), 64 - 92);
      exact += static_cast<__int128>(static_cast<unsigned __int128>(std::ldexp(rest, 92)));
    }
    const double expected = std::ldexp(static_cast<double>(exact), -92);
    for (int order = 0; order < 3; ++order) {
      std::shuffle(weights.begin(), weights.end(), random);
      WeightDigits sum{};
      for (double weight : weights) add_weight(sum, weight);
      ASSERT_EQ(weight_of(sum), expected);
    }
  }
}

TEST(WeightSum, OfOneWeightIsThatWeight) {
  for (const double weight : {0.0, 1e-12 / 1024, 1e-12, 0.1, 1.0, 1 + 0x1p-52, 0x1p53 + 2, 1e12,
                              std::nextafter(kWeightLimit, 0.0)}) {
    WeightDigits sum{};
    add_weight(sum, weight);
    EXPECT_EQ(weight_of(sum), weight);
    for (int64_t digit : sum) EXPECT_LT(digit, int64_t{1} << 24);
  }
  WeightDigits sum{};
  for (double weight : {.1, .2, .3}) add_weight(sum, weight);
  EXPECT_EQ(weight_of(sum), 0.6);
}

TEST(WeightSum, HoldsTheLargestWeightsOfSixtyFiveThousandReplicas) {
  WeightDigits sum{};
  for (int i = 0; i < 65536; ++i) add_weight(sum, std::nextafter(kWeightLimit, 0.0));
  EXPECT_EQ(weight_of(sum), 65536 * std::nextafter(kWeightLimit, 0.0));
}

// ---- squares

TEST(SquareSum, PartsInAnyOrderGiveTheDigitsOfTheWhole) {
  std::mt19937_64 random(3);
  std::vector<double> values(1003);
  for (double& value : values)
    value = std::ldexp(static_cast<double>(random() >> 11), static_cast<int>(random() % 1100) - 600);
  SquareDigits whole{};
  add_squares(whole, DType::kFloat64, values.data(), values.size());
  std::vector<std::pair<size_t, size_t>> parts;
  for (size_t begin = 0, end; begin < values.size(); begin = end) {
    end = std::min(values.size(), begin + 16 * (1 + random() % 9));
    parts.emplace_back(begin, end - begin);
  }
  std::shuffle(parts.begin(), parts.end(), random);
  SquareDigits sum{};
  for (const auto& [begin, count] : parts) {
    SquareDigits part{};
    add_squares(part, DType::kFloat64, values.data() + begin, count);
    for (size_t k = 0; k < kSquareDigits; ++k) sum[k] += part[k];
  }
  EXPECT_EQ(sum, whole);
}

TEST(SquareSum, IsThatOfTheNumbers) {
  const auto squares = [](const auto& values, DType dtype) {
    SquareDigits sum{};
    add_squares(sum, dtype, values.data(), values.size());
    return squares_of(sum);
  };
  EXPECT_EQ(squares(std::vector<float>{}, DType::kFloat32), 0);
  EXPECT_EQ(squares(std::vector<float>{3, -4}, DType::kFloat32), 25);
  EXPECT_EQ(squares(std::vector<float>(100, 3e38f), DType::kFloat32),
            100 * static_cast<double>(3e38f) * static_cast<double>(3e38f));
  EXPECT_EQ(squares(std::vector<double>(64, 0x1p-537), DType::kFloat64), 0x1p-1068);
  std::vector<double> spread(17 * 16, 0x1p-20);  // each group of 16 has 2^-36, beside one that has 2^20
  spread[0] = 0x1p10;
  // As doubles, one by one, they would be lost.
  EXPECT_EQ(squares(spread, DType::kFloat64), 0x1p20 + 0x1p-32);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(squares(std::vector<float>{1, -infinity}, DType::kFloat32), infinity);
  EXPECT_TRUE(std::isnan(
      squares(std::vector<float>{infinity, std::numeric_limits<float>::quiet_NaN()}, DType::kFloat32)));
  EXPECT_EQ(squares(std::vector<double>{1e200, 1}, DType::kFloat64), infinity);  // as a double would be
}

}  // namespace
}  // namespace dsgd::reproducible
