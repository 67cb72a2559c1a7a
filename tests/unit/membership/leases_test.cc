#include "core/membership/leases.h"

#include <gtest/gtest.h>

#include "tests/unit/membership/fakes.h"

namespace dsgd {
namespace {

using transport::Duration;
using transport::Time;

TEST(Leases, ASilentWorkerIsLostAfterItsLeaseAndNotBefore) {
  Leases leases(10s);
  leases.reset(2, 0s);
  leases.renew(1, 5s);
  EXPECT_TRUE(leases.check(9999ms, 9999ms).lost.empty());
  EXPECT_TRUE(leases.check(10s, 10s).lost.empty());  // renewals that wait unread get a last chance
  EXPECT_EQ(leases.next_check(10s), 10s + 10ms);
  EXPECT_EQ(leases.check(10010ms, 10010ms).lost, std::vector<size_t>{0});
  EXPECT_EQ(leases.silence(0, 10010ms), 10010ms);
}

TEST(Leases, ARenewalReadInTheLastChanceKeepsTheLease) {
  Leases leases(10s);
  leases.reset(1, 0s);
  EXPECT_TRUE(leases.check(10s, 10s).lost.empty());
  leases.renew(0, 10005ms);
  EXPECT_TRUE(leases.check(10010ms, 10010ms).lost.empty());
  EXPECT_TRUE(leases.check(20s, 20s).lost.empty());
  EXPECT_TRUE(leases.check(20005ms, 20005ms).lost.empty());
  EXPECT_EQ(leases.check(20015ms, 20015ms).lost, std::vector<size_t>{0});
}

TEST(Leases, TheLongestSilentOneIsFirst) {
  Leases leases(1s);
  leases.reset(4, 0s);
  leases.renew(0, 300ms);
  leases.renew(1, 100ms);
  leases.renew(2, 5s);
  leases.renew(3, 200ms);
  leases.check(2s, 2s);
  EXPECT_EQ(leases.check(2010ms, 2010ms).lost, (std::vector<size_t>{1, 3, 0}));
}

TEST(Leases, WhoHasLeftIsNotLookedAt) {
  Leases leases(1s);
  leases.reset(2, 0s);
  leases.end(0);
  leases.renew(1, 4900ms);
  leases.check(5s, 5s);
  EXPECT_TRUE(leases.check(5010ms, 5010ms).lost.empty());
}

TEST(Leases, ALateHeadGivesEverybodyOneMoreLease) {
  struct Case {
    Duration late;
    bool expected;
  };
  for (const Case& c : {Case{500ms, false}, Case{501ms, true}, Case{1h, true}}) {
    SCOPED_TRACE(c.late.count());
    Leases leases(1s);
    leases.reset(1, 0s);
    leases.check(1s, 1s);  // suspected
    const Time now = 1010ms + c.late;
    const Leases::Verdict verdict = leases.check(now, 1010ms);
    EXPECT_EQ(verdict.late, c.expected);
    EXPECT_EQ(verdict.lost.empty(), c.expected);
    EXPECT_EQ(leases.silence(0, now), now) << "one more lease is no sign of life";
    if (!c.expected) continue;
    EXPECT_TRUE(leases.check(now + 999ms, now + 999ms).lost.empty());
    EXPECT_TRUE(leases.check(now + 1s, now + 1s).lost.empty());
    EXPECT_EQ(leases.check(now + 1010ms, now + 1010ms).lost.size(), 1u);
  }
}

TEST(Leases, ChecksOftenEnoughToNoticeItsOwnLateness) {
  Leases leases(8s);
  leases.reset(1, 0s);
  EXPECT_EQ(leases.next_check(0s), 2s);
  EXPECT_EQ(leases.next_check(7s), 8s);
  EXPECT_EQ(leases.next_check(9s), 9s);  // over already: at once
}

TEST(Leases, AnUnsetLeaseDoesNotMakeTheHeadSpin) {
  Leases leases(0s);
  leases.reset(1, 0s);
  EXPECT_GT(leases.next_check(0s), 0s);
}

}  // namespace
}  // namespace dsgd
