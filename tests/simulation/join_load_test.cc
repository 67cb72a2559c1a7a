// A worker joins while the others start and load a checkpoint, as they do after all workers were lost. The
// checkpoint has other values than the job begins with, and each step subtracts 1. So a value tells whether
// it comes from the checkpoint, and how many steps have followed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster.h"
#include "small_model.h"
#include "tests/unit/sanitizer.h"

namespace dsgd::simulation::join_load_test {
namespace {

using namespace std::chrono_literals;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using transport::Death;
using transport::Duration;
using transport::Time;

constexpr int kResumedSteps = 30;      // at which the workers end
constexpr float kSavedBeginning = 99;  // the value in the job that has saved, before its first step
constexpr int64_t kResumedElements = 4000;
const int kJoinStride = dsgd_test::one_of(4, 16);

struct ResumedJob {
  int saved = 3;    // steps of the checkpoint; -1: there is none
  int workers = 2;  // that the job begins with
  int joiners = 1;
  Duration join{};  // of the first joiner, after the others have joined
  Duration between_joins = 1300us;
  // By worker: between dsgd_start and dsgd_checkpoint_load. Joiners that are not here do not wait.
  std::vector<Duration> before = {0us, 3ms};
  int first_steps = 0;  // that the others make; then they wait until the joiner has started
  bool others_load = true;
  bool others_save = false;   // into another folder, before they load
  bool others_leave = false;  // without a load and a step
  int lost = 0;               // workers that are killed, from worker 0 on
  Duration loss{};            // after workers 0 and 1 have joined
  std::map<std::string, std::string> settings = {};
  uint64_t seed = 1;
};

class Resumed {
 public:
  explicit Resumed(const ResumedJob& job)
      : job_(job),
        values(static_cast<size_t>(job.workers + job.joiners)),
        cluster(options_of(job), [this](Cluster&, Session& session, int worker) { train(session, worker); }) {
    for (int worker = 0; worker < job.workers; ++worker)
      EXPECT_TRUE(cluster.run_until_noted(worker, "open", 30s));
    const Time begin = cluster.world.now();
    for (int joiner = 0; joiner < job.joiners; ++joiner)
      cluster.world.at(begin + job.join + joiner * job.between_joins,
                       [this, joiner] { cluster.start_worker(job_.workers + joiner); });
    for (int victim = 0; victim < job.lost; ++victim) {
      cluster.world.at(begin + job.loss,
                       [this, victim] { cluster.world.kill(cluster.process(victim), Death::kReset); });
    }
    EXPECT_TRUE(cluster.run_until_ended(100s)) << "a worker hangs";
  }

  void expect_right() const {
    const bool loads = job_.others_load && job_.saved >= 0;
    const std::vector<float> right(kResumedElements,
                                   (loads ? kSavedBeginning : 0) - static_cast<float>(kResumedSteps));
    for (int worker = job_.lost; worker < cluster.all(); ++worker) {
      for (const NotedCall& call : cluster.calls(worker)) {
        const bool may_fail =
            (call.name == "load" || call.name == "save") && call.status.code() == Code::kViewChanged;
        EXPECT_TRUE(call.status.ok() || may_fail) << cluster.histories();
        EXPECT_LT(call.ended - call.began, 3s) << cluster.histories();
      }
      EXPECT_TRUE(values[static_cast<size_t>(worker)] == right)
          << "worker " << worker << " has other values\n"
          << cluster.histories();
    }
  }
  bool logged(int worker, const std::string& text) const {
    return std::any_of(cluster.log(worker).begin(), cluster.log(worker).end(),
                       [&](const std::string& line) { return line.find(text) != line.npos; });
  }

 private:
  static ClusterOptions options_of(const ResumedJob& job) {
    ClusterOptions options{.workers = job.workers,
                           .joiners = job.joiners,
                           .separate_head = true,
                           .files = true,
                           .seed = job.seed};
    if (job.saved >= 0) options.disk = disk_of_job(job.saved, kResumedElements, kSavedBeginning);
    options.settings = {{"lease", "500ms"},
                        {"min_workers", "1"},
                        {"max_workers", std::to_string(job.workers + job.joiners)},
                        {"step_timeout", "20s"}};
    for (const auto& [key, value] : job.settings) options.settings[key] = value;
    options.network.delay = {100us, 400us};
    return options;
  }

  void train(Session& session, int worker) {
    float* const value = add_model(session, kResumedElements, 1);
    if (!cluster.note(worker, "start", [&] { return session.start(); })) return;
    const bool joins = worker >= job_.workers;
    StepResult result;
    for (int k = 0; k < job_.first_steps && !joins; ++k)
      if (!cluster.note(worker, "first step", [&] { return session.step(1, &result); })) return;
    while (job_.first_steps > 0 && !joins && !cluster.call(job_.workers, "start"))
      cluster.pass_time(worker, 1ms);
    if (const auto w = static_cast<size_t>(worker); w < job_.before.size())
      cluster.pass_time(worker, job_.before[w]);
    if (!joins && job_.others_save)  // once: a worker that has joined makes no such call
      cluster.note(worker, "save", [&] { return save(session, "./other"); });
    if (!joins && job_.others_leave) return;
    if (joins || job_.others_load) {
      Status status;
      do {
        cluster.note(worker, "load", [&] {
          status = load(session);
          return status.code() == Code::kNotFound ? Status() : status;
        });
      } while (status.code() == Code::kViewChanged);
      if (!status.ok() && status.code() != Code::kNotFound) return cluster.pass_time(worker, 10s);
    }
    for (auto k = session.info().steps; k < kResumedSteps; ++k) {
      cluster.pass_time(worker, 4ms);
      if (!cluster.note(worker, "step " + std::to_string(k), [&] { return session.step(1, &result); }))
        return;
    }
    values[static_cast<size_t>(worker)].assign(value, value + kResumedElements);
  }

  const ResumedJob job_;

 public:
  std::vector<std::vector<float>> values;  // at the end, by worker
  Cluster cluster;
};

TEST(JoiningAroundALoad, TakesPartInTheLoadOfTheOthersOrHoldsTheirState) {
  const std::vector<ResumedJob> jobs = {{},
                                        {.saved = 0},
                                        {.saved = -1},
                                        {.joiners = 2},
                                        {.saved = -1, .joiners = 2},
                                        {.others_load = false},
                                        {.others_save = true}};
  size_t n = 0;
  for (ResumedJob of : jobs) {
    int took_part = 0, held = 0;
    for (const Duration before : {0ms, 3ms, 20ms}) {
      for (of.join = 0us; of.join < 8ms; of.join += kJoinStride * 400us) {
        SCOPED_TRACE("job " + std::to_string(n) + ", joins after " + std::to_string(of.join / 1us) +
                     " us, the others load " + std::to_string(before / 1us) + " us after their start");
        of.before = {before, before + 1ms};
        const Resumed job(of);
        job.expect_right();
        if (HasFailure()) return;
        ++(job.logged(2, "dsgd_checkpoint_load does nothing") ? held : took_part);
      }
    }
    EXPECT_TRUE(took_part > 0 || !of.others_load) << n;
    EXPECT_GT(held, 0) << n;
    ++n;
  }
}

// The change of the view may end the load of one worker after the other has ended its own, without a
// checkpoint.
TEST(JoiningAroundALoad, AFailedLoadFailsOnAllWorkersInTheSameWay) {
  int missed = 0;
  for (Duration join = 300us; join < 1500us; join += kJoinStride * 20us) {
    SCOPED_TRACE("joins after " + std::to_string(join / 1us) + " us");
    const Resumed job({.saved = -1, .join = join, .before = {3000us, 3100us}, .seed = 4});
    job.expect_right();
    if (HasFailure()) return;
    const auto changed = [&job](int worker) {  // loads that the change of the view has ended
      const auto& calls = job.cluster.calls(worker);
      return std::count_if(calls.begin(), calls.end(), [](const NotedCall& call) {
        return call.name == "load" && call.status.code() == Code::kViewChanged;
      });
    };
    missed += changed(0) != changed(1);
  }
  EXPECT_TRUE(missed > 0 || !dsgd_test::runs_all_cases());
}

// Workers that have joined load the checkpoint after all others were lost.
TEST(JoiningAroundALoad, WorkersThatHaveJoinedOutliveAllOthers) {
  const Resumed job({.joiners = 2, .before = {1s, 1s}, .lost = 2, .loss = 30ms});
  job.expect_right();
  for (int worker : {2, 3}) EXPECT_FALSE(job.logged(worker, "dsgd_checkpoint_load does nothing"));
}

// The others go back to a checkpoint, after steps.
TEST(JoiningAroundALoad, TakesPartInALoadBetweenLaterSteps) {
  for (const Duration others : {0ms, 5ms}) {
    for (const Duration joiner : {0ms, 5ms, 50ms}) {
      SCOPED_TRACE("loads " + std::to_string(joiner / 1us) + " us after its start, the others after " +
                   std::to_string(others / 1us) + " us");
      const Resumed job({.join = 30ms, .before = {others, others + 1ms, joiner}, .first_steps = 5});
      job.expect_right();
      EXPECT_FALSE(job.logged(2, "dsgd_checkpoint_load does nothing"));
      if (HasFailure()) return;
    }
  }
}

// Their next call is a step, under any strategy.
TEST(JoiningAroundALoad, DoesNotLoadBetweenLaterSteps) {
  const std::vector<std::map<std::string, std::string>> settings = {
      {{"strategy", "simple"}},
      {{"strategy", "ps"}, {"copies", "2"}},
      {{"algorithm", "ring"}},
      {{"algorithm", "halving_doubling"}},
  };
  for (const auto& of : settings) {
    for (const Duration joiner : {0ms, 5ms, 50ms}) {
      SCOPED_TRACE(of.begin()->second + ", loads " + std::to_string(joiner / 1us) + " us after its start");
      const Resumed job({.join = 30ms,
                         .before = {0ms, 20ms, joiner},
                         .first_steps = 5,
                         .others_load = false,
                         .settings = of});
      job.expect_right();
      EXPECT_TRUE(job.logged(2, "dsgd_checkpoint_load does nothing"));
      if (HasFailure()) return;
    }
  }
}

// Workers 0 and 1 are lost in their first step, in which they wait for worker 2. So worker 2 becomes
// rank 0, while worker 3 is already in that step. Worker 2 calls dsgd_checkpoint_load during the change of
// the view.
TEST(JoiningAroundALoad, HoldsTheirStateAlsoAsRank0) {
  for (Duration load = 41ms; load < 46ms; load += 100us) {
    SCOPED_TRACE("loads " + std::to_string(load / 1us) + " us after its start");
    const Resumed job(
        {.joiners = 2, .before = {0us, 0us, load}, .others_load = false, .lost = 2, .loss = 50ms});
    job.expect_right();
    for (int worker : {2, 3}) EXPECT_TRUE(job.logged(worker, "dsgd_checkpoint_load does nothing"));
    if (HasFailure()) return;
  }
}

TEST(JoiningAroundALoad, WarnsThatTheOthersHaveNotBegunTheirCall) {
  const Resumed job({.before = {2s, 2s}, .settings = {{"stall_warning", "1s"}}});
  job.expect_right();
  const auto& warnings = job.cluster.warnings(2);
  ASSERT_FALSE(warnings.empty());
  EXPECT_THAT(warnings[0].text, StartsWith("dsgd_checkpoint_load has not ended after 1 s: rank 0 (worker "));
  EXPECT_THAT(warnings[0].text, HasSubstr(", rank 1 (worker "));
  EXPECT_THAT(warnings[0].text, EndsWith(" have not begun their next call"));
}

TEST(JoiningAroundALoad, DoesNotWaitForWorkersThatHaveLeft) {
  const Resumed job({.join = 1ms, .before = {100ms, 100ms}, .others_leave = true});
  ASSERT_TRUE(job.cluster.call(2, "load"));
  EXPECT_LT(job.cluster.call(2, "load")->ended - job.cluster.call(2, "load")->began, 3s);
  EXPECT_FALSE(job.cluster.first_failure(2)) << job.cluster.history(2);
}

// The others load later than its load waits for them. Its end tells them so.
TEST(JoiningAroundALoad, FailsTheLoadsOfTheOthersThatComeTooLate) {
  const Resumed job({.join = 1ms, .before = {5s, 5s}, .settings = {{"step_timeout", "2s"}}});
  for (int worker : {0, 1, 2}) {
    const NotedCall* const load = job.cluster.call(worker, "load");
    ASSERT_TRUE(load) << job.cluster.histories();
    EXPECT_EQ(load->status.code(), worker == 2 ? Code::kTimeout : Code::kMismatch) << load->status.message();
    EXPECT_THAT(load->status.message(), HasSubstr("the others have not begun their next call"));
  }
}

// Worker 1 waits in a paused view, with a load that has not begun.
TEST(JoiningAroundALoad, EndsThePauseOfAJobWhoseWorkersWaitToLoad) {
  const Resumed job({.join = 1s,
                     .before = {1s, 500ms},
                     .lost = 1,
                     .loss = 5ms,
                     .settings = {{"min_workers", "2"}, {"rejoin_timeout", "60s"}}});
  job.expect_right();
}

// The first joiner is in a paused view, since one more worker is missing.
TEST(JoiningAroundALoad, TakesPartAfterAPause) {
  for (const Duration before : {5ms, 500ms, 1500ms, 2100ms}) {
    const Resumed job({.workers = 4,
                       .joiners = 2,
                       .join = 1s,
                       .between_joins = 1s,
                       .before = {before, before, before, before + 1ms},
                       .lost = 2,
                       .loss = 3ms,
                       .settings = {{"min_workers", "4"}, {"rejoin_timeout", "60s"}}});
    job.expect_right();
    for (int worker : {4, 5}) EXPECT_FALSE(job.logged(worker, "dsgd_checkpoint_load does nothing"));
  }
}

// The others cannot complete the first step of the worker that joins, since it comes too late.
TEST(JoiningAroundALoad, AWorkerWhoseFirstStepHasFailedLoadsWithTheOthers) {
  ClusterOptions options{.joiners = 1, .separate_head = true, .files = true};
  options.disk = disk_of_job(3, kResumedElements, kSavedBeginning);
  options.settings = {{"lease", "500ms"}, {"max_workers", "3"}, {"step_timeout", "1s"}};
  Cluster cluster(options, [](Cluster& cluster, Session& session, int worker) {
    add_model(session, kResumedElements, 1);
    if (!cluster.note(worker, "start", [&] { return session.start(); })) return;
    if (worker == 2) cluster.pass_time(worker, 3s);
    StepResult result;
    while (cluster.note(worker, "step", [&] { return session.step(1, &result); }))
      cluster.pass_time(worker, 10ms);
    if (cluster.world.now() < 12s + Time{}) cluster.pass_time(worker, 12s + Time{} - cluster.world.now());
    Status status;
    do {
      cluster.note(worker, "load", [&] { return status = load(session); });
    } while (status.code() == Code::kViewChanged);
    for (int k = 0; k < 10; ++k) cluster.note(worker, "later step", [&] { return session.step(1, &result); });
  });
  ASSERT_TRUE(cluster.run_until_noted(0, "step", 8s));
  cluster.start_worker(2);
  EXPECT_TRUE(cluster.run_until_ended(60s)) << "a worker hangs";
  for (int worker : {0, 1, 2}) {
    for (const char* call : {"load", "later step"}) {
      const NotedCall* const made = cluster.call(worker, call);
      ASSERT_TRUE(made) << cluster.histories();
      EXPECT_TRUE(made->status.ok()) << cluster.history(worker);
    }
  }
}

}  // namespace
}  // namespace dsgd::simulation::join_load_test
