// Logs reach the hook, or wait in a bounded queue.
#include "capi/src/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "tests/unit/capi/world.h"

namespace dsgd::capi {
namespace {

TEST(LogQueue, keeps_the_newest) {
  LogQueue queue;
  for (size_t i = 0; i < LogQueue::kCapacity + 10; ++i) queue.push(DSGD_LOG_INFO, std::to_string(i));
  auto first = queue.pop(std::chrono::milliseconds(0));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first.value()->message, "10");
  size_t left = 0;
  while (queue.pop(std::chrono::milliseconds(0)).ok()) ++left;
  EXPECT_EQ(left, LogQueue::kCapacity - 1);
}

TEST(LogQueue, gives_what_is_left_after_close) {
  LogQueue queue;
  EXPECT_EQ(queue.pop(std::chrono::milliseconds(0)).status().code(), Code::kWaitTimeout);
  queue.push(DSGD_LOG_ERROR, "last words");
  queue.close();
  EXPECT_EQ(queue.pop(std::chrono::milliseconds(-1)).value()->message, "last words");
  EXPECT_EQ(queue.pop(std::chrono::milliseconds(-1)).status().code(), Code::kClosed);
}

struct Records {
  std::mutex mutex;
  std::vector<int32_t> levels;
};

void remember(int32_t level, const char*, void* user) {
  auto* records = static_cast<Records*>(user);
  std::lock_guard lock(records->mutex);
  records->levels.push_back(level);
}

TEST(LogHook, gets_what_the_threshold_lets_through) {
  Config config;
  ASSERT_TRUE(config.set("log_level", "warning").ok());
  Records records;
  const auto log = make_log(config, {remember, &records}, nullptr);
  log->error("e");
  log->warning("w");
  log->info("i");
  log->debug("d");
  EXPECT_THAT(records.levels, ::testing::ElementsAre(DSGD_LOG_ERROR, DSGD_LOG_WARNING));
}

TEST(LogHook, without_hook_and_queue_nothing_is_made) {
  EXPECT_FALSE(make_log(Config(), {}, nullptr)->enabled(LogLevel::kError));
}

TEST(LogPoll, records_of_a_session_wait_for_it) {
  dsgd_config* config = quiet_config();
  dsgd_error* error = nullptr;
  must(dsgd_config_set(config, "log_level", "debug", &error), error, "log_level");
  dsgd_session* session = nullptr;
  must(dsgd_init(config, &session, &error), error, "init");
  dsgd_config_free(config);
  must(dsgd_close(session, -1, &error), error, "close");
  dsgd_log_record* record = nullptr;
  int32_t status;
  while ((status = dsgd_log_poll(session, -1, &record, nullptr)) == DSGD_OK) {
    EXPECT_STRNE(dsgd_log_record_message(record), "");
    EXPECT_GE(dsgd_log_record_level(record), DSGD_LOG_ERROR);
    EXPECT_LE(dsgd_log_record_level(record), DSGD_LOG_DEBUG);
    dsgd_log_record_free(record);
  }
  EXPECT_EQ(status, DSGD_ERR_CLOSED);
  dsgd_finalize(session);
}

}  // namespace
}  // namespace dsgd::capi
