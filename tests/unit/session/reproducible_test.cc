// reproducible=1: the bits of a step do not depend on the strategy, the algorithm or the split of the
// replicas over workers, whatever the weights; and an element's mean is as exact as its dtype whatever else
// is in its parameter.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "core/base/half.h"
#include "core/base/mix.h"
#include "plugins.h"
#include "tests/unit/sanitizer.h"

namespace dsgd_test::reproducible_test {
namespace {

constexpr struct Strategy {
  const char *strategy, *options;
} kStrategies[] = {{"allreduce", "algorithm=direct"},
                   {"allreduce", "algorithm=ring"},
                   {"ps", nullptr},
                   {"allreduce", "algorithm=my_doubling"},
                   {"simple", nullptr},
                   {"dealt_means", nullptr},
                   {"dealt_values", nullptr}};

struct Tensor {
  int32_t dtype;
  int64_t count;
};
// Odd sizes; all dtypes of parameters.
const std::vector<Tensor> kTensors = {
    {DSGD_FLOAT64, 301}, {DSGD_FLOAT32, 9001}, {DSGD_FLOAT16, 131}, {DSGD_FLOAT32, 1}, {DSGD_BFLOAT16, 257}};

size_t element_size(int32_t dtype) { return dtype == DSGD_FLOAT64 ? 8 : dtype == DSGD_FLOAT32 ? 4 : 2; }

void write(int32_t dtype, double value, std::byte* to) {
  const auto put = [to](auto element) { std::memcpy(to, &element, sizeof element); };
  if (dtype == DSGD_FLOAT64) return put(value);
  const float single = static_cast<float>(value);
  if (dtype == DSGD_FLOAT32) return put(single);
  if (dtype == DSGD_FLOAT16) return put(dsgd::narrow<dsgd::Float16>(single));
  put(dsgd::narrow<dsgd::Bfloat16>(single));
}

double read(int32_t dtype, const std::byte* from) {
  const auto get = [from](auto element) {
    std::memcpy(&element, from, sizeof element);
    return element;
  };
  if (dtype == DSGD_FLOAT64) return get(double{});
  if (dtype == DSGD_FLOAT32) return get(float{});
  if (dtype == DSGD_FLOAT16) return dsgd::widen(get(dsgd::Float16{}));
  return dsgd::widen(get(dsgd::Bfloat16{}));
}

using Bytes = std::vector<std::byte>;

// The replicas of a job. Gradients, weights and absences belong to a replica wherever it is placed.
struct Replicas {
  std::vector<double> weights;
  std::function<double(int replica, size_t tensor, size_t element)> gradient;
  std::function<bool(int replica, size_t tensor)> absent = [](int, size_t) { return false; };
  std::vector<Tensor> tensors = kTensors;

  Bytes gradients(int replica, size_t tensor) const {
    const Tensor& t = tensors[tensor];
    Bytes bytes(static_cast<size_t>(t.count) * element_size(t.dtype));
    for (size_t i = 0; i < static_cast<size_t>(t.count); ++i) {
      write(t.dtype, gradient(replica, tensor, i), bytes.data() + i * element_size(t.dtype));
    }
    return bytes;
  }
};

struct Outcome {
  std::vector<Bytes> tensors;  // mean gradients with the optimizer `none`, else values
  double weight = 0, norm = 0;
  bool operator==(const Outcome& other) const {
    const auto bits = [](double number) { return std::bit_cast<uint64_t>(number); };
    return tensors == other.tensors && bits(weight) == bits(other.weight) && bits(norm) == bits(other.norm);
  }
};

// By worker: the replicas that it has, in its order.
using Split = std::vector<std::vector<int>>;

std::string text(const Split& split) {
  std::string text;
  for (const auto& worker : split) {
    text += '[';
    for (int replica : worker) text += std::to_string(replica) + ' ';
    text += ']';
  }
  return text;
}

void run_worker(const Replicas& all, const std::vector<int>& mine, dsgd_session* session,
                const Strategy& strategy, const char* optimizer, Outcome* outcome) {
  std::vector<dsgd_parameter*> parameters(all.tensors.size());
  std::vector<dsgd_replica*> replicas(mine.size());
  std::vector<std::vector<Bytes>> values(mine.size()), gradients(mine.size());
  const SessionCloser closer{session};
  for (size_t t = 0; t < parameters.size(); ++t) {
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, ("p" + std::to_string(t)).c_str(), all.tensors[t].dtype,
                                       &all.tensors[t].count, 1, 0, &parameters[t], error_));
  }
  const bool none = std::string(optimizer) == "none";
  for (size_t r = 0; r < replicas.size(); ++r) {
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replicas[r], error_));
    DSGD_OK_OR_FAIL(dsgd_replica_weight(replicas[r], all.weights[static_cast<size_t>(mine[r])], error_));
    for (size_t t = 0; t < parameters.size(); ++t) {
      gradients[r].push_back(all.gradients(mine[r], t));
      values[r].push_back(Bytes(gradients[r][t].size()));
      DSGD_OK_OR_FAIL(dsgd_bind(replicas[r], parameters[t], values[r][t].data(), values[r][t].size(),
                                gradients[r][t].data(), gradients[r][t].size(), error_));
    }
  }
  DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, optimizer, none ? nullptr : "lr=0.01", error_));
  DSGD_OK_OR_FAIL(dsgd_strategy_set(session, strategy.strategy, strategy.options, nullptr, nullptr, error_));
  DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
  double total = 0;
  for (size_t r = 0; r < replicas.size(); ++r) {
    total += all.weights[static_cast<size_t>(mine[r])];
    for (size_t t = 0; t < parameters.size(); ++t) {
      if (all.absent(mine[r], t)) DSGD_OK_OR_FAIL(dsgd_gradient_absent(replicas[r], parameters[t], error_));
    }
  }
  dsgd_step_result result;
  dsgd_step_result_init(&result, sizeof result);
  DSGD_OK_OR_FAIL(dsgd_step(session, total, &result, error_));
  outcome->weight = result.weight;
  outcome->norm = result.gradient_norm;
  outcome->tensors = none ? gradients[0] : values[0];
  for (size_t r = 1; r < replicas.size(); ++r) ASSERT_EQ(none ? gradients[r] : values[r], outcome->tensors);
}

Outcome run(const Replicas& all, const Split& split, const Strategy& strategy,
            const char* optimizer = "none") {
  std::vector<Outcome> outcomes(split.size());
  run_job(
      static_cast<int>(split.size()), {{"bucket_size", "32K"}, {"reproducible", "1"}, {"gradient_norm", "1"}},
      [&](dsgd_session* session, int rank) {
        const size_t worker = static_cast<size_t>(rank);
        run_worker(all, split[worker], session, strategy, optimizer, &outcomes[worker]);
      },
      register_all);
  for (const Outcome& outcome : outcomes)
    EXPECT_TRUE(outcome == outcomes[0]) << text(split) << " workers differ";
  return outcomes[0];
}

// Numbers as of a normal distribution.
double normal(int replica, size_t tensor, size_t element) {
  uint64_t seed = dsgd::finalize64(static_cast<uint64_t>(replica) * 1000003 + tensor * 10007 + element);
  double sum = -6;
  for (int i = 0; i < 12; ++i)
    sum += static_cast<double>((seed = dsgd::finalize64(seed + 0x9e3779b97f4a7c15)) >> 11) * 0x1p-53;
  return sum;
}

// These, and numbers of any magnitude that the dtype has.
double mixed(int replica, size_t tensor, size_t element) {
  const uint64_t seed = dsgd::finalize64(static_cast<uint64_t>(replica) * 10007 + tensor * 1000003 + element);
  const double number = normal(replica, tensor, element);
  if (seed % 4 != 0) return number;
  const int32_t dtype = kTensors[tensor].dtype;
  const int span = dtype == DSGD_FLOAT64 ? 1000 : dtype == DSGD_FLOAT16 ? 15 : 120;
  return std::ldexp(number / 8,
                    static_cast<int>(dsgd::finalize64(seed) % static_cast<uint64_t>(2 * span)) - span);
}

// All ways to share `replicas` among at most `workers` workers; the order of workers and replicas by the
// seed.
std::vector<Split> all_splits(int replicas, size_t workers, uint64_t seed) {
  std::vector<Split> splits = {{{}}};
  splits[0].clear();
  for (int replica = 0; replica < replicas; ++replica) {
    std::vector<Split> next;
    for (const Split& split : splits) {
      for (size_t worker = 0; worker <= split.size() && worker < workers; ++worker) {
        next.push_back(split);
        if (worker == split.size()) next.back().emplace_back();
        next.back()[worker].push_back(replica);
      }
    }
    splits = std::move(next);
  }
  std::mt19937_64 random(seed);
  for (Split& split : splits) {
    std::shuffle(split.begin(), split.end(), random);
    for (auto& worker : split) std::shuffle(worker.begin(), worker.end(), random);
  }
  return splits;
}

TEST(Reproducible, WeightsThatAreNoIntegersDoNotDependOnTheSplit) {
  Replicas all;
  all.weights = {.1, .2, .3};
  all.gradient = mixed;
  for (const char* optimizer : {"none", "adam"}) {
    const Outcome reference = run(all, {{0, 1, 2}}, kStrategies[0], optimizer);
    for (const Strategy& strategy : kStrategies) {
      const Outcome other = run(all, {{1, 2}, {0}}, strategy, optimizer);
      if (HasFailure()) return;
      EXPECT_EQ(other.weight, 0.6);  // the exact sum of the three, rounded
      EXPECT_TRUE(other == reference)
          << strategy.strategy << ' ' << (strategy.options ? strategy.options : "") << ' ' << optimizer;
    }
  }
}

TEST(Reproducible, TheNormDependsNeitherOnTheStrategyNorOnTheSplit) {
  Replicas all;
  all.weights = {.1, .2, .3};
  all.gradient = normal;
  all.tensors = {{DSGD_FLOAT32, 150001}, {DSGD_FLOAT64, 301}, {DSGD_FLOAT32, 77}};
  const Outcome reference = run(all, {{0, 1, 2}}, kStrategies[0], "adam");
  double squares = 0;
  for (const Tensor& tensor : all.tensors)
    squares += static_cast<double>(tensor.count) * (.01 + .04 + .09) / .36;
  EXPECT_NEAR(reference.norm, std::sqrt(squares), 0.02 * std::sqrt(squares));
  Thinned strategies(1, 2);
  for (const Strategy& strategy : kStrategies) {
    if (strategies.skip_next()) continue;
    const Outcome other = run(all, {{1, 2}, {0}}, strategy, "adam");
    if (HasFailure()) return;
    EXPECT_TRUE(other == reference) << strategy.strategy << ": " << other.norm - reference.norm;
  }
}

class RandomWeights : public testing::TestWithParam<int> {};

// Every split runs with one strategy, and every strategy with several splits.
TEST_P(RandomWeights, GiveTheSameBitsForEverySplitOfFiveReplicas) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  Replicas all;
  const int span = GetParam() * 13;  // powers of two between weights
  for (int r = 0; r < 5; ++r) {
    all.weights.push_back(
        std::ldexp(std::uniform_real_distribution<double>(0.5, 1)(random),
                   static_cast<int>(random() % static_cast<uint64_t>(2 * span + 1)) - span));
  }
  all.weights[static_cast<size_t>(GetParam())] = 0;
  all.gradient = mixed;
  all.absent = [](int replica, size_t tensor) { return (static_cast<size_t>(replica) + tensor) % 4 == 1; };
  const char* optimizer = GetParam() % 2 ? "adam" : "none";
  const Outcome reference = run(all, {{0, 1, 2, 3, 4}}, kStrategies[0], optimizer);
  size_t turn = 0;
  Thinned splits(1, 5);
  for (const Split& split : all_splits(5, 4, static_cast<uint64_t>(GetParam()))) {
    if (splits.skip_next()) continue;
    const Strategy& strategy = kStrategies[turn++ % std::size(kStrategies)];
    const Outcome other = run(all, split, strategy, optimizer);
    if (HasFailure()) return;
    EXPECT_TRUE(other == reference) << strategy.strategy << ' ' << text(split);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomWeights, testing::Range(0, 4));

// More replicas than fit 32-bit sums, and than an integer has bits.
TEST(Reproducible, AnyNumberOfReplicasMayBeSplitInAnyWay) {
  for (const int replicas : {9, 70}) {
    std::mt19937_64 random(11);
    Replicas all;
    for (int r = 0; r < replicas; ++r)
      all.weights.push_back(std::uniform_real_distribution<double>(0, 1)(random));
    all.gradient = mixed;
    all.tensors = {{DSGD_FLOAT64, 33}, {DSGD_FLOAT32, 501}};
    all.absent = [](int replica, size_t tensor) { return tensor == 1 && replica % 3 == 0; };
    std::vector<int> order(static_cast<size_t>(replicas));
    std::iota(order.begin(), order.end(), 0);
    const Outcome reference = run(all, {order}, kStrategies[0]);
    for (const Strategy& strategy : kStrategies) {
      std::shuffle(order.begin(), order.end(), random);
      Split split(3);
      for (int r = 0; r < replicas; ++r)
        split[r < replicas / 2 ? 0 : r < replicas - 2 ? 1 : 2].push_back(order[static_cast<size_t>(r)]);
      const Outcome other = run(all, split, strategy);
      if (HasFailure()) return;
      EXPECT_TRUE(other == reference) << replicas << ' ' << strategy.strategy;
    }
  }
}

// Of 113 bits, so that its own errors do not count.
#ifdef __SIZEOF_FLOAT128__
using Precise = __float128;
#else
using Precise = long double;
#endif

// The weighted mean.
struct Exact {
  Precise sum = 0, weight = 0, largest = 0;
  void add(double c, double g) {
    const Precise product = static_cast<Precise>(c) * g;
    sum += product;
    weight += c;
    largest = std::max(largest, product < 0 ? -product : product);
  }
  Precise mean() const { return sum / weight; }
};

// Half a unit in the last place of the result, and one rounding of the largest summand; see reproducible.h.
// Means that are stored in a half type are rounded once more.
Precise tolerance(int32_t dtype, const Exact& exact) {
  const auto magnitude = [](Precise value) { return value < 0 ? -value : value; };
  const double single = 0x1p-24, own = dtype == DSGD_FLOAT64 ? 0x1p-53 : single;
  Precise most = (magnitude(exact.mean()) + exact.largest / exact.weight) * own * (1 + 0x1p-20);
  // Products and the quotient are rounded to float64.
  if (dtype == DSGD_FLOAT64) most += 8 * own * exact.largest / exact.weight;
  if (dtype == DSGD_FLOAT32) most += 0x1p-150;
  if (dtype == DSGD_FLOAT16) most += magnitude(exact.mean()) * 0x1p-11 + 0x1p-25;
  if (dtype == DSGD_BFLOAT16) most += magnitude(exact.mean()) * 0x1p-8 + 0x1p-134;
  return most;
}

void follows_the_exact_mean(const Replicas& all, const Outcome& outcome) {
  for (size_t t = 0; t < all.tensors.size(); ++t) {
    const int32_t dtype = all.tensors[t].dtype;
    std::vector<Exact> exact(static_cast<size_t>(all.tensors[t].count));
    for (int r = 0; r < static_cast<int>(all.weights.size()); ++r) {
      const double weight = all.weights[static_cast<size_t>(r)];
      if (weight == 0 || all.absent(r, t)) continue;
      const Bytes gradient = all.gradients(r, t);
      for (size_t i = 0; i < exact.size(); ++i)
        exact[i].add(weight, read(dtype, gradient.data() + i * element_size(dtype)));
    }
    for (size_t i = 0; i < exact.size(); ++i) {
      const double mean = read(dtype, outcome.tensors[t].data() + i * element_size(dtype));
      const Precise error = static_cast<Precise>(mean) - exact[i].mean();
      ASSERT_LE(error < 0 ? -error : error, tolerance(dtype, exact[i]))
          << "p" << t << '[' << i << "] is " << mean << " instead of "
          << static_cast<double>(exact[i].mean());
    }
  }
}

TEST(Reproducible, OneHugeElementLeavesItsNeighboursAsTheyAre) {
  Replicas all;
  all.weights = {1, 1};
  all.tensors = {{DSGD_FLOAT32, 4096}};
  all.gradient = [](int replica, size_t, size_t element) {
    return element == 77 && replica == 0 ? 1e30 : mixed(replica, 3, element);
  };
  for (const Strategy& strategy : kStrategies) {
    follows_the_exact_mean(all, run(all, {{0}, {1}}, strategy));
    if (HasFailure()) return;
  }
}

TEST(Reproducible, MeansAreAsExactAsTheirDtypeForAnyMixOfMagnitudes) {
  for (const int replicas : {2, 8, 9}) {
    Replicas all;
    std::mt19937_64 random(static_cast<uint64_t>(replicas));
    for (int r = 0; r < replicas; ++r)
      all.weights.push_back(std::uniform_real_distribution<double>(0.1, 100)(random));
    all.gradient = mixed;
    Split split(2);
    for (int r = 0; r < replicas; ++r) split[static_cast<size_t>(r) % 2].push_back(r);
    for (const Strategy& strategy : {kStrategies[0], kStrategies[2]}) {
      follows_the_exact_mean(all, run(all, split, strategy));
      if (HasFailure()) return;
    }
  }
}

TEST(Reproducible, GradientsThatAreNotFiniteMakeTheirOwnElementsNanAndNoOther) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(),
                   kNan = std::numeric_limits<double>::quiet_NaN();
  Replicas all;
  all.weights = {1, 3};
  all.gradient = [&](int replica, size_t, size_t element) {
    if (replica == 0 && element % 100 == 0) return std::array{kInfinity, -kInfinity, kNan}[element / 100 % 3];
    return element % 100 == 50 ? -0.0 : 4.0;
  };
  for (const Strategy& strategy : kStrategies) {
    const Outcome outcome = run(all, {{1}, {0}}, strategy);
    if (HasFailure()) return;
    for (size_t t = 0; t < kTensors.size(); ++t) {
      for (size_t i = 0; i < static_cast<size_t>(kTensors[t].count); ++i) {
        const double mean =
            read(kTensors[t].dtype, outcome.tensors[t].data() + i * element_size(kTensors[t].dtype));
        if (i % 100 == 0) {
          ASSERT_TRUE(std::isnan(mean)) << strategy.strategy << " p" << t << '[' << i << ']';
        } else {
          ASSERT_EQ(mean, i % 100 == 50 ? 0 : 4) << strategy.strategy << " p" << t << '[' << i << ']';
          ASSERT_FALSE(std::signbit(mean));
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsgd_test::reproducible_test
