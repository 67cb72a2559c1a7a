// Joining as an operation: dsgd_init_begin, its waits, its deadline, and what ends it early.
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "job.h"

namespace dsgd_test::join_test {
namespace {

using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::Not;

// Long enough that no test ends by it, and a defect does not hang for ever.
constexpr const char* kPatience = "120s";

// Joins a job of several workers, or has begun to.
struct Joining {
  explicit Joining(const Settings& settings, const dsgd_op_options* options = nullptr) {
    dsgd_config* config = dsgd_config_new();
    for (const auto& [key, value] : settings)
      EXPECT_EQ(dsgd_config_set(config, key.c_str(), value.c_str(), nullptr), DSGD_OK) << key;
    Error error;
    status = dsgd_init_begin(config, options, &session, &op, error);
    EXPECT_EQ(status, DSGD_OK) << error.message();
    dsgd_config_free(config);
  }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;
  ~Joining() {
    dsgd_op_free(op);
    dsgd_session_free(session);
  }
  // Waits until the head has taken this worker in.
  void await_rendezvous(const std::string& progress) {
    for (;;) {
      Error error;
      ASSERT_EQ(dsgd_op_wait(op, 20, error), DSGD_ERR_WAIT_TIMEOUT) << error.message();
      if (error.message().find(progress) != std::string::npos) return;
    }
  }

  dsgd_session* session = nullptr;
  dsgd_op* op = nullptr;
  int32_t status;
};

struct Head {
  explicit Head(int workers) {
    dsgd_config* config = dsgd_config_new();
    for (const auto& [key, value] :
         Settings{{"head", "127.0.0.1:0"}, {"num_workers", std::to_string(workers)}, {"lease", "1s"}}) {
      EXPECT_EQ(dsgd_config_set(config, key.c_str(), value.c_str(), nullptr), DSGD_OK) << key;
    }
    Error error;
    EXPECT_EQ(dsgd_head_start(config, &head, error), DSGD_OK) << error.message();
    dsgd_config_free(config);
  }
  ~Head() { dsgd_head_free(head); }
  Settings settings(int workers) const {
    return {{"head", dsgd_head_address(head)},
            {"num_workers", std::to_string(workers)},
            {"init_timeout", kPatience},
            {"embed_head", "never"},
            {"lease", "1s"}};
  }
  dsgd_head* head = nullptr;
};

TEST(Join, AloneEndsAtOnceAndGivesASessionThatTrains) {
  Joining alone(Settings{{"num_workers", "1"}});
  DSGD_OK_OR_FAIL(dsgd_op_wait(alone.op, -1, error_));
  EXPECT_EQ(dsgd_rank(alone.session), 0);
  EXPECT_EQ(dsgd_size(alone.session), 1);
  DSGD_OK_OR_FAIL(dsgd_barrier(alone.session, nullptr, nullptr, nullptr, error_));
}

TEST(Join, OfAllWorkersEndsTheOpsOfAll) {
  const Head head(2);
  Joining first(head.settings(2)), second(head.settings(2));
  DSGD_OK_OR_FAIL(dsgd_op_wait(first.op, -1, error_));
  DSGD_OK_OR_FAIL(dsgd_op_wait(second.op, -1, error_));
  EXPECT_EQ(dsgd_rank(first.session) + dsgd_rank(second.session), 1);
  EXPECT_EQ(dsgd_size(first.session), 2);
  std::thread other(
      [&] { DSGD_OK_OR_FAIL(dsgd_barrier(second.session, nullptr, nullptr, nullptr, error_)); });
  DSGD_OK_OR_FAIL(dsgd_barrier(first.session, nullptr, nullptr, nullptr, error_));
  other.join();
}

TEST(Join, EndsInTheQueueWithItsUserData) {
  int mine = 0;
  dsgd_op_options options = with_timeout(-1);
  options.user_data = &mine;
  Joining alone(Settings{{"num_workers", "1"}}, &options);
  dsgd_op* ended = nullptr;
  size_t count = 0;
  DSGD_OK_OR_FAIL(dsgd_queue_poll(alone.session, &ended, 1, 60000, &count, error_));
  EXPECT_EQ(ended, alone.op);
  EXPECT_EQ(dsgd_op_user_data(ended), &mine);
  dsgd_op_free(ended);
}

TEST(Join, AWaitThatRunsOutTellsHowManyHaveCome) {
  const Head head(2);
  Joining first(head.settings(2));
  first.await_rendezvous("1 of 2 workers have joined");
}

TEST(Join, ASessionThatIsJoiningRefusesOtherCalls) {
  const Head head(2);
  Joining first(head.settings(2));
  Error error;
  EXPECT_EQ(dsgd_barrier(first.session, nullptr, nullptr, nullptr, error), DSGD_ERR_STATE);
  EXPECT_THAT(error.message(), HasSubstr("still joining"));
  EXPECT_EQ(dsgd_rank(first.session), DSGD_ERR_STATE);
  EXPECT_GE(dsgd_queue_fd(first.session), 0);
}

TEST(Join, AbortEndsItAtOnceWhileAnotherWorkerIsAbsent) {
  const Head head(2);
  Joining first(head.settings(2));
  first.await_rendezvous("1 of 2");
  const auto before = steady_clock::now();
  DSGD_OK_OR_FAIL(dsgd_op_abort(first.op, "not today", error_));
  Error error;
  EXPECT_EQ(dsgd_op_wait(first.op, -1, error), DSGD_ERR_ABORTED);
  EXPECT_LT(steady_clock::now() - before, std::chrono::seconds(60)) << "init_timeout is twice as long";
  EXPECT_THAT(error.message(), HasSubstr("not today"));
  // Then the session can only be closed and freed.
  Error again;
  EXPECT_EQ(dsgd_barrier(first.session, nullptr, nullptr, nullptr, again), DSGD_ERR_ABORTED);
  EXPECT_THAT(again.message(), HasSubstr("not today"));
  EXPECT_EQ(dsgd_size(first.session), DSGD_ERR_ABORTED);
  DSGD_OK_OR_FAIL(dsgd_close(first.session, -1, error_));
}

TEST(Join, AbortBeforeAHeadIsThereEndsItAtOnce) {
  // No process listens at port 1.
  Joining first(Settings{
      {"head", "127.0.0.1:1"}, {"num_workers", "2"}, {"embed_head", "never"}, {"init_timeout", kPatience}});
  DSGD_OK_OR_FAIL(dsgd_abort(first.session, "no head", error_));
  EXPECT_EQ(dsgd_op_wait(first.op, -1, nullptr), DSGD_ERR_ABORTED);
}

TEST(Join, AbortIsToldToTheOtherWorkersAndToTheHead) {
  const Head head(3);
  Joining first(head.settings(3)), second(head.settings(3));
  first.await_rendezvous("2 of 3");
  second.await_rendezvous("2 of 3");
  DSGD_OK_OR_FAIL(dsgd_abort(first.session, "the disk is full", error_));
  for (Joining* joining : {&first, &second}) {
    Error error;
    EXPECT_EQ(dsgd_op_wait(joining->op, -1, error), DSGD_ERR_ABORTED);
    EXPECT_THAT(error.message(), HasSubstr("the disk is full"));
    EXPECT_STRNE(dsgd_error_host(error.error), "");
  }
  Error of_head;
  EXPECT_EQ(dsgd_head_wait(head.head, 60000, of_head), DSGD_ERR_ABORTED);
  EXPECT_THAT(of_head.message(), HasSubstr("the disk is full"));
}

// The worker that hosts the head stays until the others know.
TEST(Join, AbortByTheHeadsOwnWorkerIsToldToTheOthers) {
  const std::string path = ::testing::TempDir() + "dsgd_join_" + std::to_string(getpid());
  const Settings settings{
      {"head", "unix:" + path}, {"num_workers", "3"}, {"init_timeout", kPatience}, {"lease", "1s"}};
  Joining host(settings);
  host.await_rendezvous("1 of 3");
  Joining other(settings);
  other.await_rendezvous("2 of 3");
  DSGD_OK_OR_FAIL(dsgd_abort(host.session, "wrong data set", error_));
  DSGD_OK_OR_FAIL(dsgd_close(host.session, -1, error_));
  Error error;
  EXPECT_EQ(dsgd_op_wait(other.op, -1, error), DSGD_ERR_ABORTED);
  EXPECT_THAT(error.message(), HasSubstr("wrong data set"));
}

TEST(Join, CloseLeavesThePlaceToAnotherWorker) {
  const Head head(2);
  auto first = std::make_unique<Joining>(head.settings(2));
  first->await_rendezvous("1 of 2");
  DSGD_OK_OR_FAIL(dsgd_close(first->session, -1, error_));
  EXPECT_EQ(dsgd_op_wait(first->op, -1, nullptr), DSGD_ERR_CLOSED);
  Joining second(head.settings(2)), third(head.settings(2));
  DSGD_OK_OR_FAIL(dsgd_op_wait(second.op, -1, error_));
  DSGD_OK_OR_FAIL(dsgd_op_wait(third.op, -1, error_));
}

TEST(Join, ItsOwnDeadlineEndsIt) {
  const Head head(2);
  const dsgd_op_options options = with_timeout(300);
  Joining first(head.settings(2), &options);
  Error error;
  EXPECT_EQ(dsgd_op_wait(first.op, -1, error), DSGD_ERR_TIMEOUT);
  EXPECT_THAT(error.message(), HasSubstr("timeout = 300 ms"));
  EXPECT_EQ(dsgd_rank(first.session), DSGD_ERR_TIMEOUT) << "the session answers with the error of its op";
}

TEST(Join, FreeingTheOpDoesNotEndIt) {
  const Head head(2);
  Joining first(head.settings(2));
  dsgd_op_free(std::exchange(first.op, nullptr));
  Joining second(head.settings(2));
  DSGD_OK_OR_FAIL(dsgd_op_wait(second.op, -1, error_));
  while (dsgd_rank(first.session) == DSGD_ERR_STATE) std::this_thread::yield();
  EXPECT_GE(dsgd_rank(first.session), 0);
}

// Else workers for which the head's name leads to different machines would become two heads.
TEST(Join, WhereRanksAreGivenOnlyRankZeroBecomesTheHead) {
  const std::string address = "unix:" + ::testing::TempDir() + "dsgd_join_rank_" + std::to_string(getpid());
  const auto settings = [&](const char* rank, const char* init_timeout) {
    return Settings{{"head", address},
                    {"num_workers", "2"},
                    {"rank", rank},
                    {"init_timeout", init_timeout},
                    {"log_level", "info"}};
  };
  Joining second(settings("1", "1s"));
  Error error;
  EXPECT_EQ(dsgd_op_wait(second.op, -1, error), DSGD_ERR_UNREACHABLE);
  EXPECT_THAT(error.message(), HasSubstr("could not reach the head"));
  EXPECT_THAT(logged(second.session), Not(HasSubstr("this process is the head")));
  Joining first(settings("0", kPatience));
  first.await_rendezvous("1 of 2");
  EXPECT_THAT(logged(first.session), HasSubstr("this process is the head"));
}

TEST(Join, AWorkerThatMayNotHostTheHeadDoesNotTry) {
  const Head head(2);
  Settings settings = head.settings(2);
  settings["log_level"] = "info";
  Joining first(settings), second(settings);
  for (Joining* joining : {&first, &second}) {
    DSGD_OK_OR_FAIL(dsgd_op_wait(joining->op, -1, error_));
    EXPECT_THAT(logged(joining->session), Not(HasSubstr("the head is not in this process")));
  }
}

// Joining has a last timer 50 ms after its deadline. Each session is freed at about that moment.
TEST(Join, ASessionMayBeFreedAtAnyMomentAfterItsDeadline) {
  const dsgd_op_options options = with_timeout(1);
  for (int i = 0; i < 60; ++i) {
    const auto moment = steady_clock::now() + std::chrono::microseconds(49'500 + 20 * i);
    Joining alone(Settings{{"head", "127.0.0.1:1"}, {"num_workers", "2"}, {"embed_head", "never"}}, &options);
    EXPECT_NE(dsgd_op_wait(alone.op, -1, nullptr), DSGD_OK);
    std::this_thread::sleep_until(moment);
  }
}

TEST(Join, AFreedSessionEndsIt) {
  const Head head(2);
  Joining first(head.settings(2));
  dsgd_session_free(std::exchange(first.session, nullptr));
  EXPECT_EQ(dsgd_op_wait(first.op, -1, nullptr), DSGD_ERR_CLOSED);
}

}  // namespace
}  // namespace dsgd_test::join_test
