// Look-ups of host names that several callers ask for, or that nobody waits for any more.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "transport/uv/resolve.h"

namespace {

constexpr const char* kName = "name.test";  // of 127.0.0.1, or unknown

std::mutex mutex;
std::condition_variable changed;
int asked = 0;
int answers = 0;  // that may be given
bool known = true;

}  // namespace

// Replaces the system's resolver in this program. Blocks for kName until it may answer.
extern "C" __attribute__((visibility("default"))) int getaddrinfo(const char* node, const char* service,
                                                                  const addrinfo* hints, addrinfo** list) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (!node || std::strcmp(node, kName) != 0) return real(node, service, hints, list);
  std::unique_lock lock(mutex);
  ++asked;
  changed.notify_all();
  changed.wait(lock, [] { return answers > 0; });
  --answers;
  return known ? real("127.0.0.1", service, hints, list) : EAI_NONAME;
}

namespace dsgd::transport::uv {
namespace {

class ResolverTest : public ::testing::Test {
 protected:
  ResolverTest() : loop(std::move(UvLoop::start("test-loop")).value()) {
    asked = 0;
    known = true;
    on_loop([this] { resolver.emplace(*loop); });
  }
  ~ResolverTest() override {
    on_loop([this] { resolver.reset(); });
  }
  template <typename Body>
  void on_loop(Body body) {
    run_and_wait(*loop, body);
  }
  // The result of a look-up, or "" until it is there.
  struct Asked {
    std::shared_ptr<Resolver::Done> handle;
    std::string result;
    std::atomic<bool> done{false};
  };
  void ask(Asked& one) {
    on_loop([&] {
      one.handle = resolver->resolve(address, [&one](const Addresses& found) {
        one.result = found.ok() ? to_text(found.value().at(0)) : found.status().message();
        one.done = true;
      });
    });
  }
  void drop(Asked& one) {
    on_loop([&] { one.handle.reset(); });
  }
  bool ends(const Asked& one) { return loop->wait(one.done, loop->now() + std::chrono::seconds(20)); }
  static void await_question(int number) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [number] { return asked >= number; });
  }
  static void answer() {
    std::lock_guard lock(mutex);
    ++answers;
    changed.notify_all();
  }
  static int questions() {
    std::lock_guard lock(mutex);
    return asked;
  }

  const ParsedAddress address = parse_address(std::string(kName) + ":7700").value();
  std::unique_ptr<UvLoop> loop;
  std::optional<Resolver> resolver;
};

TEST_F(ResolverTest, CallersOfOneNameShareALookUp) {
  Asked first, second;
  ask(first);
  ask(second);
  await_question(1);
  answer();
  ASSERT_TRUE(ends(first) && ends(second));
  EXPECT_EQ(first.result, "127.0.0.1:7700");
  EXPECT_EQ(second.result, "127.0.0.1:7700");
  EXPECT_EQ(questions(), 1);
}

TEST_F(ResolverTest, TheNextCallerGetsTheAnswerThatNobodyWaitedFor) {
  Asked dropped, next;
  ask(dropped);
  drop(dropped);
  ask(next);
  answer();
  ASSERT_TRUE(ends(next));
  EXPECT_EQ(next.result, "127.0.0.1:7700");
  EXPECT_FALSE(dropped.done);
  EXPECT_EQ(questions(), 1);
}

TEST_F(ResolverTest, AFailureIsToldAndTheNextCallerAsksAgain) {
  known = false;
  Asked first;
  ask(first);
  answer();
  ASSERT_TRUE(ends(first));
  EXPECT_NE(first.result.find("cannot resolve the host name 'name.test'"), std::string::npos) << first.result;
  known = true;
  Asked again;
  ask(again);
  answer();
  ASSERT_TRUE(ends(again));
  EXPECT_EQ(again.result, "127.0.0.1:7700");
  EXPECT_EQ(questions(), 2);
}

TEST_F(ResolverTest, ACallerMayAskAgainWhenItGetsTheAnswer) {
  Asked inner;
  std::atomic<bool> outer_done{false};
  std::shared_ptr<Resolver::Done> outer;
  on_loop([&] {
    outer = resolver->resolve(address, [&](const Addresses&) {
      inner.handle = resolver->resolve(address, [&](const Addresses& found) {
        inner.result = to_text(found.value().at(0));
        inner.done = true;
      });
      outer_done = true;
    });
  });
  answer();
  answer();
  ASSERT_TRUE(ends(inner));
  EXPECT_TRUE(outer_done);
  EXPECT_EQ(questions(), 2);
}

TEST_F(ResolverTest, AnswersAfterTheEndAreDropped) {
  Asked late;
  ask(late);
  await_question(1);
  on_loop([this] { resolver.reset(); });
  answer();
  on_loop([this] { resolver.emplace(*loop); });
  Asked next;
  ask(next);
  answer();
  ASSERT_TRUE(ends(next));
  EXPECT_FALSE(late.done);
}

}  // namespace
}  // namespace dsgd::transport::uv
