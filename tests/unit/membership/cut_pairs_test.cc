#include "core/membership/cut_pairs.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/unit/membership/fakes.h"
#include "tests/unit/membership/job_table.h"

namespace dsgd {
namespace {

class CutPairsTest : public testing::Test {
 protected:
  CutPairsTest() { leases_.reset(job_.workers.size(), 0s); }
  void note(const std::vector<std::pair<int32_t, int32_t>>& pairs) {
    for (const auto& [a, b] : pairs) pairs_.note(a, b, "no route", 1s);
  }
  void renew_all(transport::Time now = 2s) {
    for (size_t i = 0; i < job_.workers.size(); ++i) leases_.renew(i, now);
  }

  JobTable job_{4, 1};
  Leases leases_{10s};
  CutPairs pairs_{job_.workers, leases_};
};

TEST_F(CutPairsTest, WaitsUntilBothWorkersHaveRenewedTheirLeases) {
  EXPECT_TRUE(pairs_.note(2, 1, "no route", 1s));
  EXPECT_FALSE(pairs_.note(1, 2, "no route", 1s)) << "the same pair";
  leases_.renew(1, 2s);
  EXPECT_TRUE(pairs_.decide(3s).waits);
  leases_.renew(2, 2s);
  EXPECT_FALSE(pairs_.decide(3s).waits);
}

// A head that was stopped gives each worker one more lease.
TEST_F(CutPairsTest, ALeaseThatTheHeadExtendsIsNoSignOfLife) {
  note({{1, 2}});
  leases_.renew(1, 2s);
  leases_.extend(2, 2s);
  EXPECT_TRUE(pairs_.decide(3s).waits);
}

TEST_F(CutPairsTest, AWorkerIsCutOnlyFromWorkersThatAreInTheJob) {
  note({{0, 1}, {2, 3}});
  EXPECT_TRUE(pairs_.has(0));
  job_.lose(1);
  EXPECT_FALSE(pairs_.has(0));
  EXPECT_TRUE(pairs_.has(2));
}

TEST_F(CutPairsTest, TheWorkerInMostPairsIsNamedThenNotTheHostThenTheHighestNumber) {
  struct Case {
    const char* name;
    int32_t host;
    std::vector<std::pair<int32_t, int32_t>> pairs;
    size_t named;
  };
  for (const Case& c : {Case{"most pairs", -1, {{0, 1}, {0, 2}, {3, 0}}, 0}, Case{"a tie", -1, {{0, 1}}, 1},
                        Case{"a tie with the host", 3, {{2, 3}}, 2}}) {
    SCOPED_TRACE(c.name);
    JobTable job(4, 1);
    if (c.host >= 0) job.workers.set_host(job.workers[static_cast<size_t>(c.host)]);
    CutPairs pairs(job.workers, leases_);
    for (const auto& [a, b] : c.pairs) pairs.note(a, b, "no route", 1s);
    renew_all();
    const CutPairs::Verdict verdict = pairs.decide(3s);
    EXPECT_EQ(verdict.cut_off, c.named);
    EXPECT_EQ(verdict.why.rank(), static_cast<int32_t>(c.named));
  }
}

TEST_F(CutPairsTest, APairWhoseWorkerIsGoneNamesNoneButCounts) {
  note({{0, 1}, {0, 2}, {2, 3}});
  renew_all();
  job_.workers[0].left = true;
  EXPECT_TRUE(pairs_.decide(3s).waits) << "the others may be lost, too";
  renew_all(4s);
  EXPECT_EQ(pairs_.decide(5s).cut_off, 2u) << "it is in two pairs";
  job_.lose(2);
  EXPECT_TRUE(pairs_.decide(6s).why.ok());
  EXPECT_TRUE(pairs_.note(1, 3, "no route", 7s)) << "the earlier pairs are forgotten";
}

// Worker 2 is lost, and worker 3 after it. Worker 0 has reported both, and is in most pairs.
TEST_F(CutPairsTest, AWorkerThatIsLostMeanwhileIsNotTakenForOneThatIsCutOff) {
  note({{0, 2}});
  for (size_t worker : {0, 1, 3}) leases_.renew(worker, 2s);
  EXPECT_TRUE(pairs_.decide(3s).waits);
  pairs_.note(0, 3, "refused", 4s);  // it has not renewed since
  for (size_t worker : {0, 1}) leases_.renew(worker, 5s);
  job_.lose(2);
  EXPECT_TRUE(pairs_.decide(6s).waits);
  for (size_t worker : {0, 1}) leases_.renew(worker, 7s);
  EXPECT_TRUE(pairs_.decide(8s).waits);
  job_.lose(3);
  EXPECT_TRUE(pairs_.decide(9s).why.ok());
}

}  // namespace
}  // namespace dsgd
