#include "core/mesh/history.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace dsgd {
namespace {

TEST(History, ForgetsTheOldestFailureWhateverItsChannel) {
  History history;
  const auto fail = [&](uint32_t channel, uint64_t call) {
    const uint64_t operation = operation_number(call_number(channel, call), 0);
    history.note_failure(operation, Status(Code::kTimeout, "late"));
    history.end_operation(operation);
    return operation;
  };
  const uint64_t oldest = fail(3, 1);
  for (uint64_t call = 2; call <= History::kRememberedFailures; ++call) fail(3, call);
  const uint64_t newest = fail(0, 1);
  EXPECT_TRUE(history.failure_of(newest));
  EXPECT_FALSE(history.has_succeeded(newest));
  EXPECT_FALSE(history.failure_of(oldest));
}

}  // namespace
}  // namespace dsgd
