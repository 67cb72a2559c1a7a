// dsgd_gradients_ready: many gradients marked in one call.

#include <algorithm>
#include <string>
#include <thread>

#include "job.h"

namespace dsgd_test::marks_test {
namespace {

constexpr size_t kParameters = 7;

struct Trainer {
  dsgd_session* session;
  dsgd_replica* replicas[2] = {};
  dsgd_parameter* parameters[kParameters] = {};
  float* values[kParameters] = {};
  void build() {
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replicas[0], error_));
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replicas[1], error_));
    for (size_t p = 0; p < kParameters; ++p) {
      const int64_t size = 300;  // a bucket of 4K holds three of them
      DSGD_OK_OR_FAIL(dsgd_parameter_add(session, ("p" + std::to_string(p)).c_str(), DSGD_FLOAT32, &size, 1,
                                         0, &parameters[p], error_));
      for (dsgd_replica* replica : replicas) {
        void *value, *gradient;
        DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameters[p], &value, &gradient, error_));
        if (replica == replicas[0]) values[p] = static_cast<float*>(value);
        for (int64_t i = 0; i < size; ++i) static_cast<float*>(gradient)[i] = 1;
      }
    }
    DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "sgd", "lr=1", error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
  }
};

TEST(GradientsReady, MarksGradientsAsManyCallsWould) {
  for (const size_t at_once : {size_t{1}, size_t{2}, size_t{5}, kParameters}) {
    run_job(2, {{"bucket_size", "4K"}}, [&](dsgd_session* session, int) {
      Trainer trainer{session};
      trainer.build();
      for (int step = 0; step < 3; ++step) {
        dsgd_op* op = nullptr;
        DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
        for (dsgd_replica* replica : trainer.replicas) {
          for (size_t p = 0; p < kParameters; p += at_once) {
            const size_t count = std::min(at_once, kParameters - p);
            DSGD_OK_OR_FAIL(dsgd_gradients_ready(replica, trainer.parameters + p, count, nullptr, error_));
          }
        }
        // Every gradient is marked, so the step ends by itself.
        DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
        dsgd_op_free(op);
        for (const float* value : trainer.values) EXPECT_EQ(value[299], -static_cast<float>(step + 1));
      }
    });
  }
}

TEST(GradientsReady, MarksNoneIfOneCannotBeMarked) {
  run_job(2, {{"bucket_size", "4K"}}, [&](dsgd_session* session, int) {
    Trainer trainer{session};
    trainer.build();
    dsgd_parameter* const* all = trainer.parameters;
    dsgd_parameter* const twice[] = {all[0], all[1], all[2], all[1]};
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
    DSGD_OK_OR_FAIL(dsgd_gradient_absent(trainer.replicas[1], all[3], error_));
    for (dsgd_replica* replica : trainer.replicas) {
      Error error;
      EXPECT_EQ(dsgd_gradients_ready(replica, twice, 4, nullptr, error), DSGD_ERR_STATE);
      EXPECT_NE(error.message().find("'p1'"), std::string::npos) << error.message();
    }
    Error error;
    EXPECT_EQ(dsgd_gradients_ready(trainer.replicas[1], all, kParameters, nullptr, error), DSGD_ERR_STATE);
    EXPECT_NE(error.message().find("'p3' in replica 1 was marked absent"), std::string::npos)
        << error.message();
    EXPECT_EQ(std::string(dsgd_error_parameter(error.error)), "p3");
    // The gradients that the refused calls named can still be marked.
    DSGD_OK_OR_FAIL(dsgd_gradients_ready(trainer.replicas[0], all, kParameters, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_gradients_ready(trainer.replicas[1], all, 3, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_gradients_ready(trainer.replicas[1], nullptr, 0, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_gradients_ready(trainer.replicas[1], all + 4, 3, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_op_wait(op, -1, error_));
    dsgd_op_free(op);
    for (const float* value : trainer.values) EXPECT_EQ(value[0], -1);
  });
}

TEST(GradientAbsent, MayBeCalledWhileTheStrategyChanges) {
  run_job(1, {{"bucket_size", "4K"}}, [&](dsgd_session* session, int) {
    Trainer trainer{session};
    trainer.build();
    std::thread other([&] {
      for (dsgd_replica* replica : trainer.replicas) {
        for (dsgd_parameter* parameter : trainer.parameters)
          DSGD_OK_OR_FAIL(dsgd_gradient_absent(replica, parameter, error_));
      }
    });
    for (const char* strategy : {"ps", "allreduce", "simple"})
      DSGD_OK_OR_FAIL(dsgd_strategy_set(session, strategy, "", nullptr, nullptr, error_));
    other.join();
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    for (const float* value : trainer.values) EXPECT_EQ(value[0], 0);  // no gradient was there
  });
}

}  // namespace
}  // namespace dsgd_test::marks_test
