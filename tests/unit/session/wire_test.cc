// Bits that flip between two workers' sockets. With checksums no such bit reaches a model, whatever the
// strategy: either the job ends with an error, or its values are those of an undisturbed job. Without them
// some do, which shows that the test can see it.
//
// This program's recv() stands before the C library's, for dsgd too, and flips one bit of what a socket
// delivers.

#include <dlfcn.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <ostream>
#include <random>

#include "job.h"
#include "tests/unit/sanitizer.h"

namespace {

std::atomic<bool> watching{false};
std::atomic<int64_t> received{0};  // bytes, while watching
std::atomic<int64_t> flip_at{-1};  // index of the byte that flips; -1: none
std::atomic<int> flip_bit{0};

}  // namespace

extern "C" __attribute__((visibility("default"))) ssize_t recv(int fd, void* to, size_t n, int flags) {
  static const auto real = reinterpret_cast<ssize_t (*)(int, void*, size_t, int)>(dlsym(RTLD_NEXT, "recv"));
  const ssize_t got = real(fd, to, n, flags);
  if (got > 0 && watching) {
    const int64_t begin = received.fetch_add(got), at = flip_at;
    if (at >= begin && at < begin + got)
      static_cast<unsigned char*>(to)[at - begin] ^= static_cast<unsigned char>(1u << flip_bit);
  }
  return got;
}

namespace dsgd_test::wire_test {
namespace {

constexpr int kWorkers = 3, kSteps = 4;
constexpr int64_t kCounts[2] = {70000, 700};  // one bucket: spans of more than a small chunk

struct Outcome {
  int32_t status[kWorkers] = {};  // of the first call that failed
  std::string message[kWorkers];
  uint64_t digest[kWorkers] = {};
  int64_t bytes = 0;  // that sockets delivered from the first step to the last one's end

  bool all_ok() const {
    return std::all_of(std::begin(status), std::end(status), [](int32_t s) { return s == DSGD_OK; });
  }
};

// Values and gradients of a replica.
struct Buffers {
  float* values[2];
  float* gradients[2];
};

void start(dsgd_session* session, const char* strategy, Buffers& buffers) {
  std::vector<dsgd_parameter*> parameters(2);
  for (size_t p = 0; p < 2; ++p) {
    DSGD_OK_OR_FAIL(dsgd_parameter_add(session, p == 0 ? "weight" : "bias", DSGD_FLOAT32, &kCounts[p], 1, 0,
                                       &parameters[p], error_));
  }
  dsgd_replica* replica;
  DSGD_OK_OR_FAIL(dsgd_replica_add(session, "cpu", &replica, error_));
  for (size_t p = 0; p < 2; ++p) {
    DSGD_OK_OR_FAIL(dsgd_alloc(replica, parameters[p], reinterpret_cast<void**>(&buffers.values[p]),
                               reinterpret_cast<void**>(&buffers.gradients[p]), error_));
    std::fill_n(buffers.values[p], kCounts[p], 1.0f);
  }
  DSGD_OK_OR_FAIL(dsgd_optimizer_set(session, "sgd", "lr=0.5 momentum=0.5", error_));
  DSGD_OK_OR_FAIL(dsgd_strategy_set(session, strategy, nullptr, nullptr, nullptr, error_));
  DSGD_OK_OR_FAIL(dsgd_start(session, nullptr, nullptr, error_));
}

int32_t train(dsgd_session* session, int rank, const Buffers& buffers, dsgd_error** error) {
  for (int step = 0; step < kSteps; ++step) {
    for (size_t p = 0; p < 2; ++p) {
      for (int64_t i = 0; i < kCounts[p]; ++i)
        buffers.gradients[p][i] = static_cast<float>((i * (rank + 1) + step) % 7 - 3);
    }
    if (const int32_t status = dsgd_step(session, 1, nullptr, error); status != DSGD_OK) return status;
  }
  return DSGD_OK;
}

Outcome run(const char* strategy, const char* algorithm, const char* checksum, int64_t flip, int bit) {
  Outcome outcome;
  received = 0, flip_at = flip, flip_bit = bit;
  std::barrier started(kWorkers, []() noexcept { watching = true; });
  std::barrier trained(kWorkers, []() noexcept { watching = false; });
  // Without checksums a wrong length may let a step wait for its deadline.
  const Settings settings = {{"algorithm", algorithm}, {"checksum", checksum}, {"step_timeout", "20s"}};
  run_job(kWorkers, settings, [&](dsgd_session* session, int rank) {
    Buffers buffers;
    start(session, strategy, buffers);
    started.arrive_and_wait();
    Error error;
    outcome.status[rank] =
        ::testing::Test::HasFatalFailure() ? DSGD_ERR_INTERNAL : train(session, rank, buffers, error);
    outcome.message[rank] = error.message();
    trained.arrive_and_wait();
    Error unread;
    if (outcome.status[rank] == DSGD_OK) dsgd_digest(session, &outcome.digest[rank], unread);
  });
  outcome.bytes = received;
  return outcome;
}

struct Way {
  const char* strategy;
  const char* algorithm;
  friend void PrintTo(const Way& way, std::ostream* to) { *to << way.strategy << '/' << way.algorithm; }
};

class Wire : public ::testing::TestWithParam<Way> {};

TEST_P(Wire, NoFlippedBitReachesAModel) {
  const auto [strategy, algorithm] = GetParam();
  const Outcome undisturbed = run(strategy, algorithm, "always", -1, 0);
  ASSERT_TRUE(undisturbed.all_ok()) << undisturbed.message[0] << undisturbed.message[1]
                                    << undisturbed.message[2];
  std::mt19937_64 random(7);
  int found = 0;
  const int flips = 40 / one_of(2, 5);
  for (int i = 0; i < flips && !HasFailure(); ++i) {
    const int64_t at = static_cast<int64_t>(random() % static_cast<uint64_t>(undisturbed.bytes));
    const int bit = static_cast<int>(random() % 8);
    SCOPED_TRACE("byte " + std::to_string(at) + ", bit " + std::to_string(bit));
    const Outcome outcome = run(strategy, algorithm, "always", at, bit);
    bool told = false;
    for (int rank = 0; rank < kWorkers; ++rank) {
      if (outcome.status[rank] == DSGD_OK) {
        EXPECT_EQ(outcome.digest[rank], undisturbed.digest[rank]);
      } else {
        EXPECT_TRUE(outcome.status[rank] == DSGD_ERR_CORRUPTED ||
                    outcome.status[rank] == DSGD_ERR_WORKER_LOST)
            << outcome.status[rank] << ": " << outcome.message[rank];
      }
      told = told || outcome.status[rank] == DSGD_ERR_CORRUPTED;
    }
    EXPECT_TRUE(told || outcome.all_ok());
    found += told;
  }
  // The rest came after the last step, or to a connection of the head.
  EXPECT_GE(found, flips * (runs_all_cases() ? 3 : 2) / 4);
}

TEST_P(Wire, WithoutChecksumsSomeDo) {
  const auto [strategy, algorithm] = GetParam();
  const Outcome undisturbed = run(strategy, algorithm, "never", -1, 0);
  ASSERT_TRUE(undisturbed.all_ok());
  for (int i = 1; i <= 10; ++i) {
    const Outcome outcome = run(strategy, algorithm, "never", undisturbed.bytes * i / 11, 6);
    for (int rank = 0; rank < kWorkers; ++rank) {
      if (outcome.status[rank] == DSGD_OK && outcome.digest[rank] != undisturbed.digest[rank]) return;
    }
  }
  FAIL() << "no flip of ten changed a value";
}

INSTANTIATE_TEST_SUITE_P(Strategies, Wire,
                         ::testing::Values(Way{"allreduce", "direct"}, Way{"allreduce", "ring"},
                                           Way{"ps", "auto"}, Way{"simple", "auto"}),
                         [](const auto& info) {
                           return std::string(info.param.strategy) +
                                  (info.param.algorithm == std::string("ring") ? "Ring" : "");
                         });

}  // namespace
}  // namespace dsgd_test::wire_test
