// The decision of the workers of a new view, from their reports.

#include "core/session/view_decision.h"

#include <gtest/gtest.h>

#include "transport/schema/codec.h"

namespace dsgd {
namespace {

using transport::ViewReport;

Members members_of(int32_t size) {
  transport::JoinReply view;
  view.view = 3;
  for (int32_t rank = 0; rank < size; ++rank) {
    transport::MemberInfo member;
    member.rank = rank;
    member.worker_id = "w" + std::to_string(rank);
    member.host = "node" + std::to_string(rank);
    view.members.push_back(member);
  }
  return Members(view);
}

ViewReport report_after(uint64_t steps) {
  ViewReport report;
  report.started = true;
  report.steps = steps;
  report.replicas = 1;
  report.calls = std::vector<uint64_t>(kChannels, 1);
  report.signature = 7;
  report.signature_length = 70;
  return report;
}

ViewReport learner() {
  ViewReport report = report_after(0);
  report.started = false;
  report.learner = true;
  return report;
}

const Status kLost = Status(Code::kWorkerLost, "rank 3 was lost").with_rank(3, "node3");

ViewDecision decided(const std::vector<ViewReport>& reports) {
  auto decision = decide(reports, members_of(static_cast<int32_t>(reports.size())), kLost);
  EXPECT_TRUE(decision.ok()) << decision.status().message();
  return decision.ok() ? decision.value() : ViewDecision();
}

TEST(ViewDecision, WorkersAtTheSameStepCopyNothing) {
  const ViewDecision decision = decided({report_after(5), report_after(5)});
  EXPECT_EQ(decision.source, 0);
  EXPECT_TRUE(decision.copiers.empty());
  EXPECT_TRUE(decision.all_started);
  EXPECT_EQ(decision.replicas, 2u);
}

TEST(ViewDecision, WorkersThatAreAStepBehindCopyFromTheLowestRankThatIsNot) {
  const ViewDecision decision = decided({report_after(4), report_after(5), report_after(4), report_after(5)});
  EXPECT_EQ(decision.source, 1);
  EXPECT_EQ(decision.copiers, (std::vector<int32_t>{0, 2}));
  EXPECT_TRUE(decision.learners.empty());
}

TEST(ViewDecision, ALearnerCopiesAndIsNeverTheSource) {
  const ViewDecision decision = decided({learner(), report_after(0), learner()});
  EXPECT_EQ(decision.source, 1);
  EXPECT_EQ(decision.learners, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(decision.copiers, decision.learners);
  EXPECT_TRUE(decision.all_started);
}

TEST(ViewDecision, ALearnerWithOtherSettingsTakesNoPart) {
  ViewReport other = learner(), longer = learner();
  other.signature = 8;
  longer.signature_length = 71;
  const ViewDecision decision = decided({report_after(5), other, longer, learner()});
  EXPECT_EQ(decision.different, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(decision.learners, (std::vector<int32_t>{3}));
}

TEST(ViewDecision, TheJobStartsAgainIfAWorkerHasNotStarted) {
  ViewReport starting = report_after(0);
  starting.started = false;
  EXPECT_FALSE(decided({report_after(0), starting}).all_started);
}

TEST(ViewDecision, CallsGoOnAtTheHighestNumberOfEachChannel) {
  ViewReport first = report_after(5), second = report_after(5);
  first.calls[0] = 9;
  second.calls[0] = 8;
  second.calls[2] = 4;
  const ViewDecision decision = decided({first, second});
  EXPECT_EQ(decision.calls[0], 9u);
  EXPECT_EQ(decision.calls[1], 1u);
  EXPECT_EQ(decision.calls[2], 4u);
}

TEST(ViewDecision, FailsIfOnlyLearnersAreLeft) {
  const auto decision = decide({learner(), learner()}, members_of(2), kLost);
  ASSERT_FALSE(decision.ok());
  EXPECT_EQ(decision.status().code(), Code::kWorkerLost);
  EXPECT_EQ(decision.status().rank(), 3);
  EXPECT_EQ(decision.status().message(),
            "rank 3 was lost; no worker that is left holds the values; start the job again");
}

// A load may have moved the steps of the workers that have applied it.
TEST(ViewDecision, WorkersApplyTheChangeThatTheyHavePreparedAndOthersHaveApplied) {
  ViewReport changed = report_after(2), prepared = report_after(5);
  changed.strategy_version = 4;
  changed.applied_change = 9;
  prepared.strategy_version = 3;
  prepared.prepared_change = 9;
  EXPECT_EQ(decided({changed, prepared, changed, learner()}).apply, 9u);
  prepared.prepared_change = 10;
  EXPECT_FALSE(decide({changed, prepared}, members_of(2), kLost).ok()) << "it has not prepared that change";
  changed.strategy_version = 3;
  changed.steps = 5;
  EXPECT_EQ(decided({changed, prepared}).apply, 0u) << "no worker has applied it";
}

TEST(ViewDecision, FailsIfAWorkerHasNotEndedAChangeOfThePlan) {
  ViewReport changed = report_after(5);
  changed.strategy_version = 1;
  const auto decision = decide({report_after(5), changed}, members_of(2), kLost);
  ASSERT_FALSE(decision.ok());
  EXPECT_NE(decision.status().message().find("has not ended that"), std::string::npos)
      << decision.status().message();
  EXPECT_FALSE(decide({report_after(3), report_after(5)}, members_of(2), kLost).ok()) << "two steps behind";
}

TEST(ViewDecision, AReportThatCannotBeReadNamesItsWorker) {
  const std::vector<std::byte> good = transport::encode(report_after(5));
  ViewReport few_channels = report_after(5);
  few_channels.calls.pop_back();
  EXPECT_TRUE(decode_reports({good, good}).ok());
  for (const auto& bad : {std::vector<std::byte>(3), transport::encode(few_channels)}) {
    const auto reports = decode_reports({good, bad});
    ASSERT_FALSE(reports.ok());
    EXPECT_EQ(reports.status().rank(), 1) << reports.status().message();
  }
}

}  // namespace
}  // namespace dsgd
