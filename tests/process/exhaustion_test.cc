// A worker that cannot allocate large buffers, those whose size the host chooses (of parameters, buckets,
// chunks and objects): each call ends, with DSGD_ERR_NO_MEMORY or well, the other worker's too, and the host
// process goes on. The operators new and delete of this program, which libdsgd and its libraries use, refuse.

#include <dsgd/dsgd.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/metrics.h"

namespace {

constexpr size_t kLarge = 16 << 10;
std::atomic<bool> armed{false};
std::atomic<int64_t> granted{0};  // large allocations until all further ones are refused
std::atomic<int64_t> refused{0};
thread_local int fails_in = -1;  // allocations of this thread until one fails; -1: none does

void* get(size_t size, size_t alignment) {
  if (fails_in >= 0 && fails_in-- == 0) return nullptr;
  if (armed && size >= kLarge && granted-- <= 0) {
    ++refused;
    return nullptr;
  }
  return alignment ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
                   : std::malloc(size);
}

void* get_or_throw(size_t size, size_t alignment) {
  if (void* memory = get(size, alignment)) return memory;
  throw std::bad_alloc();
}

// Not inline: the compiler would see free() called on what operator new returned.
__attribute__((noinline)) void put(void* memory) { std::free(memory); }

}  // namespace

void* operator new(size_t size) { return get_or_throw(size, 0); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return get(size, 0); }
void* operator new(size_t size, std::align_val_t to) { return get_or_throw(size, static_cast<size_t>(to)); }
void* operator new(size_t size, std::align_val_t to, const std::nothrow_t&) noexcept {
  return get(size, static_cast<size_t>(to));
}
void operator delete(void* memory) noexcept { put(memory); }
void operator delete(void* memory, size_t) noexcept { put(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { put(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { put(memory); }

namespace {

constexpr int kWorkers = 2, kCalls = 3;
constexpr int64_t kCount = 1'000'000;  // values of the parameter

// Reports of the workers to the test, in memory that the processes share.
struct Report {
  std::atomic<int> ready;           // how many have begun the calls
  std::atomic<int> failed[2];       // the first call's error, or DSGD_OK
  std::atomic<int64_t> refused;     // how often the poor worker was refused memory
  std::atomic<int64_t> closing[2];  // milliseconds
  char messages[2][500];
  char address[100];
  std::atomic<bool> listening;
};

struct Worker {
  int rank;
  Report* report;
  dsgd_session* session = nullptr;
  int calls = 0;
  // 2 * kCount floats. Freed when a call has failed, since dsgd no longer uses it then.
  float* buffer = nullptr;

  size_t nbytes() const { return static_cast<size_t>(kCount) * sizeof(float); }
  float* values() { return buffer; }
  float* gradients() { return buffer + kCount; }

  void expect(int32_t status, const dsgd_error* const& error) {
    if (status == DSGD_OK) return;
    std::fprintf(stderr, "rank %d: %s\n", rank, dsgd_error_message(error));
    std::_Exit(3);
  }
  void open(const char* strategy) {
    dsgd_error* error = nullptr;
    dsgd_config* config = dsgd_config_new();
    buffer = static_cast<float*>(
        mmap(nullptr, 2 * nbytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (const auto& [key, value] :
         std::vector<std::pair<const char*, std::string>>{{"num_workers", "2"},
                                                          {"head", report->address},
                                                          {"embed_head", "never"},
                                                          {"rank", std::to_string(rank)},
                                                          {"step_timeout", "10s"},
                                                          {"strategy", strategy},
                                                          {"bucket_size", "1M"}}) {
      expect(dsgd_config_set(config, key, value.c_str(), &error), error);
    }
    expect(dsgd_init(config, &session, &error), error);
    dsgd_config_free(config);
    dsgd_parameter* parameter = nullptr;
    dsgd_replica* replica = nullptr;
    expect(dsgd_parameter_add(session, "p", DSGD_FLOAT32, &kCount, 1, 0, &parameter, &error), error);
    expect(dsgd_replica_add(session, "cpu", &replica, &error), error);
    expect(dsgd_bind(replica, parameter, values(), nbytes(), gradients(), nbytes(), &error), error);
  }
};

using Call = std::function<int32_t(Worker&, dsgd_error**)>;

// The poor worker is granted `large` large allocations from the first call on.
[[noreturn]] void work(Report* report, int rank, bool poor, int64_t large, const char* strategy, bool started,
                       const Call& call) {
  static Worker worker;
  worker.rank = rank;
  worker.report = report;
  worker.open(strategy);
  dsgd_error* error = nullptr;
  if (started) worker.expect(dsgd_start(worker.session, nullptr, nullptr, &error), error);
  ++report->ready;
  while (report->ready < kWorkers) std::this_thread::yield();
  if (poor) granted = large, armed = true;
  int32_t status = DSGD_OK;
  for (int i = 0; i < kCalls && status == DSGD_OK; ++i) status = call(worker, &error);
  report->failed[rank] = status;
  if (status != DSGD_OK) {
    if (!*dsgd_error_message(error)) std::_Exit(4);
    std::snprintf(report->messages[rank], sizeof report->messages[rank], "%s: %s", dsgd_status_name(status),
                  dsgd_error_message(error));
  }
  if (status != DSGD_OK) munmap(worker.buffer, 2 * worker.nbytes());
  const auto begin = std::chrono::steady_clock::now();
  if (dsgd_close(worker.session, 1000, nullptr) != DSGD_OK) std::_Exit(5);
  report->closing[rank] =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
  dsgd_finalize(worker.session);
  if (poor) report->refused = refused.load();
  armed = false;
  std::_Exit(0);
}

class Exhaustion : public testing::Test {
 protected:
  Exhaustion()
      : report_(new (mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                    Report) {}
  ~Exhaustion() override { munmap(report_, sizeof(Report)); }

  // Each in processes of its own: a head, and two workers.
  void run(int poor_rank, int64_t large, const char* strategy, bool started, const Call& call) {
    SCOPED_TRACE("rank " + std::to_string(poor_rank) + " is granted " + std::to_string(large) +
                 " large allocations; " + strategy);
    new (report_) Report{};
    const pid_t head = fork();
    if (head == 0) serve();
    while (!report_->listening) std::this_thread::yield();
    pid_t workers[kWorkers];
    for (int rank = 0; rank < kWorkers; ++rank) {
      workers[rank] = fork();
      if (workers[rank] == 0) work(report_, rank, rank == poor_rank, large, strategy, started, call);
    }
    for (int rank = 0; rank < kWorkers; ++rank) {
      EXPECT_EQ(how_it_ends(workers[rank]), "exit 0") << "rank " << rank;
    }
    kill(head, SIGKILL);
    waitpid(head, nullptr, 0);
    refused_ = report_->refused;
    // The time that was asked for, and the time that an end in good order may take.
    for (int rank = 0; rank < kWorkers; ++rank) {
      EXPECT_LT(report_->closing[rank], 8000) << "rank " << rank;
    }
    const int poor = report_->failed[poor_rank], other = report_->failed[1 - poor_rank];
    const std::string messages = std::string(report_->messages[0]) + "\n" + report_->messages[1];
    if (poor != DSGD_OK) ++failed_;
    EXPECT_TRUE(poor == DSGD_OK || poor == DSGD_ERR_NO_MEMORY) << messages;
    EXPECT_TRUE(other == DSGD_OK || other == DSGD_ERR_NO_MEMORY || other == DSGD_ERR_WORKER_LOST) << messages;
    EXPECT_EQ(poor == DSGD_OK, other == DSGD_OK) << messages;
  }

  // One large allocation after the other is the first to be refused.
  void run_all(const char* strategy, bool started, const Call& call) {
    for (int poor = 0; poor < kWorkers; ++poor) {
      refused_ = 1;
      for (int64_t large = 0; refused_ > 0; ++large) run(poor, large, strategy, started, call);
    }
  }

  int failed_ = 0;  // runs whose poor worker was told DSGD_ERR_NO_MEMORY

 private:
  [[noreturn]] void serve() {
    dsgd_config* config = dsgd_config_new();
    dsgd_config_set(config, "head", "127.0.0.1:0", nullptr);
    dsgd_config_set(config, "num_workers", "2", nullptr);
    dsgd_head* head = nullptr;
    if (dsgd_head_start(config, &head, nullptr) != DSGD_OK) std::_Exit(2);
    std::snprintf(report_->address, sizeof report_->address, "%s", dsgd_head_address(head));
    report_->listening = true;
    for (;;) pause();
  }

  static std::string how_it_ends(pid_t process) {
    int status = 0;
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
         std::chrono::steady_clock::now() < end;) {
      if (waitpid(process, &status, WNOHANG) == process) {
        return WIFEXITED(status) ? "exit " + std::to_string(WEXITSTATUS(status))
                                 : "signal " + std::to_string(WTERMSIG(status));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
    return "no end within a minute";
  }

  Report* const report_;
  int64_t refused_ = 0;  // in the last run
};

int32_t step(Worker& worker, dsgd_error** error) { return dsgd_step(worker.session, 1, nullptr, error); }

TEST_F(Exhaustion, InAStartAllCallsEndAndTheHostLives) {
  run_all("allreduce", false, [](Worker& worker, dsgd_error** error) {
    return worker.calls++ == 0 ? dsgd_start(worker.session, nullptr, nullptr, error)
                               : dsgd_barrier(worker.session, nullptr, nullptr, nullptr, error);
  });
  EXPECT_GT(failed_, 0);
}

TEST_F(Exhaustion, InStepsAllCallsEndAndTheHostLives) {
  run_all("allreduce", true, step);
  run_all("ps", true, step);
}

TEST_F(Exhaustion, InAllReducesAllCallsEndAndTheHostLives) {
  run_all("allreduce", true, [](Worker& worker, dsgd_error** error) {
    return dsgd_allreduce(worker.session, nullptr, worker.values(), worker.values(), worker.nbytes(),
                          DSGD_FLOAT32, DSGD_SUM, nullptr, nullptr, error);
  });
}

TEST_F(Exhaustion, WithObjectsAllCallsEndAndTheHostLives) {
  run_all("allreduce", true, [](Worker& worker, dsgd_error** error) {
    const std::string name = "o" + std::to_string(worker.calls++);
    dsgd_object* object = nullptr;
    int32_t status = DSGD_OK;
    if (worker.rank == 0) {
      status = dsgd_object_put(worker.session, name.c_str(), worker.values(), worker.nbytes(), DSGD_FLOAT32,
                               &kCount, 1, nullptr, nullptr, error);
    } else {
      status = dsgd_object_get(worker.session, name.c_str(), nullptr, &object, nullptr, error);
    }
    dsgd_object_free(object);
    if (status == DSGD_OK) status = dsgd_barrier(worker.session, nullptr, nullptr, nullptr, error);
    return status;
  });
  EXPECT_GT(failed_, 0);
}

// Each allocation of the caller's thread fails in turn. The host may free its buffers after the error.
TEST(Refusal, ACallThatFailsForWantOfMemoryHasBegunNothing) {
  dsgd_session* session = nullptr;
  ASSERT_EQ(dsgd_init(nullptr, &session, nullptr), DSGD_OK);
  float values[4] = {1, 2, 3, 4};
  const auto all_reduces = [&] {
    EXPECT_EQ(dsgd_barrier(session, nullptr, nullptr, nullptr, nullptr), DSGD_OK);
    char* text = nullptr;
    EXPECT_EQ(dsgd_metrics(session, &text, nullptr), DSGD_OK);
    const double count = parse_metrics(text)["dsgd_calls_total{call=\"allreduce\"}"];
    dsgd_text_free(text);
    return count;
  };
  int failed = 0;
  for (bool reached = true; reached; ++failed) {
    dsgd_op* op = nullptr;
    fails_in = failed;
    const int32_t status = dsgd_allreduce(session, nullptr, values, values, sizeof values, DSGD_FLOAT32,
                                          DSGD_SUM, nullptr, &op, nullptr);
    reached = fails_in < 0;
    fails_in = -1;
    EXPECT_EQ(status, reached ? DSGD_ERR_NO_MEMORY : DSGD_OK);
    EXPECT_EQ(op == nullptr, reached);
    if (op) {
      EXPECT_EQ(dsgd_op_wait(op, -1, nullptr), DSGD_OK);
    }
    EXPECT_EQ(all_reduces(), reached ? 0 : 1) << "allocation " << failed;
    dsgd_op_free(op);
  }
  EXPECT_GT(failed, 3);
  dsgd_finalize(session);
}

}  // namespace
