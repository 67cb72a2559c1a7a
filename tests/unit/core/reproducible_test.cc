#include "core/reduce/reproducible.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace dsgd::reproducible {
namespace {

template <typename T>
constexpr DType kDType = sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;

template <typename T>
struct Replica {
  std::vector<T> gradient;
  double weight;
};

// Replicas of elements over `span` powers of two, some of them zero, with weights like sample counts.
template <typename T>
std::vector<Replica<T>> random_replicas(size_t replicas, size_t count, int span, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<Replica<T>> all(replicas);
  for (auto& replica : all) {
    replica.weight = static_cast<double>(1 + generator() % 64);
    for (size_t i = 0; i < count; ++i) {
      const double unit = static_cast<double>(generator() >> 11) * 0x1p-52 - 1;
      const int exponent =
          span > 0 ? static_cast<int>(generator() % static_cast<uint64_t>(span)) - span / 2 : 0;
      replica.gradient.push_back(generator() % 50 == 0 ? T{0} : static_cast<T>(std::ldexp(unit, exponent)));
    }
  }
  return all;
}

template <typename T>
struct Outcome {
  std::vector<Exponent> exponents;
  std::vector<int64_t> sums;
  std::vector<T> mean;
};

// Adds the replicas in `order`, in workers of `per_worker` replicas each whose partial results are then
// combined from the last worker to the first.
template <typename T>
Outcome<T> reduce(const std::vector<Replica<T>>& replicas, const std::vector<size_t>& order,
                  size_t per_worker, uint32_t headroom = 0) {
  const size_t count = replicas[0].gradient.size(), blocks = block_count(count);
  const auto total = headroom ? headroom : static_cast<uint32_t>(replicas.size());
  Outcome<T> out{std::vector<Exponent>(blocks, kZero), std::vector<int64_t>(count), std::vector<T>(count)};
  for (size_t first = 0; first < order.size(); first += per_worker) {
    std::vector<Exponent> local(blocks, kZero);
    for (size_t i = first; i < std::min(order.size(), first + per_worker); ++i) {
      const Replica<T>& replica = replicas[order[i]];
      raise_exponents(kDType<T>, replica.gradient.data(), count, replica.weight, local);
    }
    for (size_t b = 0; b < blocks; ++b) out.exponents[b] = std::max(out.exponents[b], local[b]);
  }
  std::vector<std::vector<int64_t>> partial;
  double weight = 0;
  for (size_t first = 0; first < order.size(); first += per_worker) {
    partial.emplace_back(count);
    for (size_t i = first; i < std::min(order.size(), first + per_worker); ++i) {
      const Replica<T>& replica = replicas[order[i]];
      accumulate(kDType<T>, replica.gradient.data(), count, replica.weight, out.exponents, total,
                 partial.back().data());
      weight += replica.weight;
    }
  }
  for (auto worker = partial.rbegin(); worker != partial.rend(); ++worker)
    for (size_t i = 0; i < count; ++i) out.sums[i] += (*worker)[i];
  to_mean(kDType<T>, out.sums.data(), count, out.exponents, total, weight, out.mean.data());
  return out;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

std::vector<size_t> in_order(size_t n) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

template <typename T>
class Reproducible : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Reproducible, Types);

TYPED_TEST(Reproducible, any_order_and_any_split_over_workers_give_the_same_bits) {
  using T = TypeParam;
  std::mt19937_64 generator(7);
  for (const size_t count : {size_t{1}, size_t{5}, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock + 17}) {
    for (const size_t replicas : {1, 2, 3, 8, 15}) {
      const auto all = random_replicas<T>(replicas, count, 40, count * 31 + replicas);
      std::vector<size_t> order = in_order(replicas);
      const Outcome<T> reference = reduce(all, order, replicas);
      for (const size_t per_worker : {1, 2, 3, 5}) {
        std::shuffle(order.begin(), order.end(), generator);
        const Outcome<T> other = reduce(all, order, per_worker);
        EXPECT_EQ(other.exponents, reference.exponents);
        EXPECT_EQ(other.sums, reference.sums);
        EXPECT_TRUE(same_bits(other.mean, reference.mean))
            << count << " elements, " << replicas << " replicas";
      }
    }
  }
}

TYPED_TEST(Reproducible, parts_that_begin_at_blocks_give_the_bits_of_the_whole) {
  using T = TypeParam;
  const size_t count = 3 * kBlock + 100;
  const auto all = random_replicas<T>(4, count, 30, 99);
  const Outcome<T> whole = reduce(all, in_order(4), 4);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(count, begin + kBlock);
    auto part = all;
    for (auto& replica : part)
      replica.gradient.assign(replica.gradient.begin() + static_cast<long>(begin),
                              replica.gradient.begin() + static_cast<long>(end));
    for (size_t r = 0; r < all.size(); ++r)
      part[r].gradient.assign(all[r].gradient.begin() + static_cast<long>(begin),
                              all[r].gradient.begin() + static_cast<long>(end));
    const Outcome<T> piece = reduce(part, in_order(4), 4);
    EXPECT_TRUE(same_bits(piece.mean, {whole.mean.begin() + static_cast<long>(begin),
                                       whole.mean.begin() + static_cast<long>(end)}));
  }
}

TYPED_TEST(Reproducible, a_block_may_be_converted_in_parts) {
  using T = TypeParam;
  const size_t count = 1000;
  const Outcome<T> whole = reduce(random_replicas<T>(2, count, 10, 3), in_order(2), 2);
  double weight = 0;
  for (const auto& replica : random_replicas<T>(2, count, 10, 3)) weight += replica.weight;
  std::vector<T> mean(count);
  for (size_t begin = 0; begin < count; begin += 300)
    to_mean(kDType<T>, whole.sums.data() + begin, std::min<size_t>(300, count - begin), whole.exponents, 2,
            weight, mean.data() + begin);
  EXPECT_TRUE(same_bits(mean, whole.mean));
}

// Against the exact mean in long double (64 bits of mantissa on x86, more elsewhere; the bound leaves room
// for its rounding).
TYPED_TEST(Reproducible, the_error_is_below_that_of_plain_sums) {
  using T = TypeParam;
  for (const int span : {0, 8, 20}) {
    const size_t count = 2 * kBlock, replicas = 16;
    const auto all = random_replicas<T>(replicas, count, span, 1000 + static_cast<uint64_t>(span));
    const Outcome<T> out = reduce(all, in_order(replicas), 4);
    double ours = 0, plain = 0;
    for (size_t i = 0; i < count; ++i) {
      long double exact = 0, weight = 0;
      T sum = 0;
      for (const auto& replica : all) {
        exact += static_cast<long double>(replica.weight) * static_cast<long double>(replica.gradient[i]);
        weight += replica.weight;
        sum += static_cast<T>(replica.weight) * replica.gradient[i];
      }
      exact /= weight;
      ours += std::fabs(static_cast<double>(out.mean[i] - exact));
      plain += std::fabs(static_cast<double>(sum / static_cast<T>(weight) - exact));
    }
    // Twice the digits for float32; for float64 the integers have about as many as the numbers (62 bits less
    // headroom).
    EXPECT_LT(ours, sizeof(T) == 4 ? 0.5 * plain : 1.0 * plain) << "span " << span;
  }
}

TYPED_TEST(Reproducible, small_elements_keep_an_absolute_error_far_below_the_blocks_largest) {
  using T = TypeParam;
  const auto all = random_replicas<T>(5, kBlock, 60, 5);
  const Outcome<T> out = reduce(all, in_order(5), 5);
  double weight = 0;
  for (const auto& replica : all) weight += replica.weight;
  const double unit = std::ldexp(1.0, out.exponents[0] - 62 + 3);  // 3 bits of headroom for 5 replicas
  for (size_t i = 0; i < kBlock; ++i) {
    long double exact = 0, size = 0;
    for (const auto& replica : all) {
      const auto product =
          static_cast<long double>(replica.weight) * static_cast<long double>(replica.gradient[i]);
      exact += product;
      size += std::fabs(product);
    }
    const long double mean = exact / weight;
    // Half a unit per replica, the rounding of products to double, and that of the mean to the element's
    // type.
    const double bound = 2.5 * unit / weight + static_cast<double>(size) / weight * 0x1p-53 +
                         std::fabs(static_cast<double>(mean)) * std::numeric_limits<T>::epsilon();
    EXPECT_LE(std::fabs(static_cast<double>(out.mean[i] - mean)), bound) << i;
  }
}

TYPED_TEST(Reproducible, exponents_are_the_smallest_above_all_products) {
  using T = TypeParam;
  const struct {
    double gradient, weight;
    Exponent exponent;
  } cases[] = {{1, 1, 1}, {0.5, 1, 0}, {-1, 1, 1},   {0.75, 1, 0},   {3, 1, 2},
               {4, 1, 3}, {1, 3, 2},   {0.5, 32, 5}, {-0.375, 8, 2}, {0, 5, kZero}};
  for (const auto& test : cases) {
    const std::vector<T> gradient{0, static_cast<T>(test.gradient), 0};
    std::vector<Exponent> exponents{kZero};
    raise_exponents(kDType<T>, gradient.data(), 3, test.weight, exponents);
    EXPECT_EQ(exponents[0], test.exponent) << test.gradient << " * " << test.weight;
    exponents[0] = 100;  // an exponent is raised, never lowered
    raise_exponents(kDType<T>, gradient.data(), 3, test.weight, exponents);
    EXPECT_EQ(exponents[0], 100);
  }
}

TYPED_TEST(Reproducible, nan_and_infinity_make_their_block_nan_and_no_other) {
  using T = TypeParam;
  const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  for (const T bad : {inf, -inf, nan, -nan}) {
    auto all = random_replicas<T>(3, 3 * kBlock, 10, 11);
    all[1].gradient[kBlock + 77] = bad;
    const Outcome<T> out = reduce(all, in_order(3), 1);
    EXPECT_EQ(out.exponents[1], kNotFinite);
    EXPECT_TRUE(std::all_of(out.sums.begin() + kBlock, out.sums.begin() + 2 * kBlock,
                            [](int64_t sum) { return sum == 0; }));
    for (size_t i = 0; i < out.mean.size(); ++i) EXPECT_EQ(std::isnan(out.mean[i]), i / kBlock == 1) << i;
  }
}

TYPED_TEST(Reproducible, zero_blocks_have_zero_means) {
  using T = TypeParam;
  std::vector<Replica<T>> all(2, {std::vector<T>(2 * kBlock, T{0}), 3.0});
  all[0].gradient[10] = T{1};
  all[1].gradient[kBlock + 3] = -T{0};
  const Outcome<T> out = reduce(all, in_order(2), 1);
  EXPECT_EQ(out.exponents[1], kZero);
  EXPECT_EQ(out.mean[10], T{0.5});
  for (size_t i = kBlock; i < 2 * kBlock; ++i) EXPECT_EQ(out.mean[i], T{0});
}

TYPED_TEST(Reproducible, zero_elements_are_fine) {
  raise_exponents(kDType<TypeParam>, nullptr, 0, 1, {});
  accumulate(kDType<TypeParam>, nullptr, 0, 1, {}, 3, nullptr);
  to_mean(kDType<TypeParam>, nullptr, 0, {}, 3, 2, nullptr);
  EXPECT_EQ(block_count(0), 0u);
  EXPECT_EQ(block_count(1), 1u);
  EXPECT_EQ(block_count(kBlock), 1u);
  EXPECT_EQ(block_count(kBlock + 1), 2u);
}

// The mean of equal gradients is that gradient, wherever in the range it lies. Sums of float64 with more
// digits than a double has are rounded before they are divided: one unit in the last place.
TYPED_TEST(Reproducible, means_of_subnormal_and_extreme_numbers_are_right) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  for (const T magnitude : {Limits::denorm_min(), 3 * Limits::denorm_min(), Limits::min(), Limits::min() / 8,
                            std::nextafter(Limits::min(), T{0}), T{1}, Limits::max() / 8, Limits::max()}) {
    for (const size_t replicas : {1, 3, 4}) {
      std::vector<Replica<T>> all(replicas, {{-magnitude}, 1.0});
      const Outcome<T> out = reduce(all, in_order(replicas), 1);
      const T unit = magnitude - std::nextafter(magnitude, T{0});
      EXPECT_LE(std::fabs(out.mean[0] + magnitude), sizeof(T) == 8 && replicas == 3 ? unit : T{0})
          << replicas << " replicas of " << magnitude;
    }
  }
}

// In float64 the sum would overflow although the mean does not; integers have the headroom.
TYPED_TEST(Reproducible, the_sum_of_the_largest_numbers_does_not_overflow) {
  using T = TypeParam;
  const T largest = std::numeric_limits<T>::max();
  std::vector<Replica<T>> all(8, {{largest, -largest, largest / 2}, 1.0});
  const Outcome<T> out = reduce(all, in_order(8), 3);
  EXPECT_EQ(out.mean, (std::vector<T>{largest, -largest, largest / 2}));
}

TYPED_TEST(Reproducible, very_large_and_very_small_weights_do_not_overflow) {
  using T = TypeParam;
  for (const double weight : {1e-300, 0x1p-1000, 1e-30, 1e30, 0x1p900}) {
    std::vector<Replica<T>> all(4, {{T{1}, T{-0.25}, T{0}}, weight});
    const Outcome<T> out = reduce(all, in_order(4), 1);
    for (const auto& [got, want] :
         {std::pair{out.mean[0], T{1}}, {out.mean[1], T{-0.25}}, {out.mean[2], T{0}}})
      EXPECT_NEAR(got, want, 4 * std::numeric_limits<T>::epsilon()) << weight;
  }
  // c*g beyond a double is not finite, and says so.
  std::vector<Replica<double>> beyond(1, {{1e200}, 1e200});
  const Outcome<double> out = reduce(beyond, in_order(1), 1);
  EXPECT_EQ(out.exponents[0], kNotFinite);
  EXPECT_TRUE(std::isnan(out.mean[0]));
}

// All products just below the block's power of two, with the most replicas: the worst case for the integers.
TYPED_TEST(Reproducible, headroom_holds_sixty_five_thousand_replicas) {
  using T = TypeParam;
  const T most = std::nextafter(T{1}, T{0});
  const std::vector<T> gradient{most, -most, most / 3};
  for (const uint32_t replicas : {1u, 2u, 3u, 1000u, 65535u, 65536u}) {
    std::vector<Exponent> exponents{kZero};
    raise_exponents(kDType<T>, gradient.data(), gradient.size(), 1, exponents);
    std::vector<int64_t> sums(gradient.size());
    for (uint32_t r = 0; r < replicas; ++r)
      accumulate(kDType<T>, gradient.data(), gradient.size(), 1, exponents, replicas, sums.data());
    EXPECT_GT(sums[0], 0) << replicas;
    EXPECT_LT(sums[1], 0) << replicas;
    EXPECT_LE(sums[0], int64_t{1} << 62);
    std::vector<T> mean(gradient.size());
    to_mean(kDType<T>, sums.data(), sums.size(), exponents, replicas, replicas, mean.data());
    for (size_t i = 0; i < mean.size(); ++i)
      EXPECT_NEAR(mean[i], gradient[i], std::max<double>(std::numeric_limits<T>::epsilon(), 0x1p-46))
          << replicas;
  }
}

TYPED_TEST(Reproducible, accumulate_rounds_to_nearest_even) {
  using T = TypeParam;
  // The block's exponent is 1 and one replica has no headroom: the shift is 61.
  std::vector<Exponent> exponents{1};
  const struct {
    double units;
    int64_t sum;
  } cases[] = {{0.5, 0}, {1.5, 2}, {2.5, 2}, {-0.5, 0}, {-1.5, -2}, {0.75, 1}, {-0.25, 0}, {7, 7}};
  for (const auto& test : cases) {
    const T gradient = static_cast<T>(std::ldexp(test.units, -61));
    int64_t sum = 0;
    accumulate(kDType<T>, &gradient, 1, 1, exponents, 1, &sum);
    EXPECT_EQ(sum, test.sum) << test.units;
  }
}

TEST(Reproducible, conversions_agree_with_the_machines_own) {
  std::mt19937_64 generator(17);
  const size_t count = kBlock;
  std::vector<double> gradient(count);
  for (double& g : gradient)  // from far below one unit to the block's largest
    g = std::ldexp(static_cast<double>(generator() >> 11) * 0x1p-52 - 1, -static_cast<int>(generator() % 70));
  std::vector<Exponent> exponents{0};
  std::vector<int64_t> sums(count);
  accumulate(DType::kFloat64, gradient.data(), count, 1, exponents, 1, sums.data());
  for (size_t i = 0; i < count; ++i)
    EXPECT_EQ(sums[i], std::llrint(std::ldexp(gradient[i], 62))) << gradient[i];

  for (int64_t& sum : sums) sum = static_cast<int64_t>(generator()) >> (1 + generator() % 62);
  sums[0] = int64_t{1} << 62, sums[1] = -sums[0], sums[2] = 0, sums[3] = -1, sums[4] = (int64_t{1} << 53) + 1;
  std::vector<double> mean(count);
  to_mean(DType::kFloat64, sums.data(), count, exponents, 1, 1, mean.data());
  for (size_t i = 0; i < count; ++i)
    EXPECT_EQ(mean[i], std::ldexp(static_cast<double>(sums[i]), -62)) << sums[i];
}

TEST(Reproducible, the_product_is_made_in_double) {
  const float gradient = 1 + 0x1p-23f;
  const double weight = 1 + 0x1p-29;
  std::vector<Exponent> exponents{kZero};
  raise_exponents(DType::kFloat32, &gradient, 1, weight, exponents);
  int64_t sum = 0;
  accumulate(DType::kFloat32, &gradient, 1, weight, exponents, 1, &sum);
  EXPECT_EQ(sum, static_cast<int64_t>(std::ldexp(static_cast<double>(gradient) * weight, 61)));
}

}  // namespace
}  // namespace dsgd::reproducible
