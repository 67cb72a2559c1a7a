// loop.h, sentence by sentence.
#include <algorithm>
#include <set>
#include <thread>

#include "conformance.h"

namespace dsgd::transport {
namespace {

TEST_P(Conformance, PostedTasksRunOnTheLoopInOrder) {
  Loop& loop = dialling_->loop();
  EXPECT_FALSE(loop.on_loop());
  std::vector<int> order;
  int off_loop = 0;
  for (int i = 0; i < 100; ++i) {
    loop.post([&, i] {
      order.push_back(i);
      off_loop += loop.on_loop() ? 0 : 1;
    });
  }
  ASSERT_TRUE(client_until([&] { return order.size() == 100; }));
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(off_loop, 0);
}

TEST_P(Conformance, ATaskMayPostMore) {
  int depth = 0;
  std::function<void()> task = [&] {
    if (++depth < 1000) dialling_->loop().post(task);
  };
  on(*dialling_, [&] {
    task();
    EXPECT_EQ(depth, 1) << "a posted task does not run within post()";
  });
  EXPECT_TRUE(client_until([&] { return depth == 1000; }));
}

TEST_P(Conformance, OnLoopIsTrueOnThisLoopOnly) {
  on(*dialling_, [&] {
    EXPECT_TRUE(dialling_->loop().on_loop());
    EXPECT_FALSE(serving_->loop().on_loop());
  });
}

TEST_P(Conformance, TimersFireInOrderAndNeverEarly) {
  Loop& loop = dialling_->loop();
  std::vector<int> order;
  bool early = false;
  on(*dialling_, [&] {
    const Time start = loop.now();
    for (int i : {3, 1, 2}) {
      const Time when = start + i * 5ms;
      EXPECT_NE(loop.schedule(when,
                              [&, i, when] {
                                early |= loop.now() < when;
                                order.push_back(i);
                              }),
                0u);
    }
    EXPECT_TRUE(order.empty());
  });
  ASSERT_TRUE(client_until([&] { return order.size() == 3; }));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_FALSE(early);
}

TEST_P(Conformance, ATimerInThePastFiresSoonButNotAtOnce) {
  int fired = 0;
  on(*dialling_, [&] {
    dialling_->loop().schedule(dialling_->loop().now() - 1s, [&] { ++fired; });
    EXPECT_EQ(fired, 0);
  });
  EXPECT_TRUE(client_until([&] { return fired == 1; }));
}

TEST_P(Conformance, ACancelledTimerDoesNotFire) {
  Loop& loop = dialling_->loop();
  bool cancelled_fired = false, second = false;
  TimerId fired_id = 0;
  on(*dialling_, [&] {
    const Time now = loop.now();
    const TimerId id = loop.schedule(now + 2ms, [&] { cancelled_fired = true; });
    fired_id = loop.schedule(now + 6ms, [&] { second = true; });
    loop.cancel(id);
  });
  ASSERT_TRUE(client_until([&] { return second; }));
  EXPECT_FALSE(cancelled_fired);
  // Cancelling what has fired is harmless, and hits no timer that was made since.
  bool third = false;
  on(*dialling_, [&] {
    loop.schedule(loop.now() + 1ms, [&] { third = true; });
    loop.cancel(fired_id);
    loop.cancel(fired_id);
  });
  EXPECT_TRUE(client_until([&] { return third; }));
}

TEST_P(Conformance, WaitEndsWithDoneOrAtTheDeadline) {
  Loop& loop = dialling_->loop();
  std::atomic<bool> done{true};
  EXPECT_TRUE(loop.wait(done, loop.now() + kPatience));
  EXPECT_TRUE(loop.wait(done, loop.now() - 1s)) << "what is done needs no time";
  done = false;
  const Time deadline = loop.now() + 20ms;
  EXPECT_FALSE(loop.wait(done, deadline));
  EXPECT_GE(loop.now(), deadline);
  loop.post([&] { loop.schedule(loop.now() + 5ms, [&] { done = true; }); });
  EXPECT_TRUE(loop.wait(done, loop.now() + kPatience));
}

TEST_P(Conformance, TimeNeverGoesBack) {
  Loop& loop = dialling_->loop();
  Time last = loop.now();
  for (int i = 0; i < 50; ++i) {
    on(*dialling_, [&] {
      EXPECT_GE(loop.now(), last);
      last = loop.now();
    });
  }
}

TEST_P(Conformance, RandomNumbersDiffer) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 100; ++i) seen.insert(dialling_->loop().random());
  EXPECT_EQ(seen.size(), 100u);
}

TEST_P(Conformance, TheEnvironmentNamesHostMachineAndProcess) {
  Environment& environment = world_->environment(0);
  EXPECT_FALSE(environment.host_name().empty());
  EXPECT_FALSE(environment.machine().empty());
  EXPECT_EQ(environment.machine(), world_->environment(0).machine());
  EXPECT_GT(environment.process_id(), 0);
  EXPECT_GE(environment.processors(), 1);
  EXPECT_TRUE(environment.alive().ok());
}

}  // namespace
}  // namespace dsgd::transport
