// A worker is lost while all of them change the strategy or load a checkpoint, or soon after. The others go
// on, and either all of them have made the change or none has, and they repeat it. In step k each worker's
// gradient is a power of two of its own in element k, and SGD has momentum. So an element's value tells whose
// gradients its step has used, and whether the optimizer's state of all later steps was right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster.h"
#include "small_model.h"
#include "tests/unit/begin.h"
#include "tests/unit/checkpoint/memory_files.h"
#include "tests/unit/sanitizer.h"
#include "tests/unit/wait_for.h"

namespace dsgd::simulation::change_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using transport::Death;
using transport::Duration;

constexpr int kChangeSteps = 20, kChangeStep = 8, kSavedStep = 5;
constexpr size_t kChangeElements = 40'000;  // several key ranges
const int kChangeStride = 2 * dsgd_test::one_of(2, 8);

bool has_applied_what_it_prepared(const Cluster& cluster, int worker) {
  const auto& log = cluster.log(worker);
  return std::any_of(log.begin(), log.end(), [](const std::string& line) {
    return line.find("applies the change that it has prepared") != line.npos;
  });
}

struct ChangedJob {
  bool loads =
      false;  // a checkpoint of kSavedStep, when `load_step` steps are made; else it changes strategy
  int load_step = kChangeStep;
  std::string strategy = "ps";
  int victim = 0;
  Duration after{};      // from the moment at which the first worker begins the change
  bool changed = false;  // `after` counts from the moment at which all workers have ended the change

  std::string describe() const {
    return std::string(loads ? "load before step " + std::to_string(load_step) : "change of strategy") +
           " under " + strategy + ", " + std::to_string(victim) + " is killed " +
           std::to_string(after.count() / 1000) + " us " + (changed ? "after it" : "after its begin");
  }
};

class ChangedOutcome {
 public:
  explicit ChangedOutcome(const ChangedJob& job)
      : job_(job),
        values(3),
        made(3),
        cluster({.workers = 3,
                 .separate_head = true,
                 .files = true,
                 .settings = {{"lease", "500ms"},
                              {"min_workers", "1"},
                              {"strategy", job.strategy},
                              {"copies", job.strategy == "ps" ? "2" : "1"},
                              {"bucket_size", "16K"},
                              {"step_timeout", "20s"}},
                 .network = {.delay = {100us, 400us}}},
                [this](Cluster&, Session& session, int worker) { train(session, worker); }) {
    const char* const call = job.loads ? "load" : "change";
    if (job.changed) {
      for (int w = 0; w < 3; ++w) EXPECT_TRUE(cluster.run_until_noted(w, call, 60s)) << cluster.history(w);
    } else {
      EXPECT_TRUE(cluster.world.run_until([this] { return begun_ && saved_ == (job_.loads ? 3 : 0); },
                                          cluster.world.now() + 60s));
    }
    cluster.world.run_for(job.after);
    is_lost = !cluster.finished(job.victim);
    cluster.world.kill(cluster.process(job.victim), Death::kReset);
    EXPECT_TRUE(cluster.run_until_ended(60s)) << "a worker hangs: " << job.describe();
  }

  // Returns whether a worker had only prepared the change, and others had applied it, when the view changed.
  bool expect_right() {
    SCOPED_TRACE(job_.describe());
    std::vector<float> first;
    for (int w = 0; w < 3; ++w) {
      if (is_lost && w == job_.victim) continue;
      if (values[static_cast<size_t>(w)].empty()) {
        ADD_FAILURE() << "worker " << w << " has not ended\n" << cluster.history(w);
        continue;
      }
      if (first.empty()) first = values[static_cast<size_t>(w)];
      EXPECT_TRUE(first == values[static_cast<size_t>(w)]) << "values differ";
      for (int k = 0; k < kChangeSteps; ++k) {
        const double mean = made[static_cast<size_t>(w)][static_cast<size_t>(k)];
        double momentum = mean, value = 0;
        for (int at = k; at < kChangeSteps; ++at, momentum *= 0.5) value -= momentum;
        EXPECT_NEAR(values[static_cast<size_t>(w)][element(k)], value, 1e-4 * mean)
            << "worker " << w << ", step " << k << "\n"
            << cluster.history(w);
      }
    }
    bool applied = false;
    for (int w = 0; w < 3; ++w) applied = applied || has_applied_what_it_prepared(cluster, w);
    return applied;
  }

 private:
  static size_t element(int step) {
    return static_cast<size_t>(step) * (kChangeElements / static_cast<size_t>(kChangeSteps));
  }
  void train(Session& session, int worker) {
    (void)session.set_optimizer("sgd", "lr=1 momentum=0.5");
    const auto count = static_cast<int64_t>(kChangeElements);
    Parameter* const parameter = session.add_parameter("p", DType::kFloat32, {&count, 1}, true).value();
    const auto memory = session.alloc(session.add_replica("cpu").value(), parameter).value();
    float* const value = static_cast<float*>(memory->value);
    float* const gradient = static_cast<float*>(memory->gradient);
    if (!cluster.note(worker, "start", [&] { return session.start(); })) return;
    std::vector<double>& means = made[static_cast<size_t>(worker)];
    means.resize(kChangeSteps);
    bool changed = false;
    for (int k = 0; k < kChangeSteps; ++k) {
      if (k == kSavedStep && job_.loads && !changed) {
        if (!cluster.note(worker, "save", [&] { return save(session); })) return;
        ++saved_;
      }
      if (k == (job_.loads ? job_.load_step : kChangeStep) && !changed) {
        if (job_.loads) value[kChangeElements - 1] = 7;  // which the checkpoint does not have
        const auto change = [&] {
          begun_ = true;
          return job_.loads ? load(session)
                            : session.set_strategy(job_.strategy == "ps" ? "allreduce" : "ps",
                                                   job_.strategy == "ps" ? "" : "copies=2");
        };
        Status status;
        do {
          cluster.note(worker, job_.loads ? "load" : "change", [&] { return status = change(); });
        } while (status.code() == Code::kViewChanged);
        if (!status.ok()) return;
        changed = true;
        if (job_.loads) k = kSavedStep;
      }
      std::fill_n(gradient, kChangeElements, 0.0f);
      gradient[element(k)] = static_cast<float>(1 << worker);
      const float before = value[element(k)];
      StepResult result;
      if (!cluster.note(worker, "step " + std::to_string(k), [&] { return session.step(1, &result); }))
        return;
      means[static_cast<size_t>(k)] = static_cast<double>(before - value[element(k)]);
    }
    values[static_cast<size_t>(worker)].assign(value, value + kChangeElements);
  }

  const ChangedJob job_;
  bool begun_ = false;  // the change, on some worker
  int saved_ = 0;       // workers that have saved

 public:
  bool is_lost = false;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<double>> made;  // means that steps have used, by worker
  Cluster cluster;
};

// The backups of the optimizer's state have what was loaded, too.
TEST(Change, AfterALoadTheCopiesOfTheStateOutliveALossAtAnyMoment) {
  for (Duration after = 0us; after < 6ms; after += kChangeStride * 300us) {
    for (int victim = 0; victim < 3; ++victim) {
      ChangedOutcome outcome({.loads = true, .victim = victim, .after = after, .changed = true});
      outcome.expect_right();
      if (HasFailure()) return;
    }
  }
}

// The checkpoint may be that of the present step, so that the number of steps does not tell who has loaded
// it.
TEST(Change, ALossDuringALoadLeavesAllOthersWithIt) {
  int applied = 0;
  for (const std::string strategy : {"allreduce", "ps"}) {
    for (const int load_step : {kSavedStep, kSavedStep + 1, kChangeStep}) {
      for (int victim = 0; victim < 3; ++victim) {
        for (Duration after = 0us; after < 10ms; after += kChangeStride * 500us) {
          ChangedOutcome outcome({.loads = true,
                                  .load_step = load_step,
                                  .strategy = strategy,
                                  .victim = victim,
                                  .after = after});
          applied += outcome.expect_right();
          if (HasFailure()) return;
        }
      }
    }
  }
  if (kChangeStride == 1) {  // with a larger stride there may be too few moments
    EXPECT_GT(applied, 0);
  }
}

TEST(Change, ALossDuringAChangeOfStrategyLeavesAllOthersWithIt) {
  int applied = 0;
  for (const std::string strategy : {"allreduce", "ps"}) {
    for (int victim = 0; victim < 3; ++victim) {
      for (Duration after = 0us; after < 4ms; after += kChangeStride * 100us) {
        ChangedOutcome outcome({.strategy = strategy, .victim = victim, .after = after});
        applied += outcome.expect_right();
        if (HasFailure()) return;
      }
    }
  }
  if (kChangeStride == 1) {  // with a larger stride there may be too few moments
    EXPECT_GT(applied, 0);
  }
}

// Worker 0 loads in the first view and draws samples before the second one, in which worker 1 loads.
TEST(Change, ALoadInALaterViewDealsTheSamplesAlike) {
  constexpr uint64_t kSamples = 60;
  int applied = 0;
  for (const int savers : {1, 3}) {
    for (Duration cut = 0us; cut < 1200us; cut += 200us) {
      std::map<int64_t, int> times;
      const auto draw = [&times](Session& session, SharedShard& shard, size_t most) {
        std::vector<int64_t> samples(most);
        std::optional<size_t> count;
        while (!(count = shard.next(samples.data(), most))) {
          if (!session.wait_for_samples(shard).ok()) return size_t{0};
        }
        for (size_t i = 0; i < *count; ++i) ++times[samples[i]];
        return *count;
      };
      const auto disk = std::make_shared<dsgd_test::MemoryDisk>();
      Cluster before({.workers = savers, .separate_head = true, .files = true, .disk = disk},
                     [&](Cluster& job, Session& session, int worker) {
                       add_model(session, 4, 1);
                       const auto shard = session.add_shard(kSamples, 3, false);
                       if (!job.note(worker, "start", [&] { return session.start(); })) return;
                       draw(session, *shard, 3);
                       StepResult result;
                       job.note(worker, "step", [&] { return session.step(1, &result); });
                       job.note(worker, "save", [&] { return save(session); });
                     });
      ASSERT_TRUE(before.run_until_ended(60s));
      Cluster cluster({.workers = 3,
                       .separate_head = true,
                       .files = true,
                       .disk = disk,
                       .settings = {{"min_workers", "1"}, {"lease", "1s"}}},
                      [&](Cluster& job, Session& session, int worker) {
                        add_model(session, 4, 1);
                        const auto shard = session.add_shard(kSamples, 3, false);
                        if (!job.note(worker, "start", [&] { return session.start(); })) return;
                        if (worker == 2) {
                          const transport::Time at = job.world.now() + cut;
                          job.world.at(at, [&job] { job.world.block(job.process(2), job.process(1)); });
                          job.world.at(at + 20ms, [&job] { job.world.kill(job.process(2), Death::kSilent); });
                        }
                        Status loaded;
                        do {
                          loaded = load(session);
                        } while (loaded.code() == Code::kViewChanged);
                        if (!job.note(worker, "load", [&] { return loaded; }) || worker == 2)
                          return job.pass_time(worker, 1s);
                        StepResult result;
                        while (!result.all_done) {
                          const double weight = draw(session, *shard, 2) > 0 ? 1 : 0;
                          if (!job.note(worker, "step", [&] { return session.step(weight, &result); }))
                            return;
                        }
                      });
      ASSERT_TRUE(cluster.run_until_ended(60s)) << cluster.histories();
      applied += has_applied_what_it_prepared(cluster, 1);
      for (uint64_t sample = 0; sample < kSamples; ++sample) {
        EXPECT_EQ(times[static_cast<int64_t>(sample)], 1)
            << "sample " << sample << ", saved by " << savers << ", cut after " << cut.count() << " ns";
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(applied, 0);
}

// Worker 1 stops, so the workers of the new view cannot agree before the call's limit.
TEST(Change, EndsByItsDeadlineWhileTheViewChanges) {
  Cluster cluster({.workers = 3, .separate_head = true, .settings = {{"min_workers", "1"}, {"lease", "8s"}}},
                  [](Cluster& job, Session& session, int worker) {
                    add_model(session, 4, 1);
                    if (!job.note(worker, "start", [&] { return session.start(); })) return;
                    if (worker == 2) {
                      const transport::Time now = job.world.now();
                      job.world.at(now + 95ms, [&job] { job.world.pause(job.process(1)); });
                      job.world.at(now + 100ms, [&job] { job.world.kill(job.process(2), Death::kReset); });
                      job.world.at(now + 30s, [&job] { job.world.resume(job.process(1)); });
                      return job.pass_time(worker, 20s);
                    }
                    job.note(worker, "change", [&] {
                      return wait_for(session, session.set_strategy("ps", "copies=2", Session::Mode::kWait,
                                                                    {.timeout = 500ms}));
                    });
                  });
  EXPECT_TRUE(cluster.run_until_ended(60s));
  const NotedCall* const change = cluster.call(0, "change");
  ASSERT_TRUE(change);
  EXPECT_EQ(change->status.code(), Code::kTimeout) << change->status.message();
  EXPECT_LE(change->ended - change->began, 600ms);
}

// Each worker has an all-reduce of another channel in flight, which a view ends. So the host knows the view.
TEST(Change, AViewFailsTheCallsOfOtherChannelsOnceOnEachWorker) {
  int applied = 0;
  for (Duration cut = 0us; cut < 600us; cut += 20us) {
    Cluster cluster({.workers = 3,
                     .separate_head = true,
                     .settings = {{"min_workers", "1"}, {"lease", "1s"}, {"step_timeout", "5s"}}},
                    [&](Cluster& job, Session& session, int worker) {
                      add_model(session, 4, 1);
                      int32_t value = 1;
                      if (!job.note(worker, "start", [&] { return session.start(); })) return;
                      const auto sum = [&] {
                        return begin(session.allreduce(&value, &value, sizeof value, DType::kInt32,
                                                       Reduction::kSum, {.channel = 1}),
                                     Session::Mode::kQueue);
                      };
                      std::shared_ptr<Operation> open;
                      if (worker == 2) {
                        const transport::Time at = job.world.now();
                        job.world.at(at + cut, [&job] { job.world.block(job.process(2), job.process(1)); });
                        job.world.at(at + 20ms, [&job] { job.world.kill(job.process(2), Death::kReset); });
                      } else {
                        open = sum().value();
                      }
                      job.note(worker, "change", [&] { return session.set_strategy("simple", ""); });
                      job.pass_time(worker, 100ms);
                      job.note(worker, "sum", [&] { return wait_for(session, sum()); });
                    });
    ASSERT_TRUE(cluster.run_until_ended(60s));
    if (!has_applied_what_it_prepared(cluster, 1)) continue;
    ++applied;
    for (int worker : {0, 1})
      EXPECT_TRUE(cluster.call(worker, "sum")->status.ok()) << cluster.history(worker);
    if (HasFailure()) return;
  }
  EXPECT_GT(applied, 0);
}

// A program that was started again makes this call, since it cannot know whether the job still runs.
TEST(Change, AWorkerThatJoinsNeedsNoCheckpointAndMayAskForOne) {
  std::vector<StepResult> last(3);
  Cluster cluster({.workers = 2,
                   .joiners = 1,
                   .separate_head = true,
                   .files = true,
                   .settings = {{"min_workers", "1"}, {"max_workers", "3"}, {"step_timeout", "5s"}}},
                  [&last](Cluster& cluster, Session& session, int worker) {
                    const int64_t count = 4;
                    Parameter* const parameter =
                        session.add_parameter("p", DType::kFloat32, {&count, 1}, true).value();
                    const auto memory = session.alloc(session.add_replica("cpu").value(), parameter).value();
                    std::fill_n(static_cast<float*>(memory->gradient), count, 1.0f);
                    if (!cluster.note(worker, "start", [&] { return session.start(); })) return;
                    const bool loaded = cluster.note(worker, "load", [&] {
                      const auto call = session.load_checkpoint("./model", Session::Mode::kWait);
                      const Status status = wait_for(session, call);
                      return worker < 2 && status.code() == Code::kNotFound ? Status() : status;
                    });
                    StepResult& result = last[static_cast<size_t>(worker)];
                    result.step = -1;
                    while (loaded && result.step < 399 &&
                           cluster.note(worker, "step", [&] { return session.step(1, &result); })) {
                    }
                  });
  cluster.world.run_for(60ms);
  cluster.start_worker(2);
  ASSERT_TRUE(cluster.run_until_ended(60s)) << "a worker hangs";
  for (int w = 0; w < 3; ++w) EXPECT_FALSE(cluster.first_failure(w)) << cluster.history(w);
  EXPECT_EQ(last[0].size, 3) << cluster.history(2);
}

// The second save waits for the first one, which worker 1 makes late.
TEST(Save, LetsNoStepBeginBeforeItHasCopiedTheModel) {
  Cluster cluster({.workers = 2, .separate_head = true, .files = true}, [](Cluster& cluster, Session& session,
                                                                           int worker) {
    EXPECT_TRUE(Cluster::train(cluster, session, worker, 1)) << cluster.history(worker);
    StepResult result;
    if (worker == 1) {
      cluster.pass_time(worker, 1s);
      for (const char* folder : {"./a", "./b"}) {
        const Status saved = wait_for(session, session.save_checkpoint(folder, Session::Mode::kWait));
        EXPECT_TRUE(saved.ok()) << saved.message();
      }
    } else {
      const auto first = session.save_checkpoint("./a", Session::Mode::kQueue).value();
      const auto second = session.save_checkpoint("./b", Session::Mode::kQueue).value();
      cluster.pass_time(worker, 100ms);
      EXPECT_TRUE(first->model_copied());
      EXPECT_FALSE(second->model_copied());
      const Status step = session.step(1, &result);
      EXPECT_EQ(step.code(), Code::kState);
      EXPECT_NE(step.message().find("has not copied the model"), std::string::npos);
      session.wait_until_copied(*second);
      EXPECT_TRUE(second->model_copied());
      for (const auto& save : {first, second}) EXPECT_TRUE(session.wait(*save, -1ms).ok());
    }
    EXPECT_TRUE(session.step(1, &result).ok());
  });
  ASSERT_TRUE(cluster.run_until_ended(60s));
}

}  // namespace
}  // namespace dsgd::simulation::change_test
