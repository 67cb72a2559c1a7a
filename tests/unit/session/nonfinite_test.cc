// The key `nonfinite`: what a step does with gradients that have NaN or infinity, on the host.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/base/half.h"
#include "job.h"
#include "tests/unit/sanitizer.h"

namespace dsgd_test::nonfinite_test {
namespace {

const float kNone[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};

struct Tensor {
  dsgd_parameter* parameter;
  int32_t dtype;
  size_t count;
  std::vector<void*> values, gradients;  // by replica
};

// Parameters of every type, one of which is cut into several buckets.
struct Trainer {
  dsgd_session* session;
  int rank;
  std::vector<dsgd_replica*> replicas = {};
  std::vector<Tensor> tensors = {};

  void build(int replica_count, const char* optimizer, const char* options, const char* strategy) {
    const std::pair<int32_t, int64_t> wanted[] = {{DSGD_FLOAT32, 70001}, {DSGD_FLOAT64, 13},
                                                  {DSGD_FLOAT16, 9000},  {DSGD_BFLOAT16, 300},
                                                  {DSGD_FLOAT32, 1},     {DSGD_FLOAT64, 9001}};
    replicas.resize(static_cast<size_t>(replica_count));
    for (dsgd_replica*& replica : replicas)
      DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    for (const auto& [dtype, count] : wanted) {
      Tensor tensor{nullptr, dtype, static_cast<size_t>(count), {}, {}};
      const std::string name = std::string("p").append(std::to_string(tensors.size()));
      DSGD_OK_OR_FAIL(
          dsgd_parameter_add(session, name.c_str(), dtype, &count, 1, 0, &tensor.parameter, error_));
      for (dsgd_replica* replica : replicas) {
        void *value, *gradient;
        DSGD_OK_OR_FAIL(dsgd_alloc(replica, tensor.parameter, &value, &gradient, error_));
        tensor.values.push_back(value), tensor.gradients.push_back(gradient);
      }
      tensors.push_back(tensor);
    }
    DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, optimizer, options, error_));
    DSGD_OK_OR_FAIL(dsgd_strategy_set(session, strategy, nullptr, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
  }
  void set(size_t tensor, size_t replica, size_t i, float value) {
    const Tensor& t = tensors[tensor];
    auto* const to = static_cast<std::byte*>(t.gradients[replica]);
    if (t.dtype == DSGD_FLOAT64) {
      reinterpret_cast<double*>(to)[i] = value;
    } else if (t.dtype == DSGD_FLOAT32) {
      reinterpret_cast<float*>(to)[i] = value;
    } else {
      const uint16_t bits = t.dtype == DSGD_FLOAT16 ? dsgd::narrow<dsgd::Float16>(value).bits
                                                    : dsgd::narrow<dsgd::Bfloat16>(value).bits;
      reinterpret_cast<uint16_t*>(to)[i] = bits;
    }
  }
  void compute(int step) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      for (size_t r = 0; r < replicas.size(); ++r) {
        for (size_t i = 0; i < tensors[t].count; ++i) {
          const size_t of = i * 5 + static_cast<size_t>(step * 3 + rank * 2) * 7 + t + r * 3;
          set(t, r, i, static_cast<float>(of % 17) - 8);
        }
      }
    }
  }
  // The bits of all values of all replicas.
  std::string values() const {
    std::string all;
    for (const Tensor& t : tensors) {
      const size_t element = t.dtype == DSGD_FLOAT64 ? 8 : t.dtype == DSGD_FLOAT32 ? 4 : 2;
      for (const void* value : t.values) all.append(static_cast<const char*>(value), t.count * element);
    }
    return all;
  }
};

// An element of a gradient that is not finite.
struct Broken {
  int rank;
  size_t replica, tensor, element;
};
// By step: every type, the first and the last element, several ranks at once.
std::vector<Broken> broken_in(int step, int workers, int replicas) {
  const size_t last = static_cast<size_t>(replicas) - 1;
  std::vector<Broken> broken;
  if (step == 1) broken = {{0, 0, 0, 70000}, {0, last, 0, 12345}};
  if (step == 2) broken = {{workers - 1, last, 1, 0}, {workers - 1, last, 2, 8999}, {0, 0, 3, 7}};
  if (step == 4) broken = {{workers / 2, 0, 5, 9000}, {workers / 2, last, 4, 0}};
  return broken;
}
constexpr int kSteps = 6;

struct Seen {
  std::string values;
  std::set<std::string> errors;  // messages
  std::string log;
};

// Steps in which gradients are broken are made as `nonfinite` has it; "without": they are left out; "zeros":
// the elements are 0.
Seen train(dsgd_session* session, int rank, int workers, int replicas, const char* strategy,
           const std::string& nonfinite) {
  Seen seen;
  Trainer trainer{session, rank};
  trainer.build(replicas, "adam", "lr=0.01", strategy);
  int64_t index = 0;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<Broken> broken = broken_in(step, workers, replicas);
    if (nonfinite == "without" && !broken.empty()) continue;
    trainer.compute(step);
    int64_t elements = 0;
    for (const Broken& b : broken) {
      ++elements;
      if (b.rank == rank)
        trainer.set(b.tensor, b.replica, b.element, nonfinite == "zeros" ? 0 : kNone[elements % 3]);
    }
    const std::string before = trainer.values();
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    Error error;
    const int32_t status = dsgd_step(session, 0.5 + rank, &result, error);
    if (nonfinite == "fail" && !broken.empty()) {
      EXPECT_EQ(status, DSGD_ERR_NON_FINITE) << error.message();
      EXPECT_EQ(trainer.values(), before);
      int first = workers;
      for (const Broken& b : broken) first = std::min(first, b.rank);
      EXPECT_EQ(error.rank(), first);
      seen.errors.insert(error.message());
      continue;
    }
    EXPECT_EQ(status, DSGD_OK) << error.message();
    EXPECT_EQ(result.step, index++);
    EXPECT_EQ(result.all_done, 0);
    const bool checks = nonfinite == "skip" || nonfinite == "zero";
    const bool skipped = nonfinite == "skip" && !broken.empty();
    EXPECT_EQ(result.skipped, skipped);
    EXPECT_EQ(result.applied, !skipped);
    EXPECT_EQ(result.nonfinite, checks ? elements : 0);
    EXPECT_EQ(result.nonfinite_rank >= 0, checks && elements > 0);
    EXPECT_EQ(trainer.values() == before, skipped);
  }
  seen.values = trainer.values();
  seen.log = logged(session);
  return seen;
}

std::vector<Seen> train_job(int workers, int replicas, const char* strategy, const std::string& nonfinite,
                            Settings settings) {
  std::vector<Seen> seen(static_cast<size_t>(workers));
  settings["bucket_size"] = "64K";
  if (nonfinite != "without" && nonfinite != "zeros") settings["nonfinite"] = nonfinite;
  run_job(workers, settings, [&](dsgd_session* session, int rank) {
    seen[static_cast<size_t>(rank)] = train(session, rank, workers, replicas, strategy, nonfinite);
  });
  return seen;
}

struct Case {
  int workers, replicas;
  const char *strategy, *reproducible, *algorithm;
};
const Case kCases[] = {
    {1, 1, "allreduce", "0", "auto"}, {1, 2, "ps", "1", "auto"},        {2, 2, "simple", "0", "auto"},
    {2, 1, "ps", "0", "auto"},        {3, 2, "ps", "1", "auto"},        {3, 1, "allreduce", "0", "direct"},
    {3, 2, "allreduce", "0", "ring"}, {2, 2, "allreduce", "1", "auto"}, {3, 1, "simple", "1", "auto"},
};

// Runs `check` for each case, with the settings that it needs.
void in_each_case(const std::function<void(const Case&, const Settings&)>& check) {
  Thinned cases(1, 2);
  for (const Case& c : kCases) {
    if (cases.skip_next()) continue;
    SCOPED_TRACE(std::to_string(c.workers) + " workers, " + std::to_string(c.replicas) + " replicas each, " +
                 c.strategy + ", reproducible=" + c.reproducible + ", algorithm=" + c.algorithm);
    check(c, {{"reproducible", c.reproducible}, {"algorithm", c.algorithm}});
  }
}

// The oracle is a job that does not make those steps: values, and with them the optimizer's state and its
// count of steps, are the same, bit for bit.
TEST(NonFinite, SkipAndFailChangeNothingOnAnyWorker) {
  in_each_case([](const Case& c, const Settings& settings) {
    const auto without = train_job(c.workers, c.replicas, c.strategy, "without", settings);
    for (const char* nonfinite : {"skip", "fail"}) {
      SCOPED_TRACE(nonfinite);
      const auto seen = train_job(c.workers, c.replicas, c.strategy, nonfinite, settings);
      for (size_t rank = 0; rank < seen.size(); ++rank) {
        EXPECT_TRUE(seen[rank].values == without[rank].values) << "rank " << rank;
        EXPECT_EQ(seen[rank].errors, seen[0].errors) << "one text on all workers";
        EXPECT_EQ(seen[rank].errors.size(), std::string(nonfinite) == "fail" ? 3u : 0u);
      }
    }
  });
}

TEST(NonFinite, ZeroTakesTheseElementsAsZero) {
  in_each_case([](const Case& c, const Settings& settings) {
    const auto zeros = train_job(c.workers, c.replicas, c.strategy, "zeros", settings);
    const auto seen = train_job(c.workers, c.replicas, c.strategy, "zero", settings);
    for (size_t rank = 0; rank < seen.size(); ++rank)
      EXPECT_TRUE(seen[rank].values == zeros[rank].values) << "rank " << rank;
  });
}

TEST(NonFinite, FiniteGradientsGiveTheBitsOfAJobThatDoesNotLook) {
  for (const char* nonfinite : {"off", "fail", "skip", "zero"}) {
    static std::map<std::string, std::string> first;
    in_each_case([&](const Case& c, const Settings& given) {
      Settings settings = given;
      settings["nonfinite"] = nonfinite;
      const auto seen = train_job(c.workers, c.replicas, c.strategy, "without", settings);
      std::string& values = first[std::to_string(&c - kCases)];
      if (values.empty()) values = seen[0].values;
      EXPECT_TRUE(seen[0].values == values) << nonfinite;
    });
  }
}

TEST(NonFinite, TheErrorNamesRanksParametersAndElements) {
  const auto seen = train_job(3, 2, "allreduce", "fail", {});
  const auto has = [&](const std::string& text) {
    return std::any_of(seen[1].errors.begin(), seen[1].errors.end(),
                       [&](const std::string& error) { return error.find(text) != std::string::npos; });
  };
  EXPECT_TRUE(has("rank 0")) << *seen[1].errors.begin();
  EXPECT_TRUE(has("2 elements of the gradient of parameter 'p0' (the first at index 12345)"));
  EXPECT_TRUE(has("1 element of the gradient of parameter 'p3' (the first at index 7); rank 2"));
  EXPECT_TRUE(
      has("1 element of the gradient of parameter 'p1' (the first at index 0), 1 element of the "
          "gradient of parameter 'p2' (the first at index 8999); nothing has changed"));
  EXPECT_TRUE(has("step 2: gradients are not finite (nonfinite = fail)"));
}

TEST(NonFinite, TheLogSaysOnceWhatWasSkippedOrZeroed) {
  for (const char* nonfinite : {"skip", "zero"}) {
    const auto seen = train_job(2, 1, "ps", nonfinite, {});
    for (const Seen& of : seen) {
      const std::string what =
          std::string(nonfinite) == "skip"
              ? "step 1 was skipped, since gradients are not finite (nonfinite = skip): "
              : "step 1: elements of gradients are not finite and count as 0 (nonfinite = zero): ";
      const size_t at = of.log.find(what);
      ASSERT_NE(at, std::string::npos) << of.log;
      EXPECT_NE(of.log.find("parameter 'p0' (the first at index 12345)", at), std::string::npos) << of.log;
      EXPECT_EQ(of.log.find("are not finite", at + what.size()), std::string::npos)
          << "the next lines come later: " << of.log;
    }
  }
}

TEST(NonFinite, GradientsThatDoNotCountAreNotLookedAt) {
  for (const char* strategy : {"simple", "ps", "allreduce"}) {
    for (const char* reproducible : {"0", "1"}) {
      run_job(
          2, {{"nonfinite", "fail"}, {"reproducible", reproducible}}, [&](dsgd_session* session, int rank) {
            Trainer trainer{session, rank};
            trainer.build(2, "sgd", "lr=1", strategy);
            const auto spoil = [&](size_t tensor, size_t replica) {
              trainer.set(tensor, replica, 0, kNone[0]);
            };
            trainer.compute(0);
            // Absent; of weight 0; of a replica with weight 0.
            spoil(1, 1);
            DSGD_OK_OR_FAIL(dsgd_gradient_absent(trainer.replicas[1], trainer.tensors[1].parameter, error_));
            DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
            trainer.compute(1);
            if (rank == 1) spoil(0, 0), spoil(2, 1);
            DSGD_OK_OR_FAIL(dsgd_step(session, rank == 1 ? 0 : 1, nullptr, error_));
            trainer.compute(2);
            spoil(3, 0);
            DSGD_OK_OR_FAIL(dsgd_replica_weight(trainer.replicas[0], 0, error_));
            DSGD_OK_OR_FAIL(dsgd_replica_weight(trainer.replicas[1], 1, error_));
            DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
            // No worker has data.
            dsgd_step_result result;
            dsgd_step_result_init(&result, sizeof result);
            DSGD_OK_OR_FAIL(dsgd_step(session, 0, &result, error_));
            EXPECT_EQ(result.all_done, 1);
            EXPECT_EQ(result.skipped, 0);
          });
    }
  }
}

// All workers see a stop request in the step after the one that failed. Absent gradients are of that step
// alone.
TEST(NonFinite, AStopRequestOutlivesTheFailedStepAndAbsenceDoesNot) {
  run_job(2, {{"nonfinite", "fail"}}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build(1, "sgd", "lr=1", "allreduce");
    trainer.compute(0);
    if (rank == 1) trainer.set(0, 0, 3, kNone[1]);
    if (rank == 0) DSGD_OK_OR_FAIL(dsgd_stop_request(session, error_));
    DSGD_OK_OR_FAIL(dsgd_gradient_absent(trainer.replicas[0], trainer.tensors[4].parameter, error_));
    EXPECT_EQ(dsgd_step(session, 1, nullptr, nullptr), DSGD_ERR_NON_FINITE);
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    trainer.set(0, 0, 3, 1);
    trainer.set(4, 0, 0, 2);
    const float before = *static_cast<float*>(trainer.tensors[4].values[0]);
    // The failure is no reason to refuse marks of the next step.
    DSGD_OK_OR_FAIL(dsgd_gradient_absent(trainer.replicas[0], trainer.tensors[3].parameter, error_));
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
    EXPECT_EQ(result.stop, 1);
    EXPECT_EQ(result.step, 0);
    EXPECT_EQ(*static_cast<float*>(trainer.tensors[4].values[0]), before - 2);
  });
}

TEST(NonFinite, AStepThatOverlapsTheBackwardPassEndsInTheSameWay) {
  for (const char* nonfinite : {"skip", "fail"}) {
    run_job(3, {{"nonfinite", nonfinite}, {"bucket_size", "4K"}}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session, rank};
      trainer.build(1, "adam", "lr=0.01", "ps");
      for (int step = 0; step < 4; ++step) {
        trainer.compute(step);
        const bool broken = step % 2 == 1;
        if (broken && rank == 1) trainer.set(2, 0, 8000, kNone[2]);
        const std::string before = trainer.values();
        dsgd_op* op = nullptr;
        DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
        for (size_t t = trainer.tensors.size(); t-- > 0;) {
          DSGD_OK_OR_FAIL(
              dsgd_gradient_ready(trainer.replicas[0], trainer.tensors[t].parameter, nullptr, error_));
        }
        Error error;
        const int32_t status = dsgd_op_wait(op, -1, error);
        const bool fails = broken && std::string(nonfinite) == "fail";
        EXPECT_EQ(status, fails ? DSGD_ERR_NON_FINITE : DSGD_OK) << error.message();
        EXPECT_EQ(std::string(dsgd_error_parameter(error.error)), fails ? "p2" : "");
        EXPECT_EQ(trainer.values() == before, broken);
        dsgd_op_free(op);
      }
    });
  }
}

TEST(NonFinite, ASkippedStepHalvesADynamicLossScale) {
  run_job(2, {{"nonfinite", "skip"}, {"loss_scale", "dynamic"}}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build(1, "sgd", "lr=1e-6", "ps");
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    for (const double factor : {65536.0, 32768.0}) {
      EXPECT_EQ(dsgd_loss_scale(session), factor);
      trainer.compute(0);
      if (rank == 0) trainer.set(1, 0, 3, kNone[0]);
      DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
      EXPECT_EQ(result.skipped, 1);
      EXPECT_EQ(result.nonfinite_rank, 0);
    }
    // A sum of finite gradients that overflows is the loss scale's to find.
    trainer.compute(0);
    trainer.set(0, 0, 0, 3e38f);
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
    EXPECT_EQ(result.skipped, 1);
    EXPECT_EQ(result.nonfinite, 0);
    EXPECT_EQ(result.nonfinite_rank, -1);
    EXPECT_EQ(dsgd_loss_scale(session), 8192);
  });
}

TEST(NonFinite, AWholeModelOfNanIsReportedInAShortText) {
  run_job(6, {{"nonfinite", "fail"}}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build(1, "sgd", "lr=1", "simple");
    for (size_t t = 0; t < trainer.tensors.size(); ++t) {
      for (size_t i = 0; i < trainer.tensors[t].count; ++i) trainer.set(t, 0, i, kNone[0]);
    }
    Error error;
    EXPECT_EQ(dsgd_step(session, 1, nullptr, error), DSGD_ERR_NON_FINITE);
    EXPECT_NE(error.message().find("70001 elements of the gradient of parameter 'p0' (the first at index 0)"),
              std::string::npos)
        << error.message();
    EXPECT_NE(error.message().find(" and 9002 elements of the gradients of 2 more; rank 1"),
              std::string::npos)
        << error.message();
    EXPECT_NE(error.message().find("; and gradients of 2 more workers; nothing has changed"),
              std::string::npos)
        << error.message();
    EXPECT_LT(error.message().size(), 2000u);
  });
}

TEST(NonFinite, OptimizerNoneLeavesTheGradientsOfASkippedStep) {
  run_job(2, {{"nonfinite", "skip"}}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build(1, "none", nullptr, "ps");
    for (size_t i = 0; i < trainer.tensors[0].count; ++i) trainer.set(0, 0, i, static_cast<float>(rank));
    if (rank == 1) trainer.set(1, 0, 5, kNone[1]);
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
    EXPECT_EQ(result.skipped, 1);
    EXPECT_EQ(static_cast<float*>(trainer.tensors[0].gradients[0])[9], static_cast<float>(rank));
  });
}

TEST(NonFinite, WorkersThatDisagreeAreToldAtStart) {
  std::vector<std::string> messages(2);
  int next = 0;
  run_job(
      2, {},
      [&](dsgd_session* session, int rank) {
        dsgd_replica* replica;
        DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
        Error error;
        EXPECT_EQ(dsgd_start(session, nullptr, nullptr, error), DSGD_ERR_MISMATCH);
        messages[static_cast<size_t>(rank)] = error.message();
      },
      [&, mutex = std::make_shared<std::mutex>()](dsgd_config* config) {
        const std::lock_guard lock(*mutex);
        DSGD_OK_OR_FAIL(dsgd_config_set(config, "nonfinite", next++ ? "zero" : "skip", error_));
      });
  EXPECT_NE(messages[0].find("nonfinite = "), std::string::npos) << messages[0];
  EXPECT_EQ(messages[0], messages[1]);
}

}  // namespace
}  // namespace dsgd_test::nonfinite_test
