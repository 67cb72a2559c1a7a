// Models that differ: one flipped bit in the memory of one replica is found, by the code that says so, at the
// latest where the header promises.

#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <string>
#include <vector>

#include "job.h"
#include "tests/unit/sanitizer.h"

namespace dsgd_test::integrity_test {
namespace {

// Two parameters of several replicas on the cpu, in buffers of dsgd or, where they are bound, of the host;
// gradients are integers.
struct Trainer {
  static constexpr int64_t kCounts[2] = {5000, 700};

  dsgd_session* session;
  std::vector<std::vector<float*>> values = {}, gradients = {};  // by replica, by parameter
  std::vector<float> bound = {};                                 // value and gradient of the bound parameter

  // `bind`: the parameter that is in the host's memory; -1: none is.
  void build(const char* strategy, int replicas = 1, int bind = -1) {
    std::vector<dsgd_parameter*> parameters(2);
    for (size_t p = 0; p < parameters.size(); ++p) {
      DSGD_OK_OR_FAIL(dsgd_parameter_add(session, p == 0 ? "dense.weight" : "dense.bias", DSGD_FLOAT32,
                                         &kCounts[p], 1, 0, &parameters[p], error_));
    }
    for (int r = 0; r < replicas; ++r) {
      dsgd_replica* replica;
      DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
      values.emplace_back(2);
      gradients.emplace_back(2);
      for (size_t p = 0; p < parameters.size(); ++p) {
        float *&value = values.back()[p], *&gradient = gradients.back()[p];
        if (static_cast<int>(p) == bind) {
          const auto count = static_cast<size_t>(kCounts[p]);
          bound.assign(2 * count, 0);
          value = bound.data(), gradient = value + count;
          const size_t nbytes = count * sizeof(float);
          DSGD_OK_OR_FAIL(dsgd_bind(replica, parameters[p], value, nbytes, gradient, nbytes, error_));
          continue;
        }
        DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameters[p], reinterpret_cast<void**>(&value),
                                   reinterpret_cast<void**>(&gradient), error_));
      }
    }
    DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "sgd", "lr=0.5 momentum=0.5", error_));
    DSGD_OK_OR_FAIL(dsgd_strategy_set(session, strategy, nullptr, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
  }
  int32_t step(double weight, dsgd_error** error, dsgd_step_result* result = nullptr) {
    for (auto& of_replica : gradients) {
      for (size_t p = 0; p < 2; ++p) {
        for (int64_t i = 0; i < kCounts[p]; ++i) of_replica[p][i] = static_cast<float>(i % 7 - 3);
      }
    }
    return dsgd_step(session, weight, result, error);
  }
  void flip(int replica, size_t parameter, size_t element) {
    uint32_t bits;
    float* value = &values[static_cast<size_t>(replica)][parameter][element];
    std::memcpy(&bits, value, sizeof bits);
    bits ^= 1u << 21;  // large enough to outlive the rounding of later updates
    std::memcpy(value, &bits, sizeof bits);
  }
};

void expect_names(const Error& error, const std::vector<std::string>& texts) {
  for (const std::string& text : texts)
    EXPECT_NE(error.message().find(text), std::string::npos) << text << " is not in: " << error.message();
}

struct Way {
  const char* strategy;
  const char* algorithm;
};
// In `ps` a value that flips outside its owner is overwritten by the next step, and one that flips at its
// owner goes to all workers.
constexpr Way kWays[] = {{"allreduce", "direct"},
                         {"allreduce", "halving_doubling"},
                         {"allreduce", "ring"},
                         {"ps", "auto"},
                         {"simple", "auto"}};

TEST(Integrity, AFlippedBitOfOneReplicaIsFoundWithin64StepsAndNamed) {
  for (const auto& [strategy_name, algorithm] : kWays) {
    const char* const strategy = strategy_name;  // clang 14 cannot capture the binding
    if (std::string(strategy) == "ps") continue;
    SCOPED_TRACE(std::string(strategy) + '/' + algorithm);
    run_job(3, {{"algorithm", algorithm}}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session};
      trainer.build(strategy);
      DSGD_OK_OR_FAIL(trainer.step(1, error_));
      if (rank == 1) trainer.flip(0, 1, 650);
      Error error;
      int32_t status = DSGD_OK;
      int steps = 0;
      for (; status == DSGD_OK && steps < 64; ++steps) status = trainer.step(1, error);
      ASSERT_EQ(status, DSGD_ERR_DIVERGED) << error.message();
      expect_names(error, {"step", "'dense.bias'", "rank 1 against ranks 0, 2",
                           "load a checkpoint or start a new session"});
      EXPECT_STREQ(dsgd_error_parameter(error.error), "dense.bias");
      EXPECT_EQ(error.rank(), 1);
      Error again;
      EXPECT_EQ(trainer.step(1, again), DSGD_ERR_DIVERGED);
      EXPECT_EQ(again.message(), error.message());
    });
  }
}

TEST(Integrity, AllValuesAreComparedWhenNobodyHasDataLeft) {
  for (const auto& [strategy_name, algorithm] : kWays) {
    const char* const strategy = strategy_name;
    for (bool faulty : {false, true}) {
      SCOPED_TRACE(std::string(strategy) + '/' + algorithm);
      run_job(3, {{"algorithm", algorithm}}, [&](dsgd_session* session, int rank) {
        Trainer trainer{session};
        trainer.build(strategy);
        DSGD_OK_OR_FAIL(trainer.step(1, error_));
        if (rank == 2 && faulty) trainer.flip(0, 0, 4321);  // step 1 looks at elements 78 to 155
        Error error;
        dsgd_step_result result;
        dsgd_step_result_init(&result, sizeof result);
        const int32_t status = trainer.step(0, error, &result);
        if (!faulty) {
          ASSERT_EQ(status, DSGD_OK) << error.message();
          EXPECT_EQ(result.all_done, 1);
          return;
        }
        ASSERT_EQ(status, DSGD_ERR_DIVERGED) << error.message();
        expect_names(error, {"step 1", "'dense.weight'", "rank 2 against ranks 0, 1"});
      });
    }
  }
}

TEST(Integrity, ReplicasOfOneWorkerAreComparedWhenNobodyHasDataLeft) {
  for (int workers : {1, 2}) {
    std::atomic<int> told{0};
    run_job(workers, {}, [&](dsgd_session* session, int rank) {
      Trainer trainer{session};
      trainer.build("allreduce", 2);
      DSGD_OK_OR_FAIL(trainer.step(2, error_));
      if (rank == workers - 1) trainer.flip(1, 0, 4999);
      Error error;
      ASSERT_EQ(trainer.step(0, error), DSGD_ERR_DIVERGED) << error.message();
      const std::string last = std::to_string(workers - 1);
      expect_names(error, {"'dense.weight' of replica 1 against replica 0 of rank " + last,
                           "Then start a new session"});
      EXPECT_EQ(error.rank(), workers - 1);
      ++told;
    });
    EXPECT_EQ(told, workers);
  }
}

// The results of the ranks' calls of dsgd_close, the highest rank's first. `bind` gives the parameter that
// each rank binds.
struct Closing {
  std::vector<int32_t> status;
  std::vector<std::string> message;
};
Closing close_in_turn(const std::function<void(Trainer&, int rank)>& before,
                      const std::vector<int>& bind = {-1, -1}) {
  const size_t workers = bind.size();
  Closing closing{std::vector<int32_t>(workers), std::vector<std::string>(workers)};
  std::vector<std::promise<void>> closed(workers);
  run_job(static_cast<int>(workers), {}, [&](dsgd_session* session, int rank) {
    const auto place = static_cast<size_t>(rank);
    Trainer trainer{session};
    trainer.build("allreduce", 1, bind[place]);
    for (int step = 0; step < 3; ++step) DSGD_OK_OR_FAIL(trainer.step(1, error_));
    before(trainer, rank);
    if (place + 1 < workers) closed[place + 1].get_future().wait();
    Error error;
    closing.status[place] = dsgd_close(session, -1, error);
    closing.message[place] = error.error ? error.message() : "";
    EXPECT_EQ(dsgd_close(session, -1, nullptr), closing.status[place]) << "the same again";
    closed[place].set_value();
  });
  return closing;
}

TEST(Integrity, ClosingComparesAllValues) {
  const Closing same = close_in_turn([](Trainer&, int) {});
  EXPECT_EQ(same.status[0], DSGD_OK) << same.message[0];
  EXPECT_EQ(same.status[1], DSGD_OK) << same.message[1];
  const Closing differ = close_in_turn([](Trainer& trainer, int rank) {
    if (rank == 1) trainer.flip(0, 0, 2500);
  });
  EXPECT_EQ(differ.status[1], DSGD_OK) << differ.message[1];  // it cannot know yet
  EXPECT_EQ(differ.status[0], DSGD_ERR_DIVERGED) << differ.message[0];
  EXPECT_NE(differ.message[0].find("'dense.weight'"), std::string::npos) << differ.message[0];
  EXPECT_NE(differ.message[0].find("after step 2"), std::string::npos) << differ.message[0];
}

TEST(Integrity, ClosingComparesBoundValues) {
  for (const int elsewhere : {0, -1}) {
    SCOPED_TRACE(elsewhere);
    const Closing same = close_in_turn([](Trainer&, int) {}, {elsewhere, 0});
    EXPECT_EQ(same.status[0], DSGD_OK) << same.message[0];
    const Closing differ = close_in_turn(
        [](Trainer& trainer, int rank) {
          if (rank == 1) trainer.flip(0, 0, 2500);
        },
        {elsewhere, 0});
    EXPECT_EQ(differ.status[1], DSGD_OK) << differ.message[1];
    EXPECT_EQ(differ.status[0], DSGD_ERR_DIVERGED) << differ.message[0];
    EXPECT_NE(differ.message[0].find("parameter 'dense.weight' of rank 1 against rank 0;"), std::string::npos)
        << differ.message[0];
  }
}

TEST(Integrity, AfterTheStepInWhichAllWereDoneValuesAreTheHosts) {
  const Closing closing = close_in_turn([](Trainer& trainer, int rank) {
    Error error;
    EXPECT_EQ(trainer.step(0, error), DSGD_OK) << error.message();
    if (rank == 0) trainer.values[0][0][1] = 5;  // for its own evaluation, say
  });
  EXPECT_EQ(closing.status[0], DSGD_OK) << closing.message[0];
  EXPECT_EQ(closing.status[1], DSGD_OK) << closing.message[1];
}

TEST(Integrity, AStepWithoutADepartedWorkerWarnsThatItsModelStays) {
  std::promise<void> departed;
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session};
    trainer.build("allreduce");
    DSGD_OK_OR_FAIL(trainer.step(1, error_));
    if (rank == 1) {
      DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));
      departed.set_value();
      return;
    }
    EXPECT_EQ(logged(session).find("training goes on"), std::string::npos);
    departed.get_future().wait();
    DSGD_OK_OR_FAIL(trainer.step(1, error_));
    EXPECT_NE(logged(session).find("training goes on without rank 1 ("), std::string::npos);
    DSGD_OK_OR_FAIL(trainer.step(1, error_));
    EXPECT_EQ(logged(session).find("training goes on"), std::string::npos) << "once";
  });
}

TEST(Integrity, ClosingAtOnceComparesNothing) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    Trainer trainer{session};
    trainer.build("allreduce");
    DSGD_OK_OR_FAIL(trainer.step(1, error_));
    if (rank == 1) trainer.flip(0, 0, 2500);
    DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
    EXPECT_EQ(dsgd_close(session, 0, nullptr), DSGD_OK);
  });
}

// Memory that can be made slow: each page then takes 40 ms to be read, as if it came from a disk.
class SlowMemory {
 public:
  static constexpr size_t kPages = 64, kPage = 4096, kBytes = kPages * kPage;

  SlowMemory() {
    pages_ =
        static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    struct sigaction action = {};
    action.sa_sigaction = [](int, siginfo_t* fault, void*) {
      const timespec pause = {0, 40'000'000};
      nanosleep(&pause, nullptr);
      const auto offset = static_cast<size_t>(static_cast<char*>(fault->si_addr) - pages_);
      if (offset >= kBytes) abort();
      mprotect(pages_ + offset / kPage * kPage, kPage, PROT_READ | PROT_WRITE);
    };
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before_);
  }
  ~SlowMemory() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(pages_, kBytes);
  }
  void* data() const { return pages_; }
  void become_slow() { mprotect(pages_, kBytes, PROT_NONE); }

 private:
  static inline char* pages_ = nullptr;
  struct sigaction before_ = {};
};

// Rank 0 hosts the head and closes, too. Rank 1 goes on with its part in that while it reads its values.
TEST(Integrity, ReadingValuesAtCloseForLongerThanALeaseDoesNotHarmOthers) {
  if (kSanitized) GTEST_SKIP() << "sanitizers take SIGSEGV";
  const std::string head = "unix:" + testing::TempDir() + "dsgd-integrity-" + std::to_string(getpid());
  SlowMemory values;
  std::vector<float> gradients(SlowMemory::kBytes / sizeof(float));
  std::atomic<int> closed{0};
  const auto train = [&](int rank) {
    dsgd_config* config = dsgd_config_new();
    for (const auto& [key, value] :
         Settings{{"head", head}, {"num_workers", "3"}, {"rank", std::to_string(rank)}, {"lease", "1s"}})
      DSGD_OK_OR_FAIL(dsgd_config_set(config, key.c_str(), value.c_str(), error_));
    dsgd_session* session = nullptr;
    DSGD_OK_OR_FAIL(dsgd_init(config, &session, error_));
    dsgd_config_free(config);
    const int64_t count = SlowMemory::kBytes / sizeof(float);
    dsgd_parameter* weight;
    dsgd_replica* replica;
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, "weight", DSGD_FLOAT32, &count, 1, 0, &weight, error_));
    DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
    if (rank == 1) {
      DSGD_OK_OR_FAIL(dsgd_bind(replica, weight, values.data(), SlowMemory::kBytes, gradients.data(),
                                SlowMemory::kBytes, error_));
    } else {
      void *value, *gradient;
      DSGD_OK_OR_FAIL(dsgd_alloc(replica, weight, &value, &gradient, error_));
    }
    DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    if (rank == 1) values.become_slow();
    while (rank == 2 && closed < 2) DSGD_OK_OR_FAIL(dsgd_step(session, 1, nullptr, error_));
    DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));
    ++closed;
    dsgd_session_free(session);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) threads.emplace_back(train, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace dsgd_test::integrity_test
