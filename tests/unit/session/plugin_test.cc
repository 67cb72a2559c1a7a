// Plug-ins: what they answer is checked and compared before anything moves, whatever they do the session and the process go
// on, and they are released when nothing uses them any more. That they compute right is for the tests of collectives and of
// equivalence, which run them beside what is built in.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "plugins.h"

namespace dsgd_test {
namespace {

// Runs an all-reduce that must fail on all workers with `code` and a message that has `says`, then something else, which
// must not.
void expect_refusal(int workers, int32_t code, const std::string& says, const std::function<void(dsgd_config*)>& prepare) {
  std::atomic<int> refused{0};
  run_job(
      workers, {{"algorithm", "mine"}, {"step_timeout", "20s"}},
      [&](dsgd_session* session, int rank) {
        std::vector<float> data(100000, 1);
        Error error;
        EXPECT_EQ(dsgd_allreduce(session, nullptr, data.data(), data.size() * 4, DSGD_FLOAT32, DSGD_SUM, nullptr, error), code)
            << error.message();
        EXPECT_NE(error.message().find(says), std::string::npos) << rank << ": " << error.message();
        refused += error.code() == code;
        DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, error_));
      },
      prepare);
  EXPECT_EQ(refused, workers);
}

TEST(Plugin, AWrongScheduleIsRefusedOnAllWorkersAndTheSessionGoesOn) {
  expect_refusal(3, DSGD_ERR_INVALID_ARGUMENT, "algorithm 'mine' is wrong for 3 workers and 100000 elements: rank 0 ends without",
                 [](dsgd_config* config) {
                   register_algorithm(config, "mine", [](void*, int32_t, int32_t, uint64_t, dsgd_schedule*) { return 0; });
                 });
}

TEST(Plugin, ACodeThatAnAlgorithmAnswersBecomesTheOperations) {
  expect_refusal(2, DSGD_ERR_UNSUPPORTED, "algorithm 'mine' answered DSGD_ERR_UNSUPPORTED", [](dsgd_config* config) {
    register_algorithm(config, "mine", [](void*, int32_t, int32_t, uint64_t, dsgd_schedule*) -> int32_t {
      return DSGD_ERR_UNSUPPORTED;
    });
  });
  for (int32_t unknown : {7, -1000}) {
    expect_refusal(2, DSGD_ERR_INTERNAL, "answered " + std::to_string(unknown), [&unknown](dsgd_config* config) {
      register_algorithm(config, "mine", [](void* user, int32_t, int32_t, uint64_t, dsgd_schedule*) -> int32_t {
        return *static_cast<int32_t*>(user);
      }, &unknown);
    });
  }
}

TEST(Plugin, AnExceptionOutOfAnAlgorithmDoesNotReachTheHost) {
  expect_refusal(2, DSGD_ERR_INTERNAL, "algorithm 'mine' threw an exception", [](dsgd_config* config) {
    register_algorithm(config, "mine", [](void*, int32_t, int32_t, uint64_t, dsgd_schedule*) -> int32_t {
      throw std::runtime_error("oh");
    });
  });
}

// Which of two the n-th configuration gets.
template <typename Prepare>
auto in_turn(Prepare prepare) {
  auto next = std::make_shared<std::atomic<int>>(0);
  return [next, prepare](dsgd_config* config) { prepare(config, (*next)++); };
}

TEST(Plugin, WorkersWithUnlikeAlgorithmsOfOneNameAreToldSo) {
  expect_refusal(2, DSGD_ERR_MISMATCH, "all-reduce", in_turn([](dsgd_config* config, int turn) {
                   register_algorithm(config, "mine", turn ? ring_plugin : doubling_plugin);
                 }));
  run_job(
      2, {{"algorithm", "mine"}},
      [](dsgd_session* session, int) {
        dsgd_parameter* parameter;
        dsgd_replica* replica;
        const int64_t size = 1000;
        void *value, *gradient;
        DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "p", DSGD_FLOAT32, &size, 1, 0, &parameter, error_));
        DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
        DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &value, &gradient, error_));
        Error error;
        EXPECT_EQ(dsgd_start(session, error), DSGD_ERR_MISMATCH);
        EXPECT_NE(error.message().find("allreduce algorithm=mine (answers "), std::string::npos) << error.message();
      },
      in_turn([](dsgd_config* config, int turn) {
        register_algorithm(config, "mine", turn ? ring_plugin : doubling_plugin);
      }));
}

// A session with one parameter of 200000 elements, up to dsgd_start.
int32_t start(dsgd_session* session, const char* strategy, const char* options, Error& error) {
  dsgd_parameter* parameter;
  dsgd_replica* replica;
  const int64_t size = 200000;
  void *value, *gradient;
  EXPECT_EQ(dsgd_parameter_add(session, "weight", DSGD_FLOAT32, &size, 1, 0, &parameter, nullptr), DSGD_OK);
  EXPECT_EQ(dsgd_replica_add(session, "cpu", &replica, nullptr), DSGD_OK);
  EXPECT_EQ(dsgd_alloc(replica, parameter, &value, &gradient, nullptr), DSGD_OK);
  EXPECT_EQ(dsgd_strategy_set(session, strategy, options, nullptr), DSGD_OK);
  return dsgd_start(session, error);
}

TEST(Plugin, AnOwnerThatIsNoRankIsRefusedAtStart) {
  run_job(
      2, {},
      [](dsgd_session* session, int) {
        Error error;
        EXPECT_EQ(start(session, "mine", nullptr, error), DSGD_ERR_INVALID_ARGUMENT);
        EXPECT_NE(error.message().find("strategy 'mine' gives elements 65536 to 131072 of parameter 'weight' to rank 2; ranks "
                                       "are 0 .. 1"),
                  std::string::npos)
            << error.message();
        // Nothing has moved: another strategy can be started with.
        DSGD_OK_OR_FAIL(dsgd_strategy_set(session, "ps", nullptr, error_));
        DSGD_OK_OR_FAIL(dsgd_start(session, error_));
        DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
        Error late;  // and between steps, too
        EXPECT_EQ(dsgd_strategy_set(session, "mine", nullptr, late), DSGD_ERR_INVALID_ARGUMENT);
        DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
      },
      [](dsgd_config* config) {
        register_strategy(config, "mine", DSGD_STRATEGY_UPDATE_AT_OWNER,
                          [](void*, const char*, uint64_t begin, uint64_t, int32_t, const char*) {
                            return begin == 65536 ? 2 : 0;
                          });
      });
}

TEST(Plugin, WorkersWithUnlikeOwnersAreToldSoAtStart) {
  run_job(
      2, {},
      [](dsgd_session* session, int) {
        Error error;
        EXPECT_EQ(start(session, "mine", nullptr, error), DSGD_ERR_MISMATCH);
        EXPECT_NE(error.message().find("strategy mine (answers "), std::string::npos) << error.message();
      },
      in_turn([](dsgd_config* config, int turn) {
        register_strategy(config, "mine", DSGD_STRATEGY_UPDATE_AT_OWNER,
                          turn ? [](void*, const char*, uint64_t, uint64_t, int32_t, const char*) { return 0; }
                               : [](void*, const char*, uint64_t, uint64_t, int32_t, const char*) { return 1; });
      }));
}

TEST(Plugin, AStrategySeesNamesRangesAndOptions) {
  struct Seen {
    std::mutex mutex;
    std::vector<std::string> calls;
  } seen;
  run_job(
      2, {},
      [](dsgd_session* session, int) {
        Error error;
        ASSERT_EQ(start(session, "mine", "first=1 last=0", error), DSGD_OK) << error.message();
      },
      [&seen](dsgd_config* config) {
        register_strategy(
            config, "mine", DSGD_STRATEGY_MEAN_AT_OWNER,
            [](void* user, const char* parameter, uint64_t begin, uint64_t count, int32_t size, const char* options) {
              auto* seen = static_cast<Seen*>(user);
              std::lock_guard lock(seen->mutex);
              seen->calls.push_back(std::string(parameter) + ' ' + std::to_string(begin) + '+' + std::to_string(count) + " of " +
                                    std::to_string(size) + ": " + options);
              return 1;
            },
            &seen);
      });
  std::sort(seen.calls.begin(), seen.calls.end());
  seen.calls.erase(std::unique(seen.calls.begin(), seen.calls.end()), seen.calls.end());
  EXPECT_EQ(seen.calls, (std::vector<std::string>{"weight 0+65536 of 2: first=1 last=0", "weight 131072+65536 of 2: first=1 last=0",
                                                  "weight 196608+3392 of 2: first=1 last=0",
                                                  "weight 65536+65536 of 2: first=1 last=0"}));
}

// Adam's state goes from the servers of one strategy to those of the next.
TEST(Plugin, AChangeToAndFromARegisteredStrategyKeepsTheOptimizersState) {
  const std::vector<std::vector<const char*>> orders = {{"ps", "ps", "ps", "ps"},
                                                        {"dealt_values", "ps", "dealt_means", "dealt_values"},
                                                        {"allreduce", "dealt_values", "allreduce", "dealt_means"}};
  std::vector<std::vector<float>> results(orders.size());
  for (size_t o = 0; o < orders.size(); ++o) {
    run_job(
        3, {{"reproducible", "1"}, {"bucket_size", "64K"}},
        [&](dsgd_session* session, int rank) {
          dsgd_parameter* parameter;
          dsgd_replica* replica;
          const int64_t size = 50000;
          void *value, *gradient;
          DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "weight", DSGD_FLOAT32, &size, 1, 0, &parameter, error_));
          DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
          DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &value, &gradient, error_));
          DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "adam", "lr=0.01", error_));
          DSGD_OK_OR_FAIL(dsgd_strategy_set(session, orders[o][0], nullptr, error_));
          DSGD_OK_OR_FAIL(dsgd_start(session, error_));
          for (size_t step = 0; step < orders[o].size(); ++step) {
            if (step > 0) DSGD_OK_OR_FAIL(dsgd_strategy_set(session, orders[o][step], nullptr, error_));
            for (int64_t i = 0; i < size; ++i) {
              static_cast<float*>(gradient)[i] = static_cast<float>((i * 7 + static_cast<int64_t>(step) * 5 + rank) % 13) - 6;
            }
            DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
          }
          if (rank == 2) results[o].assign(static_cast<float*>(value), static_cast<float*>(value) + size);
        },
        register_all);
    ASSERT_EQ(results[o].size(), 50000u);
    EXPECT_EQ(results[o], results[0]) << "order " << o;
  }
}

TEST(Plugin, IsReleasedOnceWhenConfigurationAndSessionsAreFreed) {
  std::atomic<int> released{0};
  const auto count = [](void* user) { ++*static_cast<std::atomic<int>*>(user); };
  dsgd_config* config = dsgd_config_new();
  register_algorithm(config, "mine", ring_plugin, &released, count);
  register_strategy(config, "mine", DSGD_STRATEGY_MEAN_AT_OWNER, deal_owner, &released, count);
  DSGD_OK_OR_FAIL(dsgd_config_set(config, "algorithm", "mine", error_));
  DSGD_OK_OR_FAIL(dsgd_config_set(config, "num_workers", "1", error_));
  dsgd_session *first, *second;
  DSGD_OK_OR_FAIL(dsgd_init(config, &first, error_));
  DSGD_OK_OR_FAIL(dsgd_init(config, &second, error_));
  DSGD_OK_OR_FAIL(dsgd_strategy_set(second, "mine", nullptr, error_));
  dsgd_config_free(config);
  EXPECT_EQ(released, 0);
  dsgd_finalize(first);
  EXPECT_EQ(released, 0);
  dsgd_finalize(second);
  EXPECT_EQ(released, 2);

  // What was refused is the caller's still.
  config = dsgd_config_new();
  dsgd_algorithm algorithm;
  dsgd_algorithm_init(&algorithm, sizeof algorithm);
  algorithm.version = DSGD_PLUGIN_VERSION;
  algorithm.user = &released;
  algorithm.allreduce = ring_plugin;
  algorithm.release = count;
  EXPECT_EQ(dsgd_algorithm_register(config, "ring", &algorithm, nullptr), DSGD_ERR_EXISTS);
  dsgd_config_free(config);
  EXPECT_EQ(released, 2);
}

TEST(Plugin, TheKeysTakeARegisteredNameAndNoOther) {
  dsgd_config* config = dsgd_config_new();
  Error before, other, strategy;
  EXPECT_EQ(dsgd_config_set(config, "algorithm", "my_tree", before), DSGD_ERR_INVALID_ARGUMENT);
  register_all(config);
  DSGD_OK_OR_FAIL(dsgd_config_set(config, "algorithm", "my_tree", error_));
  DSGD_OK_OR_FAIL(dsgd_config_set(config, "strategy", "dealt_values", error_));
  EXPECT_STREQ(dsgd_config_get(config, "algorithm"), "my_tree");
  EXPECT_EQ(dsgd_config_set(config, "algorithm", "my_three", other), DSGD_ERR_INVALID_ARGUMENT);
  EXPECT_NE(other.message().find("did you mean 'my_tree'?"), std::string::npos) << other.message();
  EXPECT_EQ(dsgd_config_set(config, "strategy", "my_tree", strategy), DSGD_ERR_INVALID_ARGUMENT);
  EXPECT_NE(strategy.message().find("dealt_means"), std::string::npos) << strategy.message();
  DSGD_OK_OR_FAIL(dsgd_config_set(config, "num_workers", "1", error_));
  dsgd_session* session;
  DSGD_OK_OR_FAIL(dsgd_init(config, &session, error_));
  dsgd_config_free(config);
  Error unknown;
  EXPECT_EQ(dsgd_strategy_set(session, "dealt_valus", nullptr, unknown), DSGD_ERR_INVALID_ARGUMENT);
  EXPECT_NE(unknown.message().find("did you mean 'dealt_values'?"), std::string::npos) << unknown.message();
  DSGD_OK_OR_FAIL(dsgd_strategy_set(session, "allreduce", "algorithm=my_ring", error_));
  dsgd_finalize(session);
}

}  // namespace
}  // namespace dsgd_test
