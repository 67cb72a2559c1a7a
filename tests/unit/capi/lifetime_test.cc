// Handles end in any order and take with them only what is theirs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
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
  must(dsgd_object_put(model.session, "x", "abc", 3, nullptr, nullptr, &error), error, "put");
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

}  // namespace
