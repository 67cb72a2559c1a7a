// A process that exits while its sessions are at work: it ends with the status that it has given, soon,
// whatever is called on the way out. What the program registers with atexit(), and its destructors, find its
// sessions alive; what runs later, such as the destructors of a library that knows dsgd only by dlopen(),
// gets errors and never waits.

#include <cxxabi.h>
#include <dsgd/dsgd.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

dsgd_head* head = nullptr;
dsgd_session* alone = nullptr;  // of a job of its own
dsgd_session* training[2];
dsgd_op* barrier = nullptr;
std::atomic<int> steps{0};
float values[2][5000], gradients[2][5000];

void check(bool right, const char* what) {
  if (right) return;
  const std::string text = std::string("wrong: ") + what + "\n";
  if (write(2, text.data(), text.size()) < 0) _exit(98);
  _exit(99);
}

dsgd_session* open_session(const char* address, int workers, int rank) {
  dsgd_config* config = dsgd_config_new();
  dsgd_config_set(config, "num_workers", std::to_string(workers).c_str(), nullptr);
  if (workers > 1) {
    dsgd_config_set(config, "head", address, nullptr);
    dsgd_config_set(config, "embed_head", "never", nullptr);
    dsgd_config_set(config, "rank", std::to_string(rank).c_str(), nullptr);
  }
  dsgd_session* session = nullptr;
  check(dsgd_init(config, &session, nullptr) == DSGD_OK, "dsgd_init");
  dsgd_config_free(config);
  dsgd_parameter* parameter = nullptr;
  dsgd_replica* replica = nullptr;
  const int64_t count = 5000;
  check(dsgd_parameter_add(session, "p", DSGD_FLOAT32, &count, 1, 0, &parameter, nullptr) == DSGD_OK,
        "dsgd_parameter_add");
  check(dsgd_replica_add(session, "cpu", &replica, nullptr) == DSGD_OK, "dsgd_replica_add");
  if (workers > 1) {
    check(dsgd_bind(replica, parameter, values[rank], sizeof values[rank], gradients[rank],
                    sizeof gradients[rank], nullptr) == DSGD_OK,
          "dsgd_bind");
  } else {
    void *value, *gradient;
    check(dsgd_alloc(replica, parameter, &value, &gradient, nullptr) == DSGD_OK, "dsgd_alloc");
  }
  check(dsgd_start(session, nullptr, nullptr, nullptr) == DSGD_OK, "dsgd_start");
  return session;
}

// Two workers that step for as long as they can, on threads of this process.
void train() {
  dsgd_config* config = dsgd_config_new();
  dsgd_config_set(config, "head", "127.0.0.1:0", nullptr);
  dsgd_config_set(config, "num_workers", "2", nullptr);
  check(dsgd_head_start(config, &head, nullptr) == DSGD_OK, "dsgd_head_start");
  dsgd_config_free(config);
  for (int rank = 0; rank < 2; ++rank) {
    std::thread([rank] {
      training[rank] = open_session(dsgd_head_address(head), 2, rank);
      while (dsgd_step(training[rank], 1, nullptr, nullptr) == DSGD_OK) ++steps;
    }).detach();
  }
  while (steps < 20) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Registered before there is any session.
void on_exit_of_the_host() {
  check(dsgd_step(alone, 1, nullptr, nullptr) == DSGD_OK, "a step in a function given to atexit()");
}
__attribute__((destructor)) void destructor_of_the_host() {
  if (alone)
    check(dsgd_barrier(alone, nullptr, nullptr, &barrier, nullptr) == DSGD_OK,
          "dsgd_barrier in a destructor");
}

// Registered before dsgd was loaded, and not with the program's own functions: all libraries have been
// finalized.
void after_all_others(void*) {
  if (!alone) return;
  uint64_t digest;
  size_t count;
  dsgd_op* op;
  check(dsgd_rank(alone) == DSGD_ERR_CLOSED, "dsgd_rank");
  check(dsgd_step(alone, 1, nullptr, nullptr) == DSGD_ERR_CLOSED, "dsgd_step");
  check(dsgd_digest(alone, &digest, nullptr) == DSGD_ERR_CLOSED, "dsgd_digest");
  check(dsgd_barrier(alone, nullptr, nullptr, nullptr, nullptr) == DSGD_ERR_CLOSED, "dsgd_barrier");
  check(dsgd_queue_poll(alone, &op, 1, -1, &count, nullptr) == DSGD_ERR_CLOSED, "dsgd_queue_poll");
  (void)dsgd_op_wait(barrier, -1, nullptr);  // it may have ended
  check(dsgd_abort(alone, "late", nullptr) == DSGD_ERR_CLOSED, "dsgd_abort");
  check(dsgd_close(alone, -1, nullptr) == DSGD_ERR_CLOSED, "dsgd_close");
  check(dsgd_head_wait(head, -1, nullptr) == DSGD_ERR_CLOSED, "dsgd_head_wait");
  dsgd_op_free(barrier);
  dsgd_finalize(alone);
  dsgd_head_free(head);
}

void before_libraries_are_initialized(int, char**, char**) {
  __cxxabiv1::__cxa_atexit(after_all_others, nullptr, nullptr);
}
__attribute__((section(".preinit_array"),
               used)) void (*const preinit)(int, char**, char**) = before_libraries_are_initialized;

class ProcessExit : public testing::Test {
 protected:
  // A process of its own, that begins anew.
  ProcessExit() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(ProcessExit, InTheMidstOfStepsLeavesTheHostsStatus) {
  for (int after : {0, 1, 2, 3, 5, 8}) {
    EXPECT_EXIT(
        {
          train();
          std::this_thread::sleep_for(std::chrono::milliseconds(after));
          std::exit(7);
        },
        testing::ExitedWithCode(7), "");
  }
}

TEST_F(ProcessExit, TheHostsOwnFunctionsFindSessionsAliveAndLaterOnesGetErrors) {
  EXPECT_EXIT(
      {
        std::atexit(on_exit_of_the_host);
        alone = open_session("", 1, 0);
        train();
        std::exit(7);
      },
      testing::ExitedWithCode(7), "");
}

#ifndef DSGD_SANITIZED_ADDRESS  // its allocator does not survive a fork while another thread is inside it
// In a forked child the sessions are the parent's, and so are the locks around them.
TEST_F(ProcessExit, OfAForkedChildIsItsOwn) {
  EXPECT_EXIT(
      {
        train();
        const pid_t child = fork();
        if (child == 0) std::exit(0);
        int status = -1;
        check(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the child's status");
        const int before = steps;
        while (steps < before + 20) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::exit(7);
      },
      testing::ExitedWithCode(7), "");
}
#endif

}  // namespace
