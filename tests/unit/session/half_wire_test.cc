// The key `wire`: gradients that travel as halves. The oracle computes every bit of a job whose slices have
// known owners, in plain loops written apart from the code under test; other jobs are compared with the sums
// that halves may not lose.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "job.h"
#include "tests/unit/metrics.h"
#include "tests/unit/sanitizer.h"

namespace dsgd_test::half_wire_test {
namespace {

// ---- half types, by arithmetic in double

struct HalfType {
  int bits, least, largest;  // of the significand; exponents of the least and the largest normal number
  int32_t dtype;
  const char* name;
};
constexpr HalfType kFp16{11, -14, 15, DSGD_FLOAT16, "fp16"}, kBf16{8, -126, 127, DSGD_BFLOAT16, "bf16"};

float rounded(const HalfType& type, float value) {
  if (!std::isfinite(value) || value == 0) return value;
  const double quantum = std::ldexp(1.0, std::max(std::ilogb(value), type.least) - type.bits + 1);
  const double nearest = std::nearbyint(value / quantum) * quantum;  // ties to even
  if (std::ilogb(nearest) > type.largest && nearest != 0) return std::copysign(INFINITY, value);
  return static_cast<float>(nearest);
}

uint16_t bits_of(const HalfType& type, float value) {  // of a value that the type has
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isinf(value))
    return static_cast<uint16_t>(sign | (type.dtype == DSGD_FLOAT16 ? 0x7c00u : 0x7f80u));
  const int exponent = magnitude == 0 ? type.least : std::max(std::ilogb(magnitude), type.least);
  const auto fraction = static_cast<uint32_t>(std::ldexp(magnitude, type.bits - 1 - exponent));
  // A normal number's leading bit raises the exponent field by one.
  return static_cast<uint16_t>(
      sign | ((static_cast<uint32_t>(exponent - type.least) << (type.bits - 1)) + fraction));
}

float value_of(const HalfType& type, uint16_t bits) {
  const int field = (bits & 0x7fff) >> (type.bits - 1), exponent = std::max(field, 1) + type.least - 1;
  const int fraction = bits & ((1 << (type.bits - 1)) - 1), leading = field > 0 ? 1 << (type.bits - 1) : 0;
  return static_cast<float>(
      std::ldexp(bits & 0x8000 ? -(fraction + leading) : fraction + leading, exponent - type.bits + 1));
}

// ---- a worker with one parameter

struct Tensor {
  std::vector<unsigned char> memory;
  const HalfType* half;  // null: float32
  size_t count;

  Tensor(size_t elements, const HalfType* type)
      : memory(elements * (type ? 2 : 4)), half(type), count(elements) {}
  void set(size_t i, float value) {
    if (!half) return void(std::memcpy(memory.data() + 4 * i, &value, 4));
    const uint16_t bits = bits_of(*half, rounded(*half, value));
    std::memcpy(memory.data() + 2 * i, &bits, 2);
  }
  float get(size_t i) const {
    float value;
    uint16_t bits;
    if (!half) return std::memcpy(&value, memory.data() + 4 * i, 4), value;
    return std::memcpy(&bits, memory.data() + 2 * i, 2), value_of(*half, bits);
  }
};

struct Trainer {
  dsgd_session* session;
  size_t count;
  const HalfType* half = nullptr;
  int replica_count = 1;
  float (*initial)(size_t i) = nullptr;  // null: 0
  std::vector<Tensor> values = {}, gradients = {};
  std::vector<dsgd_replica*> replicas = {};
  dsgd_parameter* parameter = nullptr;
  ~Trainer() { dsgd_close(session, -1, nullptr); }  // its buffers are bound

  void build(const char* strategy, const char* options, const char* optimizer = "sgd",
             const char* settings = "lr=1") {
    const auto size = static_cast<int64_t>(count);
    DSGD_OK_OR_FAIL(
        dsgd_parameter_add(session, "p", half ? half->dtype : DSGD_FLOAT32, &size, 1, 0, &parameter, error_));
    values.assign(static_cast<size_t>(replica_count), Tensor(count, half));
    gradients = values;
    replicas.resize(values.size());
    for (size_t i = 0; i < count && initial; ++i) values[0].set(i, initial(i));
    for (size_t r = 0; r < values.size(); ++r) {
      DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replicas[r], error_));
      DSGD_OK_OR_FAIL(dsgd_bind(replicas[r], parameter, values[r].memory.data(), values[r].memory.size(),
                                gradients[r].memory.data(), gradients[r].memory.size(), error_));
    }
    DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, optimizer, settings, error_));
    DSGD_OK_OR_FAIL(dsgd_strategy_set(session, strategy, options, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
  }
  void fill(const std::function<float(size_t replica, size_t i)>& gradient) {
    for (size_t r = 0; r < gradients.size(); ++r) {
      for (size_t i = 0; i < count; ++i) gradients[r].set(i, gradient(r, i));
    }
  }
  std::vector<float> read(size_t replica = 0) const {
    std::vector<float> all;
    for (size_t i = 0; i < count; ++i) all.push_back(values[replica].get(i));
    return all;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// ---- the oracle of all bits

struct Case {
  int workers;
  const HalfType* wire;
  const HalfType* parameter;  // null: float32
  const char *strategy, *options;
  double loss_scale;
  size_t count = 5001;
  int replicas = 2;

  std::string describe() const {
    return std::to_string(workers) + " workers, " + strategy + ", wire " + wire->name + ", parameter " +
           (parameter ? parameter->name : "fp32");
  }
  // Powers of two and others; a worker, or all, without data.
  double weight(int step, int worker) const {
    constexpr double kWeights[][4] = {
        {1, 1, 1, 1}, {3, 0, 5, 7}, {0, 0, 0, 0}, {0.5, 96, 1, 0}, {3, 5, 7, 11}};
    return kWeights[step % 5][(worker + step / 5) % workers];
  }
  double total(int step) const {
    double sum = 0;
    for (int w = 0; w < workers; ++w) sum += weight(step, w);
    return sum;
  }
  float gradient(int step, int worker, size_t replica, size_t i) const {
    const auto source = static_cast<uint64_t>((step * 8 + worker) * 4) + replica;
    const uint64_t mixed = (source * 5003 + i + 1) * 0x9e3779b97f4a7c15u;
    const float unit = static_cast<float>(mixed >> 40 & 0xfffff) / 0x80000 - 1;
    const float scaled = static_cast<float>(loss_scale) * std::ldexp(unit, static_cast<int>(i % 9) - 8);
    return parameter ? rounded(*parameter, scaled) : scaled;
  }
  static float initial(size_t i) { return static_cast<float>(i % 64) / 64; }
  // Buckets of 4096 elements of the parameter, each behind a trailer in 16 elements; slices are equal numbers
  // of blocks of 16 elements.
  int owner(size_t i) const {
    if (strategy != std::string("allreduce")) return 0;  // `ps` with one server
    constexpr size_t kBucket = 4096, kBlock = 16;
    const size_t in_bucket = std::min(kBucket, count - i / kBucket * kBucket);
    const size_t blocks = (in_bucket + kBlock - 1) / kBlock + 1, block = 1 + i % kBucket / kBlock;
    int rank = 0;
    while (block >= blocks * static_cast<size_t>(rank + 1) / static_cast<size_t>(workers)) ++rank;
    return rank;
  }
};

constexpr int kSteps = 7;

std::vector<std::vector<float>> expected(const Case& c) {  // values by step
  const bool updates = c.strategy == std::string("ps");
  std::vector<std::vector<float>> all(kSteps, std::vector<float>(c.count));
  for (size_t i = 0; i < c.count; ++i) {
    const int owner = c.owner(i);
    std::vector<float> residual(static_cast<size_t>(c.workers), 0.0f);
    float master = c.initial(i);
    double last = 0;
    for (int step = 0; step < kSteps; ++step) {
      const double total = c.total(step);
      std::vector<float> next = residual;
      double scale = 1;
      while (total * scale > 1) scale /= 2;
      while (total > 0 && total * scale <= 0.5) scale *= 2;
      const double unit = total * scale * c.loss_scale;
      const float factor = last > 0 ? static_cast<float>(unit / last) : 1;
      const auto round = [&](int worker, float sum) {
        const float value = sum + factor * residual[static_cast<size_t>(worker)];
        const float half = rounded(*c.wire, value);
        next[static_cast<size_t>(worker)] = value - half;
        return half;
      };
      float sum = 0;
      for (int w = 0; w < c.workers; ++w) {
        const auto weight = static_cast<float>(c.weight(step, w) / c.replicas * scale);
        float contribution = 0;
        for (int r = 0; r < c.replicas && weight > 0; ++r) {
          const float product = weight * c.gradient(step, w, static_cast<size_t>(r), i);
          contribution = r == 0 ? product : contribution + product;
        }
        if (w != owner) contribution = round(w, contribution);
        sum = w == 0 ? contribution : sum + contribution;
      }
      if (!updates) sum = round(owner, sum);
      if (total > 0) {
        master -= sum / static_cast<float>(unit);
        residual = next;
        last = unit;
      }
      all[static_cast<size_t>(step)][i] = c.parameter ? rounded(*c.parameter, master) : master;
    }
  }
  return all;
}

void follows_the_oracle(const Case& c) {
  SCOPED_TRACE(c.describe());
  const auto values = expected(c);
  const Settings settings = {{"wire", c.wire->name},
                             {"bucket_size", "4K"},
                             {"servers", "1"},
                             {"loss_scale", c.loss_scale == 1 ? "off" : std::to_string(int(c.loss_scale))}};
  run_job(c.workers, settings, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, c.count, c.parameter, c.replicas, c.initial};
    trainer.build(c.strategy, c.options);
    for (int step = 0; step < kSteps; ++step) {
      trainer.fill([&](size_t replica, size_t i) { return c.gradient(step, rank, replica, i); });
      DSGD_OK_OR_FAIL(dsgd_step(session, c.weight(step, rank), nullptr, error_));
      for (size_t r = 0; r < trainer.values.size(); ++r) {
        const std::vector<float> seen = trainer.read(r), &want = values[static_cast<size_t>(step)];
        for (size_t i = 0; i < c.count; ++i) {
          ASSERT_EQ(std::memcmp(&seen[i], &want[i], sizeof(float)), 0)
              << "rank " << rank << " replica " << r << " step " << step << " element " << i << ": "
              << seen[i] << " instead of " << want[i];
        }
      }
    }
  });
}

TEST(HalfWire, EveryBitIsThatOfRoundingWithErrorFeedbackOnEveryWorker) {
  constexpr const char* kStrategies[][2] = {
      {"simple", nullptr}, {"ps", nullptr}, {"allreduce", "algorithm=direct"}, {"allreduce", nullptr}};
  Thinned cases(5);
  for (const HalfType* wire : {&kFp16, &kBf16}) {
    for (const auto& [strategy, options] : kStrategies) {
      for (const HalfType* parameter : {static_cast<const HalfType*>(nullptr), &kFp16, &kBf16}) {
        for (int workers = 2; workers <= 4; ++workers) {
          if (cases.skip_next()) continue;
          follows_the_oracle({workers, wire, parameter, strategy, options, wire == &kFp16 ? 8.0 : 1.0});
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// ---- nothing is lost over steps

// Gradients near 1 whose small parts no half can hold. The sum of the updates is that of the exact means but
// for what all workers owe, which does not grow.
TEST(HalfWire, RoundingErrorsDoNotAddUpOverStepsInAnyStrategy) {
  constexpr int kMany = 40;
  constexpr size_t kCount = 20000;
  const auto gradient = [](int rank, size_t i) {
    return 1 + static_cast<float>(i % 977) / 977 / 64 + static_cast<float>(rank) / 1024;
  };
  constexpr const char* kChanges[] = {"simple", "allreduce", "ps", "allreduce", "ps", "simple"};
  Thinned cases(5);
  for (const char* strategy : {"simple", "ps", "allreduce", "changing"}) {
    for (int workers = 1; workers <= 4; ++workers) {
      for (const HalfType* wire : {&kFp16, &kBf16}) {
        if (cases.skip_next()) continue;
        SCOPED_TRACE(std::string(strategy) + ", " + std::to_string(workers) + " workers, " + wire->name);
        const bool changing = strategy == std::string("changing");
        std::vector<std::vector<float>> values(static_cast<size_t>(workers));
        const Settings settings = {{"wire", wire->name}, {"loss_scale", "1024"}, {"bucket_size", "16K"}};
        run_job(workers, settings, [&](dsgd_session* session, int rank) {
          Trainer trainer{session, kCount};
          trainer.build(changing ? kChanges[0] : strategy, nullptr);
          trainer.fill([&](size_t, size_t i) { return 1024 * gradient(rank, i); });
          for (int step = 0; step < kMany; ++step) {
            if (changing && step % 7 == 3)
              DSGD_OK_OR_FAIL(
                  dsgd_strategy_set(session, kChanges[step / 7 % 6], nullptr, nullptr, nullptr, error_));
            DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
          }
          values[static_cast<size_t>(rank)] = trainer.read();
        });
        // A change of strategy may keep back what is owed to one owner: one unit of rounding each time.
        const double owed = (changing ? 1 + kMany / 7 : 1) * 2.2 * std::ldexp(1.0, -wire->bits);
        for (size_t i = 0; i < kCount; ++i) {
          double mean = 0;
          for (int w = 0; w < workers; ++w) mean += gradient(w, i) / workers;
          // Values reach -40 in float32: each update is rounded there.
          ASSERT_NEAR(values[0][i], -kMany * mean, owed + kMany * 4e-6) << i;
        }
        for (const auto& of_worker : values) ASSERT_TRUE(same_bits(of_worker, values[0]));
      }
    }
  }
}

// ---- steps that change nothing, and what is not finite

// The oracle is a job that does not make the broken steps: the residuals are unchanged, too.
TEST(HalfWire, AStepThatIsSkippedOrFailsLeavesTheResiduals) {
  constexpr size_t kCount = 9000;
  struct Way {
    const char *nonfinite, *loss_scale;
  };
  for (const char* strategy : {"simple", "ps", "allreduce"}) {
    for (const Way& way : {Way{"skip", "off"}, Way{"fail", "off"}, Way{"off", "64"}}) {
      SCOPED_TRACE(std::string(strategy) + " " + way.nonfinite + " " + way.loss_scale);
      const float scale = way.loss_scale == std::string("off") ? 1.0f : 64.0f;
      const auto train = [&](bool broken_steps) {
        std::vector<float> values;
        run_job(3, {{"wire", "bf16"}, {"nonfinite", way.nonfinite}, {"loss_scale", way.loss_scale}},
                [&](dsgd_session* session, int rank) {
                  Trainer trainer{session, kCount};
                  trainer.build(strategy, nullptr, "adam", "lr=0.01");
                  for (int step = 0; step < 8; ++step) {
                    const bool broken = step % 3 == 1;
                    if (broken && !broken_steps) continue;
                    trainer.fill([&](size_t, size_t i) {
                      const float number =
                          static_cast<float>((i * 13 + static_cast<size_t>(step + rank)) % 1009);
                      return scale * (0.3f + number / 1009);
                    });
                    if (broken && rank == step % 2) trainer.gradients[0].set(kCount - 1, INFINITY);
                    dsgd_step_result result;
                    dsgd_step_result_init(&result, sizeof result);
                    Error error;
                    const int32_t status = dsgd_step(session, 1 + rank, &result, error);
                    const bool fails = broken && way.nonfinite == std::string("fail");
                    ASSERT_EQ(status, fails ? DSGD_ERR_NON_FINITE : DSGD_OK) << error.message();
                    ASSERT_EQ(result.applied, !broken);
                  }
                  if (rank == 2) values = trainer.read();
                });
        return values;
      };
      EXPECT_TRUE(same_bits(train(true), train(false)));
    }
  }
}

// With the optimizer `none` the host may leave such a step out itself, and then goes on.
TEST(HalfWire, ANanOfOneStepIsNotInTheMeanOfTheNext) {
  constexpr size_t kCount = 3000;
  for (const char* strategy : {"simple", "ps", "allreduce"}) {
    run_job(2, {{"wire", "bf16"}}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session, kCount};
      trainer.build(strategy, nullptr, "none", nullptr);
      for (int step = 0; step < 3; ++step) {
        trainer.fill([&](size_t, size_t i) { return static_cast<float>(i % 100); });
        if (step == 1 && rank == 1) {
          for (size_t i = 0; i < kCount; ++i) trainer.gradients[0].set(i, i % 2 ? INFINITY : NAN);
        }
        DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
        for (size_t i = 0; i < kCount && step != 1; ++i)
          ASSERT_EQ(trainer.gradients[0].get(i), static_cast<float>(i % 100)) << strategy << ' ' << i;
      }
    });
  }
}

TEST(HalfWire, ADynamicLossScaleGoesDownUntilSumsFitFloat16) {
  run_job(2, {{"wire", "fp16"}, {"loss_scale", "dynamic"}}, [](dsgd_session* session, int) {
    Trainer trainer{session, 100};
    trainer.build("allreduce", nullptr);
    int applied = 0;
    for (int step = 0; step < 8; ++step) {
      const double scale = dsgd_loss_scale(session);
      trainer.fill([&](size_t, size_t) { return static_cast<float>(scale) * 8; });
      dsgd_step_result result;
      dsgd_step_result_init(&result, sizeof result);
      DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
      EXPECT_EQ(result.applied != 0, 8 * scale < 65520) << scale;
      applied += result.applied != 0;
    }
    EXPECT_EQ(applied, 4);
    EXPECT_EQ(trainer.read(), std::vector<float>(100, -8.0f * static_cast<float>(applied)));
  });
}

// ---- the rest of the step

// A gradient that no replica has leaves value and residual; one that some have is divided by their weights.
TEST(HalfWire, AbsentGradientsKeepTheirMeaning) {
  for (const char* strategy : {"simple", "ps", "allreduce"}) {
    run_job(3, {{"wire", "bf16"}}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session, 2000};
      trainer.build(strategy, nullptr);
      float expected = 0;
      for (int step = 0; step < 4; ++step) {
        const bool absent = step == 1 || (step == 2 && rank != 1);
        trainer.fill([&](size_t, size_t) { return static_cast<float>(absent ? 1e30 : 2 + rank); });
        if (absent) DSGD_OK_OR_FAIL(dsgd_gradient_absent(trainer.replicas[0], trainer.parameter, error_));
        DSGD_OK_OR_FAIL(dsgd_step(session, rank == 1 ? 2 : 1, nullptr, error_));
        if (step != 1) expected -= 3;  // the mean of 2, 3, 3, 4, and that of rank 1
        ASSERT_EQ(trainer.read(), std::vector<float>(2000, expected)) << strategy << " step " << step;
      }
    });
  }
}

TEST(HalfWire, Float64GradientsTravelAsTheyAre) {
  run_job(2, {{"wire", "bf16"}}, [](dsgd_session* session, int rank) {
    double value = 0, gradient = rank == 0 ? 1.0 / 3 : 1.0 / 7;
    const SessionCloser closer{session};
    dsgd_parameter* parameter;
    dsgd_replica* replica;
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "p", DSGD_FLOAT64, nullptr, 0, 0, &parameter, error_));
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    DSGD_OK_OR_FAIL(dsgd_bind(replica, parameter, &value, 8, &gradient, 8, error_));
    DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "sgd", "lr=1", error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    EXPECT_EQ(value, -(1.0 / 3 + 1.0 / 7) / 2);
  });
}

// In `ps` values of float32 parameters come back as they are: a quarter less. Those of half types, and sums,
// travel as halves.
TEST(HalfWire, HalvesTheBytesThatWorkersSend) {
  constexpr size_t kCount = 300000;
  struct Traffic {
    const char* strategy;
    const HalfType* parameter;
    double part;
  };
  for (const Traffic& traffic : {Traffic{"allreduce", nullptr, 0.5}, Traffic{"simple", nullptr, 0.5},
                                 Traffic{"ps", nullptr, 0.75}, Traffic{"ps", &kBf16, 0.5}}) {
    double sent[2] = {};
    std::mutex mutex;
    for (const bool halves : {false, true}) {
      run_job(2, {{"wire", halves ? "bf16" : "fp32"}}, [&](dsgd_session* session, int) {
        Trainer trainer{session, kCount, traffic.parameter};
        trainer.build(traffic.strategy, nullptr);
        const auto bytes = [&] {
          char* text = nullptr;
          EXPECT_EQ(dsgd_metrics(session, &text, nullptr), DSGD_OK);
          const double all = parse_metrics(text)["dsgd_network_sent_bytes_total"];
          dsgd_text_free(text);
          return all;
        };
        DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
        const double before = bytes();
        for (int step = 0; step < 4; ++step) DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
        std::lock_guard lock(mutex);
        sent[halves] += bytes() - before;
      });
    }
    EXPECT_NEAR(sent[1] / sent[0], traffic.part, 0.02) << traffic.strategy;
  }
}

TEST(HalfWire, AnAlgorithmThatSendsPartialSumsIsRefused) {
  for (const char* algorithm : {"ring", "halving_doubling"}) {
    dsgd_config* config = dsgd_config_new();
    DSGD_OK_OR_FAIL(dsgd_config_set(config, "wire", "bf16", error_));
    DSGD_OK_OR_FAIL(dsgd_config_set(config, "algorithm", algorithm, error_));
    dsgd_session* session = nullptr;
    Error error;
    EXPECT_EQ(dsgd_init(config, &session, error), DSGD_ERR_INVALID_ARGUMENT);
    dsgd_config_free(config);
    const std::string refusal = std::string("algorithm '") + algorithm +
                                "' cannot be used with wire = bf16: it sends partial sums, which would be "
                                "rounded at every hop; use auto or direct, or set wire to fp32";
    EXPECT_EQ(error.message(), refusal);
    run_job(1, {{"wire", "bf16"}}, [&](dsgd_session* opened, int) {
      Error of_call;
      const std::string options = std::string("algorithm=") + algorithm;
      EXPECT_EQ(dsgd_strategy_set(opened, "allreduce", options.c_str(), nullptr, nullptr, of_call),
                DSGD_ERR_INVALID_ARGUMENT);
      EXPECT_EQ(of_call.message(), refusal);
    });
  }
}

TEST(HalfWire, IsComparedAtStart) {
  std::atomic<int> configured{0};
  run_job(
      2, {{"loss_scale", "64"}},
      [](dsgd_session* session, int) {
        Error error;
        dsgd_replica* replica;
        DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
        EXPECT_EQ(dsgd_start(session, nullptr, nullptr, error), DSGD_ERR_MISMATCH);
        EXPECT_NE(error.message().find("wire = fp16"), std::string::npos) << error.message();
        EXPECT_NE(error.message().find("wire = bf16"), std::string::npos) << error.message();
      },
      [&configured](dsgd_config* config) {
        dsgd_config_set(config, "wire", configured++ == 0 ? "fp16" : "bf16", nullptr);
      });
}

}  // namespace
}  // namespace dsgd_test::half_wire_test
