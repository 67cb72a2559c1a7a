// dsgd_session_info_read in jobs of several workers: states, steps, replicas.

#include <atomic>
#include <string>

#include "job.h"

namespace dsgd_test::info_test {
namespace {

dsgd_session_info info_of(const dsgd_session* session) {
  dsgd_session_info info;
  Error error;
  EXPECT_EQ(dsgd_session_info_init(&info, sizeof info), DSGD_OK);
  EXPECT_EQ(dsgd_session_info_read(session, &info, error), DSGD_OK) << error.message();
  return info;
}

struct Trainer {
  dsgd_session* session;
  dsgd_replica* replica = nullptr;
  dsgd_parameter* parameter = nullptr;
  float* value = nullptr;
  void build() {
    const int64_t size = 4;
    void *values, *gradients;
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "weight", DSGD_FLOAT32, &size, 1, 0, &parameter, error_));
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, nullptr, &replica, error_));
    DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &values, &gradients, error_));
    value = static_cast<float*>(values);
    DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "sgd", "lr=0", error_));
  }
};

TEST(Info, ToldBeforeAnythingElseIsThatOfAWorkerThatIsAlone) {
  dsgd_session_info info;
  ASSERT_EQ(dsgd_session_info_init(&info, sizeof info), DSGD_OK);
  EXPECT_EQ(info.struct_size, sizeof info);
  EXPECT_EQ(info.size, 1);
  EXPECT_EQ(info.state, 0);
}

// The head never comes, so the session is joining until it is freed.
TEST(Info, OfAJoiningSessionHasRankZeroAndSizeOne) {
  dsgd_config* config = dsgd_config_new();
  for (const auto& [key, value] :
       Settings{{"head", "127.0.0.1:1"}, {"num_workers", "3"}, {"embed_head", "never"}}) {
    ASSERT_EQ(dsgd_config_set(config, key.c_str(), value.c_str(), nullptr), DSGD_OK) << key;
  }
  dsgd_session* session = nullptr;
  dsgd_op* op = nullptr;
  ASSERT_EQ(dsgd_init_begin(config, nullptr, &session, &op, nullptr), DSGD_OK);
  dsgd_config_free(config);
  const dsgd_session_info info = info_of(session);
  EXPECT_EQ(info.state, DSGD_SESSION_JOINING);
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.size, 1);
  EXPECT_EQ(info.view, 0);
  dsgd_session_free(session);
  dsgd_op_free(op);
}

// Under TSan: one thread reads while the loop writes what the head says.
TEST(Info, MayBeReadWhileTheSessionJoins) {
  dsgd_config* config = dsgd_config_new();
  dsgd_session* session = nullptr;
  dsgd_op* op = nullptr;
  ASSERT_EQ(dsgd_init_begin(config, nullptr, &session, &op, nullptr), DSGD_OK);
  dsgd_config_free(config);
  while (info_of(session).state == DSGD_SESSION_JOINING) {
  }
  EXPECT_EQ(info_of(session).state, DSGD_SESSION_JOINED);
  EXPECT_EQ(info_of(session).view, dsgd_view(session));
  dsgd_session_free(session);
  dsgd_op_free(op);
}

TEST(Info, FollowsASessionThroughItsLife) {
  std::atomic<uint64_t> ids[2];
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    const dsgd_session_info joined = info_of(session);
    EXPECT_EQ(joined.state, DSGD_SESSION_JOINED);
    EXPECT_EQ(joined.rank, rank);
    EXPECT_EQ(joined.rank, dsgd_rank(session));
    EXPECT_EQ(joined.size, 2);
    EXPECT_EQ(joined.local_rank, dsgd_local_rank(session));
    EXPECT_EQ(joined.local_size, 2);
    EXPECT_EQ(joined.view, dsgd_view(session));
    EXPECT_EQ(joined.replicas, 1);
    EXPECT_EQ(joined.steps, 0);
    ids[rank] = joined.id;
    Trainer trainer{session};
    trainer.build();
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
    EXPECT_EQ(info_of(session).state, DSGD_SESSION_STARTED);
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(info_of(session).steps, step);
      dsgd_step_result result;
      dsgd_step_result_init(&result, sizeof result);
      DSGD_OK_OR_FAIL(dsgd_step(session, 1, &result, error_));
      EXPECT_EQ(result.step, step);
    }
    EXPECT_EQ(info_of(session).state, DSGD_SESSION_STARTED);
    DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));
    const dsgd_session_info closed = info_of(session);
    EXPECT_EQ(closed.state, DSGD_SESSION_CLOSED);
    EXPECT_EQ(closed.steps, 3);
    EXPECT_EQ(closed.rank, rank);
    EXPECT_EQ(closed.id, joined.id);
  });
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_NE(ids[0], 0u);
}

TEST(Info, AStepThatFailedInAgreementLeavesTheSessionStarted) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session};
    trainer.build();
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
    if (rank == 1) DSGD_OK_OR_FAIL(dsgd_learning_rate_set(session, 0.5, error_));
    EXPECT_EQ(dsgd_step(session, 1, nullptr, nullptr), DSGD_ERR_MISMATCH);
    EXPECT_EQ(info_of(session).state, DSGD_SESSION_STARTED);
    EXPECT_EQ(info_of(session).steps, 0);
    DSGD_OK_OR_FAIL(dsgd_learning_rate_set(session, 0.5, error_));
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    EXPECT_EQ(info_of(session).steps, 1);
  });
}

TEST(Info, ASessionIsTornAfterAStepThatFoundDifferentModels) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session};
    trainer.build();
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
    if (rank == 1) trainer.value[2] += 1;
    int32_t status = DSGD_OK;
    int steps = 0;
    for (; status == DSGD_OK && steps < 65; ++steps) {
      EXPECT_EQ(info_of(session).state, DSGD_SESSION_STARTED);
      status = dsgd_step(session, 1, nullptr, nullptr);
    }
    ASSERT_EQ(status, DSGD_ERR_DIVERGED);
    const dsgd_session_info torn = info_of(session);
    EXPECT_EQ(torn.state, DSGD_SESSION_TORN);
    EXPECT_EQ(torn.steps, steps - 1);
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
    EXPECT_EQ(dsgd_step(session, 1, nullptr, nullptr), DSGD_ERR_DIVERGED);
    EXPECT_EQ(info_of(session).state, DSGD_SESSION_TORN);
  });
}

// A gradient that is never marked ends the step at its deadline, when its other half may have been applied
// elsewhere.
TEST(Info, ASessionIsTornAfterAStepThatRanOutOfTime) {
  run_job(2, {{"step_timeout", "300ms"}}, [&](dsgd_session* session, int) {
    Trainer trainer{session};
    trainer.build();
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, nullptr, &op, error_));
    EXPECT_EQ(dsgd_op_wait(op, -1, nullptr), DSGD_ERR_TIMEOUT);
    dsgd_op_free(op);
    const int32_t state = info_of(session).state;
    const int32_t next = dsgd_step(session, 1, nullptr, nullptr);
    EXPECT_EQ(state, DSGD_SESSION_TORN) << "the next step gives " << dsgd_status_name(next);
    EXPECT_EQ(next, DSGD_ERR_TORN);
    EXPECT_EQ(info_of(session).steps, 0);
  });
}

TEST(Info, ASessionHasFailedOnAllWorkersAfterAnAbort) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session};
    trainer.build();
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
    if (rank == 1) DSGD_OK_OR_FAIL(dsgd_abort(session, "no more data", error_));
    EXPECT_EQ(dsgd_barrier(session, nullptr, nullptr, nullptr, nullptr), DSGD_ERR_ABORTED);
    EXPECT_EQ(info_of(session).state, DSGD_SESSION_FAILED);
    DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));
    EXPECT_EQ(info_of(session).state, DSGD_SESSION_CLOSED);
  });
}

// As many replicas as `devices` has entries for this worker, before any is added.
TEST(Info, CountsTheReplicasThatDevicesAsksFor) {
  // `auto` is then one replica on the cpu, however many each worker may take.
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const struct {
    const char *devices, *each;
    int replicas;
  } kCases[] = {{"cpu", "0", 1},
                {"cpu,cpu,cpu", "0", 3},
                {"cpu,cpu,cpu,cpu", "2", 2},
                {"auto", "0", 1},
                {"auto", "3", 1}};
  for (const auto& [devices, each, replicas] : kCases) {
    run_job(2, {{"devices", devices}, {"devices_per_worker", each}},
            [&, wanted = replicas, text = devices](dsgd_session* session, int) {
              const int32_t told = info_of(session).replicas;
              EXPECT_EQ(told, wanted) << text;
              for (int32_t added = 0; added < told; ++added)
                DSGD_OK_OR_FAIL(dsgd_replica_add(session, nullptr, nullptr, error_));
              EXPECT_LT(dsgd_replica_add(session, nullptr, nullptr, nullptr), 0)
                  << text << " has no more entries";
              EXPECT_EQ(info_of(session).replicas, wanted);
            });
  }
}

TEST(Fingerprint, ThatDiffersIsAMismatchAtStartThatShowsBoth) {
  const auto prepare = [](dsgd_config* config) {
    const bool odd = std::string(dsgd_config_value(config, "rank")) == "1";
    DSGD_OK_OR_FAIL(
        dsgd_config_set(config, "fingerprint", odd ? "model 7, numpy 2.1" : "model 8, numpy 2.1", error_));
  };
  const auto body = [](dsgd_session* session, int) {
    Trainer trainer{session};
    trainer.build();
    Error error;
    EXPECT_EQ(dsgd_start(session, nullptr, nullptr, error), DSGD_ERR_MISMATCH);
    EXPECT_EQ(error.rank(), 1);
    for (const char* text : {"fingerprint = model 7, numpy 2.1", "fingerprint = model 8, numpy 2.1"}) {
      EXPECT_NE(error.message().find(text), std::string::npos) << error.message();
    }
  };
  run_job(3, {}, body, prepare);
}

TEST(Fingerprint, ThatIsEqualLetsTheJobStart) {
  run_job(2, {{"fingerprint", "model 8"}}, [](dsgd_session* session, int) {
    Trainer trainer{session};
    trainer.build();
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
  });
}

}  // namespace
}  // namespace dsgd_test::info_test
