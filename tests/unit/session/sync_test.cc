// dsgd_parameter_set with sync: untrained parameters, which each replica changes by itself, are made equal by
// steps.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "job.h"

namespace dsgd_test::sync_test {
namespace {

constexpr int64_t kSize = 1500;
constexpr int kReplicas = 2;  // of each worker

struct Untrained {
  std::string name;
  int32_t dtype;
  std::string options;  // of dsgd_parameter_set
};

const std::vector<Untrained> kUntrained = {
    {"mean", DSGD_FLOAT32, "sync=mean"},
    {"mean64", DSGD_FLOAT64, "sync=mean"},
    {"mean3", DSGD_FLOAT32, "sync=mean sync_period=3"},
    {"first", DSGD_FLOAT32, "sync=first"},
    {"count", DSGD_INT64, "sync=first"},
    {"free", DSGD_FLOAT32, "sync=none"},
};

// A model of one trained parameter and the untrained ones. Tests write into `values` before each step.
class Trainer {
 public:
  Trainer(dsgd_session* s, int r) : session(s), rank(r) {}

  dsgd_session* session;
  int rank;
  dsgd_replica* replicas[kReplicas] = {};
  dsgd_parameter* trained = nullptr;
  std::vector<dsgd_parameter*> parameters;
  std::vector<std::vector<void*>> values =
      std::vector<std::vector<void*>>(kReplicas);  // by replica, by untrained parameter

  void build(const char* strategy, const char* optimizer) {
    for (dsgd_replica*& replica : replicas)
      DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "weight", DSGD_FLOAT32, &kSize, 1, 0, &trained, error_));
    for (const Untrained& untrained : kUntrained) {
      dsgd_parameter* parameter = nullptr;
      DSGD_OK_OR_FAIL(dsgd_parameter_add(session, untrained.name.c_str(), untrained.dtype, &kSize, 1,
                                         DSGD_UNTRAINED, &parameter, error_));
      DSGD_OK_OR_FAIL(dsgd_parameter_set(parameter, untrained.options.c_str(), error_));
      parameters.push_back(parameter);
    }
    for (int r = 0; r < kReplicas; ++r) {
      void *value, *gradient;
      DSGD_OK_OR_FAIL(dsgd_alloc(replicas[r], trained, &value, &gradient, error_));
      for (int64_t i = 0; i < kSize; ++i) static_cast<float*>(gradient)[i] = 1;
      for (dsgd_parameter* parameter : parameters) {
        DSGD_OK_OR_FAIL(dsgd_alloc(replicas[r], parameter, &value, nullptr, error_));
        values[static_cast<size_t>(r)].push_back(value);
      }
    }
    DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, optimizer, "", error_));
    DSGD_OK_OR_FAIL(dsgd_strategy_set(session, strategy, nullptr, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
  }
  double* f64(int replica, size_t p) { return static_cast<double*>(values[static_cast<size_t>(replica)][p]); }
  float* f32(int replica, size_t p) { return static_cast<float*>(values[static_cast<size_t>(replica)][p]); }
  int64_t* i64(int replica, size_t p) {
    return static_cast<int64_t*>(values[static_cast<size_t>(replica)][p]);
  }
};

// The value that replica `replica` of worker `rank` writes before step `step`.
double written(int step, int rank, int replica, int64_t i) {
  return 1000 * step + 100 * rank + 10 * replica + 0.25 * static_cast<double>(i);
}

void write(Trainer& trainer, int step) {
  for (int r = 0; r < kReplicas; ++r) {
    for (int64_t i = 0; i < kSize; ++i) {
      const double value = written(step, trainer.rank, r, i);
      for (const size_t p : {0, 2, 3, 5}) trainer.f32(r, p)[i] = static_cast<float>(value);
      trainer.f64(r, 1)[i] = value;
      trainer.i64(r, 4)[i] = -static_cast<int64_t>(4 * value);
    }
  }
}

void check(Trainer& trainer, int step, int workers, int first, const std::vector<double>& weights) {
  for (int r = 0; r < kReplicas; ++r) {
    for (const int64_t i : {int64_t{0}, int64_t{1}, kSize - 1}) {
      double sum = 0, total = 0;
      for (int rank = first; rank < workers; ++rank) {
        for (int replica = 0; replica < kReplicas; ++replica) {
          const double weight = weights[static_cast<size_t>(rank)] / kReplicas;
          sum += weight * written(step, rank, replica, i), total += weight;
        }
      }
      const double own = written(step, trainer.rank, r, i), mean = sum / total;
      ASSERT_EQ(trainer.f32(r, 0)[i], static_cast<float>(mean));
      ASSERT_NEAR(trainer.f64(r, 1)[i], mean, 1e-12 * std::abs(mean) + 1e-12);
      ASSERT_EQ(trainer.f32(r, 2)[i], static_cast<float>(step % 3 == 2 ? mean : own)) << "step " << step;
      ASSERT_EQ(trainer.f32(r, 3)[i], static_cast<float>(written(step, first, 0, i)));
      ASSERT_EQ(trainer.i64(r, 4)[i], -static_cast<int64_t>(4 * written(step, first, 0, i)));
      ASSERT_EQ(trainer.f32(r, 5)[i], static_cast<float>(own));
    }
  }
}

TEST(Sync, MakesUntrainedParametersEqualInEveryStrategy) {
  for (const char* strategy : {"allreduce", "ps", "simple"}) {
    for (const char* optimizer : {"sgd", "none"}) {
      for (const int workers : {1, 2, 3}) {
        SCOPED_TRACE(std::string(strategy) + ", " + optimizer + ", " + std::to_string(workers) + " workers");
        std::vector<double> weights = {1, 3, 0};  // worker 2 has no data: its values do not count
        run_job(workers, {{"bucket_size", "4K"}}, [&](dsgd_session* session, int rank) {
          Trainer trainer(session, rank);
          trainer.build(strategy, optimizer);
          for (int step = 0; step < 4; ++step) {
            write(trainer, step);
            DSGD_OK_OR_FAIL(dsgd_step(session, weights[static_cast<size_t>(rank)], nullptr, error_));
            check(trainer, step, workers, 0, weights);
          }
          write(trainer, 4);  // no worker has data left: nothing changes
          DSGD_OK_OR_FAIL(dsgd_step(session, 0, nullptr, error_));
          EXPECT_EQ(trainer.f32(1, 0)[7], static_cast<float>(written(4, rank, 1, 7)));
        });
      }
    }
  }
}

TEST(Sync, FirstMeansTheLowestRemainingRank) {
  run_job(3, {}, [](dsgd_session* session, int rank) {
    Trainer trainer(session, rank);
    trainer.build("allreduce", "sgd");
    write(trainer, 0);
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    if (rank == 0) return;  // closes its session
    write(trainer, 1);
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    check(trainer, 1, 3, 1, {1, 1, 1});
  });
}

TEST(Sync, PreservesEqualAndSpecialValues) {
  run_job(2, {}, [](dsgd_session* session, int rank) {
    Trainer trainer(session, rank);
    trainer.build("allreduce", "sgd");
    const float special[] = {-0.0f, NAN, INFINITY, -INFINITY, 1e-45f, 3.4e38f, 0.1f};
    for (int r = 0; r < kReplicas; ++r) {
      for (const size_t p : {0, 3}) std::memcpy(trainer.f32(r, p), special, sizeof special);
    }
    DSGD_OK_OR_FAIL(dsgd_step(session, rank == 0 ? 0.3 : 0.7, nullptr, error_));
    for (int r = 0; r < kReplicas; ++r) {
      EXPECT_EQ(std::memcmp(trainer.f32(r, 3), special, sizeof special), 0);
      for (size_t i = 0; i < std::size(special); ++i) {
        const float value = trainer.f32(r, 0)[i];
        EXPECT_TRUE(std::isnan(special[i]) ? std::isnan(value) : value == special[i]) << value;
      }
    }
  });
}

TEST(Sync, MayBeChangedBetweenStepsByAllWorkers) {
  run_job(2, {}, [](dsgd_session* session, int rank) {
    Trainer trainer(session, rank);
    trainer.build("allreduce", "sgd");
    DSGD_OK_OR_FAIL(dsgd_parameter_set(trainer.parameters[5], "sync=first sync_period=2", error_));
    DSGD_OK_OR_FAIL(dsgd_parameter_set(trainer.parameters[0], "sync=none", error_));
    for (int step = 0; step < 2; ++step) {
      write(trainer, step);
      DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
      EXPECT_EQ(trainer.f32(1, 0)[3], static_cast<float>(written(step, rank, 1, 3)));
      EXPECT_EQ(trainer.f32(1, 5)[3],
                static_cast<float>(step == 1 ? written(step, 0, 0, 3) : written(step, rank, 1, 3)));
    }
    DSGD_OK_OR_FAIL(
        dsgd_parameter_set(trainer.parameters[5], rank == 0 ? "sync_period=3" : "sync_period=4", error_));
    Error error;
    EXPECT_EQ(dsgd_step(session, 1, nullptr, error), DSGD_ERR_MISMATCH);
    EXPECT_NE(error.message().find("sync=first sync_period=3"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("sync=first sync_period=4"), std::string::npos) << error.message();
  });
}

TEST(Sync, RejectsInvalidSettings) {
  for (const bool reproducible : {false, true}) {
    run_job(1, {{"reproducible", reproducible ? "1" : "0"}}, [&](dsgd_session* session, int) {
      dsgd_parameter *trained, *real, *whole;
      DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "trained", DSGD_FLOAT32, &kSize, 1, 0, &trained, error_));
      DSGD_OK_OR_FAIL(
          dsgd_parameter_add(session, "real", DSGD_FLOAT32, &kSize, 1, DSGD_UNTRAINED, &real, error_));
      DSGD_OK_OR_FAIL(
          dsgd_parameter_add(session, "whole", DSGD_INT32, &kSize, 1, DSGD_UNTRAINED, &whole, error_));
      const auto refused = [](dsgd_parameter* parameter, const char* options, int32_t code,
                              const std::string& says) {
        Error error;
        EXPECT_EQ(dsgd_parameter_set(parameter, options, error), code) << options;
        EXPECT_NE(error.message().find(says), std::string::npos) << error.message();
        EXPECT_NE(error.message().find(std::string("'") + dsgd_parameter_name(parameter) + "'"),
                  std::string::npos)
            << error.message();
      };
      refused(trained, "sync=mean", DSGD_ERR_INVALID_ARGUMENT, "sync applies to untrained parameters only");
      for (const char* options : {"rate=2", "decay=0.1", "frozen=1"}) {
        refused(real, options, DSGD_ERR_INVALID_ARGUMENT,
                "rate, decay and frozen apply to trained parameters only");
      }
      refused(whole, "sync=mean", DSGD_ERR_INVALID_ARGUMENT, "use sync=first");
      refused(real, "sync=last", DSGD_ERR_INVALID_ARGUMENT, "'last'");
      refused(real, "sync=first sync_period=0", DSGD_ERR_INVALID_ARGUMENT, "sync_period");
      refused(real, "sync_period=3", DSGD_ERR_INVALID_ARGUMENT, "sync_period needs sync=mean or sync=first");
      refused(real, "sync=first sync_period=1.5", DSGD_ERR_INVALID_ARGUMENT,
              "sync_period = 1.5 is not a number of steps");
      if (reproducible) refused(real, "sync=mean", DSGD_ERR_UNSUPPORTED, "reproducible=1");
      DSGD_OK_OR_FAIL(dsgd_parameter_set(whole, "sync=first", error_));
      DSGD_OK_OR_FAIL(dsgd_parameter_set(real, "sync=first sync_period=1e9", error_));
      DSGD_OK_OR_FAIL(dsgd_parameter_set(real, "sync=none", error_));
      refused(real, "sync_period=2", DSGD_ERR_INVALID_ARGUMENT, "sync_period needs sync=mean or sync=first");
    });
  }
}

TEST(Sync, DigestCoversUntrainedParameters) {
  run_job(1, {}, [](dsgd_session* session, int rank) {
    Trainer trainer(session, rank);
    trainer.build("allreduce", "sgd");
    uint64_t before = 0;
    DSGD_OK_OR_FAIL(dsgd_digest(session, &before, error_));
    for (size_t p = 0; p < kUntrained.size(); ++p) {
      auto* byte = static_cast<uint8_t*>(trainer.values[0][p]) + kSize;
      *byte ^= 1;
      uint64_t changed = 0;
      DSGD_OK_OR_FAIL(dsgd_digest(session, &changed, error_));
      EXPECT_NE(changed, before) << kUntrained[p].name;
      *byte ^= 1;
      DSGD_OK_OR_FAIL(dsgd_digest(session, &changed, error_));
      EXPECT_EQ(changed, before) << kUntrained[p].name;
    }
  });
}

}  // namespace
}  // namespace dsgd_test::sync_test
