// A worker whose program makes no call while its heartbeat goes on keeps the others waiting. With
// `straggler_timeout` the head takes it out of the job, and the others go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cluster.h"
#include "tests/unit/sanitizer.h"
#include "tests/unit/wait_for.h"

namespace dsgd::simulation::straggler_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using transport::Duration;

constexpr Duration kStragglerTimeout = 4s, kStragglerInterval = 200ms;  // lease = 1s

ClusterOptions options_of(int workers, int min_workers) {
  return {.workers = workers,
          .separate_head = true,
          .settings = {{"min_workers", std::to_string(min_workers)}, {"straggler_timeout", "4s"}}};
}

// A model of one parameter.
struct StragglerModel {
  explicit StragglerModel(Session& session) {
    const int64_t shape[] = {1000};
    parameter = session.add_parameter("p", DType::kFloat32, shape, true).value();
    replica = session.add_replica("cpu").value();
    memory = session.alloc(replica, parameter).value();
  }
  Parameter* parameter;
  Replica* replica;
  std::shared_ptr<TensorMemory> memory;
};

bool steps(Cluster& cluster, Session& session, int rank, int first, int count, StepResult* result = nullptr) {
  for (int k = first; k < first + count; ++k) {
    if (!cluster.note(rank, "step " + std::to_string(k), [&] { return session.step(1, result); }))
      return false;
  }
  return true;
}

// Rank `late` hangs before step 5 of 10.
Cluster::Program late_in_step_5(int late, Duration duration, std::vector<StepResult>* results) {
  return [=](Cluster& cluster, Session& session, int rank) {
    StragglerModel model(session);
    if (!cluster.note(rank, "start", [&] { return session.start(); })) return;
    if (!steps(cluster, session, rank, 0, 5)) return;
    if (rank == late) cluster.pass_time(rank, duration);
    steps(cluster, session, rank, 5, 5, &(*results)[static_cast<size_t>(rank)]);
  };
}

std::string milliseconds_text(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) + " ms";
}

TEST(Straggler, IsEvictedAndTheOthersGoOn) {
  std::vector<StepResult> results(3);
  Cluster cluster(options_of(3, 2), late_in_step_5(1, 20s, &results));
  ASSERT_TRUE(cluster.run_until_ended(60s));
  for (const int rank : {0, 2}) {
    EXPECT_FALSE(cluster.first_failure(rank)) << cluster.history(rank);
    const NotedCall* step = cluster.call(rank, "step 5");
    ASSERT_TRUE(step);
    const Duration took = step->ended - step->began;
    EXPECT_GE(took, kStragglerTimeout);
    EXPECT_LE(took, kStragglerTimeout + 2 * kStragglerInterval + 100ms) << milliseconds_text(took);
    EXPECT_EQ(results[static_cast<size_t>(rank)].view, 2);
    EXPECT_EQ(results[static_cast<size_t>(rank)].size, 2);
  }
  const NotedCall* failure = cluster.first_failure(1);
  ASSERT_TRUE(failure) << cluster.history(1);
  EXPECT_EQ(failure->name, "step 5");
  EXPECT_EQ(failure->status.code(), Code::kEvicted);
  EXPECT_EQ(failure->status.rank(), 1);
  EXPECT_THAT(failure->status.message(), HasSubstr("straggler_timeout = 4.0 s"));
  EXPECT_THAT(failure->status.message(), HasSubstr("in step 5"));
  EXPECT_THAT(cluster.log(0), testing::Contains(AllOf(HasSubstr("view 2 with 2 workers: rank 1"),
                                                      HasSubstr("kept the other workers waiting"))));
}

TEST(Straggler, IsWaitedForBeforeTheTimeoutAndWithoutOne) {
  for (const bool off : {false, true}) {
    std::vector<StepResult> results(3);
    ClusterOptions options = options_of(3, 2);
    if (off) options.settings["straggler_timeout"] = "0";
    Cluster cluster(options, late_in_step_5(1, off ? 20000ms : 3500ms, &results));
    ASSERT_TRUE(cluster.run_until_ended(60s));
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_FALSE(cluster.first_failure(rank)) << cluster.history(rank);
      EXPECT_EQ(results[static_cast<size_t>(rank)].size, 3);
    }
  }
}

// The program of rank 1 is late by less than straggler_timeout, and all processes are stopped meanwhile.
TEST(Straggler, IsNotWaitedForWhileAllAreStopped) {
  dsgd_test::Thinned thinned(3, 10);
  for (const Duration stop : {1000ms, 1400ms, 1700ms, 1900ms, 3000ms}) {
    for (Duration after = 1100ms; after < 2100ms; after += 70ms) {
      if (thinned.skip_next()) continue;
      SCOPED_TRACE(milliseconds_text(stop) + " after " + milliseconds_text(after));
      ClusterOptions options = options_of(3, 1);
      options.settings["lease"] = options.settings["straggler_timeout"] = "2s";
      options.settings["heartbeat_interval"] = "200ms";
      Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
        StragglerModel model(session);
        if (!cluster.note(rank, "start", [&] { return session.start(); })) return;
        for (int k = 0; k < 8; ++k) {
          for (int i = 0; i < (rank == 1 ? 100 : 10); ++i) cluster.pass_time(rank, 10ms);
          if (!steps(cluster, session, rank, k, 1)) return;
        }
      });
      cluster.world.run_for(after);
      for (int rank = -1; rank < 3; ++rank) cluster.world.pause(cluster.process(rank));
      cluster.world.run_for(stop);
      for (int rank = -1; rank < 3; ++rank) cluster.world.resume(cluster.process(rank));
      ASSERT_TRUE(cluster.run_until_ended(60s));
      for (int rank = 0; rank < 3; ++rank) EXPECT_FALSE(cluster.first_failure(rank)) << cluster.history(rank);
      if (HasFailure()) return;
    }
  }
}

TEST(Straggler, SeveralAreEvictedTogether) {
  std::vector<StepResult> results(4);
  Cluster cluster(options_of(4, 2), [&](Cluster& cluster, Session& session, int rank) {
    late_in_step_5(rank % 2 ? rank : -1, 20s, &results)(cluster, session, rank);
  });
  ASSERT_TRUE(cluster.run_until_ended(60s));
  for (const int rank : {0, 2})
    EXPECT_EQ(results[static_cast<size_t>(rank)].size, 2) << cluster.history(rank);
  for (const int rank : {1, 3}) {
    const NotedCall* failure = cluster.first_failure(rank);
    ASSERT_TRUE(failure) << cluster.history(rank);
    EXPECT_EQ(failure->status.code(), Code::kEvicted);
  }
}

TEST(Straggler, StaysIfTooFewWorkersWouldBeLeft) {
  std::vector<StepResult> results(4);
  Cluster cluster(options_of(4, 3), [&](Cluster& cluster, Session& session, int rank) {
    late_in_step_5(rank % 2 ? rank : -1, 20s, &results)(cluster, session, rank);
  });
  ASSERT_TRUE(cluster.run_until_ended(60s));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_FALSE(cluster.first_failure(rank)) << cluster.history(rank);
    EXPECT_EQ(results[static_cast<size_t>(rank)].size, 4);
  }
}

TEST(Straggler, IsFoundBehindTheDriver) {
  std::vector<StepResult> results(3);
  ClusterOptions options = options_of(3, 2);
  options.settings["strategy"] = "simple";
  Cluster cluster(options, late_in_step_5(2, 20s, &results));
  ASSERT_TRUE(cluster.run_until_ended(60s));
  for (const int rank : {0, 1})
    EXPECT_EQ(results[static_cast<size_t>(rank)].size, 2) << cluster.history(rank);
}

TEST(Straggler, IsFoundBehindItsNeighbourInARing) {
  for (int late = 0; late < 4; ++late) {
    std::vector<StepResult> results(4);
    ClusterOptions options = options_of(4, 2);
    options.settings["algorithm"] = "ring";
    Cluster cluster(options, late_in_step_5(late, 20s, &results));
    ASSERT_TRUE(cluster.run_until_ended(60s));
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == late) continue;
      EXPECT_EQ(results[static_cast<size_t>(rank)].size, 3) << cluster.history(rank);
    }
  }
}

TEST(Straggler, MayHaveBegunTheStepWithoutMarkingItsGradients) {
  std::vector<StepResult> results(3);
  Cluster cluster(options_of(3, 2), [&](Cluster& cluster, Session& session, int rank) {
    StragglerModel model(session);
    if (!cluster.note(rank, "start", [&] { return session.start(); })) return;
    if (!steps(cluster, session, rank, 0, 5)) return;
    if (rank != 1) {
      steps(cluster, session, rank, 5, 5, &results[static_cast<size_t>(rank)]);
      return;
    }
    cluster.note(rank, "step 5", [&] {
      auto step = session.step_begin(1);
      if (!step.ok()) return step.status();
      return session.wait(*step.value(), 20s);
    });
  });
  ASSERT_TRUE(cluster.run_until_ended(60s));
  for (const int rank : {0, 2})
    EXPECT_EQ(results[static_cast<size_t>(rank)].size, 2) << cluster.history(rank);
  EXPECT_EQ(cluster.call(1, "step 5")->status.code(), Code::kEvicted) << cluster.history(1);
}

// A defect of the program: rank 0 waits for an object of rank 1, and rank 1 for rank 0's step.
TEST(Straggler, TwoWorkersThatWaitForEachOtherBothStay) {
  ClusterOptions options = options_of(3, 1);
  options.settings["step_timeout"] = "20s";
  Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
    StragglerModel model(session);
    if (!cluster.note(rank, "start", [&] { return session.start(); })) return;
    if (!steps(cluster, session, rank, 0, 5)) return;
    if (rank == 0) {
      cluster.note(rank, "object",
                   [&] { return session.object_get("x", Session::Mode::kWait).value()->status(); });
    } else {
      cluster.note(rank, "step", [&] { return session.step(1, nullptr); });
    }
  });
  ASSERT_TRUE(cluster.run_until_ended(120s));
  EXPECT_EQ(cluster.call(0, "object")->status.code(), Code::kTimeout) << cluster.history(0);
  for (const int rank : {1, 2}) {
    const Status& status = cluster.call(rank, "step")->status;
    EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
  }
}

// Two barriers on two channels, in the opposite order.
TEST(Straggler, IsNoneOfTwoInDifferentCollectives) {
  ClusterOptions options = options_of(2, 1);
  options.settings["step_timeout"] = "20s";
  Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
    StragglerModel model(session);
    if (!cluster.note(rank, "start", [&] { return session.start(); })) return;
    cluster.note(rank, "barrier", [&] {
      return wait_for(session,
                      session.barrier(Session::Mode::kQueue, {.channel = static_cast<uint32_t>(1 + rank)}));
    });
  });
  ASSERT_TRUE(cluster.run_until_ended(120s));
  EXPECT_EQ(cluster.call(0, "barrier")->status.code(), Code::kTimeout) << cluster.history(0);
  // Its time is over at the same moment, or it learns first that the other one has closed its session.
  EXPECT_THAT(cluster.call(1, "barrier")->status.code(), testing::AnyOf(Code::kTimeout, Code::kWorkerLost))
      << cluster.history(1);
}

TEST(Straggler, ThatHostsTheHeadStays) {
  std::vector<StepResult> results(3);
  ClusterOptions options = options_of(3, 1);
  options.separate_head = false;
  Cluster cluster(options, late_in_step_5(0, 20s, &results));
  ASSERT_TRUE(cluster.run_until_ended(60s));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(cluster.first_failure(rank)) << cluster.history(rank);
    EXPECT_EQ(results[static_cast<size_t>(rank)].size, 3);
  }
}

TEST(Straggler, IsFoundAgainInTheNextView) {
  std::vector<StepResult> results(4);
  Cluster cluster(options_of(4, 2), [&](Cluster& cluster, Session& session, int rank) {
    StragglerModel model(session);
    if (!cluster.note(rank, "start", [&] { return session.start(); })) return;
    if (!steps(cluster, session, rank, 0, 5)) return;
    if (rank == 1) cluster.pass_time(rank, 20s);
    if (!steps(cluster, session, rank, 5, 3)) return;
    if (rank == 0) cluster.pass_time(rank, 20s);
    steps(cluster, session, rank, 8, 2, &results[static_cast<size_t>(rank)]);
  });
  ASSERT_TRUE(cluster.run_until_ended(120s));
  for (const int rank : {2, 3}) {
    EXPECT_EQ(results[static_cast<size_t>(rank)].view, 3) << cluster.history(rank);
    EXPECT_EQ(results[static_cast<size_t>(rank)].size, 2);
  }
  for (const int rank : {0, 1}) EXPECT_EQ(cluster.first_failure(rank)->status.code(), Code::kEvicted);
}

TEST(Straggler, MayHaveJoinedTheRunningJob) {
  std::vector<StepResult> results(4);
  ClusterOptions options = options_of(3, 2);
  options.joiners = 1;
  options.settings["max_workers"] = "4";
  Cluster cluster(options, [&](Cluster& cluster, Session& session, int rank) {
    StragglerModel model(session);
    if (!cluster.note(rank, "start", [&] { return session.start(); })) return;
    StepResult& result = results[static_cast<size_t>(rank)];
    if (rank == 3) {
      if (!steps(cluster, session, rank, 0, 1, &result)) return;
      cluster.pass_time(rank, 20s);
      steps(cluster, session, rank, 1, 1);
      return;
    }
    for (int k = 0; result.view < 3; ++k) {
      if (k < 5) cluster.pass_time(rank, 100ms);
      if (!steps(cluster, session, rank, k, 1, &result)) return;
    }
  });
  ASSERT_TRUE(cluster.run_until_noted(0, "step 1", 10s));
  cluster.start_worker(3);
  ASSERT_TRUE(cluster.run_until_ended(120s));
  EXPECT_EQ(results[3].size, 4) << cluster.history(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(results[static_cast<size_t>(rank)].view, 3) << cluster.history(rank);
    EXPECT_EQ(results[static_cast<size_t>(rank)].size, 3);
  }
  ASSERT_TRUE(cluster.first_failure(3));
  EXPECT_EQ(cluster.first_failure(3)->status.code(), Code::kEvicted) << cluster.history(3);
}

TEST(Straggler, InStartIsEvictedToo) {
  Cluster cluster(options_of(3, 2), [&](Cluster& cluster, Session& session, int rank) {
    StragglerModel model(session);
    if (rank == 1) cluster.pass_time(rank, 20s);
    if (!cluster.note(rank, "start", [&] { return session.start(); })) return;
    steps(cluster, session, rank, 0, 5);
  });
  ASSERT_TRUE(cluster.run_until_ended(60s));
  for (const int rank : {0, 2}) EXPECT_FALSE(cluster.first_failure(rank)) << cluster.history(rank);
  EXPECT_EQ(cluster.first_failure(1)->status.code(), Code::kEvicted) << cluster.history(1);
}

}  // namespace
}  // namespace dsgd::simulation::straggler_test
