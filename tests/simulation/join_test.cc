// A worker joins while the others train. The links from the others to it are slow, or blocked for a while.
// The others go on making steps, and at the end all workers have equal values. Gradients are fractions, so
// that each rounding counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cluster.h"
#include "registered.h"
#include "tests/unit/sanitizer.h"
#include "tests/unit/wait_for.h"
#include "transport/sim/random.h"

namespace dsgd::simulation::join_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using transport::Death;
using transport::Duration;
using transport::Random;
using transport::Time;

using Devices = std::vector<std::vector<std::string>>;

struct Joining {
  int workers = 2, joiners = 1;
  int before = 24, steps = 60;  // the last one before another worker joins, and all
  size_t elements = 200'000;    // of the largest parameter
  std::string optimizer = "adam", options = "amsgrad=1 weight_decay=0.01";
  std::map<std::string, std::string> settings = {};
  Duration pause{};            // of each host, before each step
  bool halves_values = false;  // the hosts change the values after each step
  bool rebinds = false;        // the host binds other buffers for untrained values, ten times in each pause
  transport::LinkDelay delay = {1ms, 1ms};
  uint64_t seed = 1;
  // Of the replicas of each worker, "cpu" or "cuda:0" (of a fake runtime); empty: all "cpu".
  Devices devices = {};
};

class JoinedJob {
 public:
  explicit JoinedJob(const Joining& job)
      : job_(job),
        first(static_cast<size_t>(job.workers + job.joiners)),
        models(first.size()),
        cluster(options_of(job), [this](Cluster&, Session& session, int worker) { train(session, worker); }) {
    for (int w = 0; w < job.workers; ++w)
      EXPECT_TRUE(cluster.run_until_noted(w, "step " + std::to_string(job.before), 30s))
          << cluster.history(w);
  }

  int joiner() const { return job_.workers; }
  void run() { EXPECT_TRUE(cluster.run_until_ended(300s)) << "a worker hangs"; }
  // Whether all data from the first workers to the one that joins wait.
  void hold_back(bool blocked) {
    for (int w = 0; w < job_.workers; ++w) {
      blocked ? cluster.world.block(cluster.process(w), cluster.process(joiner()))
              : cluster.world.unblock(cluster.process(w), cluster.process(joiner()));
    }
  }
  int steps_between(int worker, Time begin, Time end) const {
    return static_cast<int>(
        std::count_if(cluster.calls(worker).begin(), cluster.calls(worker).end(), [&](const NotedCall& call) {
          return call.name.rfind("step ", 0) == 0 && call.status.ok() && call.ended > begin &&
                 call.ended <= end;
        }));
  }
  bool logged(int worker, const std::string& text) const {
    return std::any_of(cluster.log(worker).begin(), cluster.log(worker).end(),
                       [&](const std::string& line) { return line.find(text) != line.npos; });
  }
  // Bytes of state that a worker has fetched while the others waited; 0: it has not told.
  double fetched_in_view(int worker) const {
    const std::string before = "has fetched all values and state, ";
    for (const std::string& line : cluster.log(worker)) {
      if (const size_t at = line.find(before); at != line.npos)
        return std::stod(line.substr(at + before.size()));
    }
    return 0;
  }
  void expect_equal(std::initializer_list<int> workers) const {
    for (int worker : workers) {
      const auto& model = models[static_cast<size_t>(worker)];
      EXPECT_FALSE(model.empty()) << cluster.history(worker);
      EXPECT_TRUE(model == models[static_cast<size_t>(*workers.begin())]) << "worker " << worker;
    }
  }

 private:
  static ClusterOptions options_of(const Joining& job) {
    ClusterOptions options{
        .workers = job.workers, .joiners = job.joiners, .separate_head = true, .seed = job.seed};
    if (!job.devices.empty()) options.registered = registered_with_devices();
    options.settings = {{"lease", "500ms"},
                        {"min_workers", "1"},
                        {"max_workers", std::to_string(job.workers + job.joiners)},
                        {"step_timeout", "20s"},
                        {"receive_memory", "64M"},
                        {"bucket_size", "64K"}};
    for (const auto& [key, value] : job.settings) options.settings[key] = value;
    options.network.delay = job.delay;
    return options;
  }

  void train(Session& session, int worker) {
    const auto choose = [&] { return session.set_optimizer(job_.optimizer, "lr=0.01 " + job_.options); };
    if (!cluster.note(worker, "optimizer", choose)) return;  // the job may have ended by now
    struct Tensor {
      Parameter* parameter;
      std::vector<std::shared_ptr<TensorMemory>> memory;  // by replica
    };
    const auto large = static_cast<int64_t>(job_.elements);
    const std::vector<std::pair<DType, int64_t>> shapes = {
        {DType::kFloat16, 3001}, {DType::kFloat32, large}, {DType::kFloat64, 501}, {DType::kFloat32, 77}};
    const bool on_cpu = job_.devices.empty();
    const auto& devices =
        on_cpu ? std::vector<std::string>{"cpu", "cpu"} : job_.devices[static_cast<size_t>(worker)];
    std::vector<Replica*> replicas;
    for (const std::string& device : devices) replicas.push_back(session.add_replica(device).value());
    std::vector<Tensor> tensors;
    for (const auto& [dtype, count] : shapes) {
      Tensor& tensor = tensors.emplace_back();
      tensor.parameter =
          session.add_parameter("p" + std::to_string(tensors.size()), dtype, {&count, 1}, true).value();
      for (Replica* replica : replicas)
        tensor.memory.push_back(session.alloc(replica, tensor.parameter).value());
    }
    if (!session.set_parameter(tensors[3].parameter, "frozen=1").ok()) std::abort();
    if (!session.set_parameter(tensors[2].parameter, "rate=0.5 decay=0").ok()) std::abort();
    const int64_t counters = job_.rebinds ? 300'000 : 3;
    Parameter* const counter = session.add_parameter("counter", DType::kInt32, {&counters, 1}, false).value();
    std::vector<int32_t*> counts;
    for (Replica* replica : replicas)
      counts.push_back(static_cast<int32_t*>(session.alloc(replica, counter).value()->value));
    std::vector<std::vector<int32_t>> buffers(replicas.size() * 2, std::vector<int32_t>(counters));
    // Binds other buffers, and overwrites the earlier ones, which are the host's again.
    const auto rebind = [&](int time) {
      for (size_t r = 0; r < replicas.size(); ++r) {
        std::vector<int32_t>& buffer = buffers[r * 2 + static_cast<size_t>(time % 2)];
        buffer.assign(counts[r], counts[r] + counters);
        const size_t nbytes = buffer.size() * sizeof(int32_t);
        if (!session.bind(replicas[r], counter, buffer.data(), nbytes, nullptr, 0, {}).ok()) std::abort();
        std::fill_n(std::exchange(counts[r], buffer.data()), counters, -1);
      }
    };
    if (!cluster.note(worker, "start", [&] { return session.start(); })) return;
    int k = first[static_cast<size_t>(worker)] = static_cast<int>(session.info().steps);
    StepResult result;
    const auto step = [&](double weight) {
      // Before the worker that joins takes part; in the first test, while its data are held back. It takes
      // over the rate.
      if (k == 10 && !session.set_learning_rate(0.003).ok()) std::abort();
      Random random(static_cast<uint64_t>(k * 16 + worker));
      for (Tensor& tensor : tensors) {
        for (size_t r = 0; r < replicas.size() && weight > 0; ++r)
          fill(tensor.parameter->dtype, tensor.memory[r]->gradient, tensor.parameter->count,
               random.below(1 << 20));
      }
      return session.step(weight, &result);
    };
    for (; k < job_.steps; ++k) {
      const int parts = job_.rebinds ? 10 : 1;
      for (int part = 0; part < parts; ++part) {
        cluster.pass_time(worker, job_.pause / parts);
        if (job_.rebinds) rebind(part);
      }
      if (!cluster.note(worker, "step " + std::to_string(k), [&] { return step(1 + worker); })) return;
      for (int32_t* count : counts) count[k % counters] = k;
      for (size_t r = 0; r < replicas.size() && job_.halves_values; ++r) {
        float* const values = static_cast<float*>(tensors[1].memory[r]->value);
        for (size_t i = 0; i < tensors[1].parameter->count; ++i) values[i] /= 2;
      }
    }
    for (; !result.all_done; ++k) {
      if (!cluster.note(worker, "last", [&] { return step(0); })) return;
    }
    auto& model = models[static_cast<size_t>(worker)];
    for (size_t r = 0; r < replicas.size(); ++r) {
      for (const Tensor& tensor : tensors) {
        const auto* values = static_cast<const uint8_t*>(tensor.memory[r]->value);
        model.insert(model.end(), values, values + tensor.parameter->nbytes());
      }
      const auto* values = reinterpret_cast<const uint8_t*>(counts[r]);
      model.insert(model.end(), values, values + counters * sizeof(int32_t));
    }
  }

  static void fill(DType dtype, void* gradient, size_t count, uint64_t seed) {
    uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 12345u;
    for (size_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      if (dtype == DType::kFloat16) {
        static_cast<uint16_t*>(gradient)[i] = static_cast<uint16_t>(0x2c00u | (state >> 16 & 0x83ffu));
      } else if (dtype == DType::kFloat32) {
        static_cast<float*>(gradient)[i] = static_cast<float>(static_cast<int32_t>(state)) / 2147483648.0f;
      } else {
        static_cast<double*>(gradient)[i] = static_cast<double>(static_cast<int32_t>(state)) / 3e9;
      }
    }
  }

  const Joining job_;

 public:
  std::vector<int> first;                    // step, by worker
  std::vector<std::vector<uint8_t>> models;  // values at the end
  Cluster cluster;
};

// Without streams the others would enter the view at once, and wait in it.
void hold_back_the_data(const std::string& strategy, const Devices& devices) {
  Joining options{.before = 4, .steps = 150, .settings = {{"strategy", strategy}}, .devices = devices};
  if (strategy == "ps") options.settings["copies"] = "2";
  JoinedJob job(options);
  const Time begin = job.cluster.world.now();
  job.cluster.start_worker(job.joiner());
  // Under ps there are values alone, which come sooner.
  job.cluster.world.run_for(strategy == "ps" ? 10ms : 15ms);
  EXPECT_FALSE(job.cluster.call(job.joiner(), "start"));
  job.hold_back(true);
  job.cluster.world.run_for(200ms);
  EXPECT_FALSE(job.cluster.call(job.joiner(), "start"));
  for (int worker : {0, 1})
    EXPECT_GT(job.steps_between(worker, begin + 50ms, begin + 215ms), 10) << job.cluster.history(worker);
  job.hold_back(false);
  job.run();
  job.expect_equal({0, 1, 2});
  EXPECT_GT(job.first[2], 20) << "the first step of the worker that has joined";
  EXPECT_LT(job.first[2], 150);
}

TEST(Joining, TheOthersTrainOnWhileItsDataAreHeldBack) {
  for (const char* strategy : {"allreduce", "simple", "ps"}) {
    SCOPED_TRACE(strategy);
    hold_back_the_data(strategy, {});
#ifdef DSGD_TEST_CUDA
    hold_back_the_data(strategy, Devices(3, {"cuda:0", "cuda:1"}));
#endif
  }
}

TEST(Joining, HoldsTheSameBitsWhateverTheSteps) {
  const std::vector<Joining> jobs = {
      {.optimizer = "sgd", .options = "momentum=0.9 nesterov=1"},
      {.optimizer = "sgd", .options = ""},
      {.optimizer = "adamw", .options = "clip_norm=0.3"},
      {.settings = {{"strategy", "simple"}}},
      {.settings = {{"reproducible", "1"}}},
      {.settings = {{"wire", "bf16"}}},
      {.settings = {{"loss_scale", "1024"}}},
      {.workers = 3, .settings = {{"strategy", "ps"}, {"copies", "2"}}},
      {.workers = 4, .joiners = 3, .pause = 3ms},
  };
  size_t n = 0;
  for (const Joining& options : jobs) {
    if (dsgd_test::kSanitized && n++ % 4 != 3) continue;
    SCOPED_TRACE(options.optimizer + " " + options.options +
                 (options.settings.empty() ? "" : options.settings.begin()->first));
    JoinedJob job(options);
    for (int joiner = 0; joiner < options.joiners; ++joiner) {
      job.cluster.world.at(job.cluster.world.now() + joiner * 7ms,
                           [&job, joiner] { job.cluster.start_worker(job.joiner() + joiner); });
    }
    job.run();
    job.expect_equal({0, 1, 2});
    for (int joiner = 0; joiner < options.joiners; ++joiner) {
      job.expect_equal({0, job.joiner() + joiner});
      EXPECT_TRUE(job.logged(job.joiner() + joiner, "that train on"));
      EXPECT_FALSE(job.logged(job.joiner() + joiner, "before it has all state"))
          << "it had fetched all state";
    }
  }
}

#ifdef DSGD_TEST_CUDA
TEST(Joining, HoldsTheSameBitsOnGpus) {
  const Devices gpus(3, {"cuda:0", "cuda:1"});
  const std::vector<Joining> jobs = {
      {.devices = gpus},
      {.optimizer = "sgd", .options = "momentum=0.9", .devices = {{"cuda:0"}, {"cuda:1"}, {"cpu"}}},
      {.devices = {{"cpu"}, {"cpu"}, {"cuda:0"}}},
      {.devices = {{"cpu", "cuda:0"}, {"cuda:1", "cuda:1"}, {"cuda:0", "cpu"}}},
      {.settings = {{"strategy", "simple"}}, .devices = gpus},
      {.settings = {{"strategy", "ps"}, {"copies", "2"}}, .devices = gpus},
      {.settings = {{"reproducible", "1"}}, .devices = gpus},
      {.settings = {{"wire", "bf16"}}, .devices = gpus},
      {.elements = 600'000, .pause = 20ms, .halves_values = true, .delay = {2ms, 2ms}, .devices = gpus},
  };
  size_t n = 0;
  for (const Joining& options : jobs) {
    SCOPED_TRACE(++n);
    if (dsgd_test::kSanitized && n % 4 != 0) continue;
    JoinedJob job(options);
    job.cluster.start_worker(2);
    job.run();
    job.expect_equal({0, 1, 2});
    EXPECT_TRUE(job.logged(2, "that train on"));
    EXPECT_FALSE(job.logged(2, "before it has all state")) << "it had fetched all state";
    EXPECT_EQ(job.logged(2, "have changed between steps"), options.halves_values);
  }
}
#endif

TEST(Joining, TakesValuesThatTheHostsChangeBetweenSteps) {
  JoinedJob job(
      {.steps = 40, .elements = 600'000, .pause = 20ms, .halves_values = true, .delay = {2ms, 2ms}});
  job.cluster.start_worker(2);
  job.run();
  job.expect_equal({0, 1, 2});
  EXPECT_TRUE(job.logged(2, "have changed between steps")) << "it fetches those that have changed again";
}

TEST(Joining, TakesUntrainedValuesWhileTheHostsBindOtherBuffers) {
  JoinedJob job({.steps = 40, .elements = 1000, .pause = 20ms, .rebinds = true, .delay = {2ms, 2ms}});
  job.cluster.start_worker(2);
  job.run();
  job.expect_equal({0, 1, 2});
  EXPECT_GT(job.first[2], 0);
}

// The worker fetches all elements again, since the others keep the sums of a few steps only.
TEST(Joining, FetchesTheStateAgainIfTheSumsThatItLacksAreMore) {
  if (dsgd_test::kSanitized) GTEST_SKIP() << "a large model, for a minute";
  JoinedJob job({.steps = 120, .elements = 2'000'000, .optimizer = "sgd", .options = "momentum=0.5"});
  job.cluster.start_worker(2);
  job.cluster.world.run_for(45ms);
  EXPECT_FALSE(job.cluster.call(2, "start"));
  job.hold_back(true);
  job.cluster.world.run_for(450ms);
  job.hold_back(false);
  job.run();
  job.expect_equal({0, 1, 2});
  EXPECT_FALSE(job.logged(2, "before it has all state"));
}

TEST(Joining, EntersTheViewWithoutAllStateIfTheOthersAreTooFast) {
  JoinedJob job({.steps = 200, .elements = 600'000, .optimizer = "sgd", .options = "", .pause = 15ms});
  const auto delay = [&job](Duration time) {
    for (int worker : {0, 1}) {
      job.cluster.world.set_delay(job.cluster.process(worker), job.cluster.process(2), {time, time});
      job.cluster.world.set_delay(job.cluster.process(2), job.cluster.process(worker), {time, time});
    }
  };
  delay(100ms);
  job.cluster.start_worker(2);
  EXPECT_TRUE(job.cluster.run_until_noted(2, "start", 30s)) << job.cluster.history(2);
  delay(1ms);
  job.run();
  job.expect_equal({0, 1, 2});
  EXPECT_TRUE(job.logged(2, "before it has all state"));
  EXPECT_GT(job.first[2], 30);
  EXPECT_LT(job.first[2], 200);
}

TEST(Joining, OutlivesALossAtAnyMoment) {
  const int stride = 2 * dsgd_test::one_of(2, 6);
  int joined = 0;
  for (Duration after = 0us; after < 60ms; after += stride * 2500us) {
    for (int victim : {0, 2, 3}) {
      SCOPED_TRACE(std::to_string(victim) + " is killed after " + std::to_string(after / 1us) + " us");
      JoinedJob job({.workers = 3, .steps = 50, .elements = 100'000});
      job.cluster.start_worker(3);
      job.cluster.world.at(job.cluster.world.now() + after,
                           [&] { job.cluster.world.kill(job.cluster.process(victim), Death::kReset); });
      job.run();
      const int other = victim == 0 ? 2 : 0;
      job.expect_equal({1, other});
      if (victim != 3 && job.first[3] > 0) job.expect_equal({1, 3}), ++joined;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(joined, 30 / stride);
}

// Worker 2 is lost before any of its part has come.
TEST(Joining, ALossCostsItOnlyThePartOfThatWorker) {
  JoinedJob job({.workers = 3, .steps = 100, .elements = 600'000});
  job.cluster.world.block(job.cluster.process(2), job.cluster.process(3));
  job.cluster.start_worker(3);
  job.cluster.world.run_for(250ms);
  EXPECT_FALSE(job.cluster.call(3, "start"));
  job.cluster.world.kill(job.cluster.process(2), Death::kReset);
  job.run();
  job.expect_equal({0, 1, 3});
  constexpr double kState = 600'000 * sizeof(float) * 4;  // the values, and three tensors of adam
  const double fetched = job.fetched_in_view(3) / kState;
  EXPECT_GT(fetched, 0.32);
  EXPECT_LT(fetched, 0.6) << "the rest had come before; sums of a few steps follow";
}

void add_parameter(Session& session, Replica* replica, const std::string& name) {
  const int64_t count = 4000;
  (void)session.alloc(replica, session.add_parameter(name, DType::kFloat32, {&count, 1}, true).value());
}

Replica* add_model(Session& session, const std::string& device = "cpu") {
  Replica* const replica = session.add_replica(device).value();
  add_parameter(session, replica, "p");
  return replica;
}

// All workers stop for a while and go on, so that the one that joins asks for its view when the host of the
// head closes its session.
TEST(Joining, EndsWhenTheHostOfTheHeadLeaves) {
  int refused = 0;
  for (const int steps : {90, 100, 110, 120, 125, 130}) {
    for (uint64_t seed = 1; seed < 4; ++seed) {
      Cluster cluster({.workers = 3,
                       .joiners = 1,
                       .seed = seed,
                       .settings = {{"lease", "500ms"}, {"min_workers", "1"}, {"max_workers", "5"}}},
                      [steps](Cluster& job, Session& session, int worker) {
                        Cluster::train(job, session, worker, steps);
                      });
      cluster.world.at(cluster.world.now() + 13ms, [&] { cluster.start_worker(3); });
      for (int w = 0; w < 4; ++w) cluster.world.pause(cluster.process(w));
      cluster.world.run_for(700ms);
      for (int w = 0; w < 4; ++w) cluster.world.resume(cluster.process(w));
      ASSERT_TRUE(cluster.run_until_ended(60s)) << steps << " steps, seed " << seed << "\n"
                                                << cluster.history(3);
      const NotedCall* const start = cluster.call(3, "start");
      refused +=
          start && start->status.message().find("has gone, so this worker cannot join") != std::string::npos;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(Joining, ACutIsNoticedInAJobThatHasBegunWithOneWorker) {
  const ClusterOptions options{
      .workers = 1,
      .joiners = 1,
      .separate_head = true,
      .settings = {{"lease", "500ms"}, {"min_workers", "1"}, {"max_workers", "2"}, {"step_timeout", "60s"}},
      .network = {.delay = {1ms, 1ms}}};
  Cluster cluster(options, [](Cluster& cluster, Session& session, int rank) {
    add_model(session);
    if (!cluster.note(rank, "start", [&] { return session.start(); })) return;
    StepResult result;
    for (auto k = session.info().steps; k < 400; ++k) {
      cluster.pass_time(rank, 5ms);
      if (!cluster.note(rank, "step " + std::to_string(k), [&] { return session.step(1, &result); })) return;
    }
  });
  ASSERT_TRUE(cluster.run_until_noted(0, "step 10", 30s));
  cluster.start_worker(1);
  ASSERT_TRUE(cluster.run_until_noted(1, "start", 30s)) << cluster.history(1);
  cluster.world.run_for(100ms);
  const Time cut = cluster.world.now();
  cluster.world.block(cluster.process(0), cluster.process(1));
  cluster.world.block(cluster.process(1), cluster.process(0));
  EXPECT_TRUE(cluster.run_until_ended(100s));
  EXPECT_FALSE(cluster.first_failure(0)) << cluster.history(0);
  const NotedCall* evicted = cluster.first_failure(1);
  ASSERT_TRUE(evicted) << cluster.history(1);
  EXPECT_EQ(evicted->status.code(), Code::kEvicted) << evicted->status.message();
  EXPECT_LT(evicted->ended - cut, 5s);
}

// Steps until the others have ended, or for `steps`.
bool step_on(Cluster& cluster, Session& session, int worker, int steps, Duration pause = 10ms) {
  StepResult result;
  for (int k = 0; k < steps && !result.all_done; ++k) {
    if (!cluster.note(worker, "step", [&] { return session.step(1, &result); })) return false;
    cluster.pass_time(worker, pause);
  }
  return true;
}

// Worker 1 loads its data for a while. A worker with other settings joins, which enters a view before the
// start where worker 2 is lost.
TEST(JoiningBeforeTheStart, AWorkerWithOtherSettingsFailsAlone) {
  for (const bool loss : {false, true}) {
    SCOPED_TRACE(loss ? "after a loss" : "without a loss");
    ClusterOptions options{.workers = 3, .joiners = 1, .separate_head = true};
    options.settings = {{"lease", "500ms"}, {"min_workers", "1"}, {"max_workers", "4"}};
    options.own_settings[3] = {{"reproducible", "1"}};
    Cluster cluster(options, [](Cluster& cluster, Session& session, int worker) {
      add_model(session);
      if (worker == 1) cluster.pass_time(worker, 2s);
      if (cluster.note(worker, "start", [&] { return session.start(); }))
        step_on(cluster, session, worker, 100);
    });
    ASSERT_TRUE(cluster.run_until_noted(2, "open", 30s));
    cluster.start_worker(3);
    ASSERT_TRUE(cluster.run_until_noted(3, "open", 30s));
    cluster.world.run_for(200ms);
    if (loss) cluster.world.kill(cluster.process(2), Death::kReset);
    EXPECT_TRUE(cluster.run_until_ended(60s)) << "a worker hangs";
    for (int worker = 0; worker < (loss ? 2 : 3); ++worker)
      EXPECT_FALSE(cluster.first_failure(worker)) << cluster.history(worker);
    const NotedCall* const start = cluster.call(3, "start");
    ASSERT_TRUE(start) << cluster.history(3);
    EXPECT_EQ(start->status.code(), Code::kMismatch);
    EXPECT_THAT(start->status.message(), HasSubstr("this worker cannot join the running job"));
    EXPECT_THAT(start->status.message(), HasSubstr("reproducible"));
  }
}

// The others may have begun a step of the view that the learner is in when it fails.
TEST(Joining, AWorkerWithOtherSettingsFailsAloneWhileTheOthersTrain) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ClusterOptions options{.workers = 3, .joiners = 1, .separate_head = true, .seed = seed};
    options.settings = {{"lease", "500ms"}, {"min_workers", "1"}, {"max_workers", "4"}};
    options.network.delay = {1ms, 1ms};
    options.own_settings[3] = {{"reproducible", "1"}};
    Cluster cluster(options, [](Cluster& cluster, Session& session, int worker) {
      add_model(session);
      if (cluster.note(worker, "start", [&] { return session.start(); }))
        step_on(cluster, session, worker, 500, 1ms);
    });
    ASSERT_TRUE(cluster.run_until_noted(0, "step", 30s)) << cluster.history(0);
    cluster.start_worker(3);
    EXPECT_TRUE(cluster.run_until_ended(60s)) << "a worker hangs";
    for (int worker = 0; worker < 3; ++worker)
      EXPECT_FALSE(cluster.first_failure(worker)) << cluster.history(worker);
    const NotedCall* const start = cluster.call(3, "start");
    ASSERT_TRUE(start) << cluster.history(3);
    EXPECT_EQ(start->status.code(), Code::kMismatch);
    EXPECT_THAT(start->status.message(), HasSubstr("reproducible"));
  }
}

Status start_within(Session& session, Duration timeout) {
  return wait_for(session, session.start(Session::Mode::kWait, {.timeout = timeout}));
}

void until(Cluster& cluster, int worker, Time time) {
  if (time > cluster.world.now()) cluster.pass_time(worker, time - cluster.world.now());
}

// After a step has failed half-way, no step of the others succeeds until they have loaded a checkpoint. The
// worker that joins adds a parameter between its two starts.
void join_a_torn_job(const std::string& device) {
  ClusterOptions options{.joiners = 1, .separate_head = true, .files = true};
  options.settings = {{"lease", "500ms"}, {"max_workers", "3"}, {"step_timeout", "1s"}};
  options.registered = registered_with_devices();
  Cluster cluster(options, [device](Cluster& cluster, Session& session, int worker) {
    Replica* const replica = add_model(session, device);
    if (worker != 2) add_parameter(session, replica, "q");
    if (worker == 2) {
      cluster.note(worker, "early start", [&] { return session.start(); });
      add_parameter(session, replica, "q");
      if (cluster.note(worker, "start", [&] { return start_within(session, 30s); }))
        step_on(cluster, session, worker, 30);
      return;
    }
    if (!cluster.note(worker, "start", [&] { return session.start(); })) return;
    cluster.note(worker, "save",
                 [&] { return wait_for(session, session.save_checkpoint("model", Session::Mode::kWait)); });
    StepResult result;
    if (worker == 1) cluster.pass_time(worker, 2s);
    cluster.note(worker, "late step", [&] { return session.step(1, &result); });
    until(cluster, worker, 10s);
    cluster.note(worker, "load",
                 [&] { return wait_for(session, session.load_checkpoint("model", Session::Mode::kWait)); });
    step_on(cluster, session, worker, 200);
  });
  for (int worker : {0, 1}) ASSERT_TRUE(cluster.run_until_noted(worker, "late step", 8s));
  cluster.start_worker(2);
  EXPECT_TRUE(cluster.run_until_ended(60s)) << "a worker hangs";
  for (int worker : {0, 1}) {
    EXPECT_EQ(cluster.first_failure(worker), cluster.call(worker, "late step")) << cluster.history(worker);
    EXPECT_FALSE(cluster.call(worker, "late step")->status.ok());
  }
  ASSERT_TRUE(cluster.call(2, "start")) << cluster.history(2);
  EXPECT_EQ(cluster.call(2, "early start")->status.code(), Code::kTimeout);
  EXPECT_THAT(cluster.call(2, "early start")->status.message(), HasSubstr("still waiting for rank 0"));
  EXPECT_EQ(cluster.first_failure(2), cluster.call(2, "early start")) << cluster.history(2);
  EXPECT_TRUE(cluster.call(2, "step")) << cluster.history(2);
}

TEST(JoiningATornJob, WaitsUntilTheOthersHaveLoadedACheckpoint) {
  join_a_torn_job("cpu");
#ifdef DSGD_TEST_CUDA
  join_a_torn_job("cuda:0");
#endif
}

// Worker 1 makes the call later than worker 0.
TEST(JoiningDuringAChange, WaitsUntilTheOthersHaveEndedIt) {
  for (const bool loads : {false, true}) {
    SCOPED_TRACE(loads ? "loads a checkpoint" : "sets the strategy again");
    ClusterOptions options{.joiners = 1, .separate_head = true, .files = true};
    options.settings = {{"lease", "500ms"}, {"max_workers", "3"}};
    Cluster cluster(options, [loads](Cluster& cluster, Session& session, int worker) {
      add_model(session);
      if (!cluster.note(worker, "start", [&] { return session.start(); })) return;
      if (worker == 2) return void(step_on(cluster, session, worker, 30));
      cluster.note(worker, "save",
                   [&] { return wait_for(session, session.save_checkpoint("model", Session::Mode::kWait)); });
      if (worker == 1) cluster.pass_time(worker, 2s);
      cluster.note(worker, "change", [&] {
        return wait_for(session, loads ? session.load_checkpoint("model", Session::Mode::kWait)
                                       : session.set_strategy("allreduce", "", Session::Mode::kWait));
      });
      step_on(cluster, session, worker, 200);
    });
    for (int worker : {0, 1}) ASSERT_TRUE(cluster.run_until_noted(worker, "save", 10s));
    cluster.world.run_for(100ms);
    cluster.start_worker(2);
    EXPECT_TRUE(cluster.run_until_ended(60s)) << "a worker hangs";
    for (int worker : {0, 1, 2}) EXPECT_FALSE(cluster.first_failure(worker)) << cluster.history(worker);
    EXPECT_TRUE(cluster.call(2, "step")) << cluster.history(2);
  }
}

}  // namespace
}  // namespace dsgd::simulation::join_test
