// A fixture for tests on the fake runtime: each test releases all that it has made.
#pragma once

#include <gtest/gtest.h>

#include "tests/unit/device/fake_cuda.h"

namespace fake_cuda {

class LeakTest : public testing::Test {
 protected:
  ~LeakTest() override {
    const Alive after = alive();
    EXPECT_EQ(after.streams, before_.streams);
    EXPECT_EQ(after.events, before_.events);
    EXPECT_EQ(after.allocations, before_.allocations);
  }

 private:
  const Alive before_ = alive();
};

}  // namespace fake_cuda
