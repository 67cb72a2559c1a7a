// Cuts of the network: who is named when one is for good, and that a short one does no harm.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "cluster.h"
#include "tests/unit/sanitizer.h"

namespace dsgd::simulation::cut_test {
namespace {

using namespace std::chrono_literals;
using transport::Duration;
using transport::Time;

constexpr Duration kLease = 1s;
constexpr int kHead = -1;
constexpr int kForever = 1'000'000;

ClusterOptions options_of(int workers, bool separate_head) {
  ClusterOptions options{.workers = workers, .separate_head = separate_head, .settings = {{"lease", "1s"}}};
  options.network.delay = {5ms, 10ms};  // a step takes some tens of milliseconds
  return options;
}

void train_forever(Cluster& cluster, Session& session, int rank) {
  Cluster::train(cluster, session, rank, kForever);
}

// Every worker ends with a lost worker of the ranks given for it, and rank and text agree.
void expect_named(const Cluster& cluster, int rank, const std::set<int>& named, Time cut_at) {
  const NotedCall* failure = cluster.first_failure(rank);
  ASSERT_TRUE(failure) << cluster.history(rank);
  const Status& status = failure->status;
  const std::string text = "rank " + std::to_string(rank) + " has: " + code_name(status.code()) + " rank " +
                           std::to_string(status.rank()) + " " + status.message();
  EXPECT_EQ(status.code(), Code::kWorkerLost) << text;
  EXPECT_TRUE(named.contains(status.rank())) << text;
  const std::string begins = status.rank() < 0 ? "the head" : "rank " + std::to_string(status.rank()) + " ";
  EXPECT_TRUE(status.message().rfind(begins, 0) == 0 || status.message().rfind("the head", 0) == 0) << text;
  if (status.rank() >= 0) {
    EXPECT_NE(status.message().find(begins), std::string::npos) << text;
  }
  EXPECT_LE((failure->ended - cut_at).count(), (kLease * 7 / 4 + 100ms).count()) << text;
}

void expect_says(const Cluster& cluster, int rank, const std::vector<std::string>& words) {
  const NotedCall* failure = cluster.first_failure(rank);
  ASSERT_TRUE(failure) << cluster.history(rank);
  for (const std::string& word : words)
    EXPECT_NE(failure->status.message().find(word), std::string::npos)
        << "no '" << word << "' in: " << failure->status.message();
}

struct Cut {
  int from, to;  // packets that way are lost; kHead: the separate head
};

// Runs a job, cuts, and gives the workers time to notice.
void run_cut(Cluster& cluster, const std::vector<Cut>& cuts, Time* cut_at) {
  ASSERT_TRUE(cluster.run_until_noted(0, "step 5", 10s));
  *cut_at = cluster.world.now();
  for (const Cut& cut : cuts) cluster.world.block(cluster.process(cut.from), cluster.process(cut.to));
  ASSERT_TRUE(cluster.run_until_ended(30s)) << cluster.history(0);
}

std::string describe(int workers, bool separate_head, int from, int to) {
  return std::to_string(workers) + " workers, " + (separate_head ? "separate head" : "head in worker 0") +
         ", cut from " + std::to_string(from) + " to " + std::to_string(to);
}

enum Direction { kThere, kBack, kBoth };

std::vector<Cut> cuts_of(int one, int other, Direction direction) {
  std::vector<Cut> cuts;
  if (direction != kBack) cuts.push_back({one, other});
  if (direction != kThere) cuts.push_back({other, one});
  return cuts;
}

TEST(Cuts, BetweenTwoWorkersNameTheSameOneEverywhere) {
  for (int workers = 2; workers <= 4; ++workers) {
    for (const bool separate_head : {true, false}) {
      for (int low = separate_head ? 0 : 1; low < workers; ++low) {
        for (int high = low + 1; high < workers; ++high) {
          for (const Direction direction : {kThere, kBack, kBoth}) {
            SCOPED_TRACE(describe(workers, separate_head, low, high) + ", direction " +
                         std::to_string(direction));
            Cluster cluster(options_of(workers, separate_head), train_forever);
            Time at{};
            run_cut(cluster, cuts_of(low, high, direction), &at);
            if (testing::Test::HasFatalFailure()) return;
            for (int rank = 0; rank < workers; ++rank) {
              expect_named(cluster, rank, {high}, at);
              expect_says(
                  cluster, rank,
                  {"rank " + std::to_string(low) + " (worker", "rank " + std::to_string(high) + " (worker",
                   "10.0.0.", "a firewall separates the workers"});
            }
          }
        }
      }
    }
  }
}

TEST(Cuts, BetweenAWorkerAndTheHeadNameTheWorker) {
  for (int workers = 2; workers <= 4; ++workers) {
    for (const bool separate_head : {true, false}) {
      const int head = separate_head ? kHead : 0;
      for (int worker = separate_head ? 0 : 1; worker < workers; ++worker) {
        for (const Direction direction : {kThere, kBack, kBoth}) {
          SCOPED_TRACE(describe(workers, separate_head, head, worker) + ", direction " +
                       std::to_string(direction));
          Cluster cluster(options_of(workers, separate_head), train_forever);
          Time at{};
          run_cut(cluster, cuts_of(head, worker, direction), &at);
          if (testing::Test::HasFatalFailure()) return;
          for (int rank = 0; rank < workers; ++rank) {
            // The worker itself sees no more than that the head does not answer.
            expect_named(cluster, rank, rank == worker ? std::set<int>{worker, head} : std::set<int>{worker},
                         at);
            if (rank == worker) expect_says(cluster, rank, {"the head at node0:7700"});
          }
        }
      }
    }
  }
}

TEST(Cuts, AWorkerThatIsCutOffFromAllIsNamedByItselfToo) {
  for (int workers = 2; workers <= 4; ++workers) {
    for (const bool separate_head : {true, false}) {
      for (int victim = separate_head ? 0 : 1; victim < workers; ++victim) {
        for (const Direction direction : {kThere, kBack, kBoth}) {
          SCOPED_TRACE(describe(workers, separate_head, victim, 99) + ", direction " +
                       std::to_string(direction));
          Cluster cluster(options_of(workers, separate_head), train_forever);
          std::vector<Cut> cuts;
          for (int other = separate_head ? kHead : 0; other < workers; ++other) {
            if (other == victim) continue;
            for (const Cut& cut : cuts_of(victim, other, direction)) cuts.push_back(cut);
          }
          Time at{};
          run_cut(cluster, cuts, &at);
          if (testing::Test::HasFatalFailure()) return;
          // Where the head's host is the only other worker, there is no third one to tell whose fault it is.
          const bool no_third = workers == 2 && !separate_head;
          for (int rank = 0; rank < workers; ++rank) {
            expect_named(cluster, rank, rank == victim && no_third ? std::set<int>{0} : std::set<int>{victim},
                         at);
          }
        }
      }
    }
  }
}

TEST(Cuts, AHeadThatHearsNobodyIsNamedItself) {
  for (int workers = 2; workers <= 4; ++workers) {
    for (const bool separate_head : {true, false}) {
      if (workers == 2 && !separate_head) continue;  // a pair: above
      SCOPED_TRACE(describe(workers, separate_head, 99, kHead));
      const int head = separate_head ? kHead : 0;
      Cluster cluster(options_of(workers, separate_head), train_forever);
      std::vector<Cut> cuts;
      for (int other = separate_head ? 0 : 1; other < workers; ++other) cuts.push_back({other, head});
      Time at{};
      run_cut(cluster, cuts, &at);
      if (testing::Test::HasFatalFailure()) return;
      for (int rank = 0; rank < workers; ++rank) expect_named(cluster, rank, {head}, at);
    }
  }
}

// One worker is cut off from all others, 0 to 200 ms after the call `after` has returned on all workers.
struct ShortCut {
  std::string after;
  int cut_off = 1;
  int steps = kForever;             // of worker 1, which then closes its session
  bool resets_connections = false;  // at the end of the cut, those of the worker with the others
};

// With TCP's retransmission, which after a cut waits up to as long as the cut was.
void expect_no_harm(const ShortCut& cut, bool separate_head, int phase) {
  ClusterOptions options = options_of(3, separate_head);
  options.network.retransmission = 200ms;
  const auto program = [&](Cluster& cluster, Session& session, int rank) {
    Cluster::train(cluster, session, rank, rank == 1 ? cut.steps : kForever);
  };
  Cluster cluster(options, program);
  for (int rank = 0; rank < 3; ++rank)
    ASSERT_TRUE(cluster.run_until_noted(rank, cut.after, 10s)) << cluster.history(rank);
  cluster.world.run_for(phase * 5ms);
  cluster.world.isolate(cluster.process(cut.cut_off));
  cluster.world.run_for(kLease - kLease / 5);  // a fifth of the lease: the heartbeat interval
  for (int other = 0; cut.resets_connections && other < 3; ++other) {
    if (other != cut.cut_off)
      cluster.world.break_connections(cluster.process(cut.cut_off), cluster.process(other));
  }
  cluster.world.rejoin(cluster.process(cut.cut_off));
  cluster.world.run_for(2 * kLease);  // a lost worker is known 7/4 leases after the cut began
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_FALSE(cluster.first_failure(rank)) << cluster.history(rank).substr(0, 10'000);
  EXPECT_EQ(cluster.finished(1), cut.steps != kForever);
  const size_t steps = cluster.calls(0).size();
  cluster.world.run_for(500ms);
  EXPECT_GT(cluster.calls(0).size(), steps) << "training goes on";
}

void expect_no_harm_whenever_it_begins(const ShortCut& cut) {
  for (const bool separate_head : {true, false}) {
    for (int phase = 0; phase < 40; phase += dsgd_test::one_of(4, 8)) {
      SCOPED_TRACE("phase " + std::to_string(phase) + (separate_head ? ", separate head" : ""));
      expect_no_harm(cut, separate_head, phase);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(Cuts, ShorterThanTheLeaseDoNoHarmToAStart) { expect_no_harm_whenever_it_begins({.after = "open"}); }

TEST(Cuts, ShorterThanTheLeaseDoNoHarmToSteps) { expect_no_harm_whenever_it_begins({.after = "step 2"}); }

TEST(Cuts, ShorterThanTheLeaseDoNoHarmWhenAWorkerCloses) {
  expect_no_harm_whenever_it_begins({.after = "step 2", .steps = 5});
}

// Rank 1 ends its last step and closes, but its last chunk to rank 2 never arrives. The others agree on that.
TEST(Cuts, LostDataOfADepartedWorkerFailsAllAlike) {
  for (const bool dies : {false, true}) {
    ClusterOptions options = options_of(3, true);
    options.network.delay = {5ms, 5ms};
    options.network.retransmission = 200ms;
    Cluster cluster(options, [](Cluster& cluster, Session& session, int rank) {
      Cluster::train(cluster, session, rank, rank == 1 ? 4 : kForever);
    });
    for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(cluster.run_until_noted(rank, "step 2", 10s));
    cluster.world.set_delay(cluster.process(0), cluster.process(1), {60ms, 60ms});
    cluster.world.run_for(20ms);
    for (const auto& [from, to] : {std::pair(1, 2), {2, 1}})
      cluster.world.block(cluster.process(from), cluster.process(to));
    ASSERT_TRUE(cluster.run_until_noted(1, "step 3", 400ms));
    ASSERT_FALSE(cluster.call(2, "step 3"));
    cluster.world.run_for(30ms);
    if (dies) cluster.world.kill(cluster.process(1), transport::Death::kSilent);
    const Time closed_at = cluster.world.now();
    ASSERT_TRUE(cluster.run_until_ended(30s));
    for (const int rank : {0, 2}) {
      expect_says(cluster, rank, {"rank 1 (", "closed its session after step 3", "did not arrive"});
      if (testing::Test::HasFatalFailure()) return;
      const NotedCall* failure = cluster.first_failure(rank);
      EXPECT_EQ(failure->status.rank(), 1);
      EXPECT_LE((failure->ended - closed_at).count(), (2 * kLease + kLease / 2).count());
    }
    if (dies) cluster.world.finish_killed(cluster.process(1));
  }
}

// After a process has closed a socket, its system answers further data with a reset, which discards unsent
// bytes. The head is a separate process, so its connections stay.
TEST(Cuts, ShorterThanTheLeaseDoNoHarmWhenAGoodbyeIsLost) {
  for (int phase = 0; phase < 40; phase += dsgd_test::one_of(4, 8)) {
    SCOPED_TRACE("phase " + std::to_string(phase));
    expect_no_harm({.after = "step 3", .steps = 4, .resets_connections = true}, /*separate_head=*/true,
                   phase);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace dsgd::simulation::cut_test
