// dsgd_stop_request is async-signal-safe: a handler may interrupt any other call on the same session.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>

#include "tests/unit/capi/world.h"

namespace {

dsgd_session* interrupted = nullptr;
volatile sig_atomic_t requests = 0, refusals = 0;

void request_stop(int) {
  if (dsgd_stop_request(interrupted, nullptr) != DSGD_OK) refusals = refusals + 1;
  requests = requests + 1;
}

// A handler that takes a lock waits for ever for the call that it has interrupted.
TEST(Signal, StopRequestMayInterruptAnyCallOfTheSession) {
  Model model;
  add_model(&model);
  dsgd_error* error = nullptr;
  void *value = nullptr, *gradient = nullptr, *state = nullptr;
  must(dsgd_alloc(model.replica, model.weight, &value, &gradient, &error), error, "alloc");
  must(dsgd_alloc(model.replica, model.state, &state, nullptr, &error), error, "alloc");
  must(dsgd_start(model.session, nullptr, nullptr, &error), error, "start");
  interrupted = model.session;
  struct sigaction action = {}, before = {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  itimerval often = {{0, 50}, {0, 50}}, never = {};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  float values[8] = {};
  while (requests < 5000) {
    EXPECT_EQ(dsgd_learning_rate_set(model.session, 0.1, nullptr), DSGD_OK);
    EXPECT_EQ(dsgd_rank(model.session), 0);
    EXPECT_EQ(dsgd_step(model.session, 1, nullptr, nullptr), DSGD_OK);
    EXPECT_EQ(dsgd_allreduce(model.session, nullptr, values, values, sizeof values, DSGD_FLOAT32, DSGD_SUM,
                             nullptr, nullptr, nullptr),
              DSGD_OK);
    dsgd_op* op = nullptr;
    EXPECT_EQ(dsgd_step_begin(model.session, 1, nullptr, &op, nullptr), DSGD_OK);
    EXPECT_EQ(dsgd_step_flush(model.session, nullptr), DSGD_OK);
    EXPECT_EQ(dsgd_op_wait(op, -1, nullptr), DSGD_OK);
    dsgd_op_free(op);
    uint64_t digest = 0;
    EXPECT_EQ(dsgd_digest(model.session, &digest, nullptr), DSGD_OK);
    char* text = nullptr;
    EXPECT_EQ(dsgd_metrics(model.session, &text, nullptr), DSGD_OK);
    dsgd_text_free(text);
  }
  ASSERT_EQ(setitimer(ITIMER_REAL, &never, nullptr), 0);
  raise(SIGALRM);  // the last step may have taken all requests before
  ASSERT_EQ(sigaction(SIGALRM, &before, nullptr), 0);
  EXPECT_EQ(refusals, 0);

  dsgd_step_result result;
  dsgd_step_result_init(&result, sizeof result);
  must(dsgd_step(model.session, 1, &result, &error), error, "step");
  EXPECT_EQ(result.stop, 1);
  must(dsgd_close(model.session, -1, &error), error, "close");
  EXPECT_EQ(dsgd_stop_request(model.session, nullptr), DSGD_ERR_CLOSED);
  dsgd_session_free(model.session);
}

}  // namespace
