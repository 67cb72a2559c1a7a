// A call that waits for long says so: a warning after `stall_warning`, and again after twice as long each
// time, names the workers that have not come and the parameters whose gradients are missing. A wait that runs
// out says the same.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cluster.h"

namespace dsgd::simulation::stall_test {
namespace {

using namespace std::chrono_literals;
using Mode = Session::Mode;

// Three workers with a model of two parameters, and the warnings that they log once all have started.
class Job {
 public:
  static constexpr int kWorkers = 3;
  using Body = std::function<void(Job& job, Session& session, int rank)>;

  explicit Job(const Body& body)
      : cluster_({.workers = kWorkers,
                  .seed = 5,
                  .settings = {{"lease", "10s"}, {"stall_warning", "1s"}},
                  .own_settings = {{0, {{"worker_id", "w0"}}},
                                   {1, {{"worker_id", "w1"}}},
                                   {2, {{"worker_id", "w2"}}}}},
                 [this, body](Cluster&, Session& session, int rank) { run(session, rank, body); }) {
    EXPECT_TRUE(cluster_.run_until_ended(3600s));
    for (int rank = 0; rank < kWorkers; ++rank) {
      EXPECT_FALSE(cluster_.first_failure(rank)) << cluster_.history(rank);
      for (const NotedWarning& warning : cluster_.warnings(rank)) {
        const transport::Time from = forgotten_until_[rank];
        if (warning.at >= from) warnings[rank].push_back({warning.at - from, warning.text});
      }
    }
  }

  void pause(int rank, transport::Duration duration) { cluster_.pass_time(rank, duration); }

  // As SIGSTOP. Operations of other workers wait for it.
  void stop(int rank, transport::Duration duration) {
    cluster_.world.pause(cluster_.process(rank));
    cluster_.world.at(cluster_.world.now() + duration,
                      [this, rank] { cluster_.world.resume(cluster_.process(rank)); });
  }

  void forget_warnings(int rank) { forgotten_until_[rank] = cluster_.world.now(); }

  std::vector<NotedWarning> warnings[kWorkers];  // those that were not forgotten; `at` counts from then on
  Parameter* parameters[kWorkers][2] = {};
  Replica* replicas[kWorkers] = {};

 private:
  void run(Session& session, int rank, const Body& body) {
    replicas[rank] = session.add_replica("cpu").value();
    const int64_t count = 1024;
    for (int p = 0; p < 2; ++p) {
      parameters[rank][p] =
          session.add_parameter(p == 0 ? "first" : "second", DType::kFloat32, {&count, 1}, true).value();
      (void)session.alloc(replicas[rank], parameters[rank][p]).value();
    }
    const Status started = session.start();
    ASSERT_TRUE(started.ok()) << started.message();
    forget_warnings(rank);
    body(*this, session, rank);
  }

  transport::Time forgotten_until_[kWorkers] = {};
  Cluster cluster_;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Warnings come 1, 3 and 7 seconds after the call.
void expect_doubling(const std::vector<NotedWarning>& warnings) {
  ASSERT_EQ(warnings.size(), 3u);
  const transport::Duration due[] = {1s, 3s, 7s};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GE(warnings[i].at, due[i]) << warnings[i].text;
    EXPECT_LT(warnings[i].at, due[i] + 100ms) << warnings[i].text;
    EXPECT_TRUE(contains(
        warnings[i].text,
        "has not ended after " +
            std::to_string(std::chrono::duration_cast<std::chrono::seconds>(due[i]).count()) + " s: "))
        << warnings[i].text;
  }
}

// The timer of a call that stalled for long is due late. The next call does not wait for it.
TEST(StallWarning, IsInTimeAfterALongStall) {
  Job job([](Job& job, Session& session, int32_t rank) {
    if (rank == 2) job.pause(rank, 10s);
    ASSERT_TRUE(session.barrier(Mode::kWait).ok());
    job.forget_warnings(rank);
    if (rank == 2) job.pause(rank, 4s);
    ASSERT_TRUE(session.barrier(Mode::kWait).ok());
  });
  for (int32_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(job.warnings[rank].size(), 2u);
    EXPECT_TRUE(contains(job.warnings[rank][0].text, "has not ended after 1 s"))
        << job.warnings[rank][0].text;
    EXPECT_TRUE(contains(job.warnings[rank][1].text, "has not ended after 3 s"))
        << job.warnings[rank][1].text;
  }
}

TEST(StallWarning, OfACollectiveNamesTheWorkersThatHaveNotCalled) {
  Job job([](Job& job, Session& session, int32_t rank) {
    if (rank == 2) job.pause(rank, 10s);
    auto barrier = session.barrier(Mode::kQueue);
    ASSERT_TRUE(barrier.ok());
    if (rank == 0) {
      const Status status = session.wait(*barrier.value(), 500ms);
      EXPECT_EQ(status.code(), Code::kWaitTimeout);
      EXPECT_EQ(status.rank(), 2) << status.message();
      EXPECT_TRUE(contains(status.message(), "rank 2 (worker 'w2'")) << status.message();
      EXPECT_TRUE(contains(status.message(), "has not made this call")) << status.message();
    }
    const Status status = session.wait(*barrier.value(), -1ms);
    EXPECT_TRUE(status.ok()) << status.message();
  });
  for (int32_t rank = 0; rank < 2; ++rank) {
    expect_doubling(job.warnings[rank]);
    for (const NotedWarning& record : job.warnings[rank]) {
      EXPECT_TRUE(contains(record.text, "barrier (call ")) << record.text;
      EXPECT_TRUE(contains(record.text, "rank 2 (worker 'w2'")) << record.text;
      EXPECT_TRUE(contains(record.text, "has not made this call")) << record.text;
      EXPECT_FALSE(contains(record.text, "rank 1 (")) << record.text;
    }
  }
  EXPECT_TRUE(job.warnings[2].empty()) << job.warnings[2][0].text;
}

TEST(StallWarning, OfSeveralCollectivesIsReportedForEachThatHasBegun) {
  Job job([](Job& job, Session& session, int32_t rank) {
    if (rank == 2) job.pause(rank, 2s);
    std::vector<std::shared_ptr<Operation>> barriers;
    for (int i = 0; i < 10; ++i) barriers.push_back(session.barrier(Mode::kQueue).value());
    for (const auto& barrier : barriers) EXPECT_TRUE(session.wait(*barrier, -1ms).ok());
  });
  EXPECT_EQ(job.warnings[0].size(), 4u);  // that is how many are open at once
}

TEST(StallWarning, OfAStepNamesTheWorkerThatHasNotBegunIt) {
  Job job([](Job& job, Session& session, int32_t rank) {
    if (rank == 1) job.pause(rank, 10s);
    const Status status = session.step(1, nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
  });
  for (int32_t rank : {0, 2}) {
    expect_doubling(job.warnings[rank]);
    for (const NotedWarning& record : job.warnings[rank]) {
      EXPECT_EQ(record.text.find("step 0 has not ended"), 0u) << record.text;
      EXPECT_TRUE(contains(record.text, "rank 1 (worker 'w1'")) << record.text;
      EXPECT_TRUE(contains(record.text, "has not made this call")) << record.text;
    }
  }
  EXPECT_TRUE(job.warnings[1].empty());
}

TEST(StallWarning, OfAStepNamesTheGradientsThatAreMissing) {
  Job job([](Job& job, Session& session, int32_t rank) {
    auto step = session.step_begin(1);
    ASSERT_TRUE(step.ok()) << step.status().message();
    EXPECT_TRUE(session.gradient_ready(job.replicas[rank], job.parameters[rank][0], nullptr).ok());
    const auto late = [&] {
      const Status status = session.wait(*step.value(), 500ms);
      EXPECT_EQ(status.code(), Code::kWaitTimeout);
      EXPECT_EQ(status.rank(), 1) << status.message();
      const char* said = rank == 1 ? "gradient 'second' was not marked"
                                   : "has not sent the gradients of parameters 'first', 'second'";
      EXPECT_TRUE(contains(status.message(), said)) << status.message();
    };
    if (rank != 1) {
      EXPECT_TRUE(session.gradient_ready(job.replicas[rank], job.parameters[rank][1], nullptr).ok());
    }
    late();
    if (rank == 1) {
      job.pause(rank, 9500ms);
      EXPECT_TRUE(session.gradient_ready(job.replicas[rank], job.parameters[rank][1], nullptr).ok());
    }
    const Status status = session.wait(*step.value(), -1ms);
    EXPECT_TRUE(status.ok()) << status.message();
  });
  for (int32_t rank = 0; rank < Job::kWorkers; ++rank) {
    expect_doubling(job.warnings[rank]);
    for (const NotedWarning& record : job.warnings[rank]) {
      EXPECT_EQ(record.text.find("step 0 has not ended"), 0u) << record.text;
      if (rank == 1) {
        EXPECT_TRUE(contains(record.text, "gradient 'second' was not marked")) << record.text;
      } else {
        EXPECT_TRUE(contains(record.text, "rank 1 (worker 'w1'")) << record.text;
        // Both travel in one bucket.
        EXPECT_TRUE(contains(record.text, "has not sent the gradients of parameters 'first', 'second'"))
            << record.text;
      }
      EXPECT_EQ(contains(record.text, "'first'"), rank != 1) << record.text;
    }
  }
}

TEST(StallWarning, OfAnObjectGetSaysThatNoWorkerHasPutIt) {
  Job job([](Job& job, Session& session, int32_t rank) {
    if (rank == 2) {
      job.pause(rank, 10s);
      EXPECT_TRUE(session.object_put("late", {}, Object::kNoType, {}, Mode::kWait).ok());
      return;
    }
    auto get = session.object_get("late", Mode::kQueue);
    ASSERT_TRUE(get.ok());
    const Status wait = session.wait(*get.value(), 5s);
    EXPECT_EQ(wait.code(), Code::kWaitTimeout);
    EXPECT_TRUE(contains(wait.message(), "no worker has put object 'late'")) << wait.message();
    EXPECT_TRUE(session.wait(*get.value(), 10s).ok());
  });
  for (int32_t rank = 0; rank < 2; ++rank) {
    expect_doubling(job.warnings[rank]);
    for (const NotedWarning& record : job.warnings[rank]) {
      EXPECT_TRUE(contains(record.text, "dsgd_object_get has not ended after ")) << record.text;
      EXPECT_TRUE(contains(record.text, "no worker has put object 'late'")) << record.text;
    }
  }
}

// A worker that is stopped holds up who puts and who deletes.
TEST(StallWarning, OfAPutAndADeletionNamesTheMissingWorker) {
  for (const bool deletes : {false, true}) {
    SCOPED_TRACE(deletes ? "delete" : "put");
    Job job([deletes](Job& job, Session& session, int32_t rank) {
      const std::vector<uint8_t> data(1 << 20);
      if (deletes && rank == 0) {
        EXPECT_TRUE(session.object_put("it", data, Object::kNoType, {}, Mode::kWait).ok());
      }
      EXPECT_TRUE(session.barrier(Mode::kWait).ok());
      if (rank != 0) return job.pause(rank, 20s);
      job.stop(2, 8s);
      const auto begun = deletes ? session.object_delete("it", Mode::kQueue)
                                 : session.object_put("it", data, Object::kNoType, {}, Mode::kQueue);
      ASSERT_TRUE(begun.ok());
      const Status wait = session.wait(*begun.value(), 5s);
      EXPECT_EQ(wait.code(), Code::kWaitTimeout);
      EXPECT_EQ(wait.rank(), 2) << wait.message();
      EXPECT_TRUE(session.wait(*begun.value(), 10s).ok());
    });
    ASSERT_EQ(job.warnings[0].size(), 3u);
    for (const NotedWarning& record : job.warnings[0]) {
      EXPECT_TRUE(contains(record.text, deletes ? "object 'it' is not deleted on rank 2 (worker 'w2'"
                                                : "object 'it' has not reached rank 2 (worker 'w2'"))
          << record.text;
    }
  }
}

TEST(StallWarning, IsNotLoggedWithoutAnOpenCall) {
  Job job([](Job& job, Session& session, int32_t rank) {
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(session.step(1, nullptr).ok());
      job.pause(rank, 3s);
    }
  });
  for (const auto& of_worker : job.warnings) EXPECT_TRUE(of_worker.empty()) << of_worker[0].text;
}

}  // namespace
}  // namespace dsgd::simulation::stall_test
