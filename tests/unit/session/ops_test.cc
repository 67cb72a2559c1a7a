// dsgd_start and dsgd_strategy_set with an op: the call returns at once, and the op ends when all workers
// have made it.

#include <future>

#include "job.h"

namespace dsgd_test::ops_test {
namespace {

constexpr int64_t kShape[] = {4};

// A model of one parameter. All workers hold rank 0's value, 1, once they have started.
struct Worker {
  dsgd_session* session;
  int rank;
  dsgd_replica* replica = nullptr;
  float *value = nullptr, *gradient = nullptr;

  void build() {
    dsgd_parameter* parameter;
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "p", DSGD_FLOAT32, kShape, 1, 0, &parameter, error_));
    DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, reinterpret_cast<void**>(&value),
                               reinterpret_cast<void**>(&gradient), error_));
    DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "sgd", "lr=0.5", error_));
    value[3] = static_cast<float>(rank + 1);
  }
  int32_t start(dsgd_error** error) { return dsgd_start(session, nullptr, nullptr, error); }
  int32_t step(dsgd_error** error) {
    gradient[3] = 1;
    return dsgd_step(session, 1, nullptr, error);
  }
};

// The op and the host's data, which the queue gives back.
void expect_queued(dsgd_session* session, dsgd_op* op, const void* data) {
  dsgd_op* ended = nullptr;
  size_t count = 0;
  DSGD_OK_OR_FAIL(dsgd_queue_poll(session, &ended, 1, 60000, &count, error_));
  EXPECT_EQ(ended, op);
  EXPECT_EQ(dsgd_op_user_data(ended), data);
  dsgd_op_free(ended);
}

void expect_unfinished(dsgd_op* op) {
  Error error;
  EXPECT_EQ(dsgd_op_wait(op, 20, error), DSGD_ERR_WAIT_TIMEOUT) << error.message();
  EXPECT_EQ(error.rank(), 1) << error.message();
  int32_t done = -1;
  EXPECT_EQ(dsgd_op_test(op, &done, nullptr), DSGD_OK);
  EXPECT_EQ(done, 0);
}

TEST(Ops, AStartEndsWhenAllHaveStartedAndKeepsTheModelUntilThen) {
  std::promise<void> looked;
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Worker worker{session, rank};
    worker.build();
    if (rank == 0) {
      int mine = 0;
      dsgd_op_options options = with_timeout(-1);
      options.user_data = &mine;
      dsgd_op* op = nullptr;
      DSGD_OK_OR_FAIL(dsgd_start(session, &options, &op, error_));
      expect_unfinished(op);
      dsgd_parameter* other;
      Error error;
      EXPECT_EQ(dsgd_parameter_add(session, "late", DSGD_FLOAT32, kShape, 1, 0, &other, error),
                DSGD_ERR_STATE);
      Error twice;
      EXPECT_EQ(worker.start(twice), DSGD_ERR_STATE);
      Error early;
      EXPECT_EQ(worker.step(early), DSGD_ERR_STATE) << early.message();
      looked.set_value();
      DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
      expect_queued(session, op, &mine);
      dsgd_op_free(op);
    } else {
      looked.get_future().wait();
      DSGD_OK_OR_FAIL(worker.start(error_));
    }
    EXPECT_EQ(worker.value[3], 1);
    DSGD_OK_OR_FAIL(worker.step(error_));
    EXPECT_EQ(worker.value[3], 0.5f);
  });
}

TEST(Ops, AStartThatFailsSaysWhyThroughTheOp) {
  run_job(2, {}, [](dsgd_session* session, int rank) {
    Worker worker{session, rank};
    worker.build();
    if (rank == 1) {
      DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "adam", nullptr, error_));
    }
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, &op, error_));
    Error error;
    EXPECT_EQ(dsgd_op_wait(op, -1, error), DSGD_ERR_MISMATCH) << error.message();
    EXPECT_NE(error.message().find("adam"), std::string::npos) << error.message();
    dsgd_op_free(op);
    if (rank == 1) {
      DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "sgd", "lr=0.5", error_));
    }
    DSGD_OK_OR_FAIL(worker.start(error_));  // the model is the host's again
  });
}

TEST(Ops, AStartHasTheDeadlineOfItsOptions) {
  std::promise<void> over;
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Worker worker{session, rank};
    worker.build();
    if (rank == 1) return over.get_future().wait();
    const dsgd_op_options options = with_timeout(100);
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_start(session, &options, &op, error_));
    Error error;
    EXPECT_EQ(dsgd_op_wait(op, -1, error), DSGD_ERR_TIMEOUT) << error.message();
    EXPECT_EQ(error.rank(), 1) << error.message();
    dsgd_op_free(op);
    over.set_value();
  });
}

TEST(Ops, BeforeTheStartAChangeOfStrategyHasEndedAtOnce) {
  run_job(2, {}, [](dsgd_session* session, int rank) {
    Worker worker{session, rank};
    worker.build();
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_strategy_set(session, "ps", nullptr, nullptr, &op, error_));
    DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
    dsgd_op_free(op);
    DSGD_OK_OR_FAIL(worker.start(error_));
    DSGD_OK_OR_FAIL(worker.step(error_));
    EXPECT_EQ(worker.value[3], 0.5f);
  });
}

TEST(Ops, AChangeOfStrategyEndsWhenAllHaveMadeItAndKeepsStepsOutUntilThen) {
  std::promise<void> looked;
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Worker worker{session, rank};
    worker.build();
    DSGD_OK_OR_FAIL(worker.start(error_));
    DSGD_OK_OR_FAIL(worker.step(error_));
    if (rank == 0) {
      int mine = 0;
      dsgd_op_options options = with_timeout(-1);
      options.user_data = &mine;
      dsgd_op* op = nullptr;
      DSGD_OK_OR_FAIL(dsgd_strategy_set(session, "ps", nullptr, &options, &op, error_));
      expect_unfinished(op);
      Error error;
      EXPECT_EQ(worker.step(error), DSGD_ERR_STATE) << error.message();
      Error twice;
      EXPECT_EQ(dsgd_strategy_set(session, "simple", nullptr, nullptr, nullptr, twice), DSGD_ERR_STATE);
      looked.set_value();
      DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
      expect_queued(session, op, &mine);
      dsgd_op_free(op);
    } else {
      looked.get_future().wait();
      DSGD_OK_OR_FAIL(dsgd_strategy_set(session, "ps", nullptr, nullptr, nullptr, error_));
    }
    DSGD_OK_OR_FAIL(worker.step(error_));
    EXPECT_EQ(worker.value[3], 0);
  });
}

TEST(Ops, AChangeOfStrategyOnWhichWorkersDisagreeFailsThroughTheOpAndTheSessionGoesOn) {
  run_job(2, {}, [](dsgd_session* session, int rank) {
    Worker worker{session, rank};
    worker.build();
    DSGD_OK_OR_FAIL(worker.start(error_));
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_strategy_set(session, rank == 0 ? "ps" : "simple", nullptr, nullptr, &op, error_));
    Error error;
    EXPECT_EQ(dsgd_op_wait(op, -1, error), DSGD_ERR_MISMATCH) << error.message();
    dsgd_op_free(op);
    DSGD_OK_OR_FAIL(worker.step(error_));
    EXPECT_EQ(worker.value[3], 0.5f);
  });
}

}  // namespace
}  // namespace dsgd_test::ops_test
