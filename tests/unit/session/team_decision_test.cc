#include "core/session/team_decision.h"

#include <gtest/gtest.h>

namespace dsgd {
namespace {

// A worker with GPUs of these identities.
GpusOfWorker worker_with(std::vector<uint8_t> gpus, const std::string& machine = "",
                         int32_t version = 22800) {
  GpusOfWorker worker;
  worker.gpus.version = version;
  for (const uint8_t gpu : gpus) worker.gpus.devices.push_back({gpu});
  worker.machine = machine;
  return worker;
}

struct Decided {
  Teams teams;
  Status failure;
  std::vector<std::string> warnings;
};

Decided decided(const std::vector<GpusOfWorker>& workers, bool demanded = false) {
  Decided all;
  auto teams = decide_teams(workers, demanded, [&](const std::string& why) { all.warnings.push_back(why); });
  all.failure = teams.status();
  if (teams.ok()) all.teams = std::move(teams).value();
  return all;
}

TEST(TeamDecision, WorkersWithGpusAreOneTeamInTheOrderOfRanks) {
  const Decided all = decided({worker_with({1, 2}), worker_with({}), worker_with({3})});
  ASSERT_TRUE(all.failure.ok()) << all.failure.message();
  const TeamMember &first = all.teams.member(0), &other = all.teams.member(1), &last = all.teams.member(2);
  EXPECT_EQ(first.team, 0);
  EXPECT_EQ(first.first, 0);
  EXPECT_EQ(first.devices, 2);
  EXPECT_EQ(first.size, 3);
  EXPECT_EQ(other.team, 1);
  EXPECT_EQ(other.size, 1);
  EXPECT_EQ(last.team, 0);
  EXPECT_EQ(last.first, 2);
  EXPECT_EQ(last.size, 3);
}

TEST(TeamDecision, EachMachineHasATeamOfItsOwn) {
  const Decided all = decided({worker_with({1}, "a"), worker_with({1}, "b"), worker_with({2}, "a"),
                               worker_with({2}, "b"), worker_with({3}, "c")});
  ASSERT_TRUE(all.failure.ok()) << all.failure.message();
  EXPECT_EQ(all.teams.member(2).team, 0);
  EXPECT_EQ(all.teams.member(3).team, 1);
  EXPECT_EQ(all.teams.member(3).first, 1);
  EXPECT_EQ(all.teams.member(4).size, 1);  // a single GPU is no team
  EXPECT_TRUE(all.warnings.empty());
}

TEST(TeamDecision, AnObstacleIsAWarningUnlessTheTeamIsDemanded) {
  GpusOfWorker unusable = worker_with({2});
  unusable.gpus.unusable = Status(Code::kUnsupported, "no library");
  const struct {
    GpusOfWorker second;
    const char* why;
  } cases[] = {
      {worker_with({1}), "rank 0 and rank 1 use one GPU"},
      {worker_with({2}, "", 21900), "different versions of NCCL (2.28.0 and 2.19.0)"},
      {unusable, "rank 1: no library"},
  };
  for (const auto& one : cases) {
    const Decided all = decided({worker_with({1}), one.second});
    ASSERT_TRUE(all.failure.ok()) << all.failure.message();
    EXPECT_FALSE(all.teams.any());
    ASSERT_EQ(all.warnings.size(), 1u);
    EXPECT_NE(all.warnings[0].find(one.why), std::string::npos) << all.warnings[0];
    const Decided failed = decided({worker_with({1}), one.second}, true);
    EXPECT_NE(failed.failure.message().find(one.why), std::string::npos) << failed.failure.message();
    EXPECT_EQ(failed.failure.parameter(), "algorithm");
    EXPECT_EQ(failed.failure.rank(), 1);
    EXPECT_TRUE(failed.warnings.empty());
  }
}

}  // namespace
}  // namespace dsgd
