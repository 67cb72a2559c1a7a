// Logs reach the hook, or wait in a bounded queue.
#include "capi/src/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/capi/world.h"
#include "tests/unit/session/job.h"
#include "transport/uv/environment.h"

namespace dsgd::capi {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<transport::Notifier> notifier() {
  return transport::make_uv_environment()->new_notifier().value();
}

std::unique_ptr<dsgd_log_record> record(const std::string& message) {
  return std::make_unique<dsgd_log_record>(LogRecord{LogLevel::kInfo, message, 0}, 1);
}

bool readable(int fd) {
  pollfd wanted{fd, POLLIN, 0};
  return poll(&wanted, 1, 0) == 1;
}

TEST(LogQueue, keeps_the_newest) {
  LogQueue queue(notifier());
  for (size_t i = 0; i < LogQueue::kCapacity + 10; ++i) queue.push(record(std::to_string(i)));
  auto first = queue.pop(std::chrono::milliseconds(0));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first.value()->message, "10");
  size_t left = 0;
  while (queue.pop(std::chrono::milliseconds(0)).ok()) ++left;
  EXPECT_EQ(left, LogQueue::kCapacity - 1);
}

TEST(LogQueue, gives_what_is_left_after_close) {
  LogQueue queue(notifier());
  EXPECT_EQ(queue.pop(std::chrono::milliseconds(0)).status().code(), Code::kWaitTimeout);
  queue.push(record("last words"));
  queue.close();
  EXPECT_EQ(queue.pop(std::chrono::milliseconds(-1)).value()->message, "last words");
  EXPECT_EQ(queue.pop(std::chrono::milliseconds(-1)).status().code(), Code::kClosed);
}

TEST(LogQueue, its_descriptor_is_readable_while_it_is_not_empty) {
  LogQueue queue(notifier());
  EXPECT_FALSE(readable(queue.fd()));
  for (size_t i = 0; i < LogQueue::kCapacity + 1; ++i) queue.push(record("x"));
  for (size_t left = LogQueue::kCapacity; left > 0; --left) {
    ASSERT_TRUE(readable(queue.fd())) << left << " are left";
    ASSERT_TRUE(queue.pop(std::chrono::milliseconds(0)).ok());
  }
  EXPECT_FALSE(readable(queue.fd()));
  queue.push(record("y"));
  queue.close();
  EXPECT_TRUE(readable(queue.fd()));
}

struct Record {
  int32_t level;
  std::string message;
  int64_t time_ns;
  uint64_t session;
  int32_t rank;
};

Record copy(const dsgd_log_record* record) {
  return {dsgd_log_record_level(record), dsgd_log_record_message(record), dsgd_log_record_time_ns(record),
          dsgd_log_record_session(record), dsgd_log_record_rank(record)};
}

int64_t unix_time_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

struct Records {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Record> all;

  std::vector<Record> now() {
    std::lock_guard lock(mutex);
    return all;
  }
  std::set<int32_t> levels() {
    std::set<int32_t> seen;
    for (const Record& record : now()) seen.insert(record.level);
    return seen;
  }
  size_t with(const std::string& text) {
    const auto records = now();
    return static_cast<size_t>(std::count_if(records.begin(), records.end(), [&](const auto& record) {
      return record.message.find(text) != std::string::npos;
    }));
  }
  void wait_for(const std::string& text) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] {
      return std::any_of(all.begin(), all.end(),
                         [&](const auto& record) { return record.message.find(text) != std::string::npos; });
    });
  }
};

void remember(const dsgd_log_record* record, void* user) {
  auto* records = static_cast<Records*>(user);
  std::lock_guard lock(records->mutex);
  records->all.push_back(copy(record));
  records->changed.notify_all();
}

void hook(dsgd_config* config, Records* records) {
  dsgd_error* error = nullptr;
  must(dsgd_config_log_hook(config, remember, records, &error), error, "hook");
}

// The records that wait in a session's queue.
std::vector<std::string> drain(dsgd_session* session, int32_t timeout_ms, int32_t* ended) {
  std::vector<std::string> messages;
  dsgd_log_record* record = nullptr;
  while ((*ended = dsgd_log_poll(session, timeout_ms, &record, nullptr)) == DSGD_OK) {
    EXPECT_GE(dsgd_log_record_level(record), DSGD_LOG_ERROR);
    EXPECT_LE(dsgd_log_record_level(record), DSGD_LOG_DEBUG);
    messages.push_back(dsgd_log_record_message(record));
    dsgd_log_record_free(record);
  }
  return messages;
}

// Makes the session log "started: ...".
void start(dsgd_session* session) {
  dsgd_error* error = nullptr;
  dsgd_replica* replica = nullptr;
  dsgd_parameter* parameter = nullptr;
  void *value = nullptr, *gradient = nullptr;
  must(dsgd_parameter_add(session, "p", DSGD_FLOAT32, nullptr, 0, 0, &parameter, &error), error, "parameter");
  must(dsgd_replica_add(session, "cpu", &replica, &error), error, "replica");
  must(dsgd_alloc(replica, parameter, &value, &gradient, &error), error, "alloc");
  must(dsgd_start(session, nullptr, nullptr, &error), error, "start");
}

dsgd_session* open_session(dsgd_config* config) {
  dsgd_error* error = nullptr;
  dsgd_session* session = nullptr;
  must(dsgd_init(config, &session, &error), error, "init");
  return session;
}

thread_local Records* mine = nullptr;  // of the worker that runs in this thread

// Gives each worker of a job records of its own.
std::function<void(dsgd_config*)> hooks(std::vector<Records>& records) {
  auto next = std::make_shared<std::atomic<size_t>>(0);
  return [next, &records](dsgd_config* config) { hook(config, mine = &records[(*next)++]); };
}

TEST(LogHook, gets_what_the_threshold_lets_through) {
  Config config;
  ASSERT_TRUE(config.set("log_level", "warning").ok());
  Records records;
  const auto log = make_log(config, {remember, &records}, nullptr, 1);
  log->error("e");
  log->warning("w");
  log->info("i");
  log->debug("d");
  EXPECT_THAT(records.all,
              ElementsAre(AllOf(Field(&Record::level, DSGD_LOG_ERROR), Field(&Record::message, "e")),
                          AllOf(Field(&Record::level, DSGD_LOG_WARNING), Field(&Record::message, "w"))));
}

TEST(LogHook, without_hook_and_queue_nothing_is_made) {
  EXPECT_FALSE(make_log(Config(), {}, nullptr, 0)->enabled(LogLevel::kError));
}

TEST(LogHook, gets_the_records_of_its_own_session_alone) {
  std::vector<Records> records(2);
  dsgd_test::run_job(
      2, {{"log_level", "debug"}},
      [](dsgd_session* session, int rank) {
        start(session);
        EXPECT_EQ(mine->with("rank " + std::to_string(rank) + " of 2"), 1u);
        EXPECT_EQ(mine->with("rank " + std::to_string(1 - rank) + " of 2"), 0u) << "the other's";
        EXPECT_EQ(mine->with("started: 1 parameter in 1 bucket, "), 1u);
        dsgd_log_record* record = nullptr;
        EXPECT_EQ(dsgd_log_poll(session, 0, &record, nullptr), DSGD_ERR_WAIT_TIMEOUT)
            << "the hook has them already";
      },
      hooks(records));
  for (Records& one : records) {
    for (const Record& record : one.now()) {
      EXPECT_NE(record.message, "");
      EXPECT_GE(record.level, DSGD_LOG_ERROR) << record.message;
      EXPECT_LE(record.level, DSGD_LOG_DEBUG) << record.message;
    }
  }
}

TEST(LogHook, gets_the_time_the_session_and_its_rank_once_known) {
  const int64_t before = unix_time_ns();
  std::vector<Records> records(2);
  dsgd_test::run_job(
      2, {{"log_level", "debug"}}, [](dsgd_session* session, int) { start(session); }, hooks(records));
  const int64_t after = unix_time_ns();
  std::set<uint64_t> sessions;
  for (Records& one : records) {
    int32_t rank = -1;
    int64_t last = before;
    for (const Record& record : one.now()) {
      SCOPED_TRACE(record.message);
      sessions.insert(record.session);
      EXPECT_LE(last, record.time_ns);
      EXPECT_LE(record.time_ns, after);
      last = record.time_ns;
      const size_t joined = record.message.find(" of 2, view 1");
      if (joined != std::string::npos) rank = record.message[joined - 1] - '0';
      EXPECT_EQ(record.rank, rank);
    }
    EXPECT_NE(rank, -1);
  }
  EXPECT_EQ(sessions.size(), 2u);
  EXPECT_EQ(sessions.count(0), 0u);
}

TEST(LogHook, gets_what_is_at_or_above_the_level_of_its_configuration) {
  const std::pair<const char*, std::set<int32_t>> cases[] = {
      {"error", {DSGD_LOG_ERROR}}, {"warning", {DSGD_LOG_ERROR}}, {"info", {DSGD_LOG_ERROR, DSGD_LOG_INFO}}};
  for (const auto& [name, wanted] : cases) {
    SCOPED_TRACE(name);
    std::vector<Records> records(2);
    dsgd_test::run_job(
        2, {{"log_level", name}},
        [](dsgd_session* session, int rank) {
          if (rank == 0) {
            EXPECT_EQ(dsgd_abort(session, "the data set is gone", nullptr), DSGD_OK);
          }
          mine->wait_for("the data set is gone");
        },
        hooks(records));
    for (Records& one : records) EXPECT_EQ(one.levels(), wanted);
  }
}

// The host called dsgd_abort itself, and no other worker exists.
TEST(LogHook, gets_no_error_from_a_worker_that_aborts_alone) {
  std::vector<Records> records(1);
  dsgd_test::run_job(
      1, {{"log_level", "info"}},
      [](dsgd_session* session, int) {
        EXPECT_EQ(dsgd_abort(session, "the data set is gone", nullptr), DSGD_OK);
        mine->wait_for("the data set is gone");
      },
      hooks(records));
  EXPECT_EQ(records[0].levels(), (std::set<int32_t>{DSGD_LOG_INFO}));
}

// A worker that knocks where there is no head yet says so, as a detail.
TEST(LogHook, gets_details_at_level_debug_alone) {
  const std::string address = "unix:" + ::testing::TempDir() + "late-head." + std::to_string(getpid());
  for (const bool details : {true, false}) {
    dsgd_error* error = nullptr;
    dsgd_config* config = quiet_config();
    for (const auto& [key, value] : {std::pair("head", address.c_str()), std::pair("embed_head", "never"),
                                     std::pair("init_timeout", details ? "60s" : "200ms"),
                                     std::pair("log_level", details ? "debug" : "info")}) {
      must(dsgd_config_set(config, key, value, &error), error, key);
    }
    Records records;
    hook(config, &records);
    if (details) {
      auto opened = std::async(std::launch::async, [&] { return open_session(config); });
      records.wait_for("cannot be joined yet");
      dsgd_head* head = nullptr;
      must(dsgd_head_start(config, &head, &error), error, "dsgd_head_start");
      dsgd_finalize(opened.get());
      dsgd_head_free(head);
    } else {
      dsgd_session* session = nullptr;
      EXPECT_LT(dsgd_init(config, &session, nullptr), 0);
    }
    EXPECT_EQ(records.levels().count(DSGD_LOG_DEBUG) != 0, details);
    EXPECT_NE(records.levels().count(DSGD_LOG_INFO), 0u);
    dsgd_config_free(config);
  }
}

struct Head {
  explicit Head(Records* records = nullptr) {
    dsgd_error* error = nullptr;
    dsgd_config* config = quiet_config();
    must(dsgd_config_set(config, "head", "127.0.0.1:0", &error), error, "head");
    must(dsgd_config_set(config, "num_workers", "2", &error), error, "num_workers");
    if (records) hook(config, records);
    must(dsgd_head_start(config, &head, &error), error, "dsgd_head_start");
    dsgd_config_free(config);
    address = dsgd_head_address(head);
  }
  ~Head() { dsgd_head_free(head); }

  dsgd_session* join(const char* rank, Records* records) const {
    dsgd_error* error = nullptr;
    dsgd_config* config = quiet_config();
    for (const auto& [key, value] :
         {std::pair("head", address.c_str()), std::pair("num_workers", "2"), std::pair("embed_head", "never"),
          std::pair("rank", rank), std::pair("log_level", "debug")}) {
      must(dsgd_config_set(config, key, value, &error), error, key);
    }
    hook(config, records);
    dsgd_session* session = open_session(config);
    dsgd_config_free(config);
    return session;
  }

  dsgd_head* head = nullptr;
  std::string address;
};

// The abort of the job by another worker would be logged if the session had not ended.
TEST(LogHook, is_not_called_once_its_session_is_freed) {
  for (void (*const free)(dsgd_session*) :
       {+[](dsgd_session* session) { dsgd_session_free(session); },
        +[](dsgd_session* session) { EXPECT_EQ(dsgd_finalize(session), DSGD_OK); }}) {
    Head head;
    Records staying, leaving;
    auto other = std::async(std::launch::async, [&] { return head.join("0", &staying); });
    dsgd_session* left = head.join("1", &leaving);
    dsgd_session* stayed = other.get();
    EXPECT_EQ(leaving.with("rank 1 of 2"), 1u);
    free(left);
    const size_t before = leaving.now().size();
    EXPECT_EQ(dsgd_abort(stayed, "afterwards", nullptr), DSGD_OK);
    EXPECT_LT(dsgd_barrier(stayed, nullptr, nullptr, nullptr, nullptr), 0);
    dsgd_finalize(stayed);
    EXPECT_EQ(leaving.now().size(), before) << leaving.now().back().message;
  }
}

TEST(LogHook, of_a_head_gets_what_the_head_says_until_it_is_freed) {
  Records of_head, first, second;
  {
    Head head(&of_head);
    EXPECT_EQ(of_head.with("the head listens on " + head.address), 1u);
    auto other = std::async(std::launch::async, [&] { return head.join("0", &first); });
    dsgd_finalize(head.join("1", &second));
    dsgd_finalize(other.get());
    EXPECT_EQ(dsgd_head_wait(head.head, -1, nullptr), DSGD_OK);
  }
  EXPECT_EQ(of_head.with("head: all 2 workers have joined, the job begins"), 1u);
  EXPECT_EQ(of_head.with("left in good order"), 2u);
  EXPECT_EQ(of_head.now().back().message, "head: all workers have left, the job is over");
  EXPECT_EQ(of_head.levels(), std::set<int32_t>{DSGD_LOG_INFO});
  EXPECT_EQ(of_head.with("rank 0 of 2"), 0u) << "a worker's";
  EXPECT_EQ(first.with("head: "), 0u) << "the head's";
  EXPECT_THAT(of_head.now(), Each(AllOf(Field(&Record::session, 0u), Field(&Record::rank, -1))));
}

TEST(LogHook, null_removes_it_and_records_wait_in_the_queue_again) {
  dsgd_config* config = quiet_config();
  Records records;
  hook(config, &records);
  EXPECT_EQ(dsgd_config_log_hook(config, nullptr, nullptr, nullptr), DSGD_OK);
  dsgd_session* session = open_session(config);
  dsgd_config_free(config);
  start(session);
  int32_t ended = 0;
  EXPECT_THAT(drain(session, 0, &ended), Contains(HasSubstr("started: ")));
  EXPECT_EQ(ended, DSGD_ERR_WAIT_TIMEOUT);
  EXPECT_THAT(records.now(), IsEmpty());
  dsgd_finalize(session);
}

TEST(LogPoll, gives_the_records_in_order) {
  dsgd_test::run_job(2, {{"log_level", "debug"}}, [](dsgd_session* session, int rank) {
    const std::string joined = "rank " + std::to_string(rank) + " of 2";
    start(session);
    must(dsgd_barrier(session, nullptr, nullptr, nullptr, nullptr), nullptr, "barrier");
    if (rank == 0) {
      EXPECT_EQ(dsgd_abort(session, "enough", nullptr), DSGD_OK);
    }
    // Others may stand between.
    for (const std::string& next : {joined, std::string("started: "), std::string("enough")}) {
      for (std::string message; message.find(next) == std::string::npos;) {
        dsgd_log_record* record = nullptr;
        ASSERT_EQ(dsgd_log_poll(session, next == "enough" ? -1 : 0, &record, nullptr), DSGD_OK)
            << "before '" << next << "'";
        message = dsgd_log_record_message(record);
        dsgd_log_record_free(record);
      }
    }
  });
}

TEST(LogPoll, gives_the_session_its_rank_and_the_time) {
  dsgd_config* config = quiet_config();
  const int64_t before = unix_time_ns();
  dsgd_session* sessions[] = {open_session(config), open_session(config)};
  dsgd_config_free(config);
  uint64_t numbers[2];
  for (int i = 0; i < 2; ++i) {
    start(sessions[i]);
    dsgd_log_record* record = nullptr;
    ASSERT_EQ(dsgd_log_poll(sessions[i], 0, &record, nullptr), DSGD_OK);
    EXPECT_EQ(dsgd_log_record_rank(record), 0);
    EXPECT_GE(dsgd_log_record_time_ns(record), before);
    EXPECT_LE(dsgd_log_record_time_ns(record), unix_time_ns());
    numbers[i] = dsgd_log_record_session(record);
    dsgd_log_record_free(record);
    dsgd_finalize(sessions[i]);
  }
  EXPECT_NE(numbers[0], numbers[1]);
  EXPECT_NE(numbers[0], 0u);
}

TEST(LogPoll, the_descriptor_tells_when_a_record_can_be_taken) {
  dsgd_config* config = quiet_config();
  dsgd_session* session = open_session(config);
  dsgd_config_free(config);
  const int fd = dsgd_log_fd(session);
  ASSERT_GE(fd, 0);
  EXPECT_NE(fd, dsgd_queue_fd(session));
  EXPECT_FALSE(readable(fd));
  start(session);
  EXPECT_TRUE(readable(fd));
  EXPECT_EQ(dsgd_close(session, -1, nullptr), DSGD_OK);
  EXPECT_EQ(dsgd_log_fd(session), fd) << "after close records may be left";
  EXPECT_TRUE(readable(fd));
  int32_t ended = 0;
  drain(session, 0, &ended);
  EXPECT_FALSE(readable(fd));
  dsgd_session_free(session);
}

TEST(LogPoll, without_records_ends_when_its_time_is_over) {
  dsgd_config* config = quiet_config();
  dsgd_session* session = open_session(config);
  dsgd_config_free(config);
  for (const int32_t timeout_ms : {0, 10}) {
    dsgd_log_record* record = nullptr;
    dsgd_test::Error error;
    EXPECT_EQ(dsgd_log_poll(session, timeout_ms, &record, error), DSGD_ERR_WAIT_TIMEOUT);
    EXPECT_EQ(record, nullptr);
    EXPECT_THAT(error.message(),
                HasSubstr("no log record came within " + std::to_string(timeout_ms) + " ms"));
  }
  dsgd_finalize(session);
}

TEST(LogPoll, after_close_gives_what_is_left_and_then_says_closed) {
  dsgd_config* config = quiet_config();
  dsgd_session* session = open_session(config);
  dsgd_config_free(config);
  start(session);
  EXPECT_EQ(dsgd_close(session, -1, nullptr), DSGD_OK);
  for (const int32_t timeout_ms : {-1, 0}) {
    int32_t ended = 0;
    const auto left = drain(session, timeout_ms, &ended);
    EXPECT_EQ(left.size(), timeout_ms == -1 ? 1u : 0u);
    for (const std::string& message : left) EXPECT_THAT(message, HasSubstr("started: "));
    EXPECT_EQ(ended, DSGD_ERR_CLOSED);
  }
  dsgd_session_free(session);
}

TEST(LogPoll, without_a_limit_waits_for_the_next_record) {
  dsgd_config* config = quiet_config();
  dsgd_session* session = open_session(config);
  dsgd_config_free(config);
  auto next = std::async(std::launch::async, [session] {
    dsgd_log_record* record = nullptr;
    EXPECT_EQ(dsgd_log_poll(session, -1, &record, nullptr), DSGD_OK);
    const std::string message = dsgd_log_record_message(record);
    EXPECT_EQ(dsgd_log_record_level(record), DSGD_LOG_INFO);
    dsgd_log_record_free(record);
    return message;
  });
  start(session);
  dsgd_close(session, -1, nullptr);  // or the wait would not end, had it missed the record
  EXPECT_THAT(next.get(), HasSubstr("started: "));
  dsgd_session_free(session);
}

}  // namespace
}  // namespace dsgd::capi
