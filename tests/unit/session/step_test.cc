// Steps through the C ABI in jobs of several workers: overlap, uneven work, stop, changes of strategy,
// disagreement.

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "job.h"
#include "tests/unit/sanitizer.h"

namespace dsgd_test::step_test {
namespace {

// Two parameters in buffers of dsgd; gradients depend on rank and step, with integer values.
struct Trainer {
  dsgd_session* session;
  int rank;
  dsgd_replica* replica = nullptr;
  std::vector<dsgd_parameter*> parameters = {};
  std::vector<float*> values = {}, gradients = {};
  std::vector<size_t> counts = {};

  void build(const std::vector<int64_t>& sizes, const char* optimizer, const char* options,
             const char* strategy) {
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    for (int64_t size : sizes) {
      dsgd_parameter* parameter;
      void *value, *gradient;
      DSGD_OK_OR_FAIL(dsgd_parameter_add(session,
                                         std::string("p").append(std::to_string(parameters.size())).c_str(),
                                         DSGD_FLOAT32, &size, 1, 0, &parameter, error_));
      DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &value, &gradient, error_));
      parameters.push_back(parameter);
      values.push_back(static_cast<float*>(value));
      gradients.push_back(static_cast<float*>(gradient));
      counts.push_back(static_cast<size_t>(size));
    }
    DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, optimizer, options, error_));
    DSGD_OK_OR_FAIL(dsgd_strategy_set(session, strategy, nullptr, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
  }
  void compute(int step) {
    for (size_t p = 0; p < counts.size(); ++p) {
      for (size_t i = 0; i < counts[p]; ++i) {
        gradients[p][i] = static_cast<float>((i * 5 + static_cast<size_t>(step * 3 + rank) * 7 + p) % 17) - 8;
      }
    }
  }
  std::vector<float> all_values() const {
    std::vector<float> all;
    for (size_t p = 0; p < counts.size(); ++p) all.insert(all.end(), values[p], values[p] + counts[p]);
    return all;
  }
};

using PerRank = std::vector<std::vector<float>>;

TEST(Overlap, MarkingGradientsInAnyOrderFromAnyThreadGivesTheBitsOfABlockingStep) {
  const std::vector<int64_t> sizes = {70000, 3, 1, 40000, 4096, 12};
  for (const char* strategy : {"simple", "ps", "allreduce"}) {
    PerRank blocking(3), overlapped(3);
    for (PerRank* result : {&blocking, &overlapped}) {
      run_job(3, {{"bucket_size", "64K"}}, [&](dsgd_session* session, int rank) {
        Trainer trainer{session, rank};
        trainer.build(sizes, "adam", "lr=0.01", strategy);
        std::mt19937 random(static_cast<unsigned>(rank));
        for (int step = 0; step < 4; ++step) {
          trainer.compute(step);
          if (result == &blocking) {
            DSGD_OK_OR_FAIL(dsgd_step(session, 1 + rank, nullptr, error_));
            continue;
          }
          dsgd_op* op;
          DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1 + rank, nullptr, &op, error_));
          std::vector<size_t> order = {0, 1, 2, 3, 4, 5};
          std::shuffle(order.begin(), order.end(), random);
          order.resize(4 + static_cast<size_t>(step % 3));  // the flush marks the rest
          std::thread other([&] {
            for (size_t i = 0; i < order.size(); i += 2) {
              DSGD_OK_OR_FAIL(
                  dsgd_gradient_ready(trainer.replica, trainer.parameters[order[i]], nullptr, error_));
            }
          });
          for (size_t i = 1; i < order.size(); i += 2) {
            DSGD_OK_OR_FAIL(
                dsgd_gradient_ready(trainer.replica, trainer.parameters[order[i]], nullptr, error_));
          }
          other.join();
          if (order.size() < sizes.size()) DSGD_OK_OR_FAIL(dsgd_step_flush(session, error_));
          DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
          dsgd_step_result step_result;
          dsgd_step_result_init(&step_result, sizeof step_result);
          DSGD_OK_OR_FAIL(dsgd_op_step_result(op, &step_result, error_));
          ASSERT_EQ(step_result.step, step);
          ASSERT_EQ(step_result.weight, 6);
          dsgd_op_free(op);
        }
        (*result)[rank] = trainer.all_values();
      });
    }
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(overlapped[rank], blocking[0]) << strategy << " rank " << rank;
      ASSERT_EQ(blocking[rank], blocking[0]) << strategy << " rank " << rank;
    }
  }
}

// Which bits a NaN has depends on who has computed it, a CPU or a GPU: a loss that has run away is no
// divergence of the workers.
TEST(NotANumber, IsTheSameWhateverItsBits) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({100, 5}, "sgd", "lr=0.5", "allreduce");
    trainer.values[0][37] = std::copysign(std::numeric_limits<float>::quiet_NaN(), rank == 0 ? 1.0f : -1.0f);
    uint64_t before = 0, after = 0;
    DSGD_OK_OR_FAIL(dsgd_digest(session, &before, error_));
    for (int step = 0; step < 70; ++step) {  // each compares a part of the values
      trainer.compute(step);
      DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    }
    ASSERT_TRUE(std::isnan(trainer.values[0][37]));
    DSGD_OK_OR_FAIL(dsgd_digest(session, &after, error_));
    EXPECT_NE(before, after);
    std::vector<uint64_t> all(2);
    const uint64_t mine = after;
    DSGD_OK_OR_FAIL(dsgd_allgather(session, nullptr, &mine, sizeof mine, all.data(), sizeof mine * 2, nullptr,
                                   DSGD_INT64, nullptr, nullptr, error_));
    EXPECT_EQ(all[0], all[1]);
    if (rank == 0) trainer.values[0][38] += 1;  // and that is one
    Error error;
    int32_t status = DSGD_OK;
    for (int step = 0; step < 70 && status == DSGD_OK; ++step) status = dsgd_step(session, 1, nullptr, error);
    EXPECT_EQ(status, DSGD_ERR_DIVERGED);
    EXPECT_NE(error.message().find("models differ: parameter 'p0'"), std::string::npos) << error.message();
  });
}

// The description of a bucket (exponents, norms) must fit its message however many parameters and buckets
// there are.
TEST(ManyParameters, OfOneElementEachTakeAReproducibleStepToTheBitsOfAnOrdinaryOne) {
  const std::vector<int64_t> sizes(kSanitized ? 1000 : 17000, 1);
  std::map<std::string, PerRank> values;
  std::map<std::string, double> norms;
  for (const char* strategy : {"ps", "allreduce"}) {
    for (const char* reproducible : {"0", "1"}) {
      if (!runs_all_cases() && (strategy == std::string("ps")) == (*reproducible == '1')) continue;
      PerRank& result = values[std::string(strategy) + reproducible];
      result.resize(2);
      run_job(2, {{"reproducible", reproducible}, {"gradient_norm", "1"}},
              [&](dsgd_session* session, int rank) {
                Trainer trainer{session, rank};
                trainer.build(sizes, "sgd", "lr=0.5", strategy);
                trainer.compute(0);
                dsgd_step_result step;
                dsgd_step_result_init(&step, sizeof step);
                DSGD_OK_OR_FAIL(dsgd_step(session, 1, &step, error_));
                result[rank] = trainer.all_values();
                if (rank == 0) norms[std::string(strategy) + reproducible] = step.gradient_norm;
              });
      ASSERT_EQ(result[0].size(), sizes.size()) << strategy << reproducible;
      EXPECT_EQ(result[0], values["ps0"][0]) << strategy << reproducible;
      EXPECT_EQ(result[1], values["ps0"][0]) << strategy << reproducible;
    }
  }
  double squares = 0;
  for (float value : values["ps0"][0]) squares += 4.0 * value * value;  // value = -0.5 gradient
  for (const auto& [name, norm] : norms)
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-6 * std::sqrt(squares)) << name;
}

TEST(Overlap, AnAbsenceThatIsSaidWhileTheStepBeginsCountsForIt) {
  run_job(1, {{"step_timeout", "10s"}}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({4, 4}, "sgd", "lr=0.5", "allreduce");
    for (int step = 0; step < 2000; ++step) {
      trainer.compute(step);
      trainer.gradients[0][1] = std::numeric_limits<float>::quiet_NaN();
      std::atomic<bool> go{false};
      std::thread other([&] {
        while (!go) {
        }
        DSGD_OK_OR_FAIL(dsgd_gradient_absent(trainer.replica, trainer.parameters[0], error_));
      });
      go = true;
      dsgd_op* op;
      DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
      other.join();
      DSGD_OK_OR_FAIL(dsgd_step_flush(session, error_));
      DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
      dsgd_op_free(op);
      ASSERT_EQ(trainer.values[0][1], 0) << "step " << step;
    }
  });
}

TEST(Overlap, AWaitForAStepThatIsJustEndingSaysHowItEnds) {
  run_job(1, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({4, 4}, "sgd", "lr=0.5", "allreduce");
    std::atomic<dsgd_op*> begun{nullptr};
    std::atomic<bool> over{false};
    std::thread other([&] {  // asks all the time
      while (!over) {
        dsgd_op* const op = begun;
        if (!op) continue;
        Error error;
        const int32_t status = dsgd_op_wait(op, 0, error);
        EXPECT_TRUE(status == DSGD_OK || status == DSGD_ERR_WAIT_TIMEOUT) << error.message();
        if (status != DSGD_ERR_WAIT_TIMEOUT) begun = nullptr;
      }
    });
    for (int step = 0; step < 4000 / one_of(2, 10); ++step) {
      dsgd_op* op;
      DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
      begun = op;
      DSGD_OK_OR_FAIL(dsgd_step_flush(session, error_));
      DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
      while (begun) {
      }
      dsgd_op_free(op);
    }
    over = true;
    other.join();
  });
}

TEST(Overlap, MarksInAFirstStepThatTheSessionRefusesChangeNothing) {
  run_job(1, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({4, 4}, "sgd", "lr=0.5", "allreduce");
    DSGD_OK_OR_FAIL(dsgd_abort(session, "enough", error_));
    dsgd_op* op = nullptr;
    Error begun, marked, ended;
    // The abort may not have come yet.
    const int32_t status = dsgd_step_begin(session, 1, nullptr, &op, begun);
    EXPECT_TRUE(status == DSGD_OK || status == DSGD_ERR_ABORTED) << begun.message();
    const int32_t absent = dsgd_gradient_absent(trainer.replica, trainer.parameters[0], marked);
    EXPECT_TRUE(absent == DSGD_OK || absent == DSGD_ERR_ABORTED) << marked.message();
    if (op) {
      EXPECT_EQ(dsgd_op_wait(op, -1, ended), DSGD_ERR_ABORTED) << ended.message();
    }
    dsgd_op_free(op);
  });
}

TEST(UnevenWork, AWorkerWithoutDataGoesOnUntilAllAreDone) {
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({100}, "sgd", "lr=1", "ps");
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    int steps = 0;
    for (; !result.all_done; ++steps) {
      const bool has_data = steps < 2 + 3 * rank;  // 2, 5, 8 batches
      if (has_data) {
        trainer.compute(steps);
      } else {
        std::fill_n(trainer.gradients[0], 100, NAN);  // never read
      }
      DSGD_OK_OR_FAIL(dsgd_step(session, has_data ? 4 : 0, &result, error_));
      ASSERT_EQ(result.applied, result.weight > 0);
    }
    ASSERT_EQ(steps, 9);
    for (size_t i = 0; i < 100; ++i) ASSERT_TRUE(std::isfinite(trainer.values[0][i]));
  });
}

TEST(Stop, AllWorkersSeeItInTheResultOfTheSameStep) {
  std::vector<int> seen(4, -1);
  run_job(4, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({10}, "sgd", "", "allreduce");
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    for (int step = 0; step < 20 && !result.stop; ++step) {
      if (step == 7 && rank == 2) DSGD_OK_OR_FAIL(dsgd_stop_request(session, error_));
      trainer.compute(step);
      DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
      if (result.stop) seen[rank] = step;
    }
  });
  EXPECT_EQ(seen, std::vector<int>(4, 7));
}

// Whatever strategies a run goes through, its optimizer state and values go along.
TEST(StrategyChange, KeepsValuesAndOptimizerState) {
  const std::vector<int64_t> sizes = {70000, 5, 5000};
  const std::vector<std::vector<const char*>> kRoutes = {{"allreduce", "allreduce", "allreduce", "allreduce"},
                                                         {"ps", "allreduce", "ps", "simple"},
                                                         {"simple", "ps", "ps", "allreduce"},
                                                         {"allreduce", "ps", "simple", "ps"}};
  std::vector<float> expected;
  for (const auto& route : kRoutes) {
    PerRank result(3);
    run_job(3, {{"reproducible", "1"}, {"bucket_size", "64K"}}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session, rank};
      trainer.build(sizes, "adamw", "lr=0.01 weight_decay=0.1", route[0]);
      for (int step = 0; step < 8; ++step) {
        if (step % 2 == 0 && step > 0)
          DSGD_OK_OR_FAIL(dsgd_strategy_set(session, route[step / 2], nullptr, nullptr, nullptr, error_));
        trainer.compute(step);
        if (step == 3) {  // Adam's count of updates differs between parameters
          DSGD_OK_OR_FAIL(dsgd_gradient_absent(trainer.replica, trainer.parameters[1], error_));
        }
        DSGD_OK_OR_FAIL(dsgd_step(session, 2, nullptr, error_));
      }
      result[rank] = trainer.all_values();
    });
    if (expected.empty()) expected = result[0];
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(result[rank], expected) << route[0] << ',' << route[1] << ',' << route[2] << ',' << route[3];
    }
  }
}

TEST(StrategyChange, UnequalArgumentsAreAMismatchOnAll) {
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({10}, "sgd", "", "allreduce");
    Error error;
    ASSERT_EQ(dsgd_strategy_set(session, rank == 1 ? "ps" : "simple", nullptr, nullptr, nullptr, error),
              DSGD_ERR_MISMATCH);
    ASSERT_NE(error.message().find("rank 1"), std::string::npos) << error.message();
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
  });
}

// One worker makes a call of many operations where the others make one of one: afterwards each call meets its
// like again.
class DifferentCalls : public testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(DifferentCalls, FailOnAllWorkersAndTheNextOnesAreRight) {
  const auto [odd_call, workers] = GetParam();
  const std::string call = odd_call;
  Settings settings;
  if (call == "reproducible step") settings["reproducible"] = "1";
  run_job(workers, settings, [&, workers = workers](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({10, 2000000, 7}, "sgd", "lr=0.5 momentum=0.5", "ps");  // several buckets
    trainer.compute(0);
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    float one = 1;
    for (int odd = 0; odd < workers; ++odd) {
      Error error;
      int32_t status;
      if (rank != odd) {
        status = dsgd_allreduce(session, nullptr, &one, &one, sizeof one, DSGD_FLOAT32, DSGD_SUM, nullptr,
                                nullptr, error);
      } else if (call == "change") {
        status = dsgd_strategy_set(session, "allreduce", nullptr, nullptr, nullptr, error);
      } else {
        status = dsgd_step(session, 1, nullptr, error);
      }
      ASSERT_EQ(status, DSGD_ERR_MISMATCH) << error.message();
      ASSERT_NE(error.message().find("rank " + std::to_string(odd)), std::string::npos) << error.message();
    }
    for (int round = 0; round < 6; ++round) {
      float data[3];
      const float unit = std::pow(10.0f, static_cast<float>(round));
      std::fill(data, data + 3, unit);
      DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, data, data, sizeof data, DSGD_FLOAT32, DSGD_SUM,
                                     nullptr, nullptr, error_));
      ASSERT_EQ(data[0], unit * static_cast<float>(workers)) << "round " << round;
    }
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
    ASSERT_EQ(result.step, 1) << "a step that nobody joined was counted";
  });
}

INSTANTIATE_TEST_SUITE_P(Calls, DifferentCalls,
                         testing::Combine(testing::Values("step", "reproducible step", "change"),
                                          testing::Values(2, 3)));

TEST(Start, ParameterSettingsThatDifferALittleAreAMismatchAndShownAsTheyAre) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    const int64_t size = 3;
    dsgd_replica* replica;
    dsgd_parameter* parameter;
    void *value, *gradient;
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "p", DSGD_FLOAT32, &size, 1, 0, &parameter, error_));
    DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &value, &gradient, error_));
    DSGD_OK_OR_FAIL(dsgd_parameter_set(parameter, rank == 0 ? "decay=1e-08" : "decay=2e-08", error_));
    Error error;
    ASSERT_EQ(dsgd_start(session, nullptr, nullptr, error), DSGD_ERR_MISMATCH);
    ASSERT_NE(error.message().find("decay=1e-08"), std::string::npos) << error.message();
    ASSERT_NE(error.message().find("decay=2e-08"), std::string::npos) << error.message();
  });
}

TEST(Start, AMistakeOnOneWorkerFailsOnAllAndCanBeMended) {
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    const int64_t size = 3;
    dsgd_replica* replica;
    dsgd_parameter* parameter;
    void *value, *gradient;
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "forgotten", DSGD_FLOAT32, &size, 1, 0, &parameter, error_));
    if (rank != 1) DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &value, &gradient, error_));
    Error error;
    ASSERT_EQ(dsgd_start(session, nullptr, nullptr, error), rank == 1 ? DSGD_ERR_STATE : DSGD_ERR_MISMATCH);
    ASSERT_NE(error.message().find("parameter 'forgotten' has no buffers in replica 0"), std::string::npos)
        << error.message();
    ASSERT_STREQ(dsgd_error_parameter(error.error), "forgotten");
    if (rank != 1) {
      ASSERT_EQ(error.rank(), 1) << error.message();
    }
    if (rank == 1) DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &value, &gradient, error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
  });
}

TEST(Start, BuffersThatShareMemoryAreNamed) {
  run_job(1, {}, [&](dsgd_session* session, int) {
    const int64_t size = 4;
    float memory[11] = {};
    dsgd_replica* replica;
    dsgd_parameter *a, *b;
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "a", DSGD_FLOAT32, &size, 1, 0, &a, error_));
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "b", DSGD_FLOAT32, &size, 1, DSGD_UNTRAINED, &b, error_));
    DSGD_OK_OR_FAIL(dsgd_bind(replica, a, memory, 16, memory + 4, 16, error_));
    DSGD_OK_OR_FAIL(dsgd_bind(replica, b, memory + 7, 16, nullptr, 0, error_));
    Error error;
    ASSERT_EQ(dsgd_start(session, nullptr, nullptr, error), DSGD_ERR_INVALID_ARGUMENT);
    ASSERT_EQ(
        error.message().find(
            "the gradient of parameter 'a' in replica 0 and the value of parameter 'b' in replica 0 share"),
        0u)
        << error.message();
    float apart[4];
    DSGD_OK_OR_FAIL(dsgd_bind(replica, b, apart, 16, nullptr, 0, error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
  });
}

TEST(StrategyChange, AnUnknownNameOnOneWorkerFailsOnAllAndCanBeMended) {
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({10}, "sgd", "lr=0.5", "allreduce");
    Error error;
    const char* name = rank == 2 ? "nonsense" : "ps";
    ASSERT_EQ(dsgd_strategy_set(session, name, nullptr, nullptr, nullptr, error),
              rank == 2 ? DSGD_ERR_INVALID_ARGUMENT : DSGD_ERR_MISMATCH);
    ASSERT_NE(error.message().find("'nonsense'"), std::string::npos) << error.message();
    if (rank != 2) {
      ASSERT_EQ(error.rank(), 2) << error.message();
    }
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_strategy_set(session, "ps", nullptr, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
  });
}

TEST(OneWorker, WithAHeadDoesWhatOneWithoutDoesUnderEveryStrategy) {
  PerRank results;
  for (const Settings& settings : {Settings{}, Settings{{"head", "127.0.0.1:0"}}}) {
    for (const char* strategy : {"simple", "ps", "allreduce"}) {
      run_job(1, settings, [&](dsgd_session* session, int rank) {
        Trainer trainer{session, rank};
        trainer.build({5000, 3}, "adam", "lr=0.01", strategy);
        for (int step = 0; step < 3; ++step) {
          if (step == 2) DSGD_OK_OR_FAIL(dsgd_strategy_set(session, "ps", nullptr, nullptr, nullptr, error_));
          trainer.compute(step);
          dsgd_step_result result;
          dsgd_step_result_init(&result, sizeof result);
          DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
          ASSERT_EQ(result.size, 1);
          ASSERT_EQ(result.view, dsgd_view(session));
        }
        float sum = 3;
        DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, &sum, &sum, sizeof sum, DSGD_FLOAT32, DSGD_SUM,
                                       nullptr, nullptr, error_));
        ASSERT_EQ(sum, 3);
        results.push_back(trainer.all_values());
      });
    }
  }
  ASSERT_EQ(results.size(), 6u);
  for (const auto& values : results) EXPECT_EQ(values, results[0]);
}

TEST(Objects, AWorkerThatIsTheWholeJobWaitsForItsOwnThreads) {
  dsgd_config* config = dsgd_config_new();
  DSGD_OK_OR_FAIL(dsgd_config_set(config, "head", "127.0.0.1:0", error_));
  DSGD_OK_OR_FAIL(dsgd_config_set(config, "num_workers", "1", error_));
  dsgd_session* session = nullptr;
  DSGD_OK_OR_FAIL(dsgd_init(config, &session, error_));
  dsgd_config_free(config);
  dsgd_object* object = nullptr;
  Error error;
  const dsgd_op_options soon = with_timeout(20);
  EXPECT_EQ(dsgd_object_get(session, "vocabulary", &soon, &object, nullptr, error), DSGD_ERR_TIMEOUT)
      << error.message();
  std::thread putter([session] {
    DSGD_OK_OR_FAIL(
        dsgd_object_put(session, "vocabulary", "abc", 3, -1, nullptr, 0, nullptr, nullptr, error_));
  });
  DSGD_OK_OR_FAIL(dsgd_object_get(session, "vocabulary", nullptr, &object, nullptr, error_));
  putter.join();
  dsgd_object_free(object);
  dsgd_finalize(session);
}

TEST(Header, UnequalRatesAreAMismatchThatCanBeMended) {
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({10}, "sgd", "lr=0.5", "allreduce");
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    const std::vector<float> before = trainer.all_values();
    trainer.compute(1);
    if (rank == 2) DSGD_OK_OR_FAIL(dsgd_learning_rate_set(session, 0.25, error_));
    Error error;
    ASSERT_EQ(dsgd_step(session, 1, nullptr, error), DSGD_ERR_MISMATCH);
    ASSERT_NE(error.message().find("learning rate"), std::string::npos) << error.message();
    ASSERT_EQ(error.rank(), 2);
    ASSERT_EQ(trainer.all_values(), before) << "a step that failed changed values";
    DSGD_OK_OR_FAIL(dsgd_learning_rate_set(session, 0.125, error_));
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
    ASSERT_EQ(result.step, 1);
  });
}

TEST(Header, NumbersThatDifferALittleAreShownAsTheyAre) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({10}, "sgd", "lr=0.5", "allreduce");
    DSGD_OK_OR_FAIL(dsgd_learning_rate_set(session, rank == 0 ? 1e-8 : 2e-8, error_));
    Error error;
    ASSERT_EQ(dsgd_step(session, 1, nullptr, error), DSGD_ERR_MISMATCH);
    ASSERT_NE(error.message().find("rank 0 has 1e-08, rank 1 has 2e-08"), std::string::npos)
        << error.message();
  });
}

TEST(Header, ASilentDivergenceIsFoundWithin64Steps) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({1000}, "sgd", "lr=0", "allreduce");
    if (rank == 1) trainer.values[0][637] += 1e-6f;
    Error error;
    int32_t status = DSGD_OK;
    int steps = 0;
    while (status == DSGD_OK && steps < 65) {
      status = dsgd_step(session, 1, nullptr, error);
      ++steps;
    }
    ASSERT_EQ(status, DSGD_ERR_DIVERGED);
    ASSERT_LE(steps, 64);
    ASSERT_NE(error.message().find("models differ: parameter 'p0'"), std::string::npos) << error.message();
  });
}

TEST(OptimizerNone, WritesTheMeanIntoEveryGradient) {
  for (const char* strategy : {"simple", "ps", "allreduce"}) {
    run_job(3, {}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session, rank};
      trainer.build({1000, 7}, "none", nullptr, strategy);
      const std::vector<float> before = trainer.all_values();
      trainer.compute(0);
      DSGD_OK_OR_FAIL(dsgd_step(session, 2, nullptr, error_));
      ASSERT_EQ(trainer.all_values(), before);
      const std::vector<float> mean(trainer.gradients[0], trainer.gradients[0] + 1000);
      std::vector<double> expected(1000, 0);
      for (int r = 0; r < 3; ++r) {
        Trainer other{session, r};
        std::vector<float> gradient(1000);
        other.counts = {1000};
        other.gradients = {gradient.data()};
        other.compute(0);
        for (size_t i = 0; i < 1000; ++i) expected[i] += gradient[i] / 3.0;
      }
      for (size_t i = 0; i < 1000; ++i) ASSERT_NEAR(mean[i], expected[i], 1e-6) << strategy;
    });
  }
}

TEST(GradientNorm, IsThatOfTheMeanUnderEveryStrategy) {
  for (const char* strategy : {"simple", "ps", "allreduce"}) {
    run_job(2, {{"gradient_norm", "1"}, {"bucket_size", "64K"}}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session, rank};
      trainer.build({50000, 9}, "sgd", "", strategy);
      for (float* gradient : {trainer.gradients[0], trainer.gradients[1]}) {
        std::fill_n(gradient, gradient == trainer.gradients[0] ? 50000 : 9, rank == 0 ? 1.0f : 3.0f);
      }
      dsgd_step_result result;
      dsgd_step_result_init(&result, sizeof result);
      DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
      ASSERT_NEAR(result.gradient_norm, 2 * std::sqrt(50009.0), 1e-6) << strategy;
    });
  }
}

// Its momentum is with the owner of its ranges, and stands still: it must go to whoever needs it when it
// thaws.
TEST(Frozen, OptimizerStateMovesWithAChangeOfStrategy) {
  for (const char* next : {"allreduce", "simple"}) {
    PerRank changed(2), kept(2);
    for (PerRank* result : {&changed, &kept}) {
      run_job(2, {}, [&](dsgd_session* session, int rank) {
        Trainer trainer{session, rank};
        trainer.build({200000, 100}, "sgd", "lr=1 momentum=0.5", "ps");
        for (int step = 0; step < 6; ++step) {
          if (step == 2) DSGD_OK_OR_FAIL(dsgd_parameter_set(trainer.parameters[0], "frozen=1", error_));
          if (step == 3 && result == &changed)
            DSGD_OK_OR_FAIL(dsgd_strategy_set(session, next, nullptr, nullptr, nullptr, error_));
          if (step == 4) DSGD_OK_OR_FAIL(dsgd_parameter_set(trainer.parameters[0], "frozen=0", error_));
          trainer.compute(step);
          DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
        }
        (*result)[rank] = trainer.all_values();
      });
    }
    EXPECT_EQ(changed[0], kept[0]) << next;
    EXPECT_EQ(changed[1], kept[0]) << next;
  }
}

TEST(Weights, OfAnySizeMakeTheExactMeanOfThoseThatHaveAGradient) {
  for (const auto& [large, small] :
       std::vector<std::pair<double, double>>{{1e12, 1e-12}, {1e6, 1e-12}, {1e9, 1e-6}, {3, 7}}) {
    for (const char* strategy : {"simple", "ps", "allreduce"}) {
      run_job(3, {{"reproducible", "1"}}, [&, large = large, small = small](dsgd_session* session, int rank) {
        Trainer trainer{session, rank};
        trainer.build({5, 5}, "sgd", "lr=1", strategy);
        std::fill_n(trainer.gradients[0], 5, rank == 1 ? 1.0f : 2.0f);
        std::fill_n(trainer.gradients[1], 5, 1.0f);
        if (rank != 1) DSGD_OK_OR_FAIL(dsgd_gradient_absent(trainer.replica, trainer.parameters[0], error_));
        DSGD_OK_OR_FAIL(dsgd_step(session, rank == 1 ? small : large, nullptr, error_));
        EXPECT_EQ(trainer.values[0][0], -1.0f) << strategy << ' ' << large << ' ' << small;
        EXPECT_EQ(trainer.values[1][0], -1.0f) << strategy << ' ' << large << ' ' << small;
      });
    }
  }
}

TEST(Disagreement, OnSettingsNamesTheParameterAndTheValues) {
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({5, 5, 5}, "sgd", "lr=1", "ps");
    DSGD_OK_OR_FAIL(dsgd_parameter_set(trainer.parameters[0], "decay=0.5", error_));
    if (rank == 1) DSGD_OK_OR_FAIL(dsgd_parameter_set(trainer.parameters[1], "rate=2", error_));
    Error error;
    EXPECT_EQ(dsgd_step(session, 1, nullptr, error), DSGD_ERR_MISMATCH);
    EXPECT_EQ(error.rank(), 1);
    EXPECT_EQ(error.message(),
              "step 0: workers disagree on settings: rank 0 has 'parameter p1 rate=1 frozen=0', rank 1 has "
              "'parameter p1 rate=2 frozen=0'; call dsgd_parameter_set alike on all workers");
    DSGD_OK_OR_FAIL(dsgd_parameter_set(trainer.parameters[1], "rate=2", error_));
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
  });
}

TEST(Disagreement, OfAStepAndACollectiveSaysWhatAWorkerWithoutDataDoes) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({5}, "sgd", "lr=1", "allreduce");
    Error error;
    float loss = 0;
    EXPECT_EQ(rank == 0 ? dsgd_step(session, 1, nullptr, error)
                        : dsgd_allreduce(session, nullptr, &loss, &loss, sizeof loss, DSGD_FLOAT32, DSGD_SUM,
                                         nullptr, nullptr, error),
              DSGD_ERR_MISMATCH);
    EXPECT_NE(
        error.message().find("in the same order; a worker that has no data left calls step with weight 0"),
        std::string::npos)
        << error.message();
  });
}

// Marks made before a step that all workers have refused alike apply to the next step.
TEST(Disagreement, LeavesStopAndAbsentGradientsToTheNextStep) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({5}, "sgd", "lr=1", "allreduce");
    std::fill_n(trainer.gradients[0], 5, 1.0f + static_cast<float>(rank));
    if (rank == 0) {
      DSGD_OK_OR_FAIL(dsgd_stop_request(session, error_));
      DSGD_OK_OR_FAIL(dsgd_gradient_absent(trainer.replica, trainer.parameters[0], error_));
      DSGD_OK_OR_FAIL(dsgd_learning_rate_set(session, 2, error_));
    }
    EXPECT_EQ(dsgd_step(session, 1, nullptr, nullptr), DSGD_ERR_MISMATCH);
    DSGD_OK_OR_FAIL(dsgd_learning_rate_set(session, 1, error_));
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
    EXPECT_EQ(result.stop, 1);
    EXPECT_EQ(trainer.values[0][0], -2.0f);  // rank 1's alone
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
    EXPECT_EQ(result.stop, 0);
    EXPECT_EQ(trainer.values[0][0], -3.5f);
  });
}

TEST(Close, LetsAStepWhoseGradientsAreAllMarkedEnd) {
  for (const int workers : {1, 2}) {
    run_job(workers, {}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session, rank};
      trainer.build({5, 5}, "sgd", "lr=1", "allreduce");
      for (float* gradient : trainer.gradients) std::fill_n(gradient, 5, 2.0f);
      dsgd_op* op = nullptr;
      DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
      for (dsgd_parameter* parameter : trainer.parameters) {
        DSGD_OK_OR_FAIL(dsgd_gradient_ready(trainer.replica, parameter, nullptr, error_));
      }
      DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));
      DSGD_OK_OR_FAIL(dsgd_op_wait(op, 0, error_));
      EXPECT_EQ(trainer.values[0][4], -2.0f);
      dsgd_op_free(op);
    });
  }
}

// A worker that fails in the middle of a step closes its session. A gradient that it has not marked may be
// half computed.
constexpr int kFinalize = -2;  // instead of a timeout: dsgd_finalize without dsgd_close
class CloseInMidStep : public testing::TestWithParam<std::tuple<const char*, int, bool, int>> {};

TEST_P(CloseInMidStep, FailsTheStepOnAllWorkersAndAppliesNothing) {
  const auto [strategy, workers, first, timeout_ms] = GetParam();
  const int closing = first ? 0 : workers - 1;
  std::vector<Trainer> trainers(static_cast<size_t>(workers));  // outlive the sessions
  run_job(workers, {{"step_timeout", "120s"}, {"bucket_size", "64K"}},
          [&, strategy = strategy, timeout_ms = timeout_ms](dsgd_session* session, int rank) {
            Trainer& trainer = trainers[static_cast<size_t>(rank)];
            trainer.session = session, trainer.rank = rank;
            trainer.build({30000, 5}, "sgd", "lr=1", strategy);
            for (int step = 0; step < 2; ++step) {
              trainer.compute(step);
              DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
            }
            const std::vector<float> before = trainer.all_values();
            trainer.compute(2);
            dsgd_op* op = nullptr;
            DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
            DSGD_OK_OR_FAIL(dsgd_gradient_ready(trainer.replica, trainer.parameters[0], nullptr, error_));
            if (rank != closing)
              DSGD_OK_OR_FAIL(dsgd_gradient_ready(trainer.replica, trainer.parameters[1], nullptr, error_));
            // All have marked theirs.
            DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
            if (rank == closing && timeout_ms == kFinalize) return dsgd_op_free(op);  // run_job finalizes
            if (rank == closing) DSGD_OK_OR_FAIL(dsgd_close(session, timeout_ms, error_));
            Error error;
            EXPECT_EQ(dsgd_op_wait(op, -1, error), rank == closing ? DSGD_ERR_CLOSED : DSGD_ERR_WORKER_LOST);
            const std::string who = "rank " + std::to_string(closing);
            EXPECT_EQ(error.message().find(who), 0u) << error.message();
            EXPECT_NE(error.message().find("closed its session during step 2; gradient 'p1' was not marked"),
                      std::string::npos)
                << error.message();
            EXPECT_EQ(error.rank(), closing);
            EXPECT_STREQ(dsgd_error_operation(error.error), "step 2");
            EXPECT_STREQ(dsgd_error_parameter(error.error), "p1");
            EXPECT_EQ(trainer.all_values(), before);
            dsgd_op_free(op);
          });
}

INSTANTIATE_TEST_SUITE_P(Jobs, CloseInMidStep,
                         testing::Combine(testing::Values("simple", "ps", "allreduce"),
                                          testing::Values(1, 2, 3), testing::Bool(),
                                          testing::Values(-1, 0, kFinalize)));

// -1 has no other limit than the deadlines of the operations in flight.
TEST(Close, WaitsForAnOperationBeyondStepTimeout) {
  run_job(2, {{"step_timeout", "100ms"}}, [&](dsgd_session* session, int rank) {
    const dsgd_op_options options = with_timeout(60000);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, &options, nullptr, error_));
      return;
    }
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, &options, &op, error_));
    DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));
    DSGD_OK_OR_FAIL(dsgd_op_wait(op, 0, error_));
    dsgd_op_free(op);
  });
}

// Rank 1 makes no step, so rank 0 would wait for it until the step's own time is over.
TEST(Close, ThatWaitsForAStepIsCutShortByAnAbortOrAnImpatientClose) {
  for (const bool abort : {true, false}) {
    const auto begun = std::chrono::steady_clock::now();
    std::atomic<bool> over = false;
    run_job(2, {{"step_timeout", "120s"}}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session, rank};
      trainer.build({5}, "sgd", "lr=1", "allreduce");
      while (rank == 1 && !over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (rank == 1) return;
      dsgd_op* op = nullptr;
      DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
      DSGD_OK_OR_FAIL(dsgd_gradient_ready(trainer.replica, trainer.parameters[0], nullptr, error_));
      std::thread closer([session] { dsgd_close(session, -1, nullptr); });
      while (dsgd_rank(session) >= 0) std::this_thread::yield();  // it has begun to close
      abort ? dsgd_abort(session, "too long", nullptr) : dsgd_close(session, 0, nullptr);
      closer.join();
      over = true;
      EXPECT_EQ(dsgd_op_wait(op, 0, nullptr), abort ? DSGD_ERR_ABORTED : DSGD_ERR_CLOSED);
      dsgd_op_free(op);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(60));
  }
}

// The view that a worker has of a job in which some gradients of some steps are not finite.
struct Scaled {
  std::vector<float> values;
  std::vector<double> factors;  // before each step
  std::vector<int> applied;
};

Scaled train_scaled(dsgd_session* session, int rank, int workers, const char* strategy, bool broken_steps) {
  Scaled seen;
  Trainer trainer{session, rank};
  trainer.build({70000, 3, 4096}, "adam", "lr=0.01", strategy);
  for (int step = 0; step < 8; ++step) {
    const bool broken = step == 2 || step == 3 || step == 6;
    if (broken && !broken_steps) continue;
    trainer.compute(step);
    seen.factors.push_back(dsgd_loss_scale(session));
    for (size_t p = 0; p < trainer.counts.size(); ++p) {
      for (size_t i = 0; i < trainer.counts[p]; ++i)
        trainer.gradients[p][i] *= static_cast<float>(seen.factors.back());
    }
    const float none[] = {std::numeric_limits<float>::infinity(), std::nanf(""),
                          -std::numeric_limits<float>::infinity()};
    if (broken && rank == step % workers)
      trainer.gradients[static_cast<size_t>(step) % 3][step == 3 ? 0 : 2] = none[step % 3];
    const std::vector<float> before = trainer.all_values();
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    Error error;
    EXPECT_EQ(dsgd_step(session, 1 + rank, &result, error), DSGD_OK) << error.message();
    seen.applied.push_back(result.applied);
    EXPECT_EQ(result.skipped, broken);
    EXPECT_EQ(result.all_done, 0);
    EXPECT_EQ(result.step, static_cast<int64_t>(seen.applied.size()) - 1);
    if (broken) {
      EXPECT_EQ(trainer.all_values(), before);
      EXPECT_FALSE(std::isfinite(result.gradient_norm)) << result.gradient_norm;
    }
  }
  seen.values = trainer.all_values();
  return seen;
}

// Recorded from PyTorch 1.13: torch.nn.utils.clip_grad_norm_(parameters, 2.5), then the optimizer's step, on
// the mean gradients, in float64.
struct Clipped {
  const char *optimizer, *options;
  std::vector<std::tuple<size_t, size_t, double>> values;  // parameter, element, after four steps
};
const Clipped kClipped[] = {{"sgd",
                             "lr=0.1 momentum=0.9 clip_norm=2.5",
                             {{0, 0, 0.00140197186615},
                              {0, 1, -0.00591605794296},
                              {0, 39999, -0.000800150842316},
                              {1, 0, -0.00226773850596},
                              {1, 2, 0.00469324483386},
                              {2, 7, -0.000874787097886},
                              {2, 4999, -0.000800150842316}}},
                            {"adam",
                             "lr=0.01 clip_norm=2.5",
                             {{0, 0, 0.0125958579873},
                              {0, 1, -0.0248194330599},
                              {0, 39999, -0.00803502767766},
                              {1, 0, 0.00308685213471},
                              {1, 2, 0.0236851199781},
                              {2, 7, 0.00424590709222},
                              {2, 4999, -0.00803502767766}}},
                            {"adamw",
                             "lr=0.01 clip_norm=2.5",
                             {{0, 0, 0.0125921203622},
                              {0, 1, -0.0248141295006},
                              {0, 39999, -0.00803213281131},
                              {1, 0, 0.00308415830079},
                              {1, 2, 0.0236802668726},
                              {2, 7, 0.00424418995794},
                              {2, 4999, -0.00803213281131}}}};

TEST(ClipNorm, GivesTheValuesOfPyTorchUnderEveryStrategy) {
  const double norms[] = {616.4622183610767, 616.4697883919318, 616.4800618565533, 616.437885489414};
  Thinned cases;
  for (const Clipped& clipped : kClipped) {
    for (const char* strategy : {"simple", "ps", "allreduce"}) {
      for (const char* reproducible : {"0", "1"}) {
        for (const char* loss_scale : {"off", "1024"}) {
          if (cases.skip_next()) continue;
          SCOPED_TRACE(std::string(clipped.optimizer) + " " + strategy + " reproducible=" + reproducible +
                       " loss_scale=" + loss_scale);
          PerRank values(2);
          const Settings settings = {
              {"bucket_size", "64K"}, {"reproducible", reproducible}, {"loss_scale", loss_scale}};
          run_job(2, settings, [&](dsgd_session* session, int rank) {
            Trainer trainer{session, rank};
            trainer.build({40000, 3, 5000}, clipped.optimizer, clipped.options, strategy);
            for (int step = 0; step < 4; ++step) {
              trainer.compute(step);
              const float factor = static_cast<float>(dsgd_loss_scale(session));
              for (size_t p = 0; p < trainer.counts.size(); ++p) {
                for (size_t i = 0; i < trainer.counts[p]; ++i) trainer.gradients[p][i] *= factor;
              }
              dsgd_step_result result;
              dsgd_step_result_init(&result, sizeof result);
              DSGD_OK_OR_FAIL(dsgd_step(session, 1 + rank, &result, error_));
              EXPECT_NEAR(result.gradient_norm, norms[step], 1e-4);
            }
            for (const auto& [parameter, element, value] : clipped.values) {
              EXPECT_NEAR(trainer.values[parameter][element], value, 2e-6 * std::abs(value) + 1e-9)
                  << parameter << ", " << element;
            }
            values[static_cast<size_t>(rank)] = trainer.all_values();
          });
          EXPECT_EQ(values[0], values[1]);
        }
      }
    }
  }
}

TEST(ClipNorm, LeavesAShortGradientAsItIs) {
  PerRank values(2);
  for (const bool clip : {false, true}) {
    run_job(1, {}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session, rank};
      trainer.build({300, 7}, "adam", clip ? "lr=0.01 clip_norm=1000" : "lr=0.01", "allreduce");
      for (int step = 0; step < 3; ++step) {
        trainer.compute(step);
        DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
      }
      values[clip] = trainer.all_values();
    });
  }
  EXPECT_EQ(values[0], values[1]);
}

// The same four contributions on one, two and four workers, whose plans cut parameters in different places.
TEST(ClipNorm, IsReproducibleWhateverTheNumberOfWorkers) {
  std::vector<float> first;
  std::map<std::string, std::set<double>> norms;
  for (const int workers : {1, 2, 4}) {
    for (const char* strategy : {"simple", "ps", "allreduce"}) {
      std::vector<float> values;
      run_job(workers, {{"bucket_size", "64K"}, {"reproducible", "1"}}, [&](dsgd_session* session, int rank) {
        const int replicas = 4 / workers;
        std::vector<dsgd_replica*> handles(static_cast<size_t>(replicas));
        std::vector<float*> value(handles.size()), gradient(handles.size());
        const int64_t count = 70001;
        dsgd_parameter* parameter = nullptr;
        DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "p", DSGD_FLOAT32, &count, 1, 0, &parameter, error_));
        for (size_t r = 0; r < handles.size(); ++r) {
          void *v, *g;
          DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &handles[r], error_));
          DSGD_OK_OR_FAIL(dsgd_alloc(handles[r], parameter, &v, &g, error_));
          value[r] = static_cast<float*>(v), gradient[r] = static_cast<float*>(g);
        }
        DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "sgd", "lr=1 clip_norm=0.1", error_));
        DSGD_OK_OR_FAIL(dsgd_strategy_set(session, strategy, nullptr, nullptr, nullptr, error_));
        DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
        for (size_t r = 0; r < handles.size(); ++r) {
          std::mt19937 random(static_cast<unsigned>(rank * replicas) + static_cast<unsigned>(r));
          std::normal_distribution<float> normal;
          for (int64_t i = 0; i < count; ++i) gradient[r][i] = normal(random);
        }
        dsgd_step_result result;
        dsgd_step_result_init(&result, sizeof result);
        DSGD_OK_OR_FAIL(dsgd_step(session, replicas, &result, error_));
        if (rank != 0) return;
        norms[strategy].insert(result.gradient_norm);
        values.assign(value[0], value[0] + count);
      });
      if (first.empty()) first = values;
      EXPECT_EQ(values, first) << workers << " workers, " << strategy;
      EXPECT_EQ(norms[strategy].size(), 1u) << strategy;
    }
  }
}

TEST(ClipNorm, IsRefusedWithTheOptimizerNone) {
  run_job(1, {}, [&](dsgd_session* session, int) {
    Error error;
    EXPECT_EQ(dsgd_optimizer_set(session, "none", "clip_norm=1", error), DSGD_ERR_INVALID_ARGUMENT);
    EXPECT_NE(error.message().find("optimizer 'none' does not clip"), std::string::npos) << error.message();
  });
}

// A worker by itself is through with each bucket at once, one after the other, on a stack as small as a
// host's thread may have.
TEST(Step, ManyBucketsTakeNoMoreStackThanFew) {
  const auto body = [](void*) -> void* {
    dsgd_config* config = dsgd_config_new();
    EXPECT_EQ(dsgd_config_set(config, "bucket_size", "4K", nullptr), DSGD_OK);
    dsgd_session* session = nullptr;
    EXPECT_EQ(dsgd_init(config, &session, nullptr), DSGD_OK);
    dsgd_config_free(config);
    Trainer trainer{session, 0};
    trainer.build({6000 * 1024}, "sgd", "lr=1", "allreduce");
    std::fill_n(trainer.gradients[0], 6000 * 1024, 1.0f);
    const float before = trainer.all_values().back();
    EXPECT_EQ(dsgd_step(session, 1, nullptr, nullptr), DSGD_OK);
    EXPECT_EQ(trainer.all_values().back(), before - 1);
    dsgd_finalize(session);
    return nullptr;
  };
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 1 << 20);
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &small, body, nullptr), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&small);
}

// The oracle is a job without a loss scale that does not make those steps: values, optimizer state and its
// count of updates are the same, bit for bit, since the factors are powers of two.
TEST(LossScale, AStepThatIsNotFiniteChangesNothingOnAnyWorkerAndADynamicFactorIsHalved) {
  Thinned cases;
  for (const int workers : {1, 2, 3}) {
    for (const char* strategy : {"simple", "ps", "allreduce"}) {
      for (const char* reproducible : {"0", "1"}) {
        if (cases.skip_next()) continue;
        SCOPED_TRACE(std::to_string(workers) + " workers, " + strategy + ", reproducible=" + reproducible);
        std::vector<Scaled> scaled(static_cast<size_t>(workers)), plain(static_cast<size_t>(workers));
        run_job(workers, {{"loss_scale", "dynamic"}, {"bucket_size", "64K"}, {"reproducible", reproducible}},
                [&](dsgd_session* session, int rank) {
                  scaled[rank] = train_scaled(session, rank, workers, strategy, true);
                });
        run_job(workers, {{"bucket_size", "64K"}, {"reproducible", reproducible}},
                [&](dsgd_session* session, int rank) {
                  plain[rank] = train_scaled(session, rank, workers, strategy, false);
                });
        for (int rank = 0; rank < workers; ++rank) {
          EXPECT_EQ(scaled[rank].values, plain[rank].values);
          EXPECT_EQ(scaled[rank].applied, (std::vector<int>{1, 1, 0, 0, 1, 1, 0, 1}));
          EXPECT_EQ(scaled[rank].factors,
                    (std::vector<double>{65536, 65536, 65536, 32768, 16384, 16384, 16384, 8192}));
          EXPECT_EQ(plain[rank].factors, std::vector<double>(5, 1.0));
        }
      }
    }
  }
}

TEST(LossScale, AFixedFactorStaysAndOneOfOneOnlyLooks) {
  for (const char* factor : {"1000", "1"}) {
    run_job(2, {{"loss_scale", factor}}, [&](dsgd_session* session, int rank) {
      const Scaled seen = train_scaled(session, rank, 2, "allreduce", true);
      EXPECT_EQ(seen.applied, (std::vector<int>{1, 1, 0, 0, 1, 1, 0, 1}));
      EXPECT_EQ(seen.factors, std::vector<double>(8, std::stod(factor)));
    });
  }
}

// No worker has data: no step to look at, so the factor stays. An absent gradient is not looked at either.
TEST(LossScale, OnlyGradientsThatCountAreLookedAt) {
  run_job(2, {{"loss_scale", "dynamic"}}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({100, 7}, "sgd", "lr=1", "ps");
    for (float* gradient : trainer.gradients) gradient[1] = std::nanf("");
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    DSGD_OK_OR_FAIL(dsgd_step(session, 0, &result, error_));
    EXPECT_EQ(result.all_done, 1);
    EXPECT_EQ(dsgd_loss_scale(session), 65536);
    trainer.compute(0);
    if (rank == 1) trainer.gradients[1][3] = std::nanf("");
    if (rank == 1) DSGD_OK_OR_FAIL(dsgd_gradient_absent(trainer.replica, trainer.parameters[1], error_));
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
    EXPECT_EQ(result.applied, 1);
    EXPECT_EQ(dsgd_loss_scale(session), 65536);
  });
}

// With a factor less than 1 the mean may be infinite where no sum is.
TEST(LossScale, AMeanBeyondItsTypeIsNotFiniteWhateverTheStrategy) {
  for (const char* strategy : {"simple", "ps", "allreduce"}) {
    for (const char* reproducible : {"0", "1"}) {
      SCOPED_TRACE(std::string(strategy) + " reproducible=" + reproducible);
      run_job(2, {{"loss_scale", "dynamic"}, {"reproducible", reproducible}},
              [&](dsgd_session* session, int rank) {
                Trainer trainer{session, rank};
                trainer.build({100}, "sgd", "lr=1e-3", strategy);
                const std::vector<float> before = trainer.all_values();
                dsgd_step_result result;
                dsgd_step_result_init(&result, sizeof result);
                for (const float gradient : {std::numeric_limits<float>::infinity(), 1e38f}) {
                  for (int step = 0; step < (std::isinf(gradient) ? 40 : 1); ++step) {
                    std::fill_n(trainer.gradients[0], 100, gradient);
                    DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
                    EXPECT_EQ(result.applied, 0);
                  }
                  EXPECT_LT(dsgd_loss_scale(session), 1);
                  EXPECT_EQ(trainer.all_values(), before);
                  EXPECT_FALSE(std::isfinite(result.gradient_norm));
                }
              });
    }
  }
}

TEST(LossScale, OptimizerNoneLeavesTheHostsGradientsOfALeftOutStep) {
  run_job(2, {{"loss_scale", "4"}}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({100}, "none", nullptr, "simple");
    float* gradient = trainer.gradients[0];
    std::fill_n(gradient, 100, 8.0f * static_cast<float>(1 + rank));
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
    EXPECT_EQ(std::vector<float>(gradient, gradient + 100), std::vector<float>(100, 3.0f));
    EXPECT_DOUBLE_EQ(result.gradient_norm, 30);
    std::fill_n(gradient, 100, rank == 1 ? std::numeric_limits<float>::infinity() : 5.0f);
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
    EXPECT_EQ(result.applied, 0);
    EXPECT_EQ(gradient[7], rank == 1 ? std::numeric_limits<float>::infinity() : 5.0f);
  });
}

TEST(Frozen, ParametersStandStillAndThawLater) {
  for (const char* strategy : {"ps", "allreduce"}) {
    run_job(2, {}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session, rank};
      trainer.build({100, 100}, "sgd", "lr=1 momentum=0.9", strategy);
      auto step = [&](int index) {
        trainer.compute(index);
        DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
      };
      step(0);
      DSGD_OK_OR_FAIL(dsgd_parameter_set(trainer.parameters[0], "frozen=1", error_));
      const std::vector<float> first = trainer.all_values();
      step(1);
      const std::vector<float> second = trainer.all_values();
      ASSERT_TRUE(std::equal(first.begin(), first.begin() + 100, second.begin()));
      ASSERT_FALSE(std::equal(first.begin() + 100, first.end(), second.begin() + 100));
      DSGD_OK_OR_FAIL(dsgd_parameter_set(trainer.parameters[0], "frozen=0", error_));
      step(2);
      ASSERT_NE(trainer.all_values()[3], second[3]);
    });
  }
}

// All workers report a difference at start with the same message, before any value moves.
struct Difference {
  const char* name;
  std::function<void(dsgd_session*, dsgd_replica*, bool odd)> build;
  const char* said;
};

class Signature : public testing::TestWithParam<Difference> {};

void add(dsgd_session* session, dsgd_replica* replica, const char* name, int32_t dtype,
         std::vector<int64_t> shape, uint32_t flags = 0) {
  dsgd_parameter* parameter;
  DSGD_OK_OR_FAIL(
      dsgd_parameter_add(session, name, dtype, shape.data(), shape.size(), flags, &parameter, error_));
  void *value, *gradient;
  DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &value, &gradient, error_));
}

TEST_P(Signature, IsComparedAtStart) {
  for (const int odd : {1, 0, 2}) {
    std::vector<std::string> messages(3);
    run_job(3, {}, [&](dsgd_session* session, int rank) {
      dsgd_replica* replica;
      DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
      add(session, replica, "first", DSGD_FLOAT32, {4});
      GetParam().build(session, replica, rank == odd);
      Error error;
      ASSERT_EQ(dsgd_start(session, nullptr, nullptr, error), DSGD_ERR_MISMATCH);
      messages[rank] = error.message();
      ASSERT_EQ(error.rank(), odd);
    });
    if (odd == 1) {
      EXPECT_NE(messages[0].find(GetParam().said), std::string::npos) << messages[0];
    }
    EXPECT_EQ(messages[0], messages[1]);
    EXPECT_EQ(messages[0], messages[2]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Differences, Signature,
    testing::Values(
        Difference{"name", [](auto s, auto r, bool odd) { add(s, r, odd ? "b" : "a", DSGD_FLOAT32, {3}); },
                   "parameter b"},
        Difference{"shape", [](auto s, auto r, bool odd) { add(s, r, "a", DSGD_FLOAT32, {3, odd ? 2 : 1}); },
                   "[3, 2]"},
        Difference{"dtype",
                   [](auto s, auto r, bool odd) { add(s, r, "a", odd ? DSGD_FLOAT64 : DSGD_FLOAT32, {3}); },
                   "float64"},
        Difference{"order",
                   [](auto s, auto r, bool odd) {
                     add(s, r, odd ? "b" : "a", DSGD_FLOAT32, {3});
                     add(s, r, odd ? "a" : "b", DSGD_FLOAT32, {3});
                   },
                   "parameter b"},
        Difference{
            "untrained",
            [](auto s, auto r, bool odd) { add(s, r, "a", DSGD_FLOAT32, {3}, odd ? DSGD_UNTRAINED : 0); },
            "untrained"},
        Difference{"missing",
                   [](auto s, auto r, bool odd) {
                     if (!odd) add(s, r, "a", DSGD_FLOAT32, {3});
                   },
                   "rank 0 has 'parameter a float32 [3] trained rate=1 frozen=0', rank 1 has 'no further "
                   "parameter'"},
        Difference{"optimizer",
                   [](auto s, auto, bool odd) {
                     DSGD_OK_OR_FAIL(dsgd_optimizer_set(s, odd ? "adam" : "sgd", nullptr, error_));
                   },
                   "adam"},
        Difference{"optimizer_option",
                   [](auto s, auto, bool odd) {
                     DSGD_OK_OR_FAIL(
                         dsgd_optimizer_set(s, "sgd", odd ? "momentum=0.5" : "momentum=0.9", error_));
                   },
                   "0.5"},
        Difference{"strategy",
                   [](auto s, auto, bool odd) {
                     DSGD_OK_OR_FAIL(
                         dsgd_strategy_set(s, odd ? "ps" : "simple", nullptr, nullptr, nullptr, error_));
                   },
                   "strategy ps"}),
    [](const auto& info) { return info.param.name; });

TEST(Objects, ReachEveryWorkerWhoeverPutsThem) {
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    const size_t large = 3'000'001;
    if (rank == 1) {
      std::vector<uint8_t> blob(large);
      for (size_t i = 0; i < large; ++i) blob[i] = static_cast<uint8_t>(i * 31);
      DSGD_OK_OR_FAIL(dsgd_object_put(session, "vocabulary", blob.data(), blob.size(), -1, nullptr, 0,
                                      nullptr, nullptr, error_));
      DSGD_OK_OR_FAIL(
          dsgd_object_put(session, "empty", nullptr, 0, -1, nullptr, 0, nullptr, nullptr, error_));
      EXPECT_EQ(dsgd_object_put(session, "empty", nullptr, 0, -1, nullptr, 0, nullptr, nullptr, nullptr),
                DSGD_ERR_EXISTS);
    }
    dsgd_object* object;
    DSGD_OK_OR_FAIL(dsgd_object_get(session, "vocabulary", nullptr, &object, nullptr, error_));
    ASSERT_EQ(dsgd_object_nbytes(object), large);
    const uint8_t* data = static_cast<const uint8_t*>(dsgd_object_data(object));
    for (size_t i = 0; i < large; ++i) ASSERT_EQ(data[i], static_cast<uint8_t>(i * 31));
    dsgd_object_free(object);
    DSGD_OK_OR_FAIL(dsgd_object_get(session, "empty", nullptr, &object, nullptr, error_));
    EXPECT_EQ(dsgd_object_nbytes(object), 0u);
    dsgd_object_free(object);
    const dsgd_op_options soon = with_timeout(1);
    EXPECT_EQ(dsgd_object_get(session, "nobody puts this", &soon, &object, nullptr, nullptr),
              DSGD_ERR_TIMEOUT);
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
  });
}

TEST(Objects, APutEndsWhenAWorkerHasClosed) {
  std::atomic<bool> closed{false};
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
    if (rank == 1) {
      DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));
      closed = true;
      return;
    }
    while (!closed) std::this_thread::yield();
    Error error;
    EXPECT_EQ(dsgd_object_put(session, "late", "x", 1, -1, nullptr, 0, nullptr, nullptr, error),
              DSGD_ERR_WORKER_LOST)
        << error.message();
    EXPECT_EQ(error.rank(), 1) << error.message();
  });
}

TEST(Objects, APutEndsWhenTheWorkerThatItIsTheFirstToReachHasJustClosed) {
  for (int job = 0; job < 20; ++job) {
    std::atomic<bool> closed{false};
    run_job(2, {{"step_timeout", "20s"}}, [&](dsgd_session* session, int rank) {
      if (rank == 0) {
        DSGD_OK_OR_FAIL(dsgd_close(session, 0, error_));
        closed = true;
        return;
      }
      while (!closed) std::this_thread::yield();
      Error error;
      EXPECT_EQ(dsgd_object_put(session, "late", "abc", 3, -1, nullptr, 0, nullptr, nullptr, error),
                DSGD_ERR_WORKER_LOST)
          << error.message();
      EXPECT_EQ(error.rank(), 0) << error.message();
    });
  }
}

TEST(Objects, AGetEndsWhenAllOthersHaveClosed) {
  std::atomic<bool> waiting{false};
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    if (rank == 1) {
      while (!waiting) std::this_thread::yield();
      return;
    }
    waiting = true;
    dsgd_object* object = nullptr;
    Error error;
    EXPECT_EQ(dsgd_object_get(session, "never", nullptr, &object, nullptr, error), DSGD_ERR_WORKER_LOST)
        << error.message();
    Error again;
    EXPECT_EQ(dsgd_object_get(session, "never", nullptr, &object, nullptr, again), DSGD_ERR_WORKER_LOST)
        << again.message();
  });
}

TEST(Objects, OfOneNamePutByAllAtOnceOnlyOneIsLeft) {
  std::mutex mutex;
  std::map<std::string, std::set<std::string>> seen;
  std::map<std::string, int> puts;
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    for (int i = 0; i < 50; ++i) {
      const std::string name = "name " + std::to_string(i),
                        own(100'000 * (i % 4) + 1, static_cast<char>('0' + rank));
      Error error;
      const int32_t status = dsgd_object_put(session, name.c_str(), own.data(), own.size(), -1, nullptr, 0,
                                             nullptr, nullptr, error);
      EXPECT_TRUE(status == DSGD_OK || status == DSGD_ERR_EXISTS) << error.message();
      dsgd_object* object = nullptr;
      DSGD_OK_OR_FAIL(dsgd_object_get(session, name.c_str(), nullptr, &object, nullptr, error_));
      std::lock_guard lock(mutex);
      puts[name] += status == DSGD_OK;
      seen[name].emplace(static_cast<const char*>(dsgd_object_data(object)), dsgd_object_nbytes(object));
      dsgd_object_free(object);
    }
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
  });
  for (const auto& [name, contents] : seen) {
    EXPECT_EQ(contents.size(), 1u) << name;
    EXPECT_EQ(puts[name], 1) << name;
  }
}

TEST(Weight, IsRefusedWhereFloat32CouldNotHoldTheSumsAndRightUpToThere) {
  for (const char* strategy : {"simple", "ps", "allreduce"}) {
    run_job(2, {}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session, rank};
      trainer.build({10}, "sgd", "lr=1", strategy);
      for (double weight : {1e308, 4e38, 1.1e12, 0.9e-12, 1e-46, -1.0}) {
        Error error;
        EXPECT_EQ(dsgd_step(session, weight, nullptr, error), DSGD_ERR_INVALID_ARGUMENT) << weight;
        EXPECT_NE(error.message().find("from 1e-12 to 1e12"), std::string::npos) << error.message();
      }
      float want = trainer.values[0][0];
      for (auto [zero, one] : {std::pair{1e12, 1e12}, {1e-12, 1e-12}, {1e12, 1e-12}}) {
        trainer.gradients[0][0] = rank == 0 ? 1e20f : 3e20f;
        DSGD_OK_OR_FAIL(dsgd_step(session, rank == 0 ? zero : one, nullptr, error_));
        want -= zero == one ? 2e20f : 1e20f;
        ASSERT_NEAR(trainer.values[0][0] / want, 1, 1e-6)
            << strategy << ", weights " << zero << " and " << one;
      }
    });
  }
}

TEST(Wait, ThatRunsOutLeavesTheOperationRunning) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    if (rank == 1) {
      dsgd_object* go;
      DSGD_OK_OR_FAIL(dsgd_object_get(session, "go", nullptr, &go, nullptr, error_));
      dsgd_object_free(go);
      DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
      return;
    }
    dsgd_op* op;
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, &op, error_));
    EXPECT_EQ(dsgd_op_wait(op, 20, nullptr), DSGD_ERR_WAIT_TIMEOUT);
    int32_t done = 1;
    DSGD_OK_OR_FAIL(dsgd_op_test(op, &done, error_));
    EXPECT_EQ(done, 0);
    DSGD_OK_OR_FAIL(dsgd_object_put(session, "go", "!", 1, -1, nullptr, 0, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
    dsgd_op_free(op);
  });
}

TEST(Wait, NeverMarksAGradientAndNamesThoseThatAreNotMarked) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({4, 4, 4}, "sgd", "lr=1", "allreduce");
    std::fill_n(trainer.gradients[2], 4, 1.0f);
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
    DSGD_OK_OR_FAIL(dsgd_gradient_ready(trainer.replica, trainer.parameters[1], nullptr, error_));
    for (const int timeout_ms : {0, 20}) {
      Error error;
      EXPECT_EQ(dsgd_op_wait(op, timeout_ms, error), DSGD_ERR_WAIT_TIMEOUT);
      EXPECT_NE(error.message().find("step 0 has not ended"), std::string::npos) << error.message();
      EXPECT_NE(error.message().find("gradients 'p0', 'p2' were not marked"), std::string::npos)
          << error.message();
      EXPECT_STREQ(dsgd_error_parameter(error.error), "p0");
    }
    std::fill_n(trainer.gradients[2], 4, 3.0f);  // the waits have not given it away
    DSGD_OK_OR_FAIL(dsgd_gradient_ready(trainer.replica, trainer.parameters[2], nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_step_flush(session, error_));
    DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
    EXPECT_EQ(trainer.values[2][0], -3.0f);
    dsgd_op_free(op);
  });
}

// Rank 0 is in the middle of its backward pass when rank 1 ends the job.
TEST(FailedSession, AnswersMarksInTheMiddleOfAStepWithTheFailure) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({4, 4}, "sgd", "lr=1", "allreduce");
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
    DSGD_OK_OR_FAIL(dsgd_gradient_ready(trainer.replica, trainer.parameters[0], nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));  // both have marked theirs
    if (rank == 1) DSGD_OK_OR_FAIL(dsgd_abort(session, "no more data", error_));
    EXPECT_EQ(dsgd_op_wait(op, -1, nullptr), DSGD_ERR_ABORTED);
    const auto told = [](const char* call, int32_t status, const Error& error) {
      EXPECT_EQ(status, DSGD_ERR_ABORTED) << call << ": " << error.message();
      EXPECT_EQ(error.rank(), 1) << call;
      EXPECT_NE(error.message().find("no more data"), std::string::npos) << call << ": " << error.message();
    };
    Error ready, absent, flush, begin, step;
    told("ready", dsgd_gradient_ready(trainer.replica, trainer.parameters[1], nullptr, ready), ready);
    told("absent", dsgd_gradient_absent(trainer.replica, trainer.parameters[1], absent), absent);
    told("flush", dsgd_step_flush(session, flush), flush);
    dsgd_op* next = nullptr;
    told("begin", dsgd_step_begin(session, 1, nullptr, &next, begin), begin);
    told("step", dsgd_step(session, 1, nullptr, step), step);
    dsgd_op_free(op);
  });
}

// A trainer whose last act is to flush need not know whether its last mark has ended the step already.
TEST(Flush, AfterTheLastMarkDoesNothing) {
  run_job(1, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({4}, "sgd", "lr=1", "allreduce");
    Error none;
    EXPECT_EQ(dsgd_step_flush(session, none), DSGD_ERR_STATE);
    for (int step = 0; step < 3; ++step) {
      dsgd_op* op = nullptr;
      DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
      DSGD_OK_OR_FAIL(dsgd_gradient_ready(trainer.replica, trainer.parameters[0], nullptr, error_));
      // The step has ended then, and may have ended otherwise.
      if (step > 0) DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
      DSGD_OK_OR_FAIL(dsgd_step_flush(session, error_));
      DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
      dsgd_op_free(op);
    }
  });
}

// The session goes on, but the step in which gradients are marked has failed.
TEST(FailedStep, AnswersMarksWithItsFailure) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session, rank};
    trainer.build({4, 4}, "sgd", "lr=1", "allreduce");
    if (rank == 1) DSGD_OK_OR_FAIL(dsgd_learning_rate_set(session, 0.5, error_));
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
    EXPECT_EQ(dsgd_op_wait(op, -1, nullptr), DSGD_ERR_MISMATCH);
    Error ready, flush;
    EXPECT_EQ(dsgd_gradient_ready(trainer.replica, trainer.parameters[0], nullptr, ready), DSGD_ERR_MISMATCH)
        << ready.message();
    EXPECT_EQ(dsgd_step_flush(session, flush), DSGD_ERR_MISMATCH) << flush.message();
    // These apply to the next step.
    DSGD_OK_OR_FAIL(dsgd_gradient_absent(trainer.replica, trainer.parameters[0], error_));
    DSGD_OK_OR_FAIL(dsgd_learning_rate_set(session, 1, error_));
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    dsgd_op_free(op);
  });
}

// Whether the workers wait for each other's gradients or all for their own, the message names a gradient and
// its rank.
TEST(Wait, ForAStepThatIsNeverMarkedEndsAtTheStepsDeadlineAndNamesTheGradient) {
  for (const bool all : {false, true}) {
    for (const char* reproducible : {"0", "1"}) {
      run_job(
          2, {{"step_timeout", "300ms"}, {"reproducible", reproducible}},
          [&](dsgd_session* session, int rank) {
            Trainer trainer{session, rank};
            trainer.build({4, 4}, "sgd", "lr=1", "allreduce");
            dsgd_op* op = nullptr;
            DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
            DSGD_OK_OR_FAIL(dsgd_gradient_ready(trainer.replica, trainer.parameters[0], nullptr, error_));
            const bool marks = rank == 0 && !all;
            if (marks)
              DSGD_OK_OR_FAIL(dsgd_gradient_ready(trainer.replica, trainer.parameters[1], nullptr, error_));
            Error error;
            EXPECT_EQ(dsgd_op_wait(op, -1, error), DSGD_ERR_TIMEOUT) << error.message();
            if (!all) {
              EXPECT_EQ(error.rank(), 1) << error.message();
            }
            EXPECT_NE(error.message().find(marks ? "rank 1" : "gradient 'p1' was not marked"),
                      std::string::npos)
                << error.message();
            dsgd_op_free(op);
          });
    }
  }
}

TEST(Close, EndsOperationsInFlightAndTellsTheOthers) {
  std::atomic<bool> closed{false};
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    std::vector<float> data(1000);
    if (rank == 0) {
      dsgd_op* op;
      DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, data.data(), data.data(), 4000, DSGD_FLOAT32, DSGD_SUM,
                                     nullptr, &op, error_));
      DSGD_OK_OR_FAIL(dsgd_close(session, 10, error_));
      EXPECT_EQ(dsgd_op_wait(op, -1, nullptr), DSGD_ERR_CLOSED);
      EXPECT_EQ(dsgd_barrier(session, nullptr, nullptr, nullptr, nullptr), DSGD_ERR_CLOSED);
      dsgd_op_free(op);
      closed = true;
    } else {
      while (!closed) std::this_thread::yield();
      // Data that rank 0 had sent of the operation came before its goodbye, so that one may complete; the
      // next cannot.
      Error error;
      dsgd_allreduce(session, nullptr, data.data(), data.data(), 4000, DSGD_FLOAT32, DSGD_SUM, nullptr,
                     nullptr, nullptr);
      EXPECT_EQ(dsgd_barrier(session, nullptr, nullptr, nullptr, error), DSGD_ERR_WORKER_LOST)
          << error.message();
      EXPECT_EQ(error.rank(), 0);
      EXPECT_NE(error.message().find("closed its session"), std::string::npos) << error.message();
    }
  });
}

}  // namespace
}  // namespace dsgd_test::step_test
