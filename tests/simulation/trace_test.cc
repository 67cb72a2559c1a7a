// The counterexamples of tests/model/README.md, each played on the real code: three workers begin a step at
// one moment, every packet takes a millisecond, and links are blocked and workers killed between the sending
// of contributions and the arrival of sums. In step k the gradient of worker w is 2^w in element k, so the
// model shows whose gradients a step has used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster.h"
#include "small_model.h"
#include "tests/unit/sanitizer.h"
#include "tests/unit/wait_for.h"

namespace dsgd::simulation::trace_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using transport::Death;
using transport::Duration;
using transport::Time;

constexpr int kSteps = 25, kStep = 2;  // the last one is the step that is disturbed

struct StageOptions {
  int joiners = 0;
  int steps = kSteps;                                // or kStep + 1: then all close after the disturbed step
  bool ps = false;                                   // with copies=2, and several key ranges
  int elements() const { return ps ? 40'000 : 30; }  // those from kSteps on have a gradient in every step
  bool durable_head = false;
  bool begins = false;  // worker 0 begins a step before it closes, and marks no gradient
  bool saves = false;   // a checkpoint after the disturbed step
  int samples = 0;  // of a data shard, of which each step draws one; worker 2 is late in the disturbed step
};

class Stage {
 public:
  static constexpr int kHead = -1;
  explicit Stage(const StageOptions& options = {})
      : options_(options),
        used(static_cast<size_t>(3 + options.joiners)),
        values(used.size()),
        drawn(used.size()),
        cluster({.workers = 3,
                 .joiners = options.joiners,
                 .separate_head = true,
                 .durable_head = options.durable_head,
                 .files = options.saves,
                 .settings = {{"lease", "500ms"},
                              {"min_workers", "1"},
                              {"max_workers", std::to_string(3 + options.joiners)},
                              {"algorithm", "direct"},
                              {"strategy", options.ps ? "ps" : "allreduce"},
                              {"copies", options.ps ? "2" : "1"},
                              {"bucket_size", "16K"},
                              {"step_timeout", "20s"}},
                 .network = {.delay = {1ms, 1ms}}},
                [this](Cluster&, Session& session, int worker) { train(session, worker); }) {
    for (int w = 0; w < 3; ++w)
      EXPECT_TRUE(cluster.run_until_noted(w, "step " + std::to_string(kStep - 1), 10s)) << cluster.history(w);
    start_ = cluster.world.now() + 20ms;  // of the disturbed step
  }

  // `action` happens `after` the workers have begun the step. Contributions arrive after 1 ms, sums
  // after 2.
  void at(Duration after, std::function<void()> action) {
    cluster.world.at(start_ + after, std::move(action));
  }
  void block(int from, int to) { cluster.world.block(cluster.process(from), cluster.process(to)); }
  void unblock(int from, int to) { cluster.world.unblock(cluster.process(from), cluster.process(to)); }
  void kill(int worker, Death death = Death::kReset) { cluster.world.kill(cluster.process(worker), death); }
  // Only worker 0 gets all sums, and completes the step.
  void let_only_worker_0_commit() {
    at(1500us, [this] { block(0, 1), block(0, 2), block(1, 2), block(2, 1); });
  }
  void free_links_of(int one, int other) { unblock(one, other), unblock(other, one); }
  void free_links() {
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        if (from != to) unblock(from, to);
      }
    }
  }
  void run() { EXPECT_TRUE(cluster.run_until_ended(60s)) << "a worker hangs"; }
  // The workers whose gradients the step has used, as this worker saw it: 0b101 are workers 0 and 2. -1: it
  // has not made the step.
  int uses(int worker, int step = kStep) const {
    const auto& of = used[static_cast<size_t>(worker)];
    const auto found = of.find(step);
    return found == of.end() ? -1 : found->second;
  }
  // Time from the begin of the disturbed step to its end on this worker, well or not.
  Duration ended(int worker) const {
    const NotedCall* step = cluster.call(worker, "step " + std::to_string(kStep));
    return step ? step->ended - start_ : Duration::max();
  }
  bool finished(int worker) const { return !values[static_cast<size_t>(worker)].empty(); }
  void expect_finished_alike(std::initializer_list<int> workers) const {
    for (int worker : workers) {
      EXPECT_TRUE(finished(worker)) << cluster.history(worker);
      EXPECT_TRUE(values[static_cast<size_t>(worker)] == values[static_cast<size_t>(*workers.begin())]);
    }
  }
  // The elements from kSteps on have equal gradients in each step. So their values are equal, unless the
  // momentum of some was lost, or has counted a step twice.
  void expect_equal_momenta(int worker) const {
    const auto& of = values[static_cast<size_t>(worker)];
    ASSERT_FALSE(of.empty()) << cluster.history(worker);
    for (size_t i = kSteps; i < of.size(); ++i)
      ASSERT_EQ(of[i], of[kSteps]) << "element " << i << " of worker " << worker;
  }

 private:
  const StageOptions options_;
  Time start_{};

 public:
  std::vector<std::map<int, int>> used;       // by worker, by step
  std::vector<std::vector<float>> values;     // at the end
  std::vector<std::map<int, int64_t>> drawn;  // samples, by worker, by step
  std::map<int, float> loaded;                // by worker: the element of the disturbed step

 private:
  void train(Session& session, int worker) {
    (void)session.set_optimizer("sgd", "lr=1 momentum=0.5");
    const int64_t count = options_.elements();
    Parameter* const parameter = session.add_parameter("p", DType::kFloat32, {&count, 1}, true).value();
    const auto memory = session.alloc(session.add_replica("cpu").value(), parameter).value();
    float* const value = static_cast<float*>(memory->value);
    float* const gradient = static_cast<float*>(memory->gradient);
    const auto shard = session.add_shard(static_cast<uint64_t>(options_.samples), 3, true);
    if (!cluster.note(worker, "start", [&] { return session.start(); })) return;
    StepResult result;
    for (int k = static_cast<int>(session.info().steps); k < options_.steps; ++k) {
      if (k == kStep && worker < 3) {
        while (start_ == Time{}) cluster.pass_time(worker, 1ms);
        cluster.pass_time(worker, start_ - cluster.world.now());
      }
      if (options_.samples > 0) {
        if (k == kStep && worker == 2) cluster.pass_time(worker, 100ms);
        draw_sample(session, *shard, worker, k);
      }
      std::fill_n(gradient, kSteps, 0.0f);
      std::fill(gradient + kSteps, gradient + count, static_cast<float>(1 << worker));
      gradient[k] = static_cast<float>(1 << worker);
      const float before = value[k];
      if (!cluster.note(worker, "step " + std::to_string(k), [&] { return session.step(1, &result); }))
        return;
      used[static_cast<size_t>(worker)][k] =
          static_cast<int>(std::lround(static_cast<double>(before - value[k]) * result.weight));
      if (k == kStep && options_.saves && !cluster.note(worker, "save", [&] { return save(session); }))
        return;
    }
    while (options_.steps == kSteps && !result.all_done) {
      if (!cluster.note(worker, "last step", [&] { return session.step(0, &result); })) return;
    }
    values[static_cast<size_t>(worker)].assign(value, value + count);
    if (options_.begins && worker == 0)
      cluster.note(worker, "begin", [&] { return session.step_begin(1).status(); });
    if (options_.saves && cluster.note(worker, "load", [&] { return load(session); }))
      loaded[worker] = value[kStep];
  }

  void draw_sample(Session& session, SharedShard& shard, int worker, int step) {
    int64_t sample = 0;
    std::optional<size_t> count;
    while (!(count = shard.next(&sample, 1))) {
      if (!session.wait_for_samples(shard).ok()) return;
    }
    if (*count == 1) drawn[static_cast<size_t>(worker)][step] = sample;
  }

 public:
  Cluster cluster;
};

TEST(Trace, T1ACommitIsProvisionalAndTheOthersRepeatTheStepWithoutItsWorker) {
  Stage stage;
  stage.let_only_worker_0_commit();
  stage.at(4ms, [&] { stage.kill(0), stage.free_links_of(1, 2); });  // its sums never arrive
  stage.run();
  EXPECT_EQ(stage.uses(0), 0b111) << "worker 0 has completed the step\n" << stage.cluster.history(0);
  EXPECT_EQ(stage.uses(1), 0b110);
  EXPECT_EQ(stage.uses(2), 0b110);
  stage.expect_finished_alike({1, 2});
}

// Worker 2 gets its last sum, of worker 0, about when the head takes worker 0 out of the job. If it completes
// the step before it reports, worker 1 copies the step from it. If the sum comes later, it has no effect.
TEST(Trace, T2AWorkerThatHasReportedCompletesNoStepOfTheEarlierView) {
  const auto play = [](Duration sum_comes, Duration* ended) {
    auto stage = std::make_unique<Stage>();
    stage->at(1500us, [s = stage.get()] {
      for (const int other : {1, 2, Stage::kHead}) s->block(0, other);
    });
    stage->at(sum_comes, [s = stage.get()] { s->unblock(0, 2); });
    stage->cluster.world.run_for(3s);
    stage->run();
    stage->expect_finished_alike({1, 2});
    EXPECT_EQ(stage->uses(1), stage->uses(2));
    *ended = stage->ended(2);
    return stage->uses(2);
  };
  Duration repeated{}, unused{};
  EXPECT_EQ(play(2s, &repeated), 0b110);
  int before = 0, after = 0;
  for (Duration sum_comes = repeated - 10ms; sum_comes < repeated; sum_comes += 100us) {
    const int uses = play(sum_comes, &unused);
    EXPECT_TRUE(uses == 0b111 || uses == 0b110) << uses;
    ++(uses == 0b111 ? before : after);
    if (HasFailure()) return;
  }
  EXPECT_GT(before, 0);
  EXPECT_GT(after, 0);
}

// Worker 2 holds all sums of the earlier view but one.
TEST(Trace, T4WhatAnEarlierViewHasSummedIsNotUsed) {
  Stage stage;
  stage.at(1500us, [&] { stage.block(0, 1), stage.block(0, 2); });  // the sums of worker 0's slice
  stage.at(4ms, [&] { stage.kill(0); });
  stage.run();
  EXPECT_EQ(stage.uses(1), 0b110);
  EXPECT_EQ(stage.uses(2), 0b110);
  stage.expect_finished_alike({1, 2});
}

// Worker 0 alone has completed the step, saves, and dies. The checkpoint that the job has is that of the
// others, since a checkpoint is published only when all workers of a view have written it.
TEST(Trace, T7ACheckpointIsNeverOfAStepThatOthersRepeat) {
  Stage stage({.saves = true});
  stage.let_only_worker_0_commit();
  stage.at(400ms, [&] { stage.kill(0), stage.free_links_of(1, 2); });
  stage.run();
  EXPECT_EQ(stage.uses(0), 0b111);
  EXPECT_FALSE(stage.cluster.call(0, "save")) << "it was saving\n" << stage.cluster.history(0);
  for (const int worker : {1, 2}) {
    EXPECT_EQ(stage.uses(worker), 0b110);
    ASSERT_EQ(stage.loaded.count(worker), 1u) << stage.cluster.history(worker);
    EXPECT_EQ(stage.loaded[worker], -3) << "the mean of 2 and 4";
  }
  stage.expect_finished_alike({1, 2});
}

// Worker 0 closes its session after the disturbed step, which is the last one.
TEST(Trace, T8AWorkerLeavesOnlyWhenTheOthersHaveItsLastStep) {
  for (const Death death : {Death::kReset, Death::kSilent}) {
    for (const bool begins : {false, true}) {
      SCOPED_TRACE(begins);
      Stage stage({.steps = kStep + 1, .begins = begins});
      stage.let_only_worker_0_commit();
      stage.at(4ms, [&] { stage.kill(1, death); });
      stage.at(5ms, [&] { stage.free_links(); });
      stage.run();
      EXPECT_EQ(stage.uses(0), 0b111);
      EXPECT_EQ(stage.uses(2), 0b111);
      stage.expect_finished_alike({0, 2});
    }
  }
}

TEST(Trace, T8AStopOfAnotherWorkerIsWaitedForAndTheWaitIsNoLonger) {
  for (const Duration stop : {100ms, 400ms}) {
    Stage stage({.steps = kStep + 1});
    stage.let_only_worker_0_commit();
    stage.at(4ms, [&] { stage.cluster.world.pause(stage.cluster.process(1)); });
    stage.at(5ms, [&] { stage.free_links(); });
    stage.at(stop, [&] { stage.cluster.world.resume(stage.cluster.process(1)); });
    stage.run();
    stage.expect_finished_alike({0, 1, 2});
    for (int worker = 0; worker < 3; ++worker) EXPECT_EQ(stage.uses(worker), 0b111);
    const NotedCall* close = stage.cluster.call(0, "close");
    ASSERT_TRUE(close);
    EXPECT_GE(close->ended - close->began, stop - 10ms);
    EXPECT_LE(close->ended - close->began, stop + 20ms);
  }
}

// Worker 0 is stopped before it has the sum of worker 2, and goes on about when the head takes it out. The
// last sums of the earlier view, in both directions, arrive then.
TEST(Trace, T3AWorkerThatWasTakenOutUsesNothingOfTheLaterView) {
  int evicted = 0, repeated = 0, stayed = 0;
  for (Duration resumed = 440ms; resumed < 520ms; resumed += 1ms) {
    Stage stage;
    stage.at(1500us, [&] {
      stage.block(0, 1), stage.block(0, 2), stage.block(2, 0);
      stage.cluster.world.pause(stage.cluster.process(0));
    });
    stage.at(resumed, [&] { stage.free_links(), stage.cluster.world.resume(stage.cluster.process(0)); });
    stage.cluster.world.run_for(1s);
    stage.run();
    stage.expect_finished_alike({1, 2});
    EXPECT_EQ(stage.uses(1), stage.uses(2));
    if (const NotedCall* failure = stage.cluster.first_failure(0)) {
      ++evicted;
      EXPECT_EQ(failure->status.code(), Code::kEvicted) << failure->status.message();
      EXPECT_GE(stage.ended(0), resumed) << "it goes on in the step";
      EXPECT_TRUE(stage.uses(0) == -1 || stage.uses(0) == 0b111) << stage.uses(0);
      EXPECT_TRUE(stage.uses(1) == 0b110 || stage.uses(1) == 0b111) << stage.uses(1);
      repeated += stage.uses(1) == 0b110;
    } else {
      ++stayed;
      EXPECT_EQ(stage.uses(1), 0b111);
      stage.expect_finished_alike({0, 1, 2});
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(evicted, 0);
  EXPECT_GT(repeated, 0);
  EXPECT_GT(stayed, 0);
}

// Worker 2 holds sums of the earlier view, and hears of the later one when worker 1 has sent it gradients in
// that view.
TEST(Trace, T3WhatComesFromALaterViewWaitsForIt) {
  for (Duration heard = 4ms; heard < 30ms; heard += 500us) {
    Stage stage;
    stage.at(1500us, [&] { stage.block(0, 1), stage.block(0, 2); });
    stage.at(3ms, [&] { stage.block(Stage::kHead, 2); });
    stage.at(4ms, [&] { stage.kill(0); });
    stage.at(heard, [&] { stage.unblock(Stage::kHead, 2); });
    stage.run();
    EXPECT_EQ(stage.uses(1), 0b110);
    EXPECT_EQ(stage.uses(2), 0b110);
    EXPECT_GE(stage.ended(1), heard) << "worker 1 waits for worker 2";
    stage.expect_finished_alike({1, 2});
    if (HasFailure()) return;
  }
}

TEST(Trace, T5AWorkerThatIsAStepBehindCopiesItFromTheOnlyOneThatHasCompletedIt) {
  Stage stage;
  stage.let_only_worker_0_commit();
  stage.at(4ms, [&] { stage.kill(1), stage.free_links(); });
  stage.run();
  EXPECT_EQ(stage.uses(0), 0b111);
  EXPECT_EQ(stage.uses(2), 0b111) << "the dead worker's gradient is in the step, as on worker 0";
  EXPECT_EQ(stage.uses(2, kStep + 1), 0b101);
  stage.expect_finished_alike({0, 2});
}

// Worker 0 dies at each moment of the copy that worker 2 makes of its state.
TEST(Trace, T6ACopyIsAppliedWholeOrNotAtAll) {
  bool copied = false, repeated = false;
  for (Duration after = 3ms; after < 16ms; after += 200us) {
    Stage stage;
    stage.let_only_worker_0_commit();
    stage.at(4ms, [&] { stage.kill(1), stage.unblock(2, 0); });
    stage.at(after, [&] { stage.unblock(0, 2); });
    stage.at(after + 4ms, [&] { stage.kill(0); });
    stage.run();
    stage.expect_finished_alike({2});
    copied |= stage.uses(2) == 0b111;
    repeated |= stage.uses(2) == 0b100;
    EXPECT_TRUE(stage.uses(2) == 0b111 || stage.uses(2) == 0b100) << stage.uses(2);
    if (HasFailure()) return;
  }
  EXPECT_TRUE(copied && repeated) << "both outcomes occur";
}

// As T1, but worker 0 is stopped and goes on when the others have trained on without it.
TEST(Trace, T11AWorkerThatWasTakenOutDoesNotComeBackWithItsState) {
  Stage stage;
  stage.let_only_worker_0_commit();
  stage.at(4ms, [&] { stage.cluster.world.pause(stage.cluster.process(0)); });
  stage.at(5ms, [&] { stage.free_links_of(1, 2); });
  stage.at(530ms, [&] { stage.free_links(), stage.cluster.world.resume(stage.cluster.process(0)); });
  stage.cluster.world.run_for(3s);
  stage.run();
  EXPECT_EQ(stage.uses(0), 0b111);
  const NotedCall* failure = stage.cluster.first_failure(0);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->status.code(), Code::kEvicted) << failure->status.message();
  EXPECT_EQ(stage.uses(1), 0b110);
  stage.expect_finished_alike({1, 2});
}

// The lease of worker 0 is over, and the head is killed before or after it has stored and published the view
// without that worker. Then worker 2 dies, and worker 0 goes on.
TEST(Trace, T9AViewHasOneListOfWorkers) {
  int evicted = 0, stayed = 0;
  for (Duration after = 460ms; after < 560ms; after += 1ms) {
    Stage stage({.durable_head = true});
    Cluster& cluster = stage.cluster;
    stage.at(1500us, [&] { cluster.world.pause(cluster.process(0)); });
    stage.at(after, [&] { cluster.kill_head(Death::kReset); });
    stage.at(after + 3ms,
             [&] { cluster.start_head(), stage.kill(2), cluster.world.resume(cluster.process(0)); });
    cluster.world.run_for(1s);
    stage.run();
    std::map<std::string, std::set<std::string>> views;
    for (int worker = 0; worker < 3; ++worker) {
      for (const std::string& line : cluster.log(worker)) {
        if (line.rfind("view ", 0) == 0) views[line.substr(0, line.find(" with"))].insert(line);
      }
    }
    for (const auto& [view, texts] : views) EXPECT_EQ(texts.size(), 1u) << view << ": " << *texts.begin();
    EXPECT_FALSE(views.empty());
    EXPECT_TRUE(stage.finished(1)) << cluster.history(1);
    if (stage.finished(0) && stage.finished(1)) stage.expect_finished_alike({0, 1});
    if (const NotedCall* failure = cluster.first_failure(0)) {
      // The job may be over, and its head gone, when this worker comes back.
      EXPECT_TRUE(failure->status.code() == Code::kTimeout || failure->status.code() == Code::kEvicted)
          << failure->status.message();
    }
    ++(stage.finished(0) ? stayed : evicted);
    if (HasFailure()) return;
  }
  EXPECT_GT(evicted, 0);
  EXPECT_GT(stayed, 0);
}

// Workers 0 and 1 cannot reach each other, and the head is killed about when they report it.
TEST(Trace, T9APairThatStaysCutLosesOneWorkerAtTheNextHead) {
  for (Duration after = 420ms; after < 700ms; after += 10ms) {
    Stage stage({.durable_head = true});
    Cluster& cluster = stage.cluster;
    stage.at(1500us, [&] { stage.block(0, 1), stage.block(1, 0); });
    stage.at(after, [&] { cluster.kill_head(Death::kReset); });
    stage.at(after + 3ms, [&] { cluster.start_head(); });
    stage.run();
    stage.expect_finished_alike({0, 2});
    const NotedCall* failure = cluster.first_failure(1);
    ASSERT_TRUE(failure) << cluster.history(1);
    EXPECT_EQ(failure->status.code(), Code::kEvicted) << failure->status.message();
    if (HasFailure()) return;
  }
}

// Worker 1 has drawn a sample in the earlier view, worker 2 draws in the later one, with the samples of
// worker 0 that no step has used.
TEST(Trace, T10SamplesThatAWorkerHasDrawnStayItsOwn) {
  constexpr int kSamples = 36;
  Stage stage({.samples = kSamples});
  stage.at(2ms, [&] { stage.kill(0); });
  stage.run();
  stage.expect_finished_alike({1, 2});
  EXPECT_EQ(stage.uses(2), 0b110);
  EXPECT_EQ(stage.drawn[0].count(kStep), 1u) << "it was drawn, and not used";
  std::map<int64_t, int> times;
  for (int worker = 0; worker < 3; ++worker) {
    for (const auto& [step, sample] : stage.drawn[static_cast<size_t>(worker)]) {
      if (worker > 0 || step < kStep) ++times[sample];
    }
  }
  EXPECT_EQ(times.size(), static_cast<size_t>(kSamples));
  for (const auto& [sample, count] : times) EXPECT_EQ(count, 1) << "sample " << sample;
}

// Worker 3 joins and copies the step from worker 0, which alone has completed it, and dies before workers 1
// and 2 get anything from it. If worker 3 has the whole copy, they copy the step from it. Otherwise they
// repeat the step, perhaps with worker 3.
TEST(Trace, T12AWorkerThatJoinsHoldsNoStepThatTheOthersDoNotHave) {
  std::set<int> outcomes;
  for (Duration after = 3ms; after < 30ms; after += 500us) {
    Stage stage({.joiners = 1});
    stage.let_only_worker_0_commit();
    stage.at(2500us, [&] { stage.cluster.start_worker(3); });
    stage.at(4ms, [&] { stage.free_links_of(1, 2); });
    stage.at(after, [&] { stage.kill(0); });
    stage.run();
    stage.expect_finished_alike({1, 2, 3});
    EXPECT_EQ(stage.uses(0), 0b111);
    EXPECT_EQ(stage.uses(1), stage.uses(2));
    outcomes.insert(stage.uses(1));
    if (HasFailure()) return;
  }
  EXPECT_THAT(outcomes, testing::ElementsAre(0b0110, 0b0111, 0b1110));
}

// Worker 3 joins and copies the step from worker 0, which then dies. Worker 2, a step behind, copies it from
// worker 3. If worker 0 dies before worker 3 has copied, nobody has what worker 3 needs, and worker 2 goes on
// alone.
TEST(Trace, T13AWorkerThatHasTheStepByACopyGivesItToOthers) {
  int copied = 0;
  for (Duration after = 6ms; after < 24ms; after += 500us) {
    Stage stage({.joiners = 1});
    stage.let_only_worker_0_commit();
    stage.at(3ms, [&] { stage.kill(1), stage.cluster.start_worker(3); });
    stage.at(5ms, [&] { stage.unblock(2, 0), stage.unblock(0, 1); });
    stage.at(after, [&] { stage.unblock(0, 2); });
    stage.at(after + 3ms, [&] { stage.kill(0); });
    stage.run();
    stage.expect_finished_alike({2});
    if (stage.finished(3)) stage.expect_finished_alike({2, 3});
    copied += stage.finished(3) && stage.uses(2) == 0b111;
    if (HasFailure()) return;
  }
  EXPECT_GT(copied, 10);
}

// From some moment on, one worker gets nothing more of an owner, which dies `later`. The others complete the
// step with its gradient, or repeat it without, and both occur.
void lose_an_owner_that_one_worker_lacks(Duration later) {
  int completed = 0, repeated = 0;
  for (Duration after = 1ms; after < 9ms; after += dsgd_test::one_of(3, 8) * 250us) {
    for (int owner = 0; owner < 3; ++owner) {
      for (int cut = 0; cut < 3; ++cut) {
        if (cut == owner) continue;
        Stage stage({.ps = true});
        stage.at(after, [&] { stage.block(owner, cut); });
        stage.at(after + later, [&] { stage.kill(owner); });
        stage.run();
        const int other = 3 - owner - cut;
        stage.expect_finished_alike({cut, other});
        EXPECT_EQ(stage.uses(cut), stage.uses(other));
        ++(stage.uses(cut) == 0b111 ? completed : repeated);
        for (int worker : {cut, other}) stage.expect_equal_momenta(worker);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GT(completed, 0);
  EXPECT_GT(repeated, 0);
}

// If the worker lacks the means of the owner, no worker may complete the step: it would have values whose
// state no other worker has.
TEST(Trace, Q1ValuesAreUsedOnlyWhenTheCopiesHaveTheirState) { lose_an_owner_that_one_worker_lacks(8ms); }

// Worker 3 joins, and gets nothing more of a worker that holds ranges which worker 3 is to hold. That worker
// dies before worker 3 has them all.
TEST(Trace, Q2AWorkerHoldsARangeOnlyWhenItHasTheRange) {
  int joined = 0;
  for (Duration after = 4ms; after < 28ms; after += dsgd_test::one_of(4, 12) * 500us) {
    for (int holder = 0; holder < 3; ++holder) {
      Stage stage({.joiners = 1, .ps = true});
      stage.at(1ms, [&] { stage.cluster.start_worker(3); });
      stage.at(after, [&] { stage.block(holder, 3); });
      stage.at(after + 6ms, [&] { stage.kill(holder); });
      stage.run();
      const int left = holder == 0 ? 1 : 0;
      EXPECT_FALSE(stage.finished(holder));
      stage.expect_finished_alike({left, 3 - holder - left, 3});
      stage.expect_equal_momenta(3);
      joined += stage.uses(3, kSteps - 1) > 0;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(joined, 0);
}

// When an owner dies, the copy of its ranges has their means, and the third worker lacks their values. Then
// the others repeat the step.
TEST(Trace, Q3ARepeatedStepUpdatesACopyOnce) { lose_an_owner_that_one_worker_lacks(3ms); }

// An owner is stopped for so long that its ranges have another owner when it goes on and its data reach the
// others.
TEST(Trace, Q4AFormerOwnerUpdatesNothing) {
  for (Duration after = 500us; after < 6ms; after += dsgd_test::one_of(2, 5) * 500us) {
    for (int owner = 0; owner < 3; ++owner) {
      Stage stage({.ps = true});
      const int left = owner == 0 ? 1 : 0;
      stage.at(after, [&] {
        for (int other = 0; other < 3; ++other) {
          if (other != owner) stage.block(owner, other);
        }
        stage.cluster.world.pause(stage.cluster.process(owner));
      });
      ASSERT_TRUE(stage.cluster.run_until_noted(left, "step " + std::to_string(kStep + 4), 10s));
      const transport::Time resumed = stage.cluster.world.now();
      stage.free_links();
      stage.cluster.world.resume(stage.cluster.process(owner));
      stage.run();
      const NotedCall* failure = stage.cluster.first_failure(owner);
      ASSERT_TRUE(failure);
      EXPECT_EQ(failure->status.code(), Code::kEvicted) << failure->status.message();
      EXPECT_GE(failure->ended, resumed) << "it goes on";
      stage.expect_finished_alike({left, 3 - owner - left});
      stage.expect_equal_momenta(left);
      if (HasFailure()) return;
    }
  }
}

// Worker 3 joins. One worker's data reach it late; by then it may have data of a later step from the others.
// Then another worker dies, whose ranges worker 3 holds, too.
TEST(Trace, Q5AnOlderStateDoesNotReplaceANewerOne) {
  int joined = 0;
  for (Duration after = 4ms; after < 28ms; after += dsgd_test::one_of(4, 12) * 500us) {
    for (int holder = 0; holder < 3; ++holder) {
      Stage stage({.joiners = 1, .ps = true});
      stage.at(1ms, [&] { stage.cluster.start_worker(3); });
      stage.at(after, [&] { stage.block(holder, 3); });
      stage.at(after + 10ms, [&] { stage.unblock(holder, 3); });
      stage.at(after + 30ms, [&] { stage.kill((holder + 1) % 3); });
      stage.run();
      EXPECT_FALSE(stage.finished((holder + 1) % 3));
      stage.expect_finished_alike({holder, (holder + 2) % 3, 3});
      stage.expect_equal_momenta(3);
      joined += stage.uses(3, kSteps - 1) > 0;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(joined, 0);
}

// A copy is silent, for less than a lease, when the owner dies.
TEST(Trace, Q7AnOwnerDoesNotGoOnWithoutASilentCopy) {
  for (Duration after = 500us; after < 8ms; after += dsgd_test::one_of(2, 5) * 500us) {
    for (int owner = 0; owner < 3; ++owner) {
      for (int copy = 0; copy < 3; ++copy) {
        if (copy == owner) continue;
        Stage stage({.ps = true});
        stage.at(after, [&] { stage.cluster.world.pause(stage.cluster.process(copy)); });
        stage.at(after + 8ms, [&] { stage.kill(owner); });
        stage.at(after + 200ms, [&] { stage.cluster.world.resume(stage.cluster.process(copy)); });
        stage.run();
        EXPECT_FALSE(stage.finished(owner));
        stage.expect_finished_alike({copy, 3 - owner - copy});
        stage.expect_equal_momenta(copy);
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace dsgd::simulation::trace_test
