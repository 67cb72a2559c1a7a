// A call that waits for long says so: a warning after `stall_warning`, and again after twice as long each
// time, names the workers that have not come and the parameters whose gradients are missing. A wait that runs
// out says the same.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/session/session.h"
#include "tests/simulation/configure.h"
#include "transport/sim/world.h"

namespace dsgd::simulation {
namespace {

using namespace std::chrono_literals;
using Mode = Session::Mode;

struct Record {
  transport::Duration after;  // of the moment that the test's calls began
  std::string text;
};

// Three workers with a model of two parameters. What they log as warnings from the moment on that all of
// them have started.
class Job {
 public:
  static constexpr int32_t kWorkers = 3;
  using Body = std::function<void(Job& job, Session& session, int32_t rank)>;

  explicit Job(const Body& body) {
    int32_t over = 0;
    for (int32_t worker = 0; worker < kWorkers; ++worker) {
      const transport::ProcessId process = processes[worker] =
          world.start_process("node" + std::to_string(worker));
      world.start_program(process, [&, process, worker] {
        run(process, worker, body);
        ++over;
      });
    }
    EXPECT_TRUE(world.run_until([&] { return over == kWorkers; }, world.now() + 3600s));
  }

  void pause(Session& session, std::chrono::milliseconds duration) {
    EXPECT_EQ(session.queue_poll(1, duration).status().code(),
              Code::kWaitTimeout);  // no operation ends meanwhile
  }

  // As SIGSTOP. What other workers begin waits for it.
  void stop(int32_t worker, transport::Duration duration) {
    world.pause(processes[worker]);
    world.at(world.now() + duration, [this, worker] { world.resume(processes[worker]); });
  }

  transport::SimWorld world{5};
  transport::ProcessId processes[kWorkers] = {};
  std::vector<Record> warnings[kWorkers];
  Parameter* parameters[kWorkers][2] = {};
  Replica* replicas[kWorkers] = {};

 private:
  void run(transport::ProcessId process, int32_t worker, const Body& body) {
    Config config;
    configure(
        config, kWorkers, worker,
        {{"worker_id", "w" + std::to_string(worker)}, {"step_timeout", "60s"}, {"stall_warning", "1s"}});
    transport::Time began{};
    auto log = std::make_shared<Log>(LogLevel::kWarning, [&](const LogRecord& record) {
      warnings[worker].push_back({world.now() - began, record.message});
    });
    auto opened = Session::open(config, world.environment(process), log);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    Session& session = *opened.value();
    std::vector<float> memory(4 * 1024);
    auto replica = session.add_replica("cpu");
    replicas[worker] = replica.value();
    const int64_t count = 1024;
    for (int p = 0; p < 2; ++p) {
      parameters[worker][p] =
          session.add_parameter(p == 0 ? "first" : "second", DType::kFloat32, {&count, 1}, true).value();
      float* value = memory.data() + 2048 * p;
      EXPECT_TRUE(
          session.bind(replicas[worker], parameters[worker][p], value, 4096, value + 1024, 4096, nullptr)
              .ok());
    }
    const Status started = session.start();
    ASSERT_TRUE(started.ok()) << started.message();
    warnings[worker].clear();
    began = world.now();
    body(*this, session, worker);
    (void)session.close(0ms);
  }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Warnings come 1, 3 and 7 seconds after the call.
void expect_doubling(const std::vector<Record>& warnings) {
  ASSERT_EQ(warnings.size(), 3u);
  const transport::Duration due[] = {1s, 3s, 7s};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GE(warnings[i].after, due[i]) << warnings[i].text;
    EXPECT_LT(warnings[i].after, due[i] + 100ms) << warnings[i].text;
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
    if (rank == 2) job.pause(session, 10s);
    ASSERT_TRUE(session.barrier(Mode::kWait).ok());
    job.warnings[rank].clear();
    if (rank == 2) job.pause(session, 4s);
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
    if (rank == 2) job.pause(session, 10s);
    auto barrier = session.barrier(Mode::kQueue);
    ASSERT_TRUE(barrier.ok());
    if (rank == 0) {
      const Status status = session.wait(*barrier.value(), 500ms);
      EXPECT_EQ(status.code(), Code::kWaitTimeout);
      EXPECT_EQ(status.rank(), 2) << status.message();
      EXPECT_TRUE(contains(status.message(), "rank 2 (worker 'w2'")) << status.message();
      EXPECT_TRUE(contains(status.message(), "has not called it")) << status.message();
    }
    const Status status = session.wait(*barrier.value(), -1ms);
    EXPECT_TRUE(status.ok()) << status.message();
  });
  for (int32_t rank = 0; rank < 2; ++rank) {
    expect_doubling(job.warnings[rank]);
    for (const Record& record : job.warnings[rank]) {
      EXPECT_TRUE(contains(record.text, "barrier (call ")) << record.text;
      EXPECT_TRUE(contains(record.text, "rank 2 (worker 'w2'")) << record.text;
      EXPECT_TRUE(contains(record.text, "has not called it")) << record.text;
      EXPECT_FALSE(contains(record.text, "rank 1 (")) << record.text;
    }
  }
  EXPECT_TRUE(job.warnings[2].empty()) << job.warnings[2][0].text;
}

TEST(StallWarning, OfSeveralCollectivesIsReportedForEachThatHasBegun) {
  Job job([](Job& job, Session& session, int32_t rank) {
    if (rank == 2) job.pause(session, 2s);
    std::vector<std::shared_ptr<Operation>> barriers;
    for (int i = 0; i < 10; ++i) barriers.push_back(session.barrier(Mode::kQueue).value());
    for (const auto& barrier : barriers) EXPECT_TRUE(session.wait(*barrier, -1ms).ok());
  });
  EXPECT_EQ(job.warnings[0].size(), 4u);  // that is how many are open at once
}

TEST(StallWarning, OfAStepNamesTheWorkerThatHasNotBegunIt) {
  Job job([](Job& job, Session& session, int32_t rank) {
    if (rank == 1) job.pause(session, 10s);
    const Status status = session.step(1, nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
  });
  for (int32_t rank : {0, 2}) {
    expect_doubling(job.warnings[rank]);
    for (const Record& record : job.warnings[rank]) {
      EXPECT_EQ(record.text.find("step 0 has not ended"), 0u) << record.text;
      EXPECT_TRUE(contains(record.text, "rank 1 (worker 'w1'")) << record.text;
      EXPECT_TRUE(contains(record.text, "has not called it")) << record.text;
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
      job.pause(session, 9500ms);
      EXPECT_TRUE(session.gradient_ready(job.replicas[rank], job.parameters[rank][1], nullptr).ok());
    }
    const Status status = session.wait(*step.value(), -1ms);
    EXPECT_TRUE(status.ok()) << status.message();
  });
  for (int32_t rank = 0; rank < Job::kWorkers; ++rank) {
    expect_doubling(job.warnings[rank]);
    for (const Record& record : job.warnings[rank]) {
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
      job.pause(session, 10s);
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
    for (const Record& record : job.warnings[rank]) {
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
      if (rank != 0) return job.pause(session, 20s);
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
    for (const Record& record : job.warnings[0]) {
      EXPECT_TRUE(contains(record.text, deletes ? "object 'it' is not deleted on rank 2 (worker 'w2'"
                                                : "object 'it' has not reached rank 2 (worker 'w2'"))
          << record.text;
    }
  }
}

TEST(StallWarning, IsNotLoggedWithoutAnOpenCall) {
  Job job([](Job& job, Session& session, int32_t) {
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(session.step(1, nullptr).ok());
      job.pause(session, 3s);
    }
  });
  for (const auto& of_worker : job.warnings) EXPECT_TRUE(of_worker.empty()) << of_worker[0].text;
}

}  // namespace
}  // namespace dsgd::simulation
