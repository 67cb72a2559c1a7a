// Plug-ins: what they answer is checked and compared before anything moves, whatever they do the session and
// the process go on, and they are released when nothing uses them any more. That they compute right is for
// the tests of collectives and of equivalence, which run them beside what is built in.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

#include "plugins.h"

namespace dsgd_test::plugin_test {
namespace {

// Runs an all-reduce that must fail on all workers with `code` and a message that has `says`, then something
// else, which must not.
void expect_refusal(int workers, int32_t code, const std::string& says,
                    const std::function<void(dsgd_config*)>& prepare) {
  std::atomic<int> refused{0};
  run_job(
      workers, {{"algorithm", "mine"}, {"step_timeout", "20s"}},
      [&](dsgd_session* session, int rank) {
        std::vector<float> data(100000, 1);
        Error error;
        EXPECT_EQ(dsgd_allreduce(session, nullptr, data.data(), data.data(), data.size() * 4, DSGD_FLOAT32,
                                 DSGD_SUM, nullptr, nullptr, error),
                  code)
            << error.message();
        EXPECT_NE(error.message().find(says), std::string::npos) << rank << ": " << error.message();
        refused += error.code() == code;
        DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
      },
      prepare);
  EXPECT_EQ(refused, workers);
}

TEST(Plugin, AWrongScheduleIsRefusedOnAllWorkersAndTheSessionGoesOn) {
  expect_refusal(3, DSGD_ERR_INVALID_ARGUMENT,
                 "algorithm 'mine' is wrong for 3 workers and 100000 elements: rank 0 ends without",
                 [](dsgd_config* config) {
                   register_algorithm(config, "mine",
                                      [](void*, int32_t, int32_t, uint64_t, dsgd_schedule*) { return 0; });
                 });
}

TEST(Plugin, ACodeThatAnAlgorithmAnswersBecomesTheOperations) {
  expect_refusal(
      2, DSGD_ERR_UNSUPPORTED, "algorithm 'mine' answered DSGD_ERR_UNSUPPORTED", [](dsgd_config* config) {
        register_algorithm(config, "mine", [](void*, int32_t, int32_t, uint64_t, dsgd_schedule*) -> int32_t {
          return DSGD_ERR_UNSUPPORTED;
        });
      });
  for (int32_t unknown : {7, -1000}) {
    expect_refusal(2, DSGD_ERR_INTERNAL, "answered " + std::to_string(unknown),
                   [&unknown](dsgd_config* config) {
                     register_algorithm(
                         config, "mine",
                         [](void* user, int32_t, int32_t, uint64_t, dsgd_schedule*) -> int32_t {
                           return *static_cast<int32_t*>(user);
                         },
                         &unknown);
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

// It is forbidden; a host that does it all the same is told, instead of waiting for itself.
TEST(Plugin, ACallOfTheSessionInsideAPluginsFunctionIsRefused) {
  struct Host {
    dsgd_session* session = nullptr;
    int refused = 0;
  };
  static thread_local Host* mine = nullptr;  // a worker's configuration and session are of one thread
  std::vector<Host> hosts(2);
  std::atomic<size_t> next{0};
  run_job(
      2, {{"algorithm", "mine"}},
      [](dsgd_session* session, int) {
        mine->session = session;
        std::vector<float> data(100000, 1);
        DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, data.data(), data.data(), 400000, DSGD_FLOAT32,
                                       DSGD_SUM, nullptr, nullptr, error_));
        EXPECT_EQ(data[0], 2);
      },
      [&](dsgd_config* config) {
        mine = &hosts[next++];
        register_algorithm(
            config, "mine",
            [](void* user, int32_t rank, int32_t size, uint64_t count, dsgd_schedule* schedule) -> int32_t {
              auto* host = static_cast<Host*>(user);
              dsgd_op* op = nullptr;
              size_t ended = 0;
              host->refused +=
                  dsgd_barrier(host->session, nullptr, nullptr, nullptr, nullptr) == DSGD_ERR_STATE &&
                  dsgd_queue_poll(host->session, &op, 1, 0, &ended, nullptr) == DSGD_ERR_STATE &&
                  dsgd_close(host->session, 0, nullptr) == DSGD_ERR_STATE;
              dsgd_session_free(host->session);
              return ring_plugin(nullptr, rank, size, count, schedule);
            },
            mine);
      });
  for (const Host& host : hosts) EXPECT_EQ(host.refused, 2) << "once for each rank's part";
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
        EXPECT_EQ(dsgd_start(session, nullptr, nullptr, error), DSGD_ERR_MISMATCH);
        EXPECT_NE(error.message().find("allreduce algorithm=mine (answers "), std::string::npos)
            << error.message();
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
  EXPECT_EQ(dsgd_strategy_set(session, strategy, options, nullptr, nullptr, nullptr), DSGD_OK);
  return dsgd_start(session, nullptr, nullptr, error);
}

TEST(Plugin, AnOwnerThatIsNoRankIsRefusedAtStart) {
  run_job(
      2, {},
      [](dsgd_session* session, int) {
        Error error;
        EXPECT_EQ(start(session, "mine", nullptr, error), DSGD_ERR_INVALID_ARGUMENT);
        EXPECT_NE(error.message().find(
                      "strategy 'mine' gives elements 65536 to 131072 of parameter 'weight' to rank 2; ranks "
                      "are 0 .. 1"),
                  std::string::npos)
            << error.message();
        // Nothing has moved: another strategy can be started with.
        DSGD_OK_OR_FAIL(dsgd_strategy_set(session, "ps", nullptr, nullptr, nullptr, error_));
        DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
        DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
        Error late;  // and between steps, too
        EXPECT_EQ(dsgd_strategy_set(session, "mine", nullptr, nullptr, nullptr, late),
                  DSGD_ERR_INVALID_ARGUMENT);
        DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
      },
      [](dsgd_config* config) {
        register_strategy(
            config, "mine", DSGD_STRATEGY_UPDATE_AT_OWNER,
            [](void*, const dsgd_placement* range) { return dsgd_placement_begin(range) == 65536 ? 2 : 0; });
      });
}

auto expect_mismatch_of_mine(const char* says) {
  return [says](dsgd_session* session, int) {
    Error error;
    EXPECT_EQ(start(session, "mine", nullptr, error), DSGD_ERR_MISMATCH);
    EXPECT_NE(error.message().find(says), std::string::npos) << error.message();
  };
}

TEST(Plugin, WorkersWithUnlikeOwnersAreToldSoAtStart) {
  run_job(2, {}, expect_mismatch_of_mine("strategy mine update_at_owner (answers "),
          in_turn([](dsgd_config* config, int turn) {
            register_strategy(
                config, "mine", DSGD_STRATEGY_UPDATE_AT_OWNER,
                turn ? [](void*, const dsgd_placement*) { return 0; }
                     : [](void*, const dsgd_placement*) { return 1; });
          }));
}

TEST(Plugin, WorkersWithUnlikeFlagsAreToldSoAtStart) {
  run_job(2, {}, expect_mismatch_of_mine("strategy mine mean_at_owner"),
          in_turn([](dsgd_config* config, int turn) {
            register_strategy(config, "mine", static_cast<uint32_t>(turn), deal_owner);
          }));
}

// Two who both believe that the other sends would wait for each other.
TEST(Plugin, UnlikeSchedulesAreComparedBeforeAnythingIsSent) {
  const auto star = [](void* user, int32_t rank, int32_t, uint64_t count,
                       dsgd_schedule* schedule) -> int32_t {
    const int32_t root = *static_cast<int32_t*>(user);
    const auto add = adder(schedule);
    add(rank == root ? kReduce : kSend, 0, 1 - rank, uint64_t{0}, count);
    add(rank == root ? kSend : kCopy, 1, 1 - rank, uint64_t{0}, count);
    return DSGD_OK;
  };
  static int32_t roots[2] = {0, 1};
  std::atomic<int> next{0};
  run_job(
      2, {{"algorithm", "mine"}},
      [](dsgd_session* session, int rank) {
        std::vector<float> data(100000, 1);
        Error error;
        const int32_t status = dsgd_allreduce(session, nullptr, data.data(), data.data(), 400000,
                                              DSGD_FLOAT32, DSGD_SUM, nullptr, nullptr, error);
        EXPECT_EQ(status, DSGD_ERR_MISMATCH) << rank << ' ' << error.message();
        EXPECT_NE(error.message().find("workers disagree on algorithm 'mine'"), std::string::npos)
            << error.message();
        DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
      },
      [&](dsgd_config* config) { register_algorithm(config, "mine", star, &roots[next++]); });
}

// Each all-reduce takes two operations; where calls do not block, later ones wait behind the second.
TEST(Plugin, WorkersThatBlockAndWorkersThatDoNotMakeTheSameCalls) {
  run_job(
      3, {{"algorithm", "my_ring"}, {"step_timeout", "20s"}},
      [](dsgd_session* session, int rank) {
        constexpr size_t kCalls = 24, kCount = 30'000;
        std::vector<std::vector<float>> data(kCalls, std::vector<float>(kCount, 1));
        std::vector<dsgd_op*> ops(kCalls, nullptr);
        for (size_t c = 0; c < kCalls; ++c) {
          dsgd_op** op = rank == 0 ? nullptr : &ops[c];
          if (c % 4 == 3) {
            DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, op, error_));
          } else {
            DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, data[c].data(), data[c].data(), kCount * 4,
                                           DSGD_FLOAT32, DSGD_SUM, nullptr, op, error_));
          }
        }
        for (dsgd_op* op : ops) {
          if (op) DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
          dsgd_op_free(op);
        }
        for (size_t c = 0; c < kCalls; ++c) EXPECT_EQ(data[c][kCount - 1], c % 4 == 3 ? 1 : 3);
      },
      register_all);
}

TEST(Plugin, AnAlgorithmThatFailsOnOneWorkerFailsOnAll) {
  const auto refuse = [](void*, int32_t, int32_t, uint64_t, dsgd_schedule*) -> int32_t {
    return DSGD_ERR_LIMIT;
  };
  expect_refusal(3, DSGD_ERR_LIMIT, "algorithm 'mine' answered DSGD_ERR_LIMIT",
                 in_turn([refuse](dsgd_config* config, int turn) {
                   register_algorithm(config, "mine",
                                      turn == 1 ? static_cast<AllReduce>(refuse) : ring_plugin);
                 }));
}

TEST(Plugin, CodesThatSpeakOfSessionsAndWorkersAreNotPassedOn) {
  for (int32_t code : {DSGD_ERR_WAIT_TIMEOUT, DSGD_ERR_CLOSED, DSGD_ERR_WORKER_LOST, DSGD_ERR_TORN}) {
    expect_refusal(2, DSGD_ERR_INTERNAL, std::string("answered ") + dsgd_status_name(code),
                   [&code](dsgd_config* config) {
                     register_algorithm(
                         config, "mine",
                         [](void* user, int32_t, int32_t, uint64_t, dsgd_schedule*) {
                           return *static_cast<int32_t*>(user);
                         },
                         &code);
                   });
  }
}

// NaN of different sign and payload, and zeros of both signs: whoever adds what to what, all hold the same
// bits.
TEST(Plugin, WorkersThatAddInEitherOrderHoldTheSameBitsOfNanAndZero) {
  std::mutex mutex;
  std::map<int32_t, std::vector<std::vector<uint32_t>>> results;
  run_job(
      4, {{"algorithm", "my_doubling"}},
      [&](dsgd_session* session, int rank) {
        const uint32_t odd[4] = {0x7fc00000, 0xffc00001, 0x7fc12345, 0xff800000};
        for (int32_t reduction : {DSGD_SUM, DSGD_PROD, DSGD_MIN, DSGD_MAX}) {
          std::vector<uint32_t> bits(3000);
          for (size_t i = 0; i < bits.size(); ++i) {
            bits[i] = i % 3 == 0   ? odd[(i / 3 + static_cast<size_t>(rank)) % 4]
                      : i % 3 == 1 ? (rank % 2 ? 0x80000000 : 0)
                                   : 0x3f800000;
          }
          DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, bits.data(), bits.data(), bits.size() * 4,
                                         DSGD_FLOAT32, reduction, nullptr, nullptr, error_));
          std::lock_guard lock(mutex);
          results[reduction].push_back(bits);
        }
      },
      register_all);
  for (const auto& [reduction, all] : results) {
    for (const auto& bits : all) EXPECT_EQ(bits, all[0]) << "reduction " << reduction;
    EXPECT_EQ(all[0][1], reduction == DSGD_MIN ? 0x80000000u : 0u) << "reduction " << reduction;
  }
}

// The step's header finds a plan that differs, before anything has changed.
TEST(Plugin, AnswersThatDifferAfterAChangeOfParametersAreFoundInTheNextStep) {
  static std::atomic<bool> changed{false};
  static int turns[2] = {0, 1};
  run_job(
      2, {},
      [](dsgd_session* session, int) {
        dsgd_replica* replica;
        dsgd_parameter* parameters[2];
        const int64_t size = 100000;
        void *value, *gradient;
        DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
        for (int p = 0; p < 2; ++p) {
          DSGD_OK_OR_FAIL(
              dsgd_parameter_add(session, p ? "b" : "a", DSGD_FLOAT32, &size, 1, 0, &parameters[p], error_));
          DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameters[p], &value, &gradient, error_));
        }
        DSGD_OK_OR_FAIL(dsgd_strategy_set(session, "mine", nullptr, nullptr, nullptr, error_));
        DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
        DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
        changed = true;  // from now on one worker's function answers otherwise
        DSGD_OK_OR_FAIL(dsgd_parameter_set(parameters[1], "frozen=1", error_));
        Error error;
        EXPECT_EQ(dsgd_step(session, 1, nullptr, error), DSGD_ERR_MISMATCH) << error.message();
        EXPECT_NE(error.message().find("the layout and the owners"), std::string::npos) << error.message();
      },
      in_turn([](dsgd_config* config, int turn) {
        register_strategy(
            config, "mine", DSGD_STRATEGY_MEAN_AT_OWNER,
            [](void* user, const dsgd_placement*) -> int32_t { return changed && *static_cast<int*>(user); },
            &turns[turn]);
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
            [](void* user, const dsgd_placement* range) {
              auto* seen = static_cast<Seen*>(user);
              std::lock_guard lock(seen->mutex);
              seen->calls.push_back(std::string(dsgd_placement_parameter(range)) + ' ' +
                                    std::to_string(dsgd_placement_begin(range)) + '+' +
                                    std::to_string(dsgd_placement_count(range)) + " of " +
                                    std::to_string(dsgd_placement_size(range)) + ": " +
                                    dsgd_placement_options(range));
              return 1;
            },
            &seen);
      });
  std::sort(seen.calls.begin(), seen.calls.end());
  seen.calls.erase(std::unique(seen.calls.begin(), seen.calls.end()), seen.calls.end());
  EXPECT_EQ(seen.calls,
            (std::vector<std::string>{
                "weight 0+65536 of 2: first=1 last=0", "weight 131072+65536 of 2: first=1 last=0",
                "weight 196608+3392 of 2: first=1 last=0", "weight 65536+65536 of 2: first=1 last=0"}));
}

// Adam's state goes from the servers of one strategy to those of the next.
TEST(Plugin, AChangeToAndFromARegisteredStrategyKeepsTheOptimizersState) {
  const std::vector<std::vector<const char*>> orders = {
      {"ps", "ps", "ps", "ps"},
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
          DSGD_OK_OR_FAIL(
              dsgd_parameter_add(session, "weight", DSGD_FLOAT32, &size, 1, 0, &parameter, error_));
          DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
          DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &value, &gradient, error_));
          DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "adam", "lr=0.01", error_));
          DSGD_OK_OR_FAIL(dsgd_strategy_set(session, orders[o][0], nullptr, nullptr, nullptr, error_));
          DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
          for (size_t step = 0; step < orders[o].size(); ++step) {
            if (step > 0)
              DSGD_OK_OR_FAIL(dsgd_strategy_set(session, orders[o][step], nullptr, nullptr, nullptr, error_));
            for (int64_t i = 0; i < size; ++i) {
              static_cast<float*>(gradient)[i] =
                  static_cast<float>((i * 7 + static_cast<int64_t>(step) * 5 + rank) % 13) - 6;
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
  DSGD_OK_OR_FAIL(dsgd_strategy_set(second, "mine", nullptr, nullptr, nullptr, error_));
  dsgd_config_free(config);
  EXPECT_EQ(released, 0);
  dsgd_finalize(first);
  EXPECT_EQ(released, 0);
  dsgd_finalize(second);
  EXPECT_EQ(released, 2);

  // A refused plug-in still belongs to the caller.
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
  EXPECT_STREQ(dsgd_config_value(config, "algorithm"), "my_tree");
  EXPECT_EQ(dsgd_config_set(config, "algorithm", "my_three", other), DSGD_ERR_INVALID_ARGUMENT);
  EXPECT_NE(other.message().find("did you mean 'my_tree'?"), std::string::npos) << other.message();
  EXPECT_EQ(dsgd_config_set(config, "strategy", "my_tree", strategy), DSGD_ERR_INVALID_ARGUMENT);
  EXPECT_NE(strategy.message().find("dealt_means"), std::string::npos) << strategy.message();
  DSGD_OK_OR_FAIL(dsgd_config_set(config, "num_workers", "1", error_));
  dsgd_session* session;
  DSGD_OK_OR_FAIL(dsgd_init(config, &session, error_));
  dsgd_config_free(config);
  Error unknown;
  EXPECT_EQ(dsgd_strategy_set(session, "dealt_valus", nullptr, nullptr, nullptr, unknown),
            DSGD_ERR_INVALID_ARGUMENT);
  EXPECT_NE(unknown.message().find("did you mean 'dealt_values'?"), std::string::npos) << unknown.message();
  DSGD_OK_OR_FAIL(dsgd_strategy_set(session, "allreduce", "algorithm=my_ring", nullptr, nullptr, error_));
  dsgd_finalize(session);
}

}  // namespace
}  // namespace dsgd_test::plugin_test
