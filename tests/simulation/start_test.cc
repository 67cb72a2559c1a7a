// A worker that stops while the others are in dsgd_start: they end, name it and close in time, whatever they
// were doing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cluster.h"
#include "tests/unit/sanitizer.h"

namespace dsgd::simulation::start_test {
namespace {

using namespace std::chrono_literals;
using transport::Duration;
using transport::Time;

constexpr Duration kLease = 3s;
constexpr Duration kSlack = 100ms;  // beyond a deadline

struct Stop {
  bool separate_head;
  int victim;
};

class StoppedInStart : public testing::TestWithParam<Stop> {};

// Every 40 us of the start, so that each of its messages is sent, under way or received when the worker
// stops.
TEST_P(StoppedInStart, TheOthersNameItAndCloseWithinALease) {
  const auto [separate_head, victim] = GetParam();
  const auto program = [](Cluster& cluster, Session& session, int rank) {
    Cluster::train(cluster, session, rank, 0);
  };
  int failed = 0, states = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const ClusterOptions options{
        .workers = 3, .separate_head = separate_head, .seed = seed, .settings = {{"lease", "3s"}}};
    Time begin = transport::kNever, end{};
    {
      Cluster whole(options, program);
      ASSERT_TRUE(whole.run_until_ended(60s));
      for (int rank = 0; rank < 3; ++rank) {
        const NotedCall* start = whole.call(rank, "start");
        ASSERT_TRUE(start && start->status.ok()) << whole.history(rank);
        begin = std::min(begin, start->began);
        end = std::max(end, start->ended);
      }
    }
    for (Time at = begin; at < end; at += 40us) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", stopped " +
                   std::to_string((at - begin).count() / 1000) + " us after the start began");
      Cluster cluster(options, program);
      cluster.world.at(at, [&, victim = victim] { cluster.world.pause(cluster.process(victim)); });
      ASSERT_TRUE(cluster.run_until_ended(120s));
      ++states;
      for (int rank = 0; rank < 3; ++rank) {
        if (rank == victim) continue;
        const NotedCall* close = cluster.call(rank, "close");
        ASSERT_TRUE(close) << cluster.history(rank);
        EXPECT_LE((close->ended - close->began).count(), (kLease + kSlack).count()) << cluster.history(rank);
        if (const NotedCall* start = cluster.call(rank, "start"); start && !start->status.ok()) {
          ++failed;
          EXPECT_EQ(start->status.code(), Code::kWorkerLost) << cluster.history(rank);
          EXPECT_EQ(start->status.rank(), victim) << cluster.history(rank);
          EXPECT_LE((start->ended - at).count(), (kLease + kSlack).count()) << cluster.history(rank);
          EXPECT_LE((close->ended - start->ended).count(), Duration(1s).count())
              << "nobody is waited for twice\n"
              << cluster.history(rank);
        }
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(states, 50);
  EXPECT_GT(failed, states / 2) << "the stops must hurt, or nothing is tested";
}

INSTANTIATE_TEST_SUITE_P(Workers, StoppedInStart,
                         testing::Values(Stop{false, 0}, Stop{false, 1}, Stop{true, 1}, Stop{true, 2}),
                         [](const auto& info) {
                           return std::string(info.param.separate_head ? "separate_head"
                                                                       : "head_in_worker_0") +
                                  "_victim_" + std::to_string(info.param.victim);
                         });

// All processes of the job are stopped while workers connect to each other, as on a suspended machine.
TEST(AllStopped, WhileTheyConnectLosesNoWorker) {
  const struct {
    bool separate_head;
    int joiners;  // start after 13 ms
    Duration from, to;
  } cases[] = {{false, 0, 0ms, 3ms}, {true, 0, 8ms, 12ms}, {false, 1, 13ms, 18ms}, {true, 1, 13ms, 18ms}};
  dsgd_test::Thinned thinned(2, 7);
  for (const auto& test : cases) {
    for (Duration after = test.from; after < test.to; after += 97us) {
      if (thinned.skip_next()) continue;
      SCOPED_TRACE(std::string(test.separate_head ? "separate head" : "head in worker 0") + ", " +
                   std::to_string(test.joiners) + " joiners, stopped after " + std::to_string(after / 1us) +
                   " us");
      Cluster cluster(
          {.workers = 3,
           .joiners = test.joiners,
           .separate_head = test.separate_head,
           .settings = {{"lease", "500ms"}, {"min_workers", "1"}, {"max_workers", "5"}}},
          [](Cluster& cluster, Session& session, int rank) { Cluster::train(cluster, session, rank, 120); });
      if (test.joiners > 0) cluster.world.at(cluster.world.now() + 13ms, [&] { cluster.start_worker(3); });
      cluster.world.run_for(after);
      std::vector<transport::ProcessId> stopped;
      for (int rank = test.separate_head ? -1 : 0; rank < cluster.all(); ++rank)
        stopped.push_back(cluster.process(rank));
      for (const transport::ProcessId process : stopped) cluster.world.pause(process);
      cluster.world.run_for(700ms);
      for (const transport::ProcessId process : stopped) cluster.world.resume(process);
      ASSERT_TRUE(cluster.run_until_ended(60s));
      for (int rank = 0; rank < cluster.all(); ++rank)
        EXPECT_FALSE(cluster.first_failure(rank)) << cluster.history(rank);
      if (HasFailure()) return;
    }
  }
}

// The head answers a join when it has stored its record.
TEST(StartWhileTheDiskOfTheHeadStalls, FailsWithThatReason) {
  for (const bool late : {false, true}) {
    SCOPED_TRACE(late ? "a worker joins the running job" : "the job begins");
    Cluster cluster({.joiners = late,
                     .separate_head = true,
                     .durable_head = true,
                     .settings = {{"init_timeout", "5s"}, {"min_workers", "1"}, {"max_workers", "3"}}},
                    [](Cluster& cluster, Session& session, int rank) {
                      if (Cluster::train(cluster, session, rank, 5)) cluster.pass_time(rank, 8s);
                    });
    if (late) {
      ASSERT_TRUE(cluster.run_until_noted(1, "step 4", 10s));
    }
    cluster.disk_back_at = cluster.world.now() + 20s;
    if (late) cluster.start_worker(2);
    ASSERT_TRUE(cluster.run_until_ended(60s));
    for (const int rank : late ? std::vector{2} : std::vector{0, 1}) {
      const NotedCall* const failure = cluster.first_failure(rank);
      ASSERT_TRUE(failure) << cluster.history(rank);
      EXPECT_EQ(failure->status.code(), Code::kTimeout) << failure->status.message();
      EXPECT_THAT(
          failure->status.message(),
          testing::HasSubstr("it has not stored its record yet; check the disk or etcd of `head_state`"));
    }
  }
}

}  // namespace
}  // namespace dsgd::simulation::start_test
