// Workers close their sessions in good order between steps, and the others train on without them: each later
// step is the mean over those that are still there. Gradients are integers whose means are integers, so each
// value is known exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cluster.h"
#include "registered.h"
#include "tests/unit/sanitizer.h"
#include "tests/unit/wait_for.h"
#include "transport/sim/random.h"

namespace dsgd::simulation::departure_test {
namespace {

using namespace std::chrono_literals;
using transport::Death;
using transport::Duration;
using transport::Random;

// Of each test that draws them.
uint64_t jobs() { return environment_number("DSGD_SIMULATION_JOBS", 150 / dsgd_test::one_of(4, 10)); }

constexpr int kStays = 1'000;
// With buckets of 64 KiB: several, some larger than a small chunk.
constexpr std::array<int64_t, 3> kCounts = {5, 6'000, 70'000};

struct Job {
  int workers = 3;
  std::vector<int> leaves;  // by rank: how many steps it makes before it closes its session; kStays: it stays
  std::vector<int> data;    // by rank: how many steps it has samples for
  std::map<std::string, std::string> settings = {};
  bool separate_head = false;
  bool overlapped = false;           // gradients are marked one by one, with pauses
  std::vector<Duration> pause = {};  // by rank: before each step, and before it closes
  uint64_t seed = 1;
  transport::LinkDelay delay = {};
  std::optional<Duration> killed_after = {};  // the first that leaves dies this time after it began to
  Death death = Death::kReset;

  std::string describe() const {
    std::string text =
        std::to_string(workers) + " workers, seed " + std::to_string(seed) + ", leave before step";
    for (int step : leaves) text += step == kStays ? " -" : " " + std::to_string(step);
    text += separate_head ? ", separate head" : ", head in worker 0";
    if (overlapped) text += ", overlapped";
    for (const auto& [key, value] : settings) text += ", " + key + "=" + value;
    for (const Duration of : pause) text += ", pause " + std::to_string(of.count());
    if (killed_after) text += ", killed after " + std::to_string(killed_after->count());
    return text;
  }
};

float weight(int rank) { return static_cast<float>(1 + rank); }

constexpr size_t kPeriod = 7;  // of gradients, in elements

// A multiple of each possible sum of weights, up to 10; or small, so that sums are exact in halves.
float gradient(const Job& job, int rank, int step, size_t parameter, size_t i) {
  const float unit = job.settings.count("wire") ? 1 : 2520;
  return unit * static_cast<float>(static_cast<int>((i + 3 * static_cast<size_t>(rank) +
                                                     5 * static_cast<size_t>(step) + parameter) %
                                                    kPeriod) -
                                   3);
}

bool takes_part(const Job& job, int rank, int step) {
  return step < job.leaves[static_cast<size_t>(rank)] && step < job.data[static_cast<size_t>(rank)];
}

float sum_of_weights(const Job& job, int step) {
  float sum = 0;
  for (int rank = 0; rank < job.workers; ++rank) sum += takes_part(job, rank, step) ? weight(rank) : 0;
  return sum;
}

// With sgd and lr = 1.
float change(const Job& job, int step, size_t parameter, size_t i) {
  float sum = 0;
  for (int rank = 0; rank < job.workers; ++rank) {
    if (takes_part(job, rank, step)) sum += weight(rank) * gradient(job, rank, step, parameter, i);
  }
  return sum / sum_of_weights(job, step);
}

// Calls set(i, f(i)) for each element of a parameter. f has the period of gradient().
template <typename F, typename Set>
void for_each_element(size_t count, F&& f, Set&& set) {
  std::array<float, kPeriod> values;
  for (size_t i = 0; i < kPeriod; ++i) values[i] = f(i);
  for (size_t i = 0; i < count; ++i) set(i, values[i % kPeriod]);
}

// The steps of one worker, which notes what is wrong as a failed call.
class Trainer {
 public:
  Trainer(const Job& job, Cluster& cluster, Session& session, int rank)
      : job_(job), cluster_(cluster), session_(session), rank_(rank) {}

  void run(const std::function<void(int step)>& before = [](int) {}) {
    set_up();
    if (!cluster_.note(rank_, "start", [&] { return session_.start(); })) return;
    for (int step = 0;; ++step) {
      pause();
      before(step);
      if (job_.leaves[static_cast<size_t>(rank_)] == step) return leave();
      StepResult result;
      const std::string name = "step " + std::to_string(step);
      if (!cluster_.note(rank_, name, [&] { return make(step, &result); })) return;
      cluster_.note(rank_, "values after " + name, [&] { return check(step, result); });
      if (result.all_done) return;
    }
  }

 private:
  void set_up() {
    if (!session_.set_optimizer("sgd", "lr=1").ok()) std::abort();
    replica_ = session_.add_replica("cpu").value();
    for (size_t p = 0; p < kCounts.size(); ++p) {
      parameters_.push_back(
          session_.add_parameter("p" + std::to_string(p), DType::kFloat32, {&kCounts[p], 1}, true).value());
      memory_.push_back(session_.alloc(replica_, parameters_[p]).value());
      want_.emplace_back(static_cast<size_t>(kCounts[p]), 0.0f);
    }
  }

  void pause() {
    if (!job_.pause.empty()) cluster_.pass_time(rank_, job_.pause[static_cast<size_t>(rank_)]);
  }

  void leave() {
    cluster_.note(rank_, "leaves", [] { return Status(); });
    if (!job_.killed_after || rank_ != first_leaver()) return;
    cluster_.world.at(cluster_.world.now() + *job_.killed_after,
                      [&cluster = cluster_, rank = rank_, death = job_.death] {
                        cluster.world.kill(cluster.process(rank), death);
                      });
  }

  int first_leaver() const {
    return static_cast<int>(std::min_element(job_.leaves.begin(), job_.leaves.end()) - job_.leaves.begin());
  }

  Status make(int step, StepResult* result) {
    for (size_t p = 0; p < kCounts.size(); ++p) {
      float* gradients = static_cast<float*>(memory_[p]->gradient);
      for_each_element(
          want_[p].size(), [&](size_t i) { return gradient(job_, rank_, step, p, i); },
          [&](size_t i, float value) { gradients[i] = value; });
    }
    const double weight_now = takes_part(job_, rank_, step) ? weight(rank_) : 0;
    if (!job_.overlapped) return session_.step(weight_now, result);
    auto begun = session_.step_begin(weight_now);
    if (!begun.ok()) return begun.status();
    for (size_t p = kCounts.size(); p-- > 0;) {
      (void)session_.gradient_ready(replica_, parameters_[p], nullptr);  // if it fails, so has the step
      if (p == 1) pause();
    }
    const Status status = session_.wait(*begun.value(), -1ms);
    *result = begun.value()->step_result();
    return status;
  }

  Status check(int step, const StepResult& result) {
    const float sum = sum_of_weights(job_, step);
    if (result.weight != sum || result.all_done != (sum == 0) || result.size != job_.workers ||
        result.step != step) {
      return Status(Code::kInternal,
                    "weight " + std::to_string(result.weight) + " instead of " + std::to_string(sum));
    }
    for (size_t p = 0; p < kCounts.size(); ++p) {
      const float* values = static_cast<const float*>(memory_[p]->value);
      if (sum > 0) {
        for_each_element(
            want_[p].size(), [&](size_t i) { return change(job_, step, p, i); },
            [&](size_t i, float value) { want_[p][i] -= value; });
      }
      for (size_t i = 0; i < want_[p].size(); ++i) {
        if (values[i] != want_[p][i]) {
          return Status(Code::kInternal, "element " + std::to_string(i) + " of p" + std::to_string(p) +
                                             " is " + std::to_string(values[i]) + " instead of " +
                                             std::to_string(want_[p][i]));
        }
      }
    }
    return {};
  }

  const Job& job_;
  Cluster& cluster_;
  Session& session_;
  const int rank_;
  Replica* replica_ = nullptr;
  std::vector<Parameter*> parameters_;
  std::vector<std::shared_ptr<TensorMemory>> memory_;
  std::vector<std::vector<float>> want_;
};

Cluster::Program trainer_of(const Job& job) {
  return [&job](Cluster& cluster, Session& session, int rank) { Trainer(job, cluster, session, rank).run(); };
}

ClusterOptions options_of(const Job& job) {
  ClusterOptions options{
      .workers = job.workers, .separate_head = job.separate_head, .seed = job.seed, .settings = job.settings};
  options.settings.try_emplace("bucket_size", "64K");
  options.network.delay = job.delay;
  options.registered = registered();
  return options;
}

// All that stay train to the end, and nothing fails anywhere.
bool all_go_on(const Job& job) {
  Cluster cluster(options_of(job), trainer_of(job));
  if (!cluster.run_until_ended(600s)) {
    ADD_FAILURE() << job.describe() << ": hangs\n" << cluster.histories();
    return false;
  }
  for (int rank = 0; rank < job.workers; ++rank) {
    if (const NotedCall* failure = cluster.first_failure(rank)) {
      ADD_FAILURE() << job.describe() << ": rank " << rank << ", " << failure->name << ": "
                    << code_name(failure->status.code()) << " " << failure->status.message() << "\n"
                    << cluster.histories();
      return false;
    }
  }
  return true;
}

// Every nth job runs. n divides none of the numbers of values over which the loops run.
bool goes_on(const Job& job) {
  static dsgd_test::Thinned jobs(5, 19);
  return jobs.skip_next() || all_go_on(job);
}

std::vector<int> all_stay(int workers) { return std::vector<int>(static_cast<size_t>(workers), kStays); }

Job job_of(int workers, int steps) {
  return {workers, all_stay(workers), std::vector<int>(static_cast<size_t>(workers), steps)};
}

// The rest are late, or the leaver is.
std::vector<std::vector<Duration>> pauses_of(const Job& job) {
  std::vector<std::vector<Duration>> pauses = {{}};
  for (const bool late : {false, true}) {
    std::vector<Duration> by_rank;
    for (int step : job.leaves) by_rank.push_back((step != kStays) == late ? 5ms : 0ms);
    pauses.push_back(by_rank);
  }
  return pauses;
}

TEST(Departure, OfEachWorkerBeforeEachStep) {
  for (int workers = 2; workers <= 4; ++workers) {
    for (int leaver = 0; leaver < workers; ++leaver) {
      for (int step = 0; step < 4; ++step) {
        for (const bool overlapped : {false, true}) {
          Job job = job_of(workers, 5);
          job.leaves[static_cast<size_t>(leaver)] = step;
          job.overlapped = overlapped;
          job.separate_head = (leaver + step) % 2 == 1;
          for (const auto& pause : pauses_of(job)) {
            job.pause = pause;
            if (!goes_on(job)) return;
          }
        }
      }
    }
  }
}

TEST(Departure, OfAllButOne) {
  for (int workers = 3; workers <= 4; ++workers) {
    for (int stays = 0; stays < workers; ++stays) {
      for (const bool at_once : {true, false}) {
        Job job = job_of(workers, 5);
        for (int rank = 0, left = 0; rank < workers; ++rank) {
          if (rank != stays) job.leaves[static_cast<size_t>(rank)] = at_once ? 2 : 1 + left++;
        }
        for (const auto& pause : pauses_of(job)) {
          job.pause = pause;
          if (!goes_on(job)) return;
        }
      }
    }
  }
}

// The worker that ends its last step first closes at once. Its last answers are lost with its connections;
// the others need none.
TEST(Departure, OfAllAtOnce) {
  for (const char* algorithm : {"direct", "halving_doubling", "ring", "doubling"}) {
    for (uint64_t seed = 1; seed <= jobs(); ++seed) {
      Job job = job_of(3, 9);
      job.leaves = {3, 3, 3};
      job.seed = seed;
      job.settings = {
          {"algorithm", algorithm}, {"bucket_size", seed % 2 ? "64K" : "1M"}, {"receive_memory", "256M"}};
      if (!goes_on(job)) return;
    }
  }
}

TEST(Departure, WithEachAlgorithm) {
  for (const char* algorithm : {"direct", "halving_doubling", "ring", "doubling"}) {
    for (const char* reproducible : {"0", "1"}) {
      for (int leaver = 0; leaver < 4; ++leaver) {
        Job job = job_of(4, 4);
        job.settings = {{"algorithm", algorithm}, {"reproducible", reproducible}, {"gradient_norm", "1"}};
        job.leaves[static_cast<size_t>(leaver)] = 1;
        job.leaves[static_cast<size_t>((leaver + 2) % 4)] = 3;
        for (const auto& pause : pauses_of(job)) {
          job.pause = pause;
          if (!goes_on(job)) return;
        }
      }
    }
  }
}

TEST(Departure, WhereGradientsTravelAsHalves) {
  for (int leaver = 0; leaver < 4; ++leaver) {
    for (const bool overlapped : {false, true}) {
      Job job = job_of(4, 4);
      job.settings = {{"wire", "bf16"}};
      job.leaves[static_cast<size_t>(leaver)] = 1;
      job.leaves[static_cast<size_t>((leaver + 2) % 4)] = 3;
      job.overlapped = overlapped;
      for (const auto& pause : pauses_of(job)) {
        job.pause = pause;
        if (!goes_on(job)) return;
      }
    }
  }
}

// The remaining workers have no samples; the departed worker had some.
TEST(Departure, LeavesAllDoneToThoseThatAreLeft) {
  Job job = job_of(3, 2);
  job.data[1] = 100;
  job.leaves[1] = 3;
  EXPECT_TRUE(all_go_on(job));
}

Job drawn(uint64_t seed) {
  Random random(seed);
  const auto below = [&random](int n) { return static_cast<int>(random.below(static_cast<uint64_t>(n))); };
  const int workers = 2 + below(3);
  Job job = job_of(workers, 2 + below(4));
  job.seed = seed;
  const int stays = below(workers);
  for (int rank = 0; rank < workers; ++rank) {
    if (rank != stays && !random.chance(0.33)) job.leaves[static_cast<size_t>(rank)] = below(6);
    if (random.chance(0.33)) job.data[static_cast<size_t>(rank)] += below(3);
    job.pause.push_back(random.chance(0.5) ? random.between(0ms, 20ms) : 0ms);
  }
  const char* const algorithms[] = {"auto", "direct", "halving_doubling", "ring", "doubling"};
  job.settings = {{"algorithm", algorithms[random.below(std::size(algorithms))]},
                  {"reproducible", random.chance(0.33) ? "1" : "0"},
                  {"bucket_size", random.chance(0.5) ? "16K" : "256K"},
                  {"receive_memory", random.chance(0.5) ? "1M" : "256M"}};
  job.separate_head = random.chance(0.5);
  job.overlapped = random.chance(0.5);
  if (random.chance(0.5)) job.delay = {20us, 3ms, 0.1, 20ms};
  if (random.chance(0.5)) job.settings["nonfinite"] = "fail";
  return job;
}

TEST(Departure, WheneverItComes) {
  for (uint64_t seed = 1; seed <= jobs(); ++seed) {
    if (!goes_on(drawn(seed))) return;
  }
}

// A worker dies as it leaves. The others go on if they have all its data and either its goodbye or the head's
// news. Otherwise the job fails. No value is wrong, and no call hangs.
TEST(Departure, OfAWorkerThatDiesMeanwhile) {
  int went_on = 0, failed = 0;
  for (uint64_t seed = 1; seed <= jobs(); ++seed) {
    Job job = drawn(seed);
    if (*std::min_element(job.leaves.begin(), job.leaves.end()) == kStays) job.leaves[0] = 1;
    Random random(seed + 1'000'000);
    job.killed_after = random.between(0us, random.chance(0.5) ? 600us : 6ms);
    job.death = random.chance(0.5) ? Death::kReset : Death::kSilent;
    Cluster cluster(options_of(job), trainer_of(job));
    if (!cluster.run_until_ended(30s)) {
      FAIL() << job.describe() << ": hangs\n" << cluster.histories();
    }
    bool any_failed = false;
    for (int rank = 0; rank < job.workers; ++rank) {
      if (!cluster.world.alive(cluster.process(rank))) continue;
      for (const NotedCall& call : cluster.calls(rank)) {
        const bool is_wrong = !call.status.ok() && call.name.rfind("values", 0) == 0;
        const bool is_late = call.ended - call.began > 10s;
        ASSERT_FALSE(is_wrong || is_late) << job.describe() << ": rank " << rank << "\n"
                                          << cluster.history(rank);
        if (call.status.ok()) continue;
        any_failed = true;
        const Code code = call.status.code();
        ASSERT_TRUE(code == Code::kWorkerLost || code == Code::kTorn)
            << job.describe() << ": rank " << rank << "\n"
            << cluster.history(rank);
      }
    }
    ++(any_failed ? failed : went_on);
  }
  EXPECT_GT(went_on, 0);
  EXPECT_GT(failed, 0);
  RecordProperty("went_on", went_on);
  RecordProperty("failed", failed);
}

// Under ps and simple, values or sums have an owner. Without it no step is possible, and all say so alike.
TEST(Departure, OfAnOwnerEndsTheSteps) {
  for (const char* strategy : {"simple", "ps"}) {
    for (int leaver = 0; leaver < 3; ++leaver) {
      Job job = job_of(3, 4);
      job.settings = {{"strategy", strategy}, {"servers", "2"}};  // ranks 0 and 1
      job.leaves[static_cast<size_t>(leaver)] = 2;
      for (const auto& pause : pauses_of(job)) {
        job.pause = pause;
        const bool owns = leaver == 0 || (leaver == 1 && strategy == std::string("ps"));
        if (!owns) {
          if (!goes_on(job)) return;
          continue;
        }
        Cluster cluster(options_of(job), trainer_of(job));
        ASSERT_TRUE(cluster.run_until_ended(600s)) << job.describe();
        for (int rank = 0; rank < job.workers; ++rank) {
          if (rank == leaver) continue;
          const NotedCall* failure = cluster.first_failure(rank);
          ASSERT_TRUE(failure) << job.describe();
          const Status& status = failure->status;
          EXPECT_EQ(failure->name, "step 2") << job.describe();
          EXPECT_EQ(status.code(), Code::kWorkerLost) << job.describe() << ": " << status.message();
          EXPECT_EQ(status.rank(), leaver) << job.describe();
          EXPECT_NE(status.message().find("rank " + std::to_string(leaver)), std::string::npos)
              << status.message();
          EXPECT_NE(status.message().find("it owns a part of parameter 'p"), std::string::npos)
              << status.message();
        }
      }
    }
  }
}

// All workers refuse a step alike, which changes nothing. Then one of them leaves.
TEST(Departure, AfterAStepThatWasRefused) {
  const Job job{3, {kStays, 1, kStays}, {3, 1, 3}};
  Cluster cluster(options_of(job), [&job](Cluster& cluster, Session& session, int rank) {
    Trainer trainer(job, cluster, session, rank);
    trainer.run([&](int step) {
      if (step != 1) return;
      cluster.note(rank, "refused", [&] {
        if (Status status = session.set_learning_rate(rank == 1 ? 2 : 1); !status.ok()) return status;
        const Status status = session.step(1, nullptr);
        return status.code() == Code::kMismatch ? session.set_learning_rate(1)
                                                : Status(Code::kInternal, "it ended so: " + status.message());
      });
    });
  });
  ASSERT_TRUE(cluster.run_until_ended(600s)) << cluster.history(0);
  for (int rank = 0; rank < job.workers; ++rank)
    EXPECT_EQ(cluster.first_failure(rank), nullptr) << cluster.history(rank);
}

// Collectives need all members of the group, so they fail. Steps still go on.
TEST(Departure, LeavesStepsBetweenFailedCollectives) {
  const Job job{3, {kStays, 0, kStays}, {3, 0, 3}};
  Cluster cluster(options_of(job), [&job](Cluster& cluster, Session& session, int rank) {
    Trainer trainer(job, cluster, session, rank);
    trainer.run([&](int step) {
      if (rank == 1) return;
      const Status status = step == 0 ? session.set_strategy("simple", "")
                                      : wait_for(session, session.barrier(Session::Mode::kWait));
      cluster.note(rank, "collective", [&] {
        const bool named = status.code() == Code::kWorkerLost && status.rank() == 1 &&
                           status.message().find("closed its session") != std::string::npos;
        return named ? Status() : Status(Code::kInternal, "it ended so: " + status.message());
      });
    });
  });
  ASSERT_TRUE(cluster.run_until_ended(600s)) << cluster.history(0);
  for (int rank = 0; rank < job.workers; ++rank) {
    EXPECT_EQ(cluster.first_failure(rank), nullptr) << cluster.history(rank);
    if (rank == 1) continue;
    // Open, start, 4 steps with 3 each, close.
    EXPECT_EQ(cluster.calls(rank).size(), 15u) << cluster.history(rank);
  }
}

}  // namespace
}  // namespace dsgd::simulation::departure_test
