// simple = ps = allreduce (direct, ring) = what a host registers = one process. Every case runs a job of W
// workers with replicas each through the C ABI, and compares the values of every replica of every worker
// after each step with an oracle that is written here, apart from the code under test, in plain loops over
// all replicas.

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "plugins.h"
#include "tests/unit/sanitizer.h"

namespace dsgd_test::equivalence_test {
namespace {

constexpr int kSteps = 3;
constexpr double kRate = 0.125, kMomentum = 0.5;  // exact in binary

// Sizes on both sides of blocks, slices, key ranges and buckets; empty; one element; a scalar.
const std::vector<std::vector<int64_t>> kShapes = {{3, 5},  {},  {0},        {4096}, {4097},
                                                   {70000}, {1}, {16, 0, 2}, {127}};

size_t elements(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (int64_t dimension : shape) count *= static_cast<size_t>(dimension);
  return count;
}

// The data of replica `replica` (counted over the whole job) in a step. Every number comes from one seed.
struct Case {
  std::vector<int> replicas;      // of each worker
  const char* absences = "skip";  // the configuration's `absent`
  int workers() const { return static_cast<int>(replicas.size()); }
  int first(int rank) const { return std::accumulate(replicas.begin(), replicas.begin() + rank, 0); }
  int all() const { return first(workers()); }
  double weight(int step, int replica) const {  // with zeros; in step 2 nobody but the first replica has data
    if (step == 2) return replica == 0 ? 5 : 0;
    return (replica + step) % 3 == 2 ? 0 : 1 + (replica * 7 + step * 3) % 11;
  }
  bool absent(int step, int replica, size_t parameter) const {
    if (parameter == 3) return step == 1;  // absent everywhere in one step
    return parameter == 5 && (replica + step) % 4 == 1;
  }
  std::vector<float> gradient(int step, int replica, size_t parameter) const {
    std::mt19937 random(static_cast<unsigned>(1000003 * step + 10007 * replica + parameter));
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(elements(kShapes[parameter]));
    for (float& value : values) value = std::ldexp(uniform(random), static_cast<int>(random() % 12));
    // A weight of 0 or an absent gradient is never read.
    if (weight(step, replica) == 0 || absent(step, replica, parameter)) {
      for (float& value : values) value = std::numeric_limits<float>::quiet_NaN();
    }
    return values;
  }
  std::vector<float> initial(size_t parameter) const {
    std::vector<float> values(elements(kShapes[parameter]));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 37 + parameter) % 64) / 64;
    return values;
  }
};

using Values = std::vector<std::vector<float>>;  // by parameter

// SGD with momentum on the exact mean in double, and beside each value the bound of what float32 summation
// may lose.
struct Oracle {
  explicit Oracle(const Case& c) : c_(c) {
    for (size_t p = 0; p < kShapes.size(); ++p) {
      value.emplace_back();
      for (float v : c.initial(p)) value.back().push_back(v);
      momentum.emplace_back(value[p].size(), 0.0);
      bound.emplace_back(value[p].size(), 0.0);
      slack_.emplace_back(value[p].size(), 0.0);
      updates_.push_back(0);
    }
  }
  void step(int step) {
    const int replicas = c_.all();
    const double eps = std::numeric_limits<float>::epsilon();
    for (size_t p = 0; p < value.size(); ++p) {
      std::vector<double> sum(value[p].size(), 0.0), magnitude(value[p].size(), 0.0);
      double weights = 0, all_weights = 0;
      for (int r = 0; r < replicas; ++r) {
        const double weight = c_.weight(step, r);
        all_weights += weight;
        if (weight == 0 || c_.absent(step, r, p)) continue;
        weights += weight;
        const std::vector<float> gradient = c_.gradient(step, r, p);
        for (size_t i = 0; i < sum.size(); ++i) {
          sum[i] += weight * gradient[i];
          magnitude[i] += std::abs(weight * gradient[i]);
        }
      }
      if (weights == 0) continue;
      if (c_.absences == std::string("zero")) weights = all_weights;
      for (size_t i = 0; i < sum.size(); ++i) {
        const double mean = sum[i] / weights;
        // 2 W eps of the sum of absolute values (W: replicas here, each adds a product and a sum), carried
        // through momentum.
        slack_[p][i] =
            (updates_[p] ? kMomentum * slack_[p][i] : 0) + 2 * replicas * eps * magnitude[i] / weights;
        momentum[p][i] = updates_[p] ? kMomentum * momentum[p][i] + mean : mean;
        value[p][i] -= kRate * momentum[p][i];
        bound[p][i] += kRate * slack_[p][i] + 4 * eps * (std::abs(value[p][i]) + std::abs(momentum[p][i]));
      }
      ++updates_[p];
    }
  }
  std::vector<std::vector<double>> value, momentum, bound;

 private:
  const Case c_;
  std::vector<std::vector<double>> slack_;
  std::vector<int> updates_;
};

// Values of all replicas of all workers after each step: [step][replica of the job][parameter].
using History = std::vector<std::vector<Values>>;

void train(const Case& c, dsgd_session* session, int rank, const char* strategy, const char* options,
           History* history) {
  std::vector<dsgd_parameter*> parameters(kShapes.size());
  std::vector<dsgd_replica*> replicas(static_cast<size_t>(c.replicas[static_cast<size_t>(rank)]));
  std::vector<Values> values(replicas.size()), gradients(replicas.size());
  const SessionCloser closer{session};
  for (size_t p = 0; p < kShapes.size(); ++p) {
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, ("p" + std::to_string(p)).c_str(), DSGD_FLOAT32,
                                       kShapes[p].data(), kShapes[p].size(), 0, &parameters[p], error_));
  }
  for (size_t r = 0; r < replicas.size(); ++r) {
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replicas[r], error_));
    for (size_t p = 0; p < kShapes.size(); ++p) {
      // Only the first replica of rank 0 has the initial values: start gives them to all.
      values[r].push_back(rank == 0 && r == 0 ? c.initial(p) : std::vector<float>(elements(kShapes[p]), -1));
      gradients[r].push_back(std::vector<float>(elements(kShapes[p])));
      DSGD_OK_OR_FAIL(dsgd_bind(replicas[r], parameters[p], values[r][p].data(), values[r][p].size() * 4,
                                gradients[r][p].data(), gradients[r][p].size() * 4, error_));
    }
  }
  DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "sgd", "lr=0.125 momentum=0.5", error_));
  DSGD_OK_OR_FAIL(dsgd_strategy_set(session, strategy, options, nullptr, nullptr, error_));
  DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
  for (int step = 0; step < kSteps; ++step) {
    double total = 0;
    for (size_t r = 0; r < replicas.size(); ++r) {
      const int replica = c.first(rank) + static_cast<int>(r);
      total += c.weight(step, replica);
      DSGD_OK_OR_FAIL(dsgd_replica_weight(replicas[r], c.weight(step, replica), error_));
      for (size_t p = 0; p < kShapes.size(); ++p) {
        const std::vector<float> gradient = c.gradient(step, replica, p);
        if (!gradient.empty()) std::memcpy(gradients[r][p].data(), gradient.data(), gradient.size() * 4);
        if (c.absent(step, replica, p))
          DSGD_OK_OR_FAIL(dsgd_gradient_absent(replicas[r], parameters[p], error_));
      }
    }
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    DSGD_OK_OR_FAIL(dsgd_step(session, total, &result, error_));
    double expected = 0;
    for (int r = 0; r < c.all(); ++r) expected += c.weight(step, r);
    ASSERT_EQ(result.weight, expected);
    ASSERT_EQ(result.step, step);
    ASSERT_EQ(result.size, c.workers());
    ASSERT_EQ(result.applied, 1);
    for (size_t r = 0; r < replicas.size(); ++r) {
      (*history)[static_cast<size_t>(step)][static_cast<size_t>(c.first(rank)) + r] = values[r];
    }
  }
}

constexpr struct Strategy {
  const char *strategy, *options, *name;
  int servers = 0;
} kStrategies[] = {{"simple", nullptr, "simple"},
                   {"ps", nullptr, "ps"},
                   {"ps", nullptr, "ps with two servers", 2},
                   {"ps", "copies=3", "ps with copies"},
                   {"allreduce", "algorithm=direct", "direct"},
                   {"allreduce", "algorithm=halving_doubling", "halving_doubling"},
                   {"allreduce", "algorithm=ring", "ring"},
                   {"allreduce", "algorithm=my_doubling", "registered algorithm"},
                   {"dealt_means", nullptr, "registered strategy, means"},
                   {"dealt_values", nullptr, "registered strategy, values"}};

History run_case(const Case& c, const Strategy& s, bool reproducible) {
  History history(kSteps, std::vector<Values>(static_cast<size_t>(c.all())));
  // Small buckets: several of them, with parameters split over them.
  run_job(
      c.workers(),
      {{"bucket_size", "64K"},
       {"absent", c.absences},
       {"reproducible", reproducible ? "1" : "0"},
       {"servers", std::to_string(std::min(s.servers, c.workers()))}},
      [&](dsgd_session* session, int rank) { train(c, session, rank, s.strategy, s.options, &history); },
      register_all);
  return history;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// All replicas hold the same bits, within the oracle's bound, after each step.
void follows_the_oracle(const Case& c, const Strategy& s, const History& history) {
  Oracle oracle(c);
  for (int step = 0; step < kSteps; ++step) {
    oracle.step(step);
    for (size_t r = 0; r < history[step].size(); ++r) {
      for (size_t p = 0; p < kShapes.size(); ++p) {
        const std::vector<float>& values = history[step][r][p];
        ASSERT_EQ(values.size(), oracle.value[p].size());
        ASSERT_TRUE(same_bits(values, history[step][0][p]))
            << s.name << ": replica " << r << " differs from replica 0 in p" << p << " after step " << step;
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_NEAR(values[i], oracle.value[p][i], oracle.bound[p][i])
              << s.name << " step " << step << " replica " << r << " p" << p << '[' << i << ']';
        }
      }
    }
  }
}

bool same_bits(const History& a, const History& b) {  // of the first replica
  for (int step = 0; step < kSteps; ++step) {
    for (size_t p = 0; p < kShapes.size(); ++p) {
      if (!same_bits(a[step][0][p], b[step][0][p])) return false;
    }
  }
  return true;
}

class Equivalence : public testing::TestWithParam<std::vector<int>> {};

TEST_P(Equivalence, EveryStrategyFollowsTheOracleOnEveryReplica) {
  const Case c{GetParam()};
  for (const Strategy& s : kStrategies) {
    const History history = run_case(c, s, false);
    if (HasFatalFailure()) return;
    follows_the_oracle(c, s, history);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Equivalence, ReproducibleGivesTheSameBitsForEveryStrategyAndFollowsTheOracle) {
  const Case c{GetParam()};
  History first;
  for (const Strategy& s : kStrategies) {
    const History history = run_case(c, s, true);
    if (HasFatalFailure()) return;
    follows_the_oracle(c, s, history);
    if (HasFatalFailure()) return;
    if (first.empty()) first = history;
    ASSERT_TRUE(same_bits(history, first)) << s.name;
  }
}

TEST(Absent, GradientsCountAsZeroWithTheirWeightWhereSomeReplicaHasOne) {
  Thinned cases(1, 3);
  for (const std::vector<int>& split : {std::vector{4}, {1, 3}, {2, 1, 3}}) {
    if (!runs_all_cases() && split.size() != 2) continue;
    const Case c{split, "zero"};
    const Case skipping{split};
    for (const bool reproducible : {false, true}) {
      for (const Strategy& s : kStrategies) {
        if (cases.skip_next()) continue;
        const History history = run_case(c, s, reproducible);
        if (testing::Test::HasFatalFailure()) return;
        follows_the_oracle(c, s, history);
        if (testing::Test::HasFatalFailure()) return;
        ASSERT_FALSE(same_bits(history, run_case(skipping, s, reproducible))) << s.name;
      }
    }
  }
}

TEST(Absent, IsComparedAtStart) {
  std::atomic<int> configured{0};
  run_job(
      2, {},
      [](dsgd_session* session, int) {
        dsgd_replica* replica = nullptr;
        dsgd_parameter* parameter = nullptr;
        void *value, *gradient;
        const int64_t size = 3;
        DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
        DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "p", DSGD_FLOAT32, &size, 1, 0, &parameter, error_));
        DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &value, &gradient, error_));
        Error error;
        EXPECT_EQ(dsgd_start(session, nullptr, nullptr, error), DSGD_ERR_MISMATCH);
        EXPECT_NE(error.message().find("absent = zero"), std::string::npos) << error.message();
        EXPECT_NE(error.message().find("absent = skip"), std::string::npos) << error.message();
      },
      [&configured](dsgd_config* config) {
        dsgd_config_set(config, "absent", configured++ == 0 ? "zero" : "skip", nullptr);
      });
}

// Even ones of 1 to 5 workers with 1 to 3 replicas, and some that are not.
std::vector<std::vector<int>> splits() {
  if (kSanitized) return {{3, 1, 2}};
  if (!runs_all_cases()) return {{2}, {1, 1}, {3, 1, 2}};
  std::vector<std::vector<int>> all = {{1, 3}, {3, 1, 2}, {1, 1, 4, 1}};
  for (int workers = 1; workers <= 5; ++workers) {
    for (int replicas = 1; replicas <= 3; ++replicas) all.emplace_back(workers, replicas);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Splits, Equivalence, testing::ValuesIn(splits()), [](const auto& info) {
  std::string name = "R";
  for (int replicas : info.param) name += std::to_string(replicas);
  return name;
});

TEST(Equivalence, ReproducibleGivesTheSameBitsForEverySplitOfTheReplicas) {
  History first;
  Thinned splits(1, 3);
  for (const std::vector<int>& split :
       {std::vector{6}, {3, 3}, {2, 2, 2}, {1, 1, 1, 1, 1, 1}, {1, 5}, {5, 1}, {3, 1, 2}}) {
    if (splits.skip_next()) continue;
    for (const Strategy& s : {Strategy{"ps", nullptr, "ps"}, Strategy{"allreduce", nullptr, "allreduce"}}) {
      const History history = run_case({split}, s, true);
      if (testing::Test::HasFatalFailure()) return;
      if (first.empty()) first = history;
      ASSERT_TRUE(same_bits(history, first))
          << s.name << ", " << split.size() << " workers, the first with " << split[0];
    }
  }
}

}  // namespace
}  // namespace dsgd_test::equivalence_test
