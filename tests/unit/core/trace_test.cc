// The ring of spans of a session, and its text.
#include "core/metrics/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

namespace dsgd::metrics {
namespace {

using namespace std::chrono_literals;

Span span(uint64_t number) {
  const auto time = transport::Time(number);
  return {Track::kCalls, number % 2 == 1, 0, static_cast<uint32_t>(number), "name", number, number, time,
          time};
}

TEST(Trace, KeepsTheLatestSpans) {
  Trace trace(4);
  EXPECT_TRUE(trace.spans().empty());
  for (uint64_t i = 0; i < 3; ++i) trace.record(span(i));
  EXPECT_EQ(trace.spans().size(), 3u);
  for (uint64_t i = 3; i < 10; ++i) trace.record(span(i));
  const auto spans = trace.spans();
  ASSERT_EQ(spans.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(spans[i].number, 6 + i);
}

TEST(Trace, ZeroCapacityRecordsNothing) {
  Trace trace(0);
  trace.record(span(1));
  EXPECT_TRUE(trace.spans().empty());
}

TEST(Trace, IsReadWholeWhileItIsWritten) {
  constexpr size_t kCapacity = 4;  // so that spans are replaced while they are read
  Trace trace(kCapacity);
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (uint64_t i = 0; !over; ++i) trace.record(span(i));
  });
  size_t read = 0, torn = 0, out_of_order = 0;
  uint64_t next = 0;  // no later read begins with an earlier span
  for (int round = 0; round < 300000 || read == 0; ++round) {
    const auto spans = trace.spans();
    read += spans.size();
    for (size_t i = 0; i < spans.size(); ++i) {
      const Span whole = span(spans[i].number);
      torn += std::tie(spans[i].failed, spans[i].index, spans[i].nbytes, spans[i].begin, spans[i].end) !=
              std::tie(whole.failed, whole.index, whole.nbytes, whole.begin, whole.end);
      out_of_order += spans[i].number < next || spans[i].number != spans[0].number + i;
    }
    if (!spans.empty()) next = spans[0].number;
  }
  over = true;
  writer.join();
  EXPECT_EQ(torn, 0u);
  EXPECT_EQ(out_of_order, 0u);
}

// The spans of a row, as "name begin-end".
std::map<std::string, std::vector<std::string>> rows_of(const std::vector<Span>& spans) {
  const auto json = nlohmann::json::parse(trace_events(spans, 3, 1s));
  std::map<int, std::string> names;
  std::map<std::string, std::vector<std::string>> rows;
  for (const auto& event : json.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 3);
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    const int64_t begin = event.at("ts"), end = begin + event.at("dur").get<int64_t>();
    rows[names.at(event.at("tid"))].push_back(event.at("name").get<std::string>() + " " +
                                              std::to_string(begin - 1000000) + "-" +
                                              std::to_string(end - 1000000));
  }
  return rows;
}

TEST(TraceEvents, HaveARowForEachSpanThatOverlapsAnother) {
  const std::vector<Span> spans = {
      {Track::kSteps, false, 0, 0, "update", 1, 0, 5us, 9us},
      {Track::kSteps, false, 0, 0, "step", 1, 0, 1us, 9us},
      {Track::kBucket, false, 0, 0, "travel", 1, 8, 2us, 6us},
      {Track::kBucket, false, 0, 1, "travel", 1, 8, 3us, 5us},
      {Track::kBucket, false, 0, 0, "marked", 1, 8, 2us, 2us},
      {Track::kCalls, false, 0, 0, "allreduce", 7, 4, 1us, 4us},
      {Track::kCalls, false, 0, 0, "barrier", 8, 0, 2us, 3us},
      {Track::kCalls, true, 0, 0, "barrier", 9, 0, 4us, 5us},
      {Track::kPeer, false, 0, 2, "wait", 0, 0, 1us, 2us},
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(rows_of(spans), (std::map<std::string, Names>{{"steps", {"step 1-9", "update 5-9"}},
                                                          {"bucket 0", {"marked 2-2", "travel 2-6"}},
                                                          {"bucket 1", {"travel 3-5"}},
                                                          {"calls", {"allreduce 1-4", "barrier 4-5"}},
                                                          {"calls (2)", {"barrier 2-3"}},
                                                          {"waits for rank 2", {"wait 1-2"}}}));
}

TEST(TraceEvents, SayStepOperationBytesAndFailure) {
  const auto arguments = [](const Span& span) {
    return nlohmann::json::parse(trace_events({span}, 0, 0s)).at("traceEvents").back().at("args");
  };
  EXPECT_EQ(arguments({Track::kBucket, false, 0, 0, "travel", 17, 40, 0us, 0us}),
            nlohmann::json({{"step", 17}, {"bytes", 40}, {"failed", false}}));
  EXPECT_EQ(arguments({Track::kCalls, true, 0, 0, "barrier", 9, 0, 0us, 0us}),
            nlohmann::json({{"operation", 9}, {"failed", true}}));
  EXPECT_EQ(arguments({Track::kPeer, false, 0, 2, "wait", 0, 0, 0us, 0us}),
            nlohmann::json({{"failed", false}}));
}

TEST(TraceEvents, OfASessionThatDidNothingAreJson) {
  EXPECT_EQ(nlohmann::json::parse(trace_events({}, 0, 0s)).at("traceEvents").size(), 1u);
}

}  // namespace
}  // namespace dsgd::metrics
