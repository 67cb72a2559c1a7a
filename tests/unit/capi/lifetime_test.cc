// Handles end in any order and take with them only what is theirs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/capi/world.h"

namespace {

using ::testing::HasSubstr;

TEST(Lifetime, handles_that_may_outlive_their_session_do) {
  Model model;
  add_model(&model);
  dsgd_error* error = nullptr;
  void *value = nullptr, *gradient = nullptr, *state = nullptr;
  must(dsgd_alloc(model.replica, model.weight, &value, &gradient, &error), error, "alloc");
  must(dsgd_alloc(model.replica, model.state, &state, nullptr, &error), error, "alloc");
  dsgd_memory* memory = nullptr;
  must(dsgd_memory_get(model.replica, model.weight, &memory, &error), error, "memory");
  must(dsgd_start(model.session, nullptr, nullptr, &error), error, "start");
  dsgd_op *waited = nullptr, *forgotten = nullptr;
  must(dsgd_barrier(model.session, nullptr, nullptr, &waited, &error), error, "barrier");
  must(dsgd_op_wait(waited, -1, &error), error, "wait");
  must(dsgd_step_begin(model.session, 1, nullptr, &forgotten, &error), error, "step");
  dsgd_shard* shard = nullptr;
  must(dsgd_shard_new(model.session, 4, 0, DSGD_SHARD_SEQUENTIAL, &shard, &error), error, "shard");
  dsgd_object* object = nullptr;
  must(dsgd_object_put(model.session, "x", "abc", 3, -1, nullptr, 0, nullptr, nullptr, &error), error, "put");
  must(dsgd_object_get(model.session, "x", nullptr, &object, nullptr, &error), error, "get");
  EXPECT_LT(dsgd_parameter_set(model.weight, "nonsense=1", &error), 0);

  dsgd_session_free(model.session);  // with a step in flight

  std::memset(value, 1, dsgd_memory_nbytes(memory));
  std::memset(gradient, 2, dsgd_memory_nbytes(memory));
  EXPECT_EQ(dsgd_memory_value(memory), value);
  EXPECT_EQ(std::memcmp(dsgd_object_data(object), "abc", 3), 0);
  int64_t indices[8];
  size_t count = 0;
  EXPECT_EQ(dsgd_shard_next(shard, indices, 8, &count, nullptr), DSGD_OK);
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(indices[3], 3);
  EXPECT_EQ(dsgd_op_wait(waited, -1, nullptr), DSGD_OK);
  dsgd_error* ended = nullptr;
  EXPECT_EQ(dsgd_op_wait(forgotten, -1, &ended), DSGD_ERR_CLOSED);
  EXPECT_NE(take_message(ended), "");
  int32_t done = 0;
  EXPECT_EQ(dsgd_op_test(forgotten, &done, nullptr), DSGD_ERR_CLOSED);
  EXPECT_EQ(done, 1);
  EXPECT_THAT(dsgd_error_message(error), HasSubstr("nonsense"));

  dsgd_op_free(forgotten);
  dsgd_op_free(waited);
  dsgd_memory_free(memory);
  dsgd_object_free(object);
  dsgd_shard_free(shard);
  dsgd_error_free(error);
}

TEST(Lifetime, a_closed_session_tells_how_its_operations_ended) {
  Model model;
  add_model(&model);
  dsgd_op* op = nullptr;
  dsgd_error* error = nullptr;
  must(dsgd_barrier(model.session, nullptr, nullptr, &op, &error), error, "barrier");
  must(dsgd_op_wait(op, -1, &error), error, "wait");
  must(dsgd_close(model.session, -1, &error), error, "close");
  EXPECT_EQ(dsgd_op_wait(op, 0, nullptr), DSGD_OK);
  EXPECT_EQ(dsgd_close(model.session, 0, nullptr), DSGD_OK);
  dsgd_finalize(model.session);
  dsgd_op_free(op);
}

TEST(Lifetime, several_sessions_live_side_by_side_and_one_after_another) {
  for (int round = 0; round < 3; ++round) {
    Model first, second;
    add_model(&first);
    add_model(&second);
    EXPECT_EQ(dsgd_rank(first.session), 0);
    dsgd_finalize(first.session);
    EXPECT_EQ(dsgd_rank(second.session), 0);
    EXPECT_EQ(dsgd_barrier(second.session, nullptr, nullptr, nullptr, nullptr), DSGD_OK);
    dsgd_finalize(second.session);
  }
}

TEST(Lifetime, abort_ends_operations_with_reason_and_rank) {
  Model model;
  add_model(&model);
  dsgd_error* error = nullptr;
  must(dsgd_bind(model.replica, model.weight, model.value, sizeof model.value, model.gradient,
                 sizeof model.gradient, &error),
       error, "bind");
  void* state = nullptr;
  must(dsgd_alloc(model.replica, model.state, &state, nullptr, &error), error, "alloc");
  must(dsgd_start(model.session, nullptr, nullptr, &error), error, "start");
  must(dsgd_abort(model.session, "the data set is gone", &error), error, "abort");
  EXPECT_EQ(dsgd_step(model.session, 1, nullptr, &error), DSGD_ERR_ABORTED);
  EXPECT_EQ(dsgd_error_rank(error), 0);
  EXPECT_THAT(take_message(error), HasSubstr("the data set is gone"));
  dsgd_finalize(model.session);
}

TEST(Lifetime, a_poll_wakes_when_the_session_closes) {
  Model model;
  add_model(&model);
  int32_t queue = 0, log = 0;
  std::thread queue_thread([&] {
    dsgd_op* op = nullptr;
    size_t count = 0;
    queue = dsgd_queue_poll(model.session, &op, 1, -1, &count, nullptr);
  });
  std::thread log_thread([&] {
    dsgd_log_record* record = nullptr;
    while ((log = dsgd_log_poll(model.session, -1, &record, nullptr)) == DSGD_OK)
      dsgd_log_record_free(record);
  });
  EXPECT_EQ(dsgd_close(model.session, -1, nullptr), DSGD_OK);
  queue_thread.join();
  log_thread.join();
  EXPECT_EQ(queue, DSGD_ERR_CLOSED);
  EXPECT_EQ(log, DSGD_ERR_CLOSED);
  dsgd_session_free(model.session);
}

TEST(Lifetime, a_polled_op_outlives_the_free_of_the_other_reference) {
  Model model;
  add_model(&model);
  dsgd_op *begun = nullptr, *polled = nullptr;
  size_t count = 0;
  ASSERT_EQ(dsgd_barrier(model.session, nullptr, nullptr, &begun, nullptr), DSGD_OK);
  const uint64_t id = dsgd_op_id(begun);
  ASSERT_EQ(dsgd_queue_poll(model.session, &polled, 1, -1, &count, nullptr), DSGD_OK);
  EXPECT_EQ(polled, begun);
  dsgd_op_free(begun);
  EXPECT_EQ(dsgd_op_id(polled), id);
  EXPECT_EQ(dsgd_op_wait(polled, 0, nullptr), DSGD_OK);
  dsgd_op_free(polled);
  dsgd_finalize(model.session);
}

// A thread within a call that blocks, or that has returned from it.
class Blocked {
 public:
  explicit Blocked(std::function<int32_t()> call)
      : thread_([this, call = std::move(call)] {
          id_ = gettid();
          status_ = call();
          returned_ = true;
        }) {
    while (!asleep() && !returned_) std::this_thread::yield();
  }
  int32_t status() {
    thread_.join();
    return status_;
  }

 private:
  bool asleep() const {
    if (id_ == 0) return false;
    FILE* file = fopen(("/proc/self/task/" + std::to_string(id_) + "/stat").c_str(), "re");
    if (file == nullptr) return false;
    char text[256] = "";
    const bool read = fgets(text, sizeof text, file) != nullptr;  // not if the thread has just ended
    fclose(file);
    return read && strstr(text, ") S ") != nullptr;
  }

  std::atomic<pid_t> id_{0};
  std::atomic<bool> returned_{false};
  int32_t status_ = 0;
  std::thread thread_;  // last: it uses the others
};

// A session that waits for a second worker, which never comes.
struct Lonely {
  Lonely() {
    dsgd_config* config = quiet_config();
    must(dsgd_config_set(config, "num_workers", "2", nullptr), nullptr, "num_workers");
    must(dsgd_config_set(config, "head", "127.0.0.1:0", nullptr), nullptr, "head");
    must(dsgd_config_set(config, "init_timeout", "10m", nullptr), nullptr, "init_timeout");
    must(dsgd_init_begin(config, nullptr, &session, &op, nullptr), nullptr, "dsgd_init_begin");
    dsgd_config_free(config);
  }
  dsgd_session* session = nullptr;
  dsgd_op* op = nullptr;
};

TEST(Lifetime, freeing_a_session_ends_the_calls_of_other_threads) {
  for (int round = 0; round < 10; ++round) {
    Lonely lonely;
    dsgd_op* ended = nullptr;
    size_t count = 0;
    Blocked wait([&] { return dsgd_op_wait(lonely.op, -1, nullptr); });
    // One call: after it the session may be gone. It ends with a record, or because the session does.
    dsgd_log_record* record = nullptr;
    while (dsgd_log_poll(lonely.session, 0, &record, nullptr) == DSGD_OK) dsgd_log_record_free(record);
    record = nullptr;
    Blocked log([&] { return dsgd_log_poll(lonely.session, -1, &record, nullptr); });
    dsgd_session_free(lonely.session);
    EXPECT_EQ(wait.status(), DSGD_ERR_CLOSED);
    const int32_t polled = log.status();
    EXPECT_EQ(polled, record != nullptr ? DSGD_OK : DSGD_ERR_CLOSED);
    dsgd_log_record_free(record);
    dsgd_op_free(lonely.op);

    Model model;
    add_model(&model);
    Blocked queue([&] { return dsgd_queue_poll(model.session, &ended, 1, -1, &count, nullptr); });
    Blocked get([&] {
      dsgd_object* object = nullptr;
      return dsgd_object_get(model.session, "never", nullptr, &object, nullptr, nullptr);
    });
    dsgd_session_free(model.session);
    EXPECT_EQ(queue.status(), DSGD_ERR_CLOSED);
    EXPECT_EQ(get.status(), DSGD_ERR_CLOSED);
  }
}

TEST(Lifetime, an_op_may_be_freed_while_a_thread_waits_for_it) {
  Lonely lonely;
  Blocked wait([&] { return dsgd_op_wait(lonely.op, -1, nullptr); });
  dsgd_op_free(lonely.op);
  dsgd_session_free(lonely.session);
  EXPECT_EQ(wait.status(), DSGD_ERR_CLOSED);
}

}  // namespace
