// Options of operations: channels, whose calls need no common order; deadlines; the host's data.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "job.h"
#include "tests/unit/sanitizer.h"

namespace dsgd_test::channels_test {
namespace {

dsgd_op_options on_channel(uint32_t channel, int32_t timeout_ms = -1, void* user_data = nullptr) {
  dsgd_op_options options;
  EXPECT_EQ(dsgd_op_options_init(&options, sizeof options), DSGD_OK);
  options.channel = channel, options.timeout_ms = timeout_ms, options.user_data = user_data;
  return options;
}

int32_t sum(dsgd_session* session, std::vector<float>& data, const dsgd_op_options* options, dsgd_op** op,
            dsgd_error** error) {
  return dsgd_allreduce(session, nullptr, data.data(), data.data(), data.size() * sizeof(float), DSGD_FLOAT32,
                        DSGD_SUM, options, op, error);
}

// A model of one parameter.
struct Model {
  dsgd_session* session;
  size_t count;
  float* gradient = nullptr;

  void build() {
    dsgd_replica* replica;
    dsgd_parameter* parameter;
    const auto shape = static_cast<int64_t>(count);
    void *value, *memory;
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "p", DSGD_FLOAT32, &shape, 1, 0, &parameter, error_));
    DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameter, &value, &memory, error_));
    gradient = static_cast<float*>(memory);
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
  }
  void compute(int rank, int step) { std::fill_n(gradient, count, static_cast<float>(rank + step)); }
};

TEST(Channels, ThreadsNeedNoCommonOrderBesideSteps) {
  const int calls = 40 / one_of(1, 4), steps = 20 / one_of(1, 4);
  for (const char* algorithm : {"auto", "ring"}) {
    run_job(3, {{"algorithm", algorithm}}, [&](dsgd_session* session, int rank) {
      Model model{session, 300000};
      model.build();
      std::vector<std::thread> threads;
      for (uint32_t channel = 1; channel < DSGD_CHANNELS; ++channel) {
        threads.emplace_back([=] {
          const dsgd_op_options options = on_channel(channel);
          for (int call = 0; call < calls; ++call) {
            std::vector<float> data(call % 4 == 0 ? 200000 : 5,
                                    static_cast<float>(static_cast<int>(channel) * 100 + call));
            Error error;
            ASSERT_EQ(sum(session, data, &options, nullptr, error), DSGD_OK) << error.message();
            ASSERT_EQ(data,
                      std::vector<float>(data.size(),
                                         3.0f * static_cast<float>(static_cast<int>(channel) * 100 + call)));
          }
        });
      }
      for (int step = 0; step < steps; ++step) {
        model.compute(rank, step);
        DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
      }
      for (std::thread& thread : threads) thread.join();
      uint64_t digest = 0;
      DSGD_OK_OR_FAIL(dsgd_digest(session, &digest, error_));
      std::vector<uint64_t> all(3);
      DSGD_OK_OR_FAIL(dsgd_allgather(session, nullptr, &digest, 8, all.data(), 24, nullptr, DSGD_INT64,
                                     nullptr, nullptr, error_));
      ASSERT_EQ(all[0], all[1]);
      ASSERT_EQ(all[0], all[2]);
    });
  }
}

// The peers of channel 1 come only after all of channel 0 is over.
TEST(Channels, ALateChannelHoldsUpNoOther) {
  run_job(2, {}, [](dsgd_session* session, int rank) {
    constexpr size_t kOps = 30;
    const dsgd_op_options options = on_channel(1);
    std::vector<std::vector<float>> data(kOps, std::vector<float>(50000, 1));
    std::vector<dsgd_op*> ops(kOps);
    const auto begin_channel = [&] {
      for (size_t n = 0; n < kOps; ++n) {
        Error error;
        ASSERT_EQ(sum(session, data[n], &options, &ops[n], error), DSGD_OK) << error.message();
      }
    };
    if (rank == 0) begin_channel();
    for (int call = 0; call < 30; ++call) {
      std::vector<float> large(100000, static_cast<float>(call));
      DSGD_OK_OR_FAIL(sum(session, large, nullptr, nullptr, error_));
      ASSERT_EQ(large, std::vector<float>(large.size(), 2.0f * static_cast<float>(call)));
    }
    if (rank == 1) begin_channel();
    for (size_t n = 0; n < kOps; ++n) {
      DSGD_OK_OR_FAIL(dsgd_op_wait(ops[n], -1, error_));
      ASSERT_EQ(data[n], std::vector<float>(data[n].size(), 2));
      dsgd_op_free(ops[n]);
    }
  });
}

TEST(Channels, ADisagreementNamesTheChannelAndLeavesTheOthersAlone) {
  run_job(2, {}, [](dsgd_session* session, int rank) {
    const dsgd_op_options options = on_channel(2);
    dsgd_op* other = nullptr;
    std::vector<float> data(7, 1), right(3, 1);
    DSGD_OK_OR_FAIL(sum(session, data, nullptr, &other, error_));
    Error error;
    std::vector<float> unlike(rank == 0 ? 4 : 5, 1);
    ASSERT_EQ(sum(session, unlike, &options, nullptr, error), DSGD_ERR_MISMATCH);
    EXPECT_NE(error.message().find("4 elements"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("5 elements"), std::string::npos) << error.message();
    DSGD_OK_OR_FAIL(dsgd_op_wait(other, -1, error_));
    dsgd_op_free(other);
    DSGD_OK_OR_FAIL(sum(session, right, &options, nullptr, error_));
    ASSERT_EQ(right, std::vector<float>(3, 2));
  });
}

TEST(Options, ADeadlineOfItsOwnEndsAnOperationOnAllWorkersAndNamesTheChannel) {
  std::atomic<bool> told{false};
  run_job(2, {{"step_timeout", "300s"}}, [&](dsgd_session* session, int rank) {
    if (rank == 0) {
      const dsgd_op_options options = on_channel(3, 150);
      const auto begun = std::chrono::steady_clock::now();
      std::vector<float> data(100000, 1);
      Error error;
      EXPECT_EQ(sum(session, data, &options, nullptr, error), DSGD_ERR_TIMEOUT);
      EXPECT_EQ(error.rank(), 1);
      EXPECT_NE(error.message().find("call 1 of channel 3"), std::string::npos) << error.message();
      EXPECT_NE(error.message().find("within timeout = 150 ms"), std::string::npos) << error.message();
      EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(60));
      told = true;
    } else {
      while (!told) std::this_thread::yield();
      const dsgd_op_options options = on_channel(3);
      std::vector<float> data(100000, 1);
      EXPECT_EQ(sum(session, data, &options, nullptr, nullptr), DSGD_ERR_TIMEOUT);
    }
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
  });
}

TEST(Options, AStepMayHaveADeadlineAndBringsTheHostsDataBack) {
  run_job(2, {}, [](dsgd_session* session, int rank) {
    Model model{session, 10};
    model.build();
    model.compute(rank, 0);
    int mine = 0;
    const dsgd_op_options options = on_channel(0, 60000, &mine);
    dsgd_op *step = nullptr, *ended = nullptr;
    DSGD_OK_OR_FAIL(dsgd_step_begin(session, 1, &options, &step, error_));
    EXPECT_EQ(dsgd_op_user_data(step), &mine);
    DSGD_OK_OR_FAIL(dsgd_step_flush(session, error_));
    size_t count = 0;
    DSGD_OK_OR_FAIL(dsgd_queue_poll(session, &ended, 1, -1, &count, error_));
    EXPECT_EQ(dsgd_op_user_data(ended), &mine);
    dsgd_op_free(ended);
    dsgd_op_free(step);
    EXPECT_EQ(dsgd_op_user_data(nullptr), nullptr);
  });
}

TEST(Buffers, AnAllReduceLeavesItsSendBufferAlone) {
  run_job(3, {}, [](dsgd_session* session, int rank) {
    for (size_t count : {0, 1, 5, 100000}) {
      std::vector<float> send(count, static_cast<float>(rank + 1)), receive(count, -1);
      DSGD_OK_OR_FAIL(dsgd_allreduce(session, nullptr, send.data(), receive.data(), count * 4, DSGD_FLOAT32,
                                     DSGD_SUM, nullptr, nullptr, error_));
      ASSERT_EQ(send, std::vector<float>(count, static_cast<float>(rank + 1)));
      ASSERT_EQ(receive, std::vector<float>(count, 6));
    }
    std::vector<float> data(10);
    Error error;
    EXPECT_EQ(dsgd_allreduce(session, nullptr, data.data(), data.data() + 1, 16, DSGD_FLOAT32, DSGD_SUM,
                             nullptr, nullptr, error),
              DSGD_ERR_INVALID_ARGUMENT);
    EXPECT_NE(error.message().find("overlap"), std::string::npos) << error.message();
  });
}

}  // namespace
}  // namespace dsgd_test::channels_test
