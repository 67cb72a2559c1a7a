// The times among a session's metrics and in its trace, in virtual time: who is late shows in the waits of
// the others.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster.h"
#include "tests/unit/metrics.h"
#include "tests/unit/wait_for.h"

namespace dsgd::simulation::metrics_test {
namespace {

using namespace std::chrono_literals;
using Values = std::map<std::string, double>;

constexpr int32_t kWorkers = 3;

Values metrics_of(const Session& session) {
  auto text = session.metrics();
  EXPECT_TRUE(text.ok()) << text.status().message();
  return parse_metrics(text.value());
}

struct Worker {
  Cluster& cluster;
  Session& session;
  const int rank;
  Parameter* parameter;
  Replica* replica;
  void pause(transport::Duration duration) { cluster.pass_time(rank, duration); }
};

using Body = std::function<void(Worker& worker, int rank)>;

// Returns the counts of each of three started workers from the beginning of `body` to its end. `prepare` is
// called before the workers begin.
std::array<Values, kWorkers> counted(const Body& body, const std::function<void(Cluster&)>& prepare = {}) {
  std::array<Values, kWorkers> counted;
  const auto program = [&](Cluster& cluster, Session& session, int rank) {
    const int64_t count = 1024;
    Worker worker{cluster, session, rank,
                  session.add_parameter("weight", DType::kFloat32, {&count, 1}, true).value(),
                  session.add_replica("cpu").value()};
    (void)session.alloc(worker.replica, worker.parameter).value();
    ASSERT_TRUE(session.start().ok());
    const Values before = metrics_of(session);
    body(worker, rank);
    for (const auto& [name, value] : metrics_of(session)) counted[rank][name] = value - before.at(name);
  };
  Cluster cluster({.workers = kWorkers, .seed = 7, .settings = {{"lease", "10s"}, {"init_timeout", "60s"}}},
                  program);
  if (prepare) prepare(cluster);
  EXPECT_TRUE(cluster.run_until_ended(3600s));
  return counted;
}

// Seconds of each span, by row and name; the last one counts.
Values trace_of(const Session& session) {
  auto text = session.trace({});
  EXPECT_TRUE(text.ok()) << text.status().message();
  std::map<int, std::string> rows;
  Values seconds;
  const auto trace = nlohmann::json::parse(text.value());
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name") rows[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") == "X")
      seconds[rows.at(event.at("tid")) + ": " + event.at("name").get<std::string>()] =
          event.at("dur").get<double>() / 1e6;
  }
  return seconds;
}

// Virtual time beyond a pause is what messages take. By so much the workers begin at different times, too.
void expect_about(double value, double seconds) {
  EXPECT_GE(value, seconds - 0.001);
  EXPECT_LT(value, seconds + 0.2);
}

TEST(Metrics, AWorkerThatIsLateForACollectiveShowsInTheWaitsOfTheOthers) {
  const auto values = counted([](Worker& worker, int32_t rank) {
    if (rank == 2) {
      const auto get = worker.session.object_get("nothing", Session::Mode::kWait, {.timeout = 10s});
      EXPECT_EQ(wait_for(worker.session, get).code(), Code::kTimeout);
    }
    ASSERT_TRUE(worker.session.barrier(Session::Mode::kWait).ok());
    const Values trace = trace_of(worker.session);
    expect_about(trace.at("calls: barrier"), rank == 2 ? 0 : 10);
    if (rank != 2) expect_about(trace.at("waits for rank 2: wait"), 10);
  });
  for (const int32_t rank : {0, 1, 2}) {
    const Values& mine = values[rank];
    EXPECT_EQ(mine.at("dsgd_calls_total{call=\"barrier\"}"), 1);
    expect_about(mine.at("dsgd_call_seconds_total{call=\"barrier\"}"), rank == 2 ? 0 : 10);
    for (const int32_t peer : {0, 1, 2}) {
      if (peer == rank) continue;
      expect_about(mine.at("dsgd_peer_wait_seconds_total{rank=\"" + std::to_string(peer) + "\"}"),
                   peer == 2 ? 10 : 0);
    }
  }
  EXPECT_EQ(values[2].at("dsgd_failed_calls_total{call=\"object_get\"}"), 1);
}

// A step's header and its buckets wait at once. The wait counts once.
TEST(Metrics, CountConcurrentWaitsOnce) {
  const auto values = counted([](Worker& worker, int32_t rank) {
    if (rank == 2) worker.pause(5s + 10ms);  // it begins to pause a little before the others step
    StepResult result;
    ASSERT_TRUE(worker.session.step(1, &result).ok());
    if (rank != 2) expect_about(trace_of(worker.session).at("waits for rank 2: wait"), 5);
  });
  for (const int32_t rank : {0, 1}) {
    expect_about(values[rank].at("dsgd_peer_wait_seconds_total{rank=\"2\"}"), 5);
  }
}

TEST(Metrics, CountWaitsAndPhasesOfFailedOperations) {
  const auto values = counted([](Worker& worker, int32_t rank) {
    if (rank == 2) return worker.pause(60s);
    EXPECT_FALSE(worker.session.barrier(Session::Mode::kWait, {.timeout = 2s}).value()->status().ok());
    expect_about(trace_of(worker.session).at("waits for rank 2: wait"), 2);
    auto step = worker.session.step_begin(1, {.timeout = 4s});
    ASSERT_TRUE(step.ok());
    worker.pause(1s);
    ASSERT_TRUE(worker.session.gradient_ready(worker.replica, worker.parameter, nullptr).ok());
    EXPECT_FALSE(worker.session.wait(*step.value(), -1ms).ok());
    const Values trace = trace_of(worker.session);
    expect_about(trace.at("steps: step"), 4);
    expect_about(trace.at("steps: gradients"), 1);
    expect_about(trace.at("steps: reduction"), 3);
    expect_about(trace.at("waits for rank 2: wait"), 4);
  });
  for (const int32_t rank : {0, 1}) {
    expect_about(values[rank].at("dsgd_peer_wait_seconds_total{rank=\"2\"}"), 6);
  }
}

// The head tells rank 2 late that the job has begun, so rank 1's first data comes before.
TEST(Metrics, CountDataReceivedBeforeJoining) {
  std::array<Values, kWorkers> absolute;
  counted(
      [&](Worker& worker, int32_t rank) {
        ASSERT_TRUE(worker.session.barrier(Session::Mode::kWait).ok());
        absolute[rank] = metrics_of(worker.session);
      },
      [](Cluster& cluster) { cluster.world.set_delay(cluster.process(0), cluster.process(2), {1s, 1s}); });
  EXPECT_GT(absolute[1].at("dsgd_peer_sent_bytes_total{rank=\"2\"}"), 0);
  EXPECT_EQ(absolute[1].at("dsgd_peer_sent_bytes_total{rank=\"2\"}"),
            absolute[2].at("dsgd_peer_received_bytes_total{rank=\"1\"}"));
}

TEST(Metrics, ALateGradientCountsAsGradientsHereAndAsReductionElsewhere) {
  const auto values = counted([](Worker& worker, int32_t rank) {
    auto step = worker.session.step_begin(1);
    ASSERT_TRUE(step.ok());
    if (rank == 1) worker.pause(5s);
    ASSERT_TRUE(worker.session.gradient_ready(worker.replica, worker.parameter, nullptr).ok());
    ASSERT_TRUE(worker.session.wait(*step.value(), -1ms).ok());
    const Values trace = trace_of(worker.session);
    for (const std::string row : {"steps", "bucket 0"}) {
      expect_about(trace.at(row + ": gradients"), rank == 1 ? 5 : 0);
      expect_about(trace.at(row + ": update"), 0);
    }
    expect_about(trace.at("steps: step"), 5);
    expect_about(trace.at("steps: reduction"), rank == 1 ? 0 : 5);
    expect_about(trace.at("bucket 0: contribution"), 0);
    expect_about(trace.at("bucket 0: travel"), rank == 1 ? 0 : 5);
  });
  for (const int32_t rank : {0, 1, 2}) {
    const Values& mine = values[rank];
    EXPECT_EQ(mine.at("dsgd_steps_total"), 1);
    EXPECT_EQ(mine.at("dsgd_applied_steps_total"), 1);
    EXPECT_EQ(mine.at("dsgd_failed_steps_total"), 0);
    EXPECT_EQ(mine.at("dsgd_buckets_total"), 1);
    expect_about(mine.at("dsgd_step_phase_seconds_total{phase=\"gradients\"}"), rank == 1 ? 5 : 0);
    expect_about(mine.at("dsgd_step_phase_seconds_total{phase=\"reduction\"}"), rank == 1 ? 0 : 5);
    expect_about(mine.at("dsgd_step_phase_seconds_total{phase=\"update\"}"), 0);
    expect_about(mine.at("dsgd_bucket_seconds_total"), rank == 1 ? 0 : 5);
  }
}

}  // namespace
}  // namespace dsgd::simulation::metrics_test
