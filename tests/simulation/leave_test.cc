// A worker leaves the job while the others use collectives. In good order: whatever they call and whatever
// the moment, their calls end with an error that names the worker and says that it has closed its session.
// The worker is not taken for lost. Steps go on (departure_test.cc). After an abort: their calls end with its
// reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster.h"
#include "small_model.h"
#include "tests/unit/begin.h"
#include "tests/unit/sanitizer.h"
#include "tests/unit/wait_for.h"

namespace dsgd::simulation::leave_test {
namespace {

using namespace std::chrono_literals;
using Mode = Session::Mode;
using transport::Duration;

constexpr int32_t kWorkers = 3;
constexpr size_t kLarge = 70'000;

struct Call {
  const char* name;
  bool started;
  std::function<Status(Session&, std::vector<float>& memory)> make;
};

const std::vector<Call>& calls() {
  static const std::vector<Call> all = {
      {"barrier", false, [](Session& s, auto&) { return wait_for(s, s.barrier(Mode::kWait)); }},
      {"small all-reduce", false,
       [](Session& s, auto& memory) {
         return wait_for(s,
                         begin(s.allreduce(memory.data(), memory.data(), 4, DType::kFloat32, Reduction::kSum),
                               Mode::kWait));
       }},
      {"large all-reduce", false,
       [](Session& s, auto& memory) {
         return wait_for(
             s, begin(s.allreduce(memory.data(), memory.data(), 4 * kLarge, DType::kFloat32, Reduction::kSum),
                      Mode::kWait));
       }},
      {"broadcast", false,
       [](Session& s, auto& memory) {
         return wait_for(s, begin(s.broadcast(memory.data(), 4 * kLarge, DType::kFloat32, 1), Mode::kWait));
       }},
      {"all-gather", false,
       [](Session& s, auto& memory) {
         const size_t counts[kWorkers] = {0, kLarge, 0};
         const size_t mine = counts[s.rank()] * 4;
         return wait_for(s, begin(s.allgather(memory.data() + kLarge, mine, memory.data(), 4 * kLarge, counts,
                                              DType::kFloat32),
                                  Mode::kWait));
       }},
      {"strategy", true, [](Session& s, auto&) { return s.set_strategy("ps", ""); }},
  };
  return all;
}

struct Case {
  int32_t leaver;
  const Call* call;
  bool connected;                   // all have made a call together before
  std::chrono::microseconds after;  // how long the leaver waits, or the others do if negative
  bool slow_head;                   // the head's news are late
};

ClusterOptions options_of(uint64_t seed) {
  return {.workers = kWorkers,
          .seed = seed,
          .settings = {{"step_timeout", "20s"}, {"lease", "5s"}, {"receive_memory", "256M"}}};
}

std::vector<Status> run(const Case& c, uint64_t seed) {
  std::vector<Status> of(kWorkers);
  Cluster cluster(options_of(seed), [&](Cluster& cluster, Session& session, int worker) {
    std::vector<float> memory(2 * kLarge);
    if (c.call->started) {
      EXPECT_TRUE(Cluster::train(cluster, session, worker, 0)) << cluster.history(worker);
    } else if (c.connected) {
      EXPECT_TRUE(wait_for(session, session.barrier(Mode::kWait)).ok());
    }
    if (c.slow_head && worker == 0) {
      for (int other = 1; other < kWorkers; ++other) {
        if (other != c.leaver)
          cluster.world.set_delay(cluster.process(0), cluster.process(other), {600ms, 700ms, 0, 0ms});
      }
    }
    if (worker == c.leaver) {
      cluster.pass_time(worker, c.after);
      EXPECT_TRUE(session.close(0ms).ok());
    } else {
      cluster.pass_time(worker, -c.after);
      of[static_cast<size_t>(worker)] = c.call->make(session, memory);
      (void)session.close(0ms);
    }
  });
  EXPECT_TRUE(cluster.run_until_ended(600s));
  return of;
}

TEST(Leave, OfAWorkerEndsTheCallsOfTheOthersAndIsNotALoss) {
  int failures = 0;
  for (int32_t leaver = 0; leaver < kWorkers; ++leaver) {
    for (const Call& call : calls()) {
      for (const bool connected : {false, true}) {
        for (const std::chrono::microseconds after : {-100ms, -1ms, 0ms, 1ms, 100ms}) {
          for (const bool slow_head : {false, true}) {
            const Case c{leaver, &call, connected, after, slow_head};
            const std::vector<Status> of = run(c, 11);
            for (int32_t rank = 0; rank < kWorkers; ++rank) {
              if (rank == leaver) continue;
              const Status& status = of[static_cast<size_t>(rank)];
              const std::string who = "rank " + std::to_string(leaver) + " (";
              const bool right = status.code() == Code::kWorkerLost && status.rank() == leaver &&
                                 status.message().find(who) != std::string::npos &&
                                 status.message().find("closed its session") != std::string::npos &&
                                 status.message().find("was lost") == std::string::npos;
              if (!right && ++failures <= 12) {
                ADD_FAILURE() << call.name << ", rank " << leaver << " leaves after " << after.count()
                              << " us" << (connected ? ", connected" : "") << (slow_head ? ", slow head" : "")
                              << "; rank " << rank << " says " << code_name(status.code()) << " rank "
                              << status.rank() << ": " << status.message();
              }
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(failures, 0);
}

// The job is paused while it has fewer than min_workers.
TEST(Leave, InAPauseIsNamedAsSuchAndDoesNotWaitForItsEnd) {
  Cluster cluster({.workers = kWorkers,
                   .settings = {{"lease", "500ms"}, {"min_workers", "3"}, {"rejoin_timeout", "10s"}}},
                  [&](Cluster& cluster, Session& session, int worker) {
                    EXPECT_TRUE(Cluster::train(cluster, session, worker, 1)) << cluster.history(worker);
                    if (worker == 1) {
                      cluster.world.at(cluster.world.now(), [&cluster] {
                        cluster.world.kill(cluster.process(1), transport::Death::kReset);
                      });
                      cluster.pass_time(worker, 1s);
                    }
                    if (worker == 2) cluster.pass_time(worker, 2s);
                    if (worker == 0) cluster.note(worker, "step", [&] { return session.step(1, nullptr); });
                  });
  ASSERT_TRUE(cluster.run_until_ended(600s));
  EXPECT_THAT(cluster.log(0),
              testing::Contains(testing::HasSubstr("closed its session while the job was paused in view 2")));
  const NotedCall* close = cluster.call(2, "close");
  ASSERT_TRUE(close) << cluster.history(2);
  EXPECT_LE(close->ended - close->began, 100ms);
}

// The host makes its buffers for the view that it knows, so the arguments say nothing about its mistakes.
TEST(Leave, ByALossFailsTheNextCollectiveForItsViewWhateverItsArguments) {
  constexpr size_t kPart = 4;
  using Make = std::function<Status(Session&, std::vector<float>&, size_t parts)>;
  const std::vector<Make> calls = {
      [](Session& s, auto& memory, size_t parts) {
        return wait_for(s, begin(s.allgather(memory.data(), 4 * kPart, memory.data() + kPart,
                                             4 * kPart * parts, nullptr, DType::kFloat32),
                                 Mode::kWait));
      },
      [](Session& s, auto& memory, size_t parts) {
        return wait_for(
            s, begin(s.reduce_scatter(memory.data(), 4 * kPart * parts, memory.data() + kPart * parts,
                                      4 * kPart, nullptr, DType::kFloat32, Reduction::kSum),
                     Mode::kWait));
      },
      [](Session& s, auto& memory, size_t parts) {
        return wait_for(
            s, begin(s.broadcast(memory.data(), 4 * kPart, DType::kFloat32, static_cast<int32_t>(parts) - 1),
                     Mode::kWait));
      }};
  for (const Make& make : calls) {
    Cluster cluster(
        {.workers = kWorkers, .separate_head = true, .settings = {{"lease", "500ms"}, {"min_workers", "1"}}},
        [&](Cluster& cluster, Session& session, int worker) {
          std::vector<float> memory(64);
          EXPECT_TRUE(Cluster::train(cluster, session, worker, 1)) << cluster.history(worker);
          if (session.rank() == 2) {
            cluster.world.at(cluster.world.now() + 100ms, [&cluster, worker] {
              cluster.world.kill(cluster.process(worker), transport::Death::kReset);
            });
            return cluster.pass_time(worker, 1s);
          }
          cluster.pass_time(worker, 2s);
          EXPECT_EQ(session.view(), 2);
          Status status = make(session, memory, 3);
          EXPECT_EQ(status.code(), Code::kViewChanged) << status.message();
          EXPECT_EQ(status.rank(), 2);
          status = make(session, memory, 2);
          EXPECT_TRUE(status.ok()) << status.message();
          status = make(session, memory, 3);
          EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
        });
    ASSERT_TRUE(cluster.run_until_ended(600s));
  }
}

// A worker aborts the job soon after it has joined, when workers are still dialling each other.
TEST(Leave, AfterAnAbortTellsItsReasonAndWaitsForNoPeerBeingDialled) {
  constexpr auto kLimit =
      600ms;  // 500 ms, as dsgd_close promises after a failure, and the messages on their way
  for (const bool slow_head : {false, true}) {
    for (const std::chrono::milliseconds after : {0ms, 1ms, 2ms, 5ms}) {
      for (uint64_t seed = 1; seed <= 10; ++seed) {
        SCOPED_TRACE(std::to_string(after.count()) + " ms, seed " + std::to_string(seed) +
                     (slow_head ? ", slow head" : ""));
        Cluster cluster(options_of(seed), [&](Cluster& cluster, Session& session, int worker) {
          if (slow_head && worker == 0)
            cluster.world.set_delay(cluster.process(0), cluster.process(2), {100ms, 200ms, 0, 0ms});
          if (worker == 1) {
            cluster.pass_time(worker, after);
            EXPECT_TRUE(session.abort("no data").ok());
          } else {
            const Status status = wait_for(session, session.barrier(Mode::kWait));
            EXPECT_EQ(status.code(), Code::kAborted) << "rank " << worker << ": " << status.message();
          }
        });
        EXPECT_TRUE(cluster.run_until_ended(600s));
        for (int worker = 0; worker < kWorkers; ++worker) {
          const NotedCall* close = cluster.call(worker, "close");
          ASSERT_TRUE(close) << cluster.history(worker);
          if (worker == 0) continue;  // the worker with the head stays until the others know
          EXPECT_LE(close->ended - close->began, kLimit) << "rank " << worker;
        }
      }
    }
  }
}

// Worker 0 closes while its step is in flight, all marked, with a limit of a millisecond. The data of worker
// 2 do not reach worker 1 any more, and worker 2 dies. If the step has ended well on worker 0, worker 1 has
// the same step, or worker 0 warns.
TEST(Close, AwaitsAStepThatEndsDuringIt) {
  int completed = 0;
  for (Duration blocked = 0us; blocked < 3ms; blocked += dsgd_test::one_of(1, 4) * 40us) {
    for (uint64_t seed = 1; seed < 4; ++seed) {
      std::map<int, float> values;
      ClusterOptions options{.workers = 3, .separate_head = true, .seed = seed};
      options.settings = {{"min_workers", "1"}, {"lease", "1s"}};
      options.network.delay = {200us, 700us};
      Cluster cluster(options, [&](Cluster& job, Session& session, int worker) {
        const float* const value = add_model(session, 4, static_cast<float>(1 << worker));
        if (!job.note(worker, "start", [&] { return session.start(); })) return;
        StepResult result;
        for (int k = 0; k < 3; ++k) {
          if (!job.note(worker, "step", [&] { return session.step(1, &result); })) return;
        }
        job.pass_time(worker, 20ms);
        if (worker == 2) {
          const transport::Time at = job.world.now() + blocked;
          job.world.at(at, [&job] { job.world.block(job.process(2), job.process(1)); });
          job.world.at(at + 4ms, [&job] { job.world.kill(job.process(2), transport::Death::kSilent); });
        }
        if (worker == 0) {
          const auto step = session.step_begin(1);
          (void)session.step_flush();
          job.note(worker, "close", [&] { return session.close(1ms); });
          if (step.ok() && step.value()->done() && step.value()->status().ok()) values[worker] = *value;
        } else if (job.note(worker, "last step", [&] { return session.step(1, &result); })) {
          values[worker] = *value;
        }
      });
      ASSERT_TRUE(cluster.run_until_ended(60s));
      const auto& warnings = cluster.warnings(0);
      const bool warned = std::any_of(warnings.begin(), warnings.end(), [](const NotedWarning& warning) {
        return warning.text.find("not all workers have confirmed the last step") != std::string::npos;
      });
      if (values.count(0) == 0 || warned) continue;
      ++completed;
      ASSERT_EQ(values.count(1), 1u) << cluster.history(1);
      EXPECT_EQ(values[0], values[1]) << blocked.count() << " ns, seed " << seed << "\n"
                                      << cluster.histories();
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(completed, 10);
}

// Worker 0 has loaded and closes before worker 1 has loaded.
TEST(Close, AfterALoadWaitsOnlyUntilTheOthersHaveLoaded) {
  Cluster cluster({.workers = 3,
                   .separate_head = true,
                   .files = true,
                   .disk = disk_of_job(1, 4, 0),
                   .settings = {{"min_workers", "1"}, {"lease", "1s"}}},
                  [&](Cluster& job, Session& session, int worker) {
                    add_model(session, 4, 1);
                    if (!job.note(worker, "start", [&] { return session.start(); })) return;
                    if (worker == 0) job.world.set_delay(job.process(2), job.process(1), {5ms, 6ms});
                    if (!job.note(worker, "load", [&] { return load(session); })) return;
                    StepResult result;
                    if (worker > 0) job.note(worker, "step", [&] { return session.step(1, &result); });
                  });
  ASSERT_TRUE(cluster.run_until_ended(60s));
  const NotedCall* const close = cluster.call(0, "close");
  ASSERT_TRUE(close);
  EXPECT_TRUE(close->status.ok()) << close->status.message();
  EXPECT_LT(close->ended - close->began, 100ms);
  for (int worker : {1, 2}) EXPECT_FALSE(cluster.first_failure(worker)) << cluster.history(worker);
}

}  // namespace
}  // namespace dsgd::simulation::leave_test
