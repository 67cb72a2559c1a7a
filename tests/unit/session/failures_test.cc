// The table "Failures" of dsgd.h: what each status ends. Two workers provoke it, and then use the session
// further.
#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <thread>

#include "job.h"

namespace dsgd_test::failures_test {
namespace {

// Of this job, so that one case can provoke it; no other case gives a gradient that is not finite.
const Settings kSettings = {{"lease", "2s"}, {"nonfinite", "fail"}};

struct Worker {
  dsgd_session* session;
  int rank;
  float *value = nullptr, *gradient = nullptr;

  void start() {
    dsgd_replica* replica;
    dsgd_parameter* parameter;
    const int64_t shape[] = {100};
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "p", DSGD_FLOAT32, shape, 1, 0, &parameter, error_));
    DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, reinterpret_cast<void**>(&value),
                               reinterpret_cast<void**>(&gradient), error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
  }
  int32_t barrier() { return dsgd_barrier(session, nullptr, nullptr, nullptr, nullptr); }
  int32_t step() { return dsgd_step(session, 1, nullptr, nullptr); }
};

// A barrier of another channel than the steps'.
int32_t barrier_beside(Worker& w, int32_t timeout_ms) {
  dsgd_op_options options = with_timeout(timeout_ms);
  options.channel = 1;
  return dsgd_barrier(w.session, nullptr, &options, nullptr, nullptr);
}

// A barrier that the other worker does not make in time.
int32_t late_barrier(Worker& w) { return barrier_beside(w, 150); }

// A step that the other worker does not make in time.
int32_t late_step(Worker& w) {
  const dsgd_op_options options = with_timeout(150);
  dsgd_op* op = nullptr;
  EXPECT_EQ(dsgd_step_begin(w.session, 1, &options, &op, nullptr), DSGD_OK);
  EXPECT_EQ(dsgd_step_flush(w.session, nullptr), DSGD_OK);
  const int32_t status = dsgd_op_wait(op, -1, nullptr);
  dsgd_op_free(op);
  return status;
}

enum class Ends { kCall, kOperation, kSteps, kSession };

struct Case {
  int32_t status;
  Ends ends;
  // Provokes the status on both workers, or on rank 0 alone.
  std::function<int32_t(Worker&)> provoke;
  bool both = true;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {DSGD_ERR_INVALID_ARGUMENT, Ends::kCall,
       [](Worker& w) { return dsgd_step(w.session, -1, nullptr, nullptr); }},
      {DSGD_ERR_STATE, Ends::kCall,
       [](Worker& w) { return dsgd_start(w.session, nullptr, nullptr, nullptr); }},
      {DSGD_ERR_LIMIT, Ends::kCall,
       [](Worker& w) {
         return dsgd_object_put(w.session, "large", "", (size_t{1} << 30) + 1, -1, nullptr, 0, nullptr,
                                nullptr, nullptr);
       }},
      {DSGD_ERR_EXISTS, Ends::kCall,
       [](Worker& w) {
         const std::string name = "of rank " + std::to_string(w.rank);
         EXPECT_EQ(dsgd_object_put(w.session, name.c_str(), "", 0, -1, nullptr, 0, nullptr, nullptr, nullptr),
                   DSGD_OK);
         return dsgd_object_put(w.session, name.c_str(), "", 0, -1, nullptr, 0, nullptr, nullptr, nullptr);
       }},
      {DSGD_ERR_NOT_FOUND, Ends::kCall,
       [](Worker& w) { return dsgd_object_delete(w.session, "never put", nullptr, nullptr, nullptr); }},
      {DSGD_ERR_UNSUPPORTED, Ends::kCall,
       [](Worker& w) {
         return dsgd_strategy_set(w.session, "allreduce", "algorithm=nccl", nullptr, nullptr, nullptr);
       }},
      {DSGD_ERR_WAIT_TIMEOUT, Ends::kCall,
       [](Worker& w) {
         dsgd_op* op = nullptr;
         EXPECT_EQ(dsgd_object_get(w.session, "never", nullptr, nullptr, &op, nullptr), DSGD_OK);
         const int32_t status = dsgd_op_wait(op, 1, nullptr);
         EXPECT_EQ(dsgd_op_abort(op, nullptr, nullptr), DSGD_OK);
         EXPECT_EQ(dsgd_op_wait(op, -1, nullptr), DSGD_ERR_ABORTED) << "and the session goes on";
         dsgd_op_free(op);
         return status;
       }},
      {DSGD_ERR_MISMATCH, Ends::kOperation,
       [](Worker& w) {
         return dsgd_broadcast(w.session, nullptr, w.value, 400, DSGD_FLOAT32, w.rank, nullptr, nullptr,
                               nullptr);
       }},
      {DSGD_ERR_MISMATCH, Ends::kOperation,  // of a step
       [](Worker& w) {
         EXPECT_EQ(dsgd_learning_rate_set(w.session, 0.1 + w.rank, nullptr), DSGD_OK);
         const int32_t status = w.step();
         EXPECT_EQ(dsgd_learning_rate_set(w.session, 0.1, nullptr), DSGD_OK);
         return status;
       }},
      {DSGD_ERR_NON_FINITE, Ends::kOperation,
       [](Worker& w) {
         w.gradient[7] = w.rank == 1 ? std::numeric_limits<float>::infinity() : 1;
         const int32_t status = w.step();
         w.gradient[7] = 1;
         return status;
       }},
      {DSGD_ERR_TIMEOUT, Ends::kOperation, late_barrier, false},
      {DSGD_ERR_TIMEOUT, Ends::kOperation,
       [](Worker& w) {
         const dsgd_op_options options = with_timeout(1);
         dsgd_object* object;
         return dsgd_object_get(w.session, "never", &options, &object, nullptr, nullptr);
       }},
      {DSGD_ERR_TIMEOUT, Ends::kSteps, late_step, false},
      {DSGD_ERR_TORN, Ends::kSteps,
       [](Worker& w) {
         if (w.rank == 0) {
           EXPECT_EQ(late_step(w), DSGD_ERR_TIMEOUT);
         }
         EXPECT_EQ(barrier_beside(w, -1), DSGD_OK);
         if (w.rank == 1) {
           EXPECT_EQ(w.step(), DSGD_ERR_TIMEOUT) << "the late worker is told";
         }
         return w.step();
       }},
      {DSGD_ERR_DIVERGED, Ends::kSteps,
       [](Worker& w) {
         std::fill_n(w.value, 100, static_cast<float>(w.rank));
         return w.step();
       }},
      {DSGD_ERR_ABORTED, Ends::kSession,
       [](Worker& w) {
         if (w.rank == 0) {
           EXPECT_EQ(dsgd_abort(w.session, "enough", nullptr), DSGD_OK);
         }
         return w.barrier();
       }},
      {DSGD_ERR_CLOSED, Ends::kSession,
       [](Worker& w) {
         EXPECT_EQ(dsgd_close(w.session, -1, nullptr), DSGD_OK);
         return w.barrier();
       }},
  };
  return all;
}

// Those that two healthy workers cannot provoke, or that come before there is a session.
const std::map<int32_t, std::string> kElsewhere = {
    {DSGD_ERR_FORKED, "capi_fork_test"},
    {DSGD_ERR_IO, "comes from calls without a session: capi_bad_input_test"},
    {DSGD_ERR_UNAUTHORIZED, "comes from joining: membership_test"},
    {DSGD_ERR_UNREACHABLE, "comes from joining: membership_test"},
    {DSGD_ERR_ADDRESS_IN_USE, "comes from joining: session_network_test"},
    {DSGD_ERR_WORKER_LOST, "process_fault_test kills workers"},
    {DSGD_ERR_NO_MEMORY, "process_memory_test"},
    {DSGD_ERR_CORRUPTED, "session_wire_test flips bits"},
    {DSGD_ERR_VIEW_CHANGED, "simulation_loss_test"},
    {DSGD_ERR_EVICTED, "simulation_loss_test"},
    {DSGD_ERR_INTERNAL, "a defect"},
};

TEST(Failures, TheTableHasEveryStatus) {
  for (int32_t status = -1; std::string(dsgd_status_name(status)) != "DSGD_ERR_UNKNOWN"; --status) {
    const bool here =
        std::any_of(cases().begin(), cases().end(), [&](const Case& c) { return c.status == status; });
    EXPECT_TRUE(here || kElsewhere.count(status) == 1) << dsgd_status_name(status);
  }
}

class Failures : public ::testing::TestWithParam<size_t> {};

TEST_P(Failures, EndWhatTheHeaderSays) {
  const Case& c = cases()[GetParam()];
  SCOPED_TRACE(dsgd_status_name(c.status));
  std::atomic<bool> provoked{false};
  run_job(2, kSettings, [&](dsgd_session* session, int rank) {
    Worker w{session, rank};
    w.start();
    ASSERT_EQ(w.step(), DSGD_OK);
    if (rank == 0 || c.both) {
      EXPECT_EQ(c.provoke(w), c.status);
    }
    if (rank == 0) provoked = true;
    while (!provoked) std::this_thread::yield();
    switch (c.ends) {
      case Ends::kCall:
      case Ends::kOperation:
        if (!c.both && rank == 1) {
          const int32_t late = late_barrier(w);
          EXPECT_TRUE(late == DSGD_OK || late == c.status) << dsgd_status_name(late);
        }
        EXPECT_EQ(w.barrier(), DSGD_OK);
        EXPECT_EQ(w.step(), DSGD_OK);
        break;
      case Ends::kSteps: {
        if (!c.both && rank == 1) {
          EXPECT_NE(w.step(), DSGD_OK) << "the late worker is told";
        }
        const int32_t later = w.step();
        EXPECT_TRUE(later == DSGD_ERR_TORN || later == DSGD_ERR_DIVERGED) << dsgd_status_name(later);
        EXPECT_EQ(w.barrier(), DSGD_OK);
        break;
      }
      case Ends::kSession:
        EXPECT_EQ(w.barrier(), c.status);
        EXPECT_EQ(w.step(), c.status);
        break;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OfEachStatus, Failures, ::testing::Range(size_t{0}, cases().size()),
                         [](const auto& info) {
                           return std::string(dsgd_status_name(cases()[info.param].status)) + "_" +
                                  std::to_string(info.param);
                         });

}  // namespace
}  // namespace dsgd_test::failures_test
