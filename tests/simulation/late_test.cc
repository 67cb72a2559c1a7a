// A worker comes to a step around the time at which the others give it up. Two workers always agree whether
// the step has succeeded. Of three, one may complete it with data that was on its way; it learns that another
// has given up, and no worker makes a further step. And data that come early.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "cluster.h"

namespace dsgd::simulation::late_test {
namespace {

using namespace std::chrono_literals;

constexpr transport::Duration kLimit = 1s;  // of a step

// Rank 1 waits for `lateness` before its second step. Returns on which workers that step has succeeded.
std::set<bool> run_late_step(const std::string& algorithm, int workers, transport::Duration lateness) {
  SCOPED_TRACE(algorithm + ", " + std::to_string(workers) + " workers, " + std::to_string(lateness / 1ms) +
               " ms late");
  ClusterOptions options{.workers = workers,
                         .settings = {{"lease", "10s"}, {"step_timeout", "1s"}, {"algorithm", algorithm}}};
  options.network.delay = {20ms, 20ms};
  Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
    if (!Cluster::train(cluster, session, rank, 1)) return;
    if (rank == 1) cluster.pass_time(rank, lateness);
    StepResult result;
    const auto step = [&] { return session.step(1, &result); };
    cluster.note(rank, "late step", step);
    cluster.note(rank, "next step", step);
    cluster.note(rank, "barrier", [&] { return session.barrier(Session::Mode::kWait).status(); });
    cluster.note(rank, "last step", step);
  });
  EXPECT_TRUE(cluster.run_until_ended(30s));
  std::set<bool> outcomes;
  for (int rank = 0; rank < workers; ++rank) outcomes.insert(cluster.call(rank, "late step")->status.ok());
  const bool all_succeeded = outcomes == std::set<bool>{true};
  for (int rank = 0; rank < workers; ++rank) {
    EXPECT_EQ(cluster.call(rank, "next step")->status.ok(), all_succeeded) << cluster.history(rank);
    EXPECT_TRUE(outcomes.size() == 2 || cluster.call(rank, "barrier")->status.ok()) << cluster.history(rank);
    EXPECT_EQ(cluster.call(rank, "last step")->status.code(), all_succeeded ? Code::kOk : Code::kTorn)
        << cluster.history(rank);
  }
  return outcomes;
}

const std::set<bool> kAll = {true}, kNone = {false}, kSome = {false, true};

void expect_agreement(int workers, bool some_may_succeed) {
  for (const char* algorithm : {"auto", "direct", "halving_doubling", "ring"}) {
    std::set<std::set<bool>> outcomes;
    for (auto lateness = kLimit - 50ms; lateness <= kLimit + 150ms; lateness += 5ms) {
      outcomes.insert(run_late_step(algorithm, workers, lateness));
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_TRUE(outcomes.count(kAll) > 0 && outcomes.count(kNone) > 0) << algorithm;
    EXPECT_TRUE(some_may_succeed || outcomes.count(kSome) == 0) << algorithm;
  }
}

TEST(Late, AStepSucceedsOnBothWorkersOrOnNeither) { expect_agreement(2, false); }

TEST(Late, NoWorkerGoesOnAfterAStepThatAnotherHasGivenUp) { expect_agreement(3, true); }

// Each worker has 1 MiB of receive_memory, and one link is slower than the others: chunks of later operations
// come early, and leave room for those that the worker waits for.
TEST(Late, ChunksThatComeEarlyLeaveRoomInReceiveMemory) {
  constexpr int kWorkers = 3, kSteps = 5;
  for (int from = 0; from < kWorkers; ++from) {
    for (int to = 0; to < kWorkers; ++to) {
      if (from == to) continue;
      const ClusterOptions options{.workers = kWorkers,
                                   .separate_head = true,
                                   .settings = {{"strategy", "ps"},
                                                {"copies", "2"},
                                                {"min_workers", "1"},
                                                {"bucket_size", "256K"},
                                                {"lease", "1s"},
                                                {"step_timeout", "20s"}},
                                   .network = {.delay = {1ms, 1ms}}};
      Cluster cluster(options, [](Cluster& cluster, Session& session, int rank) {
        if (!session.set_optimizer("sgd", "lr=1 momentum=0.5").ok()) std::abort();
        const int64_t count = 1'000'000;
        Parameter* const parameter = session.add_parameter("p", DType::kFloat32, {&count, 1}, true).value();
        const auto memory = session.alloc(session.add_replica("cpu").value(), parameter).value();
        if (!cluster.note(rank, "start", [&] { return session.start(); })) return;
        StepResult result;
        for (int k = 0; k < kSteps; ++k) {
          if (!cluster.note(rank, "step", [&] { return session.step(1, &result); })) return;
        }
      });
      cluster.world.set_delay(cluster.process(from), cluster.process(to), {3ms, 3ms});
      EXPECT_TRUE(cluster.run_until_ended(100s));
      for (int rank = 0; rank < kWorkers; ++rank)
        EXPECT_FALSE(cluster.first_failure(rank)) << cluster.history(rank);
    }
  }
}

}  // namespace
}  // namespace dsgd::simulation::late_test
