// dsgd_metrics and dsgd_trace in jobs of several workers: what is counted, exactly; times are in
// tests/simulation.

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "job.h"
#include "tests/unit/metrics.h"

namespace dsgd_test::metrics_test {
namespace {

std::string text_of(const dsgd_session* session) {
  char* text = nullptr;
  Error error;
  EXPECT_EQ(dsgd_metrics(session, &text, error), DSGD_OK) << error.message();
  const std::string copy = text ? text : "";
  dsgd_text_free(text);
  return copy;
}

TEST(Metrics, CountCallsBytesAndFailures) {
  run_job(2, {}, [&](dsgd_session* session, int) {
    std::vector<float> data(1000), all(2000);
    for (int i = 0; i < 3; ++i) {
      DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, data.data(), data.data(), 4000, DSGD_FLOAT32, DSGD_SUM,
                                     nullptr, nullptr, error_));
    }
    DSGD_OK_OR_FAIL(dsgd_allgather(session, nullptr, data.data(), 4000, all.data(), 8000, nullptr,
                                   DSGD_FLOAT32, nullptr, nullptr, error_));
    dsgd_op_options options;
    dsgd_op_options_init(&options, sizeof options);
    options.timeout_ms = 1;
    dsgd_object* object = nullptr;
    EXPECT_EQ(dsgd_object_get(session, "never", &options, &object, nullptr, nullptr), DSGD_ERR_TIMEOUT);
    const auto values = parse_metrics(text_of(session));
    EXPECT_EQ(values.at("dsgd_calls_total{call=\"allreduce\"}"), 3);
    EXPECT_EQ(values.at("dsgd_call_bytes_total{call=\"allreduce\"}"), 12000);
    EXPECT_EQ(values.at("dsgd_calls_total{call=\"allgather\"}"), 1);
    EXPECT_EQ(values.at("dsgd_call_bytes_total{call=\"allgather\"}"), 8000);
    EXPECT_EQ(values.at("dsgd_failed_calls_total{call=\"allreduce\"}"), 0);
    EXPECT_EQ(values.at("dsgd_calls_total{call=\"object_get\"}"), 1);
    EXPECT_EQ(values.at("dsgd_failed_calls_total{call=\"object_get\"}"), 1);
    EXPECT_GT(values.at("dsgd_call_seconds_total{call=\"allreduce\"}"), 0);
    EXPECT_EQ(values.at("dsgd_workers"), 2);
    EXPECT_EQ(values.at("dsgd_steps_total"), 0);
    // No get ends because a worker has closed.
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
  });
}

TEST(Metrics, ShowTheMemoryThatIsHeld) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    const auto held = [&](const std::string& use) {
      return parse_metrics(text_of(session)).at("dsgd_memory_bytes{use=\"" + use + "\"}");
    };
    for (const char* use : {"tensors", "optimizer", "steps", "objects"}) EXPECT_EQ(held(use), 0) << use;
    dsgd_parameter *weight = nullptr, *state = nullptr;
    dsgd_replica* replica = nullptr;
    const int64_t shape = 1000;
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "weight", DSGD_FLOAT32, &shape, 1, 0, &weight, error_));
    DSGD_OK_OR_FAIL(
        dsgd_parameter_add(session, "state", DSGD_FLOAT64, &shape, 1, DSGD_UNTRAINED, &state, error_));
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    void *value = nullptr, *gradient = nullptr;
    for (int i = 0; i < 2; ++i) {
      DSGD_OK_OR_FAIL(dsgd_alloc(replica, weight, &value, &gradient, error_));
      DSGD_OK_OR_FAIL(dsgd_alloc(replica, state, &value, nullptr, error_));
      EXPECT_EQ(held("tensors"), 4000 + 4000 + 8000);
    }
    DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "adam", nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    EXPECT_EQ(held("optimizer"), 2 * 4000);
    EXPECT_GE(held("steps"), 4000);
    const std::vector<char> data(5000);
    if (rank == 0) {
      DSGD_OK_OR_FAIL(dsgd_object_put(session, "object", data.data(), data.size(), -1, nullptr, 0, nullptr,
                                      nullptr, error_));
    }
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
    EXPECT_EQ(held("objects"), 5000);
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
    if (rank == 1) DSGD_OK_OR_FAIL(dsgd_object_delete(session, "object", nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
    EXPECT_EQ(held("objects"), 0);
  });
}

// Data that an operation needs has arrived when the operation has ended.
TEST(Metrics, SendersAndReceiversAgreeOnTheBytes) {
  constexpr int kWorkers = 3;
  std::map<std::string, double> of[kWorkers];
  run_job(kWorkers, {}, [&](dsgd_session* session, int rank) {
    for (const size_t count : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
      std::vector<double> data(count);
      DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, data.data(), data.data(), count * 8, DSGD_FLOAT64,
                                     DSGD_SUM, nullptr, nullptr, error_));
    }
    std::vector<char> object(3 << 20);
    dsgd_object* got = nullptr;
    if (rank == 0) {
      DSGD_OK_OR_FAIL(dsgd_object_put(session, "object", object.data(), object.size(), -1, nullptr, 0,
                                      nullptr, nullptr, error_));
    } else {
      DSGD_OK_OR_FAIL(dsgd_object_get(session, "object", nullptr, &got, nullptr, error_));
      dsgd_object_free(got);
    }
    if (rank == 2)
      DSGD_OK_OR_FAIL(
          dsgd_object_put(session, "small", object.data(), 1000, -1, nullptr, 0, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
    of[rank] = parse_metrics(text_of(session));
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
  });
  const auto peer = [](const char* direction, int rank) {
    return std::string("dsgd_peer_") + direction + "_bytes_total{rank=\"" + std::to_string(rank) + "\"}";
  };
  EXPECT_GE(of[0].at(peer("sent", 1)) + of[0].at(peer("sent", 2)), 3 << 20);
  for (int from = 0; from < kWorkers; ++from) {
    for (int to = 0; to < kWorkers; ++to) {
      if (from == to) continue;
      EXPECT_GT(of[from].at(peer("sent", to)), 0);
      EXPECT_EQ(of[from].at(peer("sent", to)), of[to].at(peer("received", from))) << from << " to " << to;
    }
  }
}

TEST(Metrics, OfAWorkerThatIsAloneAndOfAFailedSessionCanBeRead) {
  run_job(1, {}, [&](dsgd_session* session, int) {
    EXPECT_EQ(parse_metrics(text_of(session)).at("dsgd_workers"), 1);
    DSGD_OK_OR_FAIL(dsgd_abort(session, "why", error_));
    EXPECT_EQ(parse_metrics(text_of(session)).count("dsgd_workers"), 1u);
  });
}

TEST(Metrics, AreOpenMetricsText) {
  run_job(1, {{"job", "a \"b\" \\c"}}, [&](dsgd_session* session, int) {
    const std::string text = text_of(session);
    EXPECT_TRUE(
        text.starts_with("# TYPE dsgd_session info\n# HELP dsgd_session Job, rank and library version of the "
                         "session.\ndsgd_session_info{job=\"a "
                         "\\\"b\\\" \\\\c\",rank=\"0\",version=\""))
        << text;
    EXPECT_TRUE(text.ends_with("\n# EOF\n")) << text;
    EXPECT_NE(text.find("# TYPE dsgd_call_bytes counter\n# UNIT dsgd_call_bytes bytes\n"), std::string::npos)
        << text;
  });
}

// The names of a row's spans, in order.
std::vector<std::string> names_of(const nlohmann::json& trace, const std::string& row) {
  std::vector<std::string> names;
  int thread = -1;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name" && event.at("args").at("name") == row) thread = event.at("tid");
    if (event.at("ph") == "X" && event.at("tid") == thread) names.push_back(event.at("name"));
  }
  return names;
}

nlohmann::json trace_of(const dsgd_session* session) {
  char* text = nullptr;
  Error error;
  EXPECT_EQ(dsgd_trace(session, &text, error), DSGD_OK) << error.message();
  auto trace = nlohmann::json::parse(text ? text : "");
  dsgd_text_free(text);
  return trace;
}

int64_t unix_microseconds() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

TEST(Trace, HasCallsStepsAndBucketsAtTheirTimes) {
  const int64_t before = unix_microseconds();
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    const int64_t size = 4;
    dsgd_parameter* parameter = nullptr;
    dsgd_replica* replica = nullptr;
    void *value = nullptr, *gradient = nullptr;
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "weight", DSGD_FLOAT32, &size, 1, 0, &parameter, error_));
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, nullptr, &replica, error_));
    DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &value, &gradient, error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
    const auto trace = trace_of(session);
    using Names = std::vector<std::string>;
    EXPECT_EQ(names_of(trace, "steps"), (Names{"step", "gradients", "reduction", "update"})) << trace.dump(1);
    EXPECT_EQ(names_of(trace, "bucket 0"), (Names{"gradients", "contribution", "travel", "update"}))
        << trace.dump(1);
    EXPECT_EQ(names_of(trace, "calls"), (Names{"start", "barrier"})) << trace.dump(1);
    for (const auto& event : trace.at("traceEvents")) {
      EXPECT_EQ(event.at("pid"), rank);
      if (event.at("ph") != "X") continue;
      EXPECT_GE(event.at("ts"), before);
      EXPECT_GE(event.at("dur"), 0);
      EXPECT_LE(event.at("ts").get<int64_t>() + event.at("dur").get<int64_t>(), unix_microseconds());
    }
  });
}

TEST(Trace, MayBeOff) {
  run_job(1, {{"trace_spans", "0"}}, [&](dsgd_session* session, int) {
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
    EXPECT_EQ(names_of(trace_of(session), "calls"), std::vector<std::string>{});
  });
}

}  // namespace
}  // namespace dsgd_test::metrics_test
