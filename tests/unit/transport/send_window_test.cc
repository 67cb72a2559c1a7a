// Which chunk goes next, and how much may be unanswered.
#include "transport/send_window.h"

#include <gtest/gtest.h>

#include <string>

namespace dsgd::transport {
namespace {

struct Chunk {
  std::string name;
  size_t size;
  size_t nbytes() const { return size; }
};
using Window = SendWindow<Chunk>;

// The names of the chunks that may go now.
std::string take_what_may_go(Window& window) {
  std::string names;
  while (const auto chunk = window.take()) names += chunk->name;
  return names;
}

TEST(SendWindow, TheLowestOperationGoesFirstAndEachKeepsItsOrder) {
  Window window(Window::Limits::kEachOperation, 100);
  window.push(2, {"c", 1});
  window.push(1, {"a", 1});
  window.push(2, {"d", 1});
  window.push(1, {"b", 1});
  EXPECT_EQ(take_what_may_go(window), "abcd");
  EXPECT_TRUE(window.empty());
}

TEST(SendWindow, EachOperationHasItsOwnLimit) {
  Window window(Window::Limits::kEachOperation, 10);
  for (uint64_t operation : {1, 2}) {
    for (int i = 0; i < 3; ++i) window.push(operation, {std::to_string(operation), 5});
  }
  EXPECT_EQ(take_what_may_go(window), "1122");
  window.answered(2, 5);
  EXPECT_EQ(take_what_may_go(window), "2");
  EXPECT_FALSE(window.empty());
}

TEST(SendWindow, ALimitOfAllTogetherLeavesEachOperationOneChunk) {
  Window window(Window::Limits::kAllTogether, 10);
  for (uint64_t operation : {1, 2, 3}) {
    for (int i = 0; i < 2; ++i) window.push(operation, {std::to_string(operation), 10});
  }
  EXPECT_EQ(take_what_may_go(window), "123");
  window.answered(1, 10);
  EXPECT_EQ(take_what_may_go(window), "1");  // it has no unanswered chunk
  window.answered(2, 10);
  EXPECT_EQ(take_what_may_go(window), "2");
}

TEST(SendWindow, AChunkLargerThanTheLimitGoesAlone) {
  Window window(Window::Limits::kEachOperation, 10);
  window.push(1, {"a", 50});
  window.push(1, {"b", 1});
  EXPECT_EQ(take_what_may_go(window), "a");
  window.answered(1, 50);
  EXPECT_EQ(take_what_may_go(window), "b");
}

TEST(SendWindow, ADroppedOperationSendsNoMoreAndKeepsItsCredit) {
  Window window(Window::Limits::kAllTogether, 10);
  window.push(1, {"a", 10});
  window.push(1, {"b", 10});
  window.push(2, {"c", 1});
  window.push(2, {"d", 1});
  EXPECT_EQ(take_what_may_go(window), "ac");
  window.drop(1);
  EXPECT_EQ(take_what_may_go(window), "");  // "a" is still unanswered
  window.answered(1, 10);
  EXPECT_EQ(take_what_may_go(window), "d");
}

TEST(SendWindow, AnAnswerThatComesAfterTakeAllIsIgnored) {
  Window window(Window::Limits::kAllTogether, 10);
  window.push(1, {"a", 10});
  window.push(1, {"b", 10});
  EXPECT_EQ(take_what_may_go(window), "a");
  EXPECT_EQ(window.take_all().size(), 1u);
  window.answered(1, 10);
  window.push(2, {"c", 10});
  window.push(2, {"d", 10});
  EXPECT_EQ(take_what_may_go(window), "c");
}

}  // namespace
}  // namespace dsgd::transport
