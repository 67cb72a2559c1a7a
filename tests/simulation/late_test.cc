// One of two workers comes to a step around the time at which the other gives it up. The step succeeds on
// both or on neither, whatever is still on its way.
#include <gtest/gtest.h>

#include <set>

#include "cluster.h"

namespace dsgd::simulation {
namespace {

using namespace std::chrono_literals;

constexpr transport::Duration kLimit = 1s;  // of a step

// Rank 1 waits for `lateness` before its second step.
void expect_agreement(const std::string& algorithm, transport::Duration lateness, std::set<bool>* outcomes) {
  SCOPED_TRACE(algorithm + ", " + std::to_string(lateness / 1ms) + " ms late");
  ClusterOptions options{.settings = {{"lease", "10s"}, {"step_timeout", "1s"}, {"algorithm", algorithm}}};
  options.network.delay = {20ms, 20ms};
  Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
    if (!Cluster::train(cluster, session, rank, 1)) return;
    if (rank == 1) {
      EXPECT_EQ(session.queue_poll(1, std::chrono::duration_cast<std::chrono::milliseconds>(lateness))
                    .status()
                    .code(),
                Code::kWaitTimeout);
    }
    StepResult result;
    cluster.note(rank, "late step", [&] { return session.step(1, &result); });
    cluster.note(rank, "next step", [&] { return session.step(1, &result); });
    cluster.note(rank, "barrier", [&] { return session.barrier(Session::Mode::kWait).status(); });
  });
  ASSERT_TRUE(cluster.run_until_ended(30s));
  ASSERT_TRUE(cluster.call(0, "late step"));
  const bool succeeded = cluster.call(0, "late step")->status.ok();
  for (int rank = 0; rank < options.workers; ++rank) {
    const NotedCall* late = cluster.call(rank, "late step");
    EXPECT_EQ(late->status.ok(), succeeded) << cluster.history(rank);
    const Code next = cluster.call(rank, "next step")->status.code();
    EXPECT_TRUE(next == (succeeded ? Code::kOk : Code::kTorn)) << cluster.history(rank);
    EXPECT_TRUE(cluster.call(rank, "barrier")->status.ok()) << cluster.history(rank);
  }
  outcomes->insert(succeeded);
}

TEST(Late, AStepSucceedsOnBothWorkersOrOnNeither) {
  for (const char* algorithm : {"auto", "direct", "ring"}) {
    std::set<bool> outcomes;  // of the step
    for (auto lateness = kLimit - 50ms; lateness <= kLimit + 150ms; lateness += 5ms) {
      expect_agreement(algorithm, lateness, &outcomes);
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(outcomes.size(), 2u) << "the moments are the wrong ones";
  }
}

}  // namespace
}  // namespace dsgd::simulation
