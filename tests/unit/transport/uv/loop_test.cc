// The loop: order, timers, and the role of the driver going from thread to thread.
#include "transport/uv/uv_loop.h"

#include <gtest/gtest.h>
#include <kj/debug.h>
#include <signal.h>
#include <unistd.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include <filesystem>
#include <fstream>
#include <future>

#include "transport/uv/guard.h"

namespace dsgd::transport::uv {
namespace {

using namespace std::chrono_literals;
constexpr Duration kLong = 20s;

class LoopTest : public ::testing::Test {
 protected:
  LoopTest() : loop(std::move(UvLoop::start("test-loop")).value()), unclean(UvLoop::unclean_shutdowns()) {}
  void TearDown() override {
    loop.reset();
    EXPECT_EQ(UvLoop::unclean_shutdowns(), unclean);
  }
  Time soon() { return loop->now() + kLong; }
  // Runs it on the communication thread: no caller waits on the loop.
  void by_thread(std::function<void()> body) {
    std::promise<void> done;
    loop->post([&] {
      body();
      done.set_value();
    });
    ASSERT_EQ(done.get_future().wait_for(kLong), std::future_status::ready);
  }

  std::unique_ptr<UvLoop> loop;
  uint64_t unclean;
};

TEST_F(LoopTest, TasksRunInTheOrderInWhichOneThreadPostsThem) {
  std::vector<int> seen;
  std::atomic<bool> done{false};
  for (int i = 0; i < 1000; ++i) loop->post([&seen, i] { seen.push_back(i); });
  loop->post([&] { done = true; });
  ASSERT_TRUE(loop->wait(done, soon()));
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[i], i);
}

TEST_F(LoopTest, ATaskMayPostAnotherWhichRunsLater) {
  std::vector<int> seen;
  std::atomic<bool> done{false};
  loop->run(
      [&] {
        loop->post([&] {
          seen.push_back(2);
          done = true;
        });
        seen.push_back(1);
      },
      done, soon());
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
}

TEST_F(LoopTest, OnLoopIsTrueInTasksOnly) {
  EXPECT_FALSE(loop->on_loop());
  bool inside = false;
  std::atomic<bool> done{false};
  loop->run([&] { inside = loop->on_loop(), done = true; }, done, soon());
  EXPECT_TRUE(inside);
  EXPECT_FALSE(loop->on_loop());
}

TEST_F(LoopTest, WaitEndsAtItsDeadlineAndSaysSo) {
  std::atomic<bool> never{false};
  const Time begin = loop->now();
  EXPECT_FALSE(loop->wait(never, begin + 30ms));
  EXPECT_GE(loop->now() - begin, 30ms);
  EXPECT_FALSE(loop->wait(never, loop->now() - 1s));
}

TEST_F(LoopTest, RunAfterItsDeadlineStillRunsTheTask) {
  std::atomic<bool> done{false};
  std::promise<void> ran;
  EXPECT_FALSE(loop->run([&] { ran.set_value(); }, done, loop->now() - 1s));
  EXPECT_EQ(ran.get_future().wait_for(kLong), std::future_status::ready);
}

TEST_F(LoopTest, TimersFireInTheOrderOfTheirTimesAndNotBefore) {
  std::vector<int> seen;
  std::atomic<bool> done{false};
  Time begin{}, end{};
  loop->run(
      [&] {
        begin = loop->now();
        loop->schedule(begin + 20ms, [&] { seen.push_back(3), end = loop->now(), done = true; });
        loop->schedule(begin + 5ms, [&] { seen.push_back(1); });
        loop->schedule(begin + 5ms, [&] { seen.push_back(2); });
      },
      done, soon());
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3}));
  EXPECT_GE(end - begin, 20ms);
}

TEST_F(LoopTest, ACancelledTimerDoesNotFireAndCancellingAFiredOneIsHarmless) {
  int fired = 0;
  std::atomic<bool> done{false};
  loop->run(
      [&] {
        const Time now = loop->now();
        const TimerId first = loop->schedule(now + 1ms, [&] { ++fired; });
        const TimerId second = loop->schedule(now + 2ms, [&] { fired += 100; });
        loop->schedule(now + 1ms, [&, second] { loop->cancel(second); });
        loop->schedule(now + 10ms, [&, first] {
          loop->cancel(first);
          loop->cancel(12345);
          done = true;
        });
      },
      done, soon());
  EXPECT_EQ(fired, 1);
}

TEST_F(LoopTest, ATimerFiresWhileNobodyWaits) {
  std::promise<void> fired;
  loop->post([&] { loop->schedule(loop->now() + 5ms, [&] { fired.set_value(); }); });
  EXPECT_EQ(fired.get_future().wait_for(kLong), std::future_status::ready);
}

TEST_F(LoopTest, ACallerThatWaitsDrivesTheLoop) {
  std::thread::id driver;
  std::atomic<bool> done{false};
  loop->run(
      [&] { loop->schedule(loop->now() + 20ms, [&] { driver = std::this_thread::get_id(), done = true; }); },
      done, soon());
  EXPECT_EQ(driver, std::this_thread::get_id());
}

TEST_F(LoopTest, ACallerWithAKjLoopOfItsOwnLeavesTheDrivingToTheThread) {
  kj::EventLoop own;
  kj::WaitScope scope(own);
  std::thread::id driver;
  std::atomic<bool> done{false};
  loop->run(
      [&] { loop->schedule(loop->now() + 20ms, [&] { driver = std::this_thread::get_id(), done = true; }); },
      done, soon());
  EXPECT_NE(driver, std::this_thread::get_id());
  // And it has lost nothing of its own.
  EXPECT_EQ(kj::Promise<int>(7).wait(scope), 7);
}

TEST_F(LoopTest, ManyCallersWaitAtOnceAndEachReturnsWhenItsOwnFlagIsSet) {
  constexpr int kThreads = 6, kRounds = 40;
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        std::atomic<bool> done{false};
        const Duration delay = std::chrono::microseconds((t * 7 + i * 3) % 11 * 300);
        const bool in_time = loop->run(
            [&, delay] {
              loop->schedule(loop->now() + delay, [&] { done.store(true, std::memory_order_release); });
            },
            done, loop->now() + kLong);
        good += in_time;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, kThreads * kRounds);
}

TEST_F(LoopTest, CallersPostersAndIdlePausesMixedLoseNoTask) {
  std::atomic<int> ran{0};
  std::thread poster([&] {
    for (int i = 0; i < 300; ++i) {
      loop->post([&] { ++ran; });
      // Lets the communication thread take over in between.
      if (i % 50 == 0) std::this_thread::sleep_for(2ms);
    }
  });
  for (int i = 0; i < 300; ++i) {
    std::atomic<bool> done{false};
    ASSERT_TRUE(loop->run([&] { ++ran, done = true; }, done, soon()));
    if (i % 60 == 0) loop->set_busy(i % 120 == 0);
  }
  poster.join();
  std::atomic<bool> done{false};
  ASSERT_TRUE(loop->run([&] { done = true; }, done, soon()));
  EXPECT_EQ(ran, 600);
}

TEST_F(LoopTest, CallersThatComeBackToBackDoNotWakeTheThreadEachTime) {
  auto switches = [] {
    // Of the communication thread, found by its name.
    long count = -1;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream comm(task.path() / "comm");
      std::string name, word;
      if (!(comm >> name) || name != "test-loop") continue;
      std::ifstream status(task.path() / "status");
      while (status >> word) {
        if (word == "voluntary_ctxt_switches:") status >> count;
      }
    }
    return count;
  };
  constexpr int kCalls = 20000;
  auto call = [&] {
    std::atomic<bool> done{false};
    ASSERT_TRUE(loop->run([&] { done = true; }, done, soon()));
  };
  call();
  // The thread gives itself its name when it first runs, which callers that drive the loop need not wait for.
  for (const Time limit = soon(); switches() < 0 && loop->now() < limit;) std::this_thread::yield();
  const long before = switches();
  ASSERT_GE(before, 0) << "the thread is not to be found in /proc";
  for (int i = 0; i < kCalls; ++i) call();
  EXPECT_LT(switches() - before, kCalls / 4);
}

TEST_F(LoopTest, ACallerRunsWhatItsLastTaskHasPosted) {
  std::atomic<bool> done{false};
  std::promise<std::thread::id> driver;
  ASSERT_TRUE(loop->run(
      [&] {
        loop->schedule(loop->now() + 5ms, [&] {
          loop->post([&] { driver.set_value(std::this_thread::get_id()); });
          done = true;
        });
      },
      done, soon()));
  EXPECT_EQ(driver.get_future().get(), std::this_thread::get_id());
}

TEST_F(LoopTest, TheThreadBlocksAllSignals) {
  sigset_t mask;
  by_thread([&] { pthread_sigmask(SIG_SETMASK, nullptr, &mask); });
  for (int signal : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGPIPE, SIGUSR1, SIGPROF, SIGRTMIN + 3}) {
    EXPECT_EQ(sigismember(&mask, signal), 1) << signal;
  }
}

#ifdef __x86_64__
TEST_F(LoopTest, TasksRunWithDefaultFloatsWhateverTheCallerHasSet) {
  const unsigned before = _mm_getcsr();
  const unsigned flush = before | 0x8040;  // flush to zero, denormals are zero
  _mm_setcsr(flush);
  unsigned inside = 0;
  std::thread::id driver;
  std::atomic<bool> done{false};
  loop->run(
      [&] {
        loop->schedule(loop->now() + 10ms, [&] {
          inside = _mm_getcsr();
          driver = std::this_thread::get_id();
          done = true;
        });
      },
      done, soon());
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(driver, std::this_thread::get_id());
  EXPECT_EQ(inside & 0xffc0, 0x1f80u);  // the flags of past operations aside
  EXPECT_EQ(after & 0xffc0, flush & 0xffc0);
}
#endif

TEST_F(LoopTest, KjSaysNothingOnStderr) {
  ::testing::internal::CaptureStderr();
  by_thread([] { KJ_LOG(ERROR, "from the thread"); });
  std::atomic<bool> done{false};
  loop->run(
      [&] {
        loop->schedule(loop->now() + 5ms, [&] {
          KJ_LOG(ERROR, "from a caller");
          done = true;
        });
      },
      done, soon());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(LoopTest, ATaskThatThrowsTakesNothingElseDown) {
  std::atomic<bool> done{false};
  loop->post([] { throw std::bad_alloc(); });
  loop->post([] { KJ_FAIL_REQUIRE("out of order"); });
  EXPECT_TRUE(loop->run([&] { done = true; }, done, soon()));
}

TEST_F(LoopTest, ASpinningCallerIsWokenByAPost) {
  for (const bool yields : {false, true}) {
    run_and_wait(*loop, [&] { loop->set_spin({5ms, yields}); });
    for (int i = 0; i < 200; ++i) {
      std::atomic<bool> done{false};
      std::thread other([&] { loop->post([&] { done.store(true, std::memory_order_release); }); });
      EXPECT_TRUE(loop->wait(done, soon()));
      other.join();
    }
  }
}

TEST_F(LoopTest, TasksLeftAtTheEndAreDestroyedNotRun) {
  auto held = std::make_shared<int>(1);
  std::atomic<bool> ran{false};
  std::promise<void> entered, release;
  loop->post([&, raw = loop.get()] {
    entered.set_value();
    release.get_future().wait();
    raw->schedule(raw->now() + 1h, [held, &ran] { ran = true; });
  });
  entered.get_future().wait();
  release.set_value();
  loop.reset();
  EXPECT_FALSE(ran);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(LoopLife, LoopsComeAndGo) {
  const uint64_t unclean = UvLoop::unclean_shutdowns();
  for (int i = 0; i < 50; ++i) {
    auto loop = UvLoop::start("short");
    ASSERT_TRUE(loop.ok());
    if (i % 2) {
      std::atomic<bool> done{false};
      loop.value()->run([&] { done = true; }, done, kNever);
    }
  }
  EXPECT_EQ(UvLoop::unclean_shutdowns(), unclean);
}

}  // namespace
}  // namespace dsgd::transport::uv
