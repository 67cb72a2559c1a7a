// The workers that keep the others waiting, found from the reports of all.
#include "core/membership/progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace dsgd {
namespace {

using std::chrono_literals::operator""s;
using transport::Duration;
using transport::Progress;
using Ranks = std::vector<int32_t>;

constexpr Duration kReportLease = 10s, kTimeout = 30s, kReportInterval = 2s;

// A worker reports the ranks that it waits for, or one of these.
const Ranks kComputes = {-1}, kBusy = {-2}, kSilent = {-3};

class Reports {
 public:
  explicit Reports(size_t workers) {
    table_.begin(workers);
    for (size_t i = 0; i < workers; ++i) members_.push_back({i, static_cast<int32_t>(i)});
  }
  // Each worker reports the same thing every interval.
  void go_on(Duration duration, const std::vector<Ranks>& said) {
    for (; duration > 0s; duration -= kReportInterval) {
      report(said);
      now_ += kReportInterval;
    }
    report(said);
  }
  void report(const std::vector<Ranks>& said) {
    for (size_t i = 0; i < said.size(); ++i) {
      if (said[i] == kSilent) continue;
      Progress progress;
      progress.present_view = view;
      progress.steps = steps;
      progress.call = call;
      if (said[i] == kBusy) {
        progress.activity = Progress::Activity::kBusy;
      } else if (said[i] != kComputes) {
        progress.activity = Progress::Activity::kWaits;
        progress.waits_for = said[i];
      }
      table_.note(i, progress, now_);
    }
  }
  std::vector<size_t> stragglers(size_t least = 1) const {
    std::vector<size_t> found;
    for (const auto& one : table_.stragglers(members_, 1, kTimeout, least, now_)) found.push_back(one.worker);
    return found;
  }
  Duration waited() const { return table_.stragglers(members_, 1, kTimeout, 1, now_).at(0).waited; }
  double rate(size_t worker) const {
    transport::WorkerStatus status;
    table_.describe(worker, now_, &status);
    return status.steps_per_second;
  }
  void pass(Duration duration) { now_ += duration; }
  void lose(size_t worker) {
    std::erase_if(members_, [&](const auto& member) { return member.worker == worker; });
  }

  uint64_t view = 1, steps = 0, call = 1;

 private:
  transport::Time now_ = 1000s;
  ProgressTable table_{kReportLease};
  std::vector<ProgressTable::Member> members_;
};

using Workers = std::vector<size_t>;

TEST(Stragglers, FollowFromWhatTheWorkersSay) {
  const struct {
    const char* name;
    std::vector<Ranks> said;
    Workers want;
    size_t least = 1;
  } cases[] = {
      {"all wait for one that computes", {{2}, {2}, kComputes}, {2}},
      {"it has never reported", {{2}, {2}, kSilent}, {2}},
      {"all compute", {kComputes, kComputes, kComputes}, {}},
      {"one of the others computes, too, so two are waited for", {{1, 2}, kComputes, kComputes}, {1, 2}},
      {"one of the others computes and is not waited for", {{2}, kComputes, kComputes}, {2}},
      {"two wait for each other", {{1}, {0}}, {}},
      {"two wait for each other, and the third for one of them", {{1}, {0}, {1}}, {}},
      {"each waits for the next (ring)", {{2}, {0}, {1}}, {}},
      {"each waits for the one before, up to one that computes", {kComputes, {0}, {1}, {2}}, {0}},
      {"through the driver", {{2}, {0}, kComputes}, {2}},
      {"it writes or sends", {{2}, {2}, kBusy}, {}},
      {"one of the others sends", {{2}, kBusy, kComputes}, {}},
      {"it waits for a worker that has left", {{5}, {2}, {5}}, {}},
      {"all wait for a worker that has left", {{5}, {5}, {5}}, {}},
      {"as many as min_workers are left", {{2}, {2}, kComputes}, {2}, 2},
      {"fewer than min_workers are left", {{2}, {2}, kComputes}, {}, 3},
      {"one could go, two could not", {{1, 2}, kComputes, kComputes, {1, 2}}, {}, 3},
      {"without the one, too few would still go on", {{2}, kComputes, kComputes}, {}, 2},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.name);
    Reports reports(test.said.size());
    reports.go_on(kTimeout - kReportInterval, test.said);
    EXPECT_EQ(reports.stragglers(test.least), Workers{}) << "too early";
    reports.go_on(kReportInterval, test.said);
    EXPECT_EQ(reports.stragglers(test.least), test.want);
  }
}

TEST(Stragglers, AreThoseOfTheLongestWait) {
  Reports reports(3);
  reports.go_on(10s, {{2}, kComputes, kComputes});
  reports.go_on(kTimeout, {{2}, {2}, kComputes});
  EXPECT_EQ(reports.stragglers(), Workers{2});
  EXPECT_GE(reports.waited(), kTimeout + 10s);
}

TEST(Stragglers, AreNotWaitedForInSeveralCallsTogether) {
  Reports reports(3);
  reports.go_on(kTimeout - kReportInterval, {{2}, {2}, kComputes});
  ++reports.call;
  reports.go_on(kTimeout - kReportInterval, {{2}, {2}, kComputes});
  EXPECT_EQ(reports.stragglers(), Workers{});
  reports.go_on(kReportInterval, {{2}, {2}, kComputes});
  EXPECT_EQ(reports.stragglers(), Workers{2});
}

TEST(Stragglers, AreNotWaitedForInTurn) {
  Reports reports(3);
  reports.go_on(20s, {{1}, kComputes, {1}});
  reports.go_on(20s, {{2}, {2}, kComputes});
  EXPECT_EQ(reports.stragglers(), Workers{});
}

TEST(Stragglers, AreThoseOfThePresentView) {
  Reports reports(3);
  reports.view = 2;
  reports.go_on(kTimeout, {{2}, {2}, kComputes});
  EXPECT_EQ(reports.stragglers(), Workers{}) << "the head is in view 1";
  reports.view = 1;
  reports.go_on(kTimeout - kReportInterval, {{2}, {2}, kComputes});
  EXPECT_EQ(reports.stragglers(), Workers{});
  reports.go_on(kReportInterval, {{2}, {2}, kComputes});
  EXPECT_EQ(reports.stragglers(), Workers{2});
}

TEST(Stragglers, AreNotKnownFromOldReports) {
  Reports reports(3);
  reports.go_on(kTimeout - kReportInterval, {{2}, {2}, kComputes});
  reports.pass(kReportLease + kReportInterval);  // the head is stopped, or cut off
  EXPECT_EQ(reports.stragglers(), Workers{});
  reports.report({{2}, {2}, kComputes});
  EXPECT_EQ(reports.stragglers(), Workers{}) << "nothing is known of the time between";
  reports.go_on(kTimeout, {{2}, {2}, kComputes});
  EXPECT_EQ(reports.stragglers(), Workers{2});
}

// All are stopped for a while, or the head is: no program was late then.
TEST(Stragglers, AreNotWaitedForWhileNoReportsCome) {
  Reports reports(3);
  reports.go_on(kTimeout - 6 * kReportInterval, {{2}, {2}, kComputes});
  for (int stop = 0; stop < 2; ++stop) {
    reports.pass(kReportLease - kReportInterval);
    reports.report({{2}, {2}, kComputes});
    EXPECT_EQ(reports.stragglers(), Workers{});
    reports.pass(kReportInterval);
    reports.report({{2}, {2}, kComputes});
  }
  EXPECT_EQ(reports.stragglers(), Workers{2}) << "the wait goes on after the stops";
}

TEST(Stragglers, AreNotWaitedForByAWorkerWhoseReportsAreMissing) {
  Reports reports(3);
  reports.go_on(kTimeout, {{2}, kComputes, kComputes});
  reports.go_on(kTimeout - 3 * kReportInterval, {{2}, {2}, kComputes});
  reports.pass(kReportLease - kReportInterval);
  reports.report({{2}, kSilent, kSilent});
  EXPECT_EQ(reports.stragglers(), Workers{});
}

// Its last report says that it waits, but a report that does not come any more says nothing.
TEST(Stragglers, IncludeAWorkerThatReportsNoMore) {
  Reports reports(3);
  reports.report({{1}, {2}, {0}});
  reports.go_on(kTimeout, {{2}, {2}, kSilent});
  EXPECT_EQ(reports.stragglers(), Workers{2});
}

TEST(Stragglers, AreNoWorkersThatHaveLeft) {
  Reports reports(3);
  reports.go_on(kTimeout, {{2}, {2}, kComputes});
  reports.lose(2);
  EXPECT_EQ(reports.stragglers(), Workers{});
}

TEST(StepRate, IsThatOfTheLatestReports) {
  Reports reports(1);
  EXPECT_EQ(reports.rate(0), 0);
  for (int i = 0; i < 20; ++i) {
    reports.steps += 10;
    reports.report({kComputes});
    reports.pass(kReportInterval);
  }
  EXPECT_DOUBLE_EQ(reports.rate(0), 5);
  for (int i = 0; i < 8; ++i) {
    reports.report({kComputes});
    reports.pass(kReportInterval);
  }
  EXPECT_EQ(reports.rate(0), 0) << "it stands still";
  reports.steps = 3;  // a checkpoint was loaded
  reports.report({kComputes});
  reports.pass(kReportInterval);
  reports.steps = 5;
  reports.report({kComputes});
  EXPECT_DOUBLE_EQ(reports.rate(0), 1);
}

TEST(StepRate, LeavesOutTheStepsBeforeAWorkerJoined) {
  Reports reports(1);
  reports.report({kComputes});  // it has not copied the state of the job
  for (reports.steps = 1000; reports.steps < 1020; reports.steps += 10) {
    reports.pass(kReportInterval);
    reports.report({kComputes});
  }
  EXPECT_DOUBLE_EQ(reports.rate(0), 5);
}

}  // namespace
}  // namespace dsgd
