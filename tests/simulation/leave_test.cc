// A worker leaves the job while the others use collectives. In good order: whatever they call and whatever
// the moment, their calls end with an error that names the worker and says that it has closed its session.
// The worker is not taken for lost. Steps go on (departure_test.cc). After an abort: their calls end with its
// reason.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/session/session.h"
#include "tests/simulation/configure.h"
#include "transport/sim/world.h"

namespace dsgd::simulation {
namespace {

using namespace std::chrono_literals;
using Mode = Session::Mode;

constexpr int32_t kWorkers = 3;
constexpr size_t kLarge = 70'000;

Status ended(Session& session, const Result<std::shared_ptr<Operation>>& operation) {
  return operation.ok() ? session.wait(*operation.value(), -1ms) : operation.status();
}

struct Call {
  const char* name;
  bool started;
  std::function<Status(Session&, std::vector<float>& memory)> make;
};

const std::vector<Call>& calls() {
  static const std::vector<Call> all = {
      {"barrier", false, [](Session& s, auto&) { return ended(s, s.barrier(Mode::kWait)); }},
      {"small all-reduce", false,
       [](Session& s, auto& memory) {
         return ended(
             s, s.allreduce(memory.data(), memory.data(), 4, DType::kFloat32, Reduction::kSum, Mode::kWait));
       }},
      {"large all-reduce", false,
       [](Session& s, auto& memory) {
         return ended(s, s.allreduce(memory.data(), memory.data(), 4 * kLarge, DType::kFloat32,
                                     Reduction::kSum, Mode::kWait));
       }},
      {"broadcast", false,
       [](Session& s, auto& memory) {
         return ended(s, s.broadcast(memory.data(), 4 * kLarge, DType::kFloat32, 1, Mode::kWait));
       }},
      {"all-gather", false,
       [](Session& s, auto& memory) {
         const size_t counts[kWorkers] = {0, kLarge, 0};
         const size_t mine = counts[s.rank()] * 4;
         return ended(s, s.allgather(memory.data() + kLarge, mine, memory.data(), 4 * kLarge, counts,
                                     DType::kFloat32, Mode::kWait));
       }},
      {"strategy", true, [](Session& s, auto&) { return s.set_strategy("ps", ""); }},
  };
  return all;
}

Status start_model(Session& session, std::vector<float>& memory) {
  const int64_t count = 1000;
  auto parameter = session.add_parameter("weight", DType::kFloat32, {&count, 1}, true);
  auto replica = session.add_replica("cpu");
  if (!parameter.ok() || !replica.ok()) return parameter.ok() ? replica.status() : parameter.status();
  const Status bound = session.bind(replica.value(), parameter.value(), memory.data(), 4000,
                                    memory.data() + 1000, 4000, nullptr);
  return bound.ok() ? session.start() : bound;
}

// Waits in simulated time.
void pause(Session& session, std::chrono::microseconds duration) {
  const auto rounded = std::chrono::duration_cast<std::chrono::milliseconds>(duration);
  if (rounded.count() > 0) (void)session.object_get("nothing", Mode::kWait, {.timeout = rounded});
}

struct Case {
  int32_t leaver;
  const Call* call;
  bool connected;                   // all have made a call together before
  bool asynchronous;                // it has issued barriers which it does not wait for
  std::chrono::microseconds after;  // how long the leaver waits, or the others do if negative
  bool slow_head;                   // the head's news are late
};

Config configuration(int32_t worker) {
  Config config;
  configure(config, kWorkers, worker, {{"step_timeout", "20s"}, {"lease", "5s"}});
  return config;
}

std::vector<Status> run(const Case& c, uint64_t seed) {
  transport::SimWorld world(seed, {});
  std::vector<transport::ProcessId> processes;
  std::vector<Status> of(kWorkers);
  int32_t over = 0;
  for (int32_t worker = 0; worker < kWorkers; ++worker)
    processes.push_back(world.start_process("node" + std::to_string(worker)));
  for (int32_t worker = 0; worker < kWorkers; ++worker) {
    world.start_program(processes[static_cast<size_t>(worker)], [&, worker] {
      auto opened =
          Session::open(configuration(worker), world.environment(processes[static_cast<size_t>(worker)]),
                        std::make_shared<Log>());
      EXPECT_TRUE(opened.ok()) << opened.status().message();
      Session& session = *opened.value();
      std::vector<float> memory(2 * kLarge);
      if (c.call->started) {
        const Status status = start_model(session, memory);
        EXPECT_TRUE(status.ok()) << status.message();
      } else if (c.connected) {
        EXPECT_TRUE(ended(session, session.barrier(Mode::kWait)).ok());
      }
      if (c.slow_head && worker == 0) {
        for (int32_t other = 1; other < kWorkers; ++other) {
          if (other != c.leaver)
            world.set_delay(processes[0], processes[static_cast<size_t>(other)], {600ms, 700ms, 0, 0ms});
        }
      }
      if (worker == c.leaver) {
        pause(session, c.after);
        EXPECT_TRUE(session.close(0ms).ok());
      } else {
        pause(session, -c.after);
        of[static_cast<size_t>(worker)] = c.call->make(session, memory);
        (void)session.close(0ms);
      }
      opened.value().reset();
      ++over;
    });
  }
  EXPECT_TRUE(world.run_until([&] { return over == kWorkers; }, world.now() + 600s));
  return of;
}

TEST(Leave, OfAWorkerEndsTheCallsOfTheOthersAndIsNotALoss) {
  int failures = 0;
  for (int32_t leaver = 0; leaver < kWorkers; ++leaver) {
    for (const Call& call : calls()) {
      for (const bool connected : {false, true}) {
        for (const std::chrono::microseconds after : {-100ms, -1ms, 0ms, 1ms, 100ms}) {
          for (const bool slow_head : {false, true}) {
            const Case c{leaver, &call, connected, false, after, slow_head};
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

// A worker aborts the job soon after it has joined, when workers are still dialling each other.
TEST(Leave, AfterAnAbortTellsItsReasonAndWaitsForNoPeerBeingDialled) {
  constexpr auto kLimit =
      600ms;  // 500 ms, as dsgd_close promises after a failure, and the messages on their way
  for (const bool slow_head : {false, true}) {
    for (const std::chrono::milliseconds after : {0ms, 1ms, 2ms, 5ms}) {
      for (uint64_t seed = 1; seed <= 10; ++seed) {
        SCOPED_TRACE(std::to_string(after.count()) + " ms, seed " + std::to_string(seed) +
                     (slow_head ? ", slow head" : ""));
        transport::SimWorld world(seed, {});
        std::vector<transport::ProcessId> processes;
        for (int32_t worker = 0; worker < kWorkers; ++worker)
          processes.push_back(world.start_process("node" + std::to_string(worker)));
        int32_t over = 0;
        for (int32_t worker = 0; worker < kWorkers; ++worker) {
          const transport::ProcessId process = processes[static_cast<size_t>(worker)];
          world.start_program(process, [&, worker, process] {
            auto opened =
                Session::open(configuration(worker), world.environment(process), std::make_shared<Log>());
            ASSERT_TRUE(opened.ok()) << opened.status().message();
            Session& session = *opened.value();
            if (slow_head && worker == 0) world.set_delay(processes[0], processes[2], {100ms, 200ms, 0, 0ms});
            if (worker == 1) {
              pause(session, after);
              EXPECT_TRUE(session.abort("no data").ok());
            } else {
              const Status status = ended(session, session.barrier(Mode::kWait));
              EXPECT_EQ(status.code(), Code::kAborted) << "rank " << worker << ": " << status.message();
            }
            const transport::Time begun = world.now();
            (void)session.close(-1ms);
            if (worker != 0) {  // the worker with the head stays until the others know
              EXPECT_LE(world.now() - begun, kLimit) << "rank " << worker;
            }
            opened.value().reset();
            ++over;
          });
        }
        EXPECT_TRUE(world.run_until([&] { return over == kWorkers; }, world.now() + 600s));
      }
    }
  }
}

}  // namespace
}  // namespace dsgd::simulation
