#include "core/model/loss_scale.h"

#include <gtest/gtest.h>

namespace dsgd {
namespace {

void stepped(LossScale& scale, int times, bool finite) {
  for (int i = 0; i < times; ++i) scale.stepped(finite);
}

TEST(LossScale, IsOffUnlessItIsAskedFor) {
  LossScale scale;
  EXPECT_FALSE(scale.on());
  scale.configure("off");
  EXPECT_FALSE(scale.on());
  stepped(scale, 1, false);
  EXPECT_EQ(scale.factor(), 1);
}

TEST(LossScale, ANumberStays) {
  LossScale scale;
  scale.configure("3000000000");
  EXPECT_TRUE(scale.on());
  stepped(scale, 5, false);
  stepped(scale, 5000, true);
  EXPECT_EQ(scale.factor(), 3e9);
}

// torch.amp.GradScaler: init_scale, growth_factor, backoff_factor and growth_interval are 65536, 2, 0.5 and
// 2000.
TEST(LossScale, ADynamicOneHalvesAtOnceAndGrowsAfterManyStepsInARow) {
  LossScale scale;
  scale.configure("dynamic");
  EXPECT_EQ(scale.factor(), 65536);
  stepped(scale, 1999, true);
  EXPECT_EQ(scale.factor(), 65536);
  stepped(scale, 1, true);
  EXPECT_EQ(scale.factor(), 131072);
  stepped(scale, 1999, true);
  stepped(scale, 2, false);
  EXPECT_EQ(scale.factor(), 32768);
  stepped(scale, 1999, true);
  EXPECT_EQ(scale.factor(), 32768) << "steps before the overflow must not count";
  stepped(scale, 1, true);
  EXPECT_EQ(scale.factor(), 65536);
}

TEST(LossScale, ADynamicOneStaysWithinItsBounds) {
  LossScale scale;
  scale.configure("dynamic");
  stepped(scale, 100, false);
  EXPECT_EQ(scale.factor(), LossScale::kLeast);
  stepped(scale, 100 * LossScale::kInterval, true);
  EXPECT_EQ(scale.factor(), LossScale::kLargest);
}

}  // namespace
}  // namespace dsgd
