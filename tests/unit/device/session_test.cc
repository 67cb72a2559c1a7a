// Whole sessions whose replicas are on GPUs: of the fake runtime, whose streams are threads, or real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mix.h"
#include "tests/unit/device/gpu_session.h"
#include "tests/unit/device/trainer.h"
#include "tests/unit/sanitizer.h"

namespace dsgd {
namespace {

using namespace std::chrono_literals;
using dsgd_test::kSanitized;
using testing::AllOf;
using testing::HasSubstr;

TEST_F(GpuSession, AGpuIsThere) { ASSERT_GT(device::gpus(), 0); }

TEST_F(GpuSession, AutoStandsForEveryGpu) {
  for (const char* each : {"0", "1"}) {
    auto session = open({{"devices", "auto"}, {"devices_per_worker", each}});
    const int wanted = *each == '0' ? device::gpus() : 1;
    ASSERT_EQ(session->info().replicas, wanted);
    for (int index = 0; index < wanted; ++index) {
      auto replica = session->add_replica("");
      ASSERT_TRUE(replica.ok()) << replica.status().message();
      EXPECT_EQ(replica.value()->device->name(), "cuda:" + std::to_string(index));
    }
    EXPECT_THAT(session->add_replica("").status().message(),
                HasSubstr("devices = 'auto' found only 'cuda:0"));
    ok(session->close(std::chrono::seconds(1)));
  }
}

TEST_F(GpuSession, AnyMixOfDevicesGivesTheBitsOfTheHost) {
  const std::vector<Devices> mixes = {
      {{"cuda:0"}, {"cpu"}}, {{"cpu"}, {second()}}, {{"cuda:0"}, {second()}}, {{"cuda:0"}}};
  for (const Devices& devices : mixes) {
    for (const std::vector<std::string>& strategies : std::vector<std::vector<std::string>>{
             {"allreduce"}, {"ps"}, {"simple"}, {"ps", "allreduce", "simple", "allreduce", "ps"}}) {
      if (kSanitized && strategies.size() == 1 && &devices != &mixes[0]) continue;  // the last has all three
      for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
               {"reproducible", "0"}, {"reproducible", "1"}, {"wire", "bf16"}}) {
        SCOPED_TRACE(devices[0][0] + "... " + strategies[0] + " " + key + "=" + value);
        TrainingJob job{devices, strategies, 6, {{key, value}, {"bucket_size", "4K"}}};
        job.wide = key == "wire";  // so that halves round
        std::vector<uint64_t> digests;
        const auto values = train(job, &digests);
        job.devices = on_host(devices);
        const auto expected = train(job);
        for (size_t w = 0; w < values.size(); ++w) {
          EXPECT_EQ(values[w], expected[w]) << "rank " << w;
          EXPECT_EQ(digests[w], digests[0]);
        }
      }
    }
  }
}

// Each optimizer's master values go wherever the strategy keeps state; train() compares them with float32.
TEST_F(GpuSession, HalfTypesAreUpdatedInFloat32WhateverTheOptimizer) {
  for (const auto& [optimizer, options] : std::vector<std::pair<const char*, const char*>>{
           {"sgd", "lr=0.1"},
           {"sgd", "lr=0.1 momentum=0.9 nesterov=1 weight_decay=0.01"},
           {"adamw", "lr=0.01"},
           {"adam", "lr=0.01 amsgrad=1"}}) {
    for (const char* reproducible : {"0", "1"}) {
      TrainingJob job{{{"cuda:0"}, {"cpu", second()}},
                      {"ps", "allreduce", "simple"},
                      5,
                      {{"reproducible", reproducible}, {"bucket_size", "4K"}}};
      job.optimizer = optimizer;
      job.options = options;
      std::vector<uint64_t> digests;
      train(job, &digests);
      EXPECT_EQ(digests[0], digests[1]);
    }
  }
}

TEST_F(GpuSession, TheNormIsTheHostsWhoeverComputesIt) {
  for (const Devices& devices :
       std::vector<Devices>{{{"cuda:0"}}, {{"cuda:0", "cuda:0"}}, {{"cuda:0"}, {"cpu"}}}) {
    for (const char* strategy : {"allreduce", "ps", "simple"}) {
      std::vector<double> norms, expected;
      TrainingJob job{devices, {strategy}, 4, {{"gradient_norm", "1"}, {"bucket_size", "4K"}}};
      train(job, nullptr, &norms);
      job.devices = on_host(job.devices);
      train(job, nullptr, &expected);
      ASSERT_EQ(norms.size(), 4u);
      for (size_t step = 0; step < norms.size(); ++step)
        EXPECT_NEAR(norms[step], expected[step], 1e-6 * expected[step]);
    }
  }
}

// The norms of all steps lie between the two limits: one clips each step, and the other none.
TEST_F(GpuSession, ClippingIsTheHostsWhoeverComputesTheNorm) {
  int k = 0;
  for (const Devices& devices : std::vector<Devices>{
           {{"cuda:0"}}, {{"cuda:0", second()}}, {{"cuda:0"}, {"cpu"}}, {{"cuda:0"}, {second(), "cpu"}}}) {
    for (const char* strategy : {"allreduce", "ps", "simple"}) {
      ++k;
      for (const char* reproducible : {"0", "1"}) {
        if (kSanitized && k % 2 != (*reproducible == '1')) continue;  // each with some devices and strategies
        SCOPED_TRACE(strategy + std::string(" reproducible=") + reproducible);
        TrainingJob job{devices, {strategy}, 4, {{"reproducible", reproducible}, {"bucket_size", "4K"}}};
        job.options = "lr=0.4 momentum=0.5 clip_norm=1";
        std::vector<double> norms, expected_norms;
        const auto clipped = train(job, nullptr, &norms);
        job.options = "lr=0.4 momentum=0.5 clip_norm=1e6";
        const auto below = train(job);
        job.devices = on_host(job.devices);
        job.options = "lr=0.4 momentum=0.5";
        const auto unclipped = train(job);
        EXPECT_EQ(below, unclipped);
        job.options = "lr=0.4 momentum=0.5 clip_norm=1";
        const auto expected = train(job, nullptr, &expected_norms);
        expect_near(norms, expected_norms, clipped, expected);
        ASSERT_EQ(norms.size(), 4u);
        for (const double norm : norms) EXPECT_GT(norm, 10);
        EXPECT_GT(std::abs(unclipped[0][4] - expected[0][4]), 0.1);
        if (*reproducible == '1') {
          EXPECT_EQ(clipped, expected);
        }
      }
    }
  }
}

TEST_F(GpuSession, ClippingComesAfterALossScaleIsTakenOut) {
  for (const Devices& devices : std::vector<Devices>{{{"cuda:0"}}, {{"cuda:0"}, {"cpu"}}}) {
    for (const char* strategy : {"allreduce", "ps", "simple"}) {
      SCOPED_TRACE(strategy);
      TrainingJob job{devices, {strategy}, 6, {{"bucket_size", "4K"}, {"loss_scale", "1024"}}};
      job.options = "lr=0.4 momentum=0.5 clip_norm=1";
      job.overflows = [](int step) { return step % 3 == 1; };
      std::vector<double> norms, expected_norms;
      const auto values = train(job, nullptr, &norms);
      job.devices = on_host(job.devices);
      job.settings = {{"bucket_size", "4K"}, {"gradient_norm", "1"}};
      const auto expected = train(job, nullptr, &expected_norms);
      expect_near(norms, expected_norms, values, expected);
    }
  }
}

// A step in which a gradient overflows is as if it had not been; a power of two leaves the bits of all
// others.
TEST_F(GpuSession, ALossScaleIsTakenOutAgainAndOverflowsLeaveTheModelAsItWas) {
  for (const Devices& devices :
       std::vector<Devices>{{{"cuda:0"}}, {{"cuda:0", "cpu"}}, {{"cuda:0"}, {"cpu", second()}}}) {
    for (const char* strategy : {"allreduce", "ps", "simple"}) {
      for (const char* reproducible : {"0", "1"}) {
        SCOPED_TRACE(strategy + std::string(" reproducible=") + reproducible);
        std::vector<double> norms, expected_norms;
        TrainingJob job{devices,
                        {strategy},
                        9,
                        {{"bucket_size", "4K"}, {"reproducible", reproducible}, {"loss_scale", "1024"}}};
        job.optimizer = "adam";
        job.options = "lr=0.01";
        job.overflows = [](int step) { return step % 3 == 1; };
        const auto values = train(job, nullptr, &norms);
        job.devices = on_host(job.devices);
        job.settings = {{"bucket_size", "4K"}, {"reproducible", reproducible}, {"gradient_norm", "1"}};
        EXPECT_EQ(values, train(job, nullptr, &expected_norms));
        ASSERT_EQ(norms.size(), 6u);
        for (size_t i = 0; i < norms.size(); ++i)
          EXPECT_NEAR(norms[i], expected_norms[i], 1e-6 * expected_norms[i]);
      }
    }
  }
}

// With a check, wherever it is made: on a GPU by itself, on GPUs and the host, on the host for exact sums.
// The oracle is the host without those steps, or with zeros.
TEST_F(GpuSession, GradientsThatAreNotFiniteFailAreSkippedOrCountAsZero) {
  const std::vector<Devices> places = {
      {{"cuda:0"}}, {{"cuda:0", "cuda:0"}, {second()}}, {{"cuda:0", "cpu"}, {"cpu"}, {second(), "cuda:0"}}};
  constexpr const char* kStrategies[] = {"allreduce", "ps", "simple"};
  constexpr const char* kActions[] = {"fail", "skip", "zero"};
  for (size_t p = 0; p < places.size(); ++p) {
    const Devices& devices = places[p];
    for (size_t s = 0; s < 3; ++s) {
      for (const bool reproducible : {false, true}) {
        for (size_t a = 0; a < 3; ++a) {
          // Of the nine cases that are left, two values of any two of the four occur together.
          if (kSanitized && (a != (p + s) % 3 || reproducible != ((p + 2 * s) % 3 == 0))) continue;
          const char *strategy = kStrategies[s], *nonfinite = kActions[a];
          SCOPED_TRACE(std::to_string(devices.size()) + " workers, " + strategy +
                       ", reproducible=" + std::to_string(reproducible) + ", nonfinite=" + nonfinite);
          TrainingJob job{
              devices, {strategy}, 8, {{"bucket_size", "4K"}, {"reproducible", reproducible ? "1" : "0"}}};
          job.optimizer = "adam", job.options = "lr=0.01";
          job.overflows = [](int step) { return step == 1 || step == 2 || step > 3; };
          TrainingJob oracle = job;
          oracle.devices = on_host(devices);
          oracle.zeros = std::string(nonfinite) == "zero";
          job.settings["nonfinite"] = nonfinite;
          if (oracle.zeros) job.overflows = oracle.overflows = [](int step) { return step < 4; };
          EXPECT_EQ(train(job), train(oracle));
        }
      }
    }
  }
}

TEST_F(GpuSession, SeveralReplicasOnSeveralDevicesAgreeWithTheHost) {
  const Devices devices = {{"cuda:0", "cuda:0", "cpu"}, {second(), "cuda:0"}};
  for (const char* strategy : {"allreduce", "ps", "simple"}) {
    // Integers, so sums are exact in any order; the weights' sum is no power of two, so only the mean rounds,
    // alike.
    for (const char* reproducible : {"0", "1"}) {
      const Settings settings = {{"reproducible", reproducible}};
      EXPECT_EQ(train({devices, {strategy}, 4, settings}),
                train({on_host(devices), {strategy}, 4, settings}));
    }
  }
}

// Each replica changes its own; the step makes them equal, whichever devices the replicas are on.
TEST_F(GpuSession, UntrainedParametersAreSynchronised) {
  for (const std::vector<std::string>& devices :
       std::vector<std::vector<std::string>>{{"cuda:0", second()}, {"cuda:0", "cpu"}, {"cpu", "cuda:0"}}) {
    Trainer trainer(open(), devices, "sgd", "lr=1");
    const int64_t count = 1000;
    std::vector<Tensor> untrained;
    for (const char* sync : {"sync=mean", "sync=first"}) {
      Tensor tensor{trainer.session->add_parameter(sync, DType::kFloat32, {&count, 1}, false).value(), {}};
      ok(trainer.session->set_parameter(tensor.parameter, sync));
      for (Replica* replica : trainer.replicas)
        tensor.memory.push_back(trainer.session->alloc(replica, tensor.parameter).value());
      untrained.push_back(tensor);
    }
    ok(trainer.session->start());
    for (int step = 0; step < 3; ++step) {
      trainer.compute(step, 0);
      for (const Tensor& tensor : untrained) {
        for (size_t r : {0, 1})
          trainer.access[r].write(
              tensor.memory[r]->value,
              std::vector<float>(count, 4.0f * static_cast<float>(step) + static_cast<float>(r)));
      }
      ok(trainer.session->step(2, nullptr));
      for (size_t r : {0, 1}) {
        EXPECT_EQ(trainer.values(untrained[0], r),
                  std::vector<float>(count, 4.0f * static_cast<float>(step) + 0.5f));
        EXPECT_EQ(trainer.values(untrained[1], r),
                  std::vector<float>(count, 4.0f * static_cast<float>(step)));
      }
    }
    ok(trainer.session->close(10s));
  }
}

// Rank 1 closes first.
TEST_F(GpuSession, CheckpointsGoFromAnyDevicesToAnyOthers) {
  const Devices all = {{"cpu", "cpu"}, {"cuda:0", second()}, {"cuda:0", "cpu"}};
  constexpr int kBefore = 3, kSteps = 5;
  const auto steps = [](Trainer& trainer, int first, int last) {
    for (int step = first; step < last; ++step) {
      trainer.compute(step, 0);
      ok(trainer.session->step(2, nullptr));
    }
  };
  const auto done = [](const Result<std::shared_ptr<Operation>>& operation) {
    ok(operation.status());
    ok(operation.value()->status());
  };
  Trainer undisturbed(open(), all[0], "adam", "", true);
  ok(undisturbed.session->start());
  steps(undisturbed, 0, kSteps);
  for (const char* strategy : {"allreduce", "ps"}) {
    for (const auto& from : all) {
      std::string folder = testing::TempDir() + "dsgd-checkpoint-XXXXXX";
      ASSERT_NE(mkdtemp(folder.data()), nullptr);
      Trainer before(open({{"strategy", strategy}}), from, "adam", "", true);
      ok(before.session->start());
      steps(before, 0, kBefore);
      done(before.session->save_checkpoint(folder, Session::Mode::kWait));
      for (const auto& to : all) {
        SCOPED_TRACE(std::string(strategy) + ", " + from[0] + "," + from[1] + " to " + to[0] + "," + to[1]);
        Trainer after(open({{"strategy", strategy}}), to, "adam", "", true);
        ok(after.session->start());
        done(after.session->load_checkpoint(folder, Session::Mode::kWait));
        for (size_t replica = 0; replica < 2; ++replica) EXPECT_EQ(after.values(replica), before.values(0));
        steps(after, kBefore, kSteps);
        for (size_t replica = 0; replica < 2; ++replica)
          EXPECT_EQ(after.values(replica), undisturbed.values(0));
      }
      std::filesystem::remove_all(folder);
    }
  }
}

TEST_F(GpuSession, ClosingComparesValuesOnGpus) {
  for (const std::string other : {"cuda:0", "cpu"}) {
    for (const bool differ : {false, true}) {
      SCOPED_TRACE(other + (differ ? ", which differs" : ""));
      std::promise<void> closed;
      run_ranks(2, {}, [&](int rank, const Settings& settings) {
        Trainer trainer(open(settings), {rank == 0 ? "cuda:0" : other});
        ok(trainer.session->start());
        trainer.compute(0, rank);
        ok(trainer.session->step(1, nullptr));
        if (rank == 1 && differ) {
          std::vector<float> values = trainer.values(trainer.tensors[1], 0);
          values[2500] += 1;
          trainer.access[0].write(trainer.tensors[1].memory[0]->value, values);
        }
        if (rank == 0) closed.get_future().wait();
        const Status status = trainer.session->close(10s);
        if (rank == 1) closed.set_value();
        EXPECT_EQ(status.code(), rank == 0 && differ ? Code::kDiverged : Code::kOk) << status.message();
        if (differ && rank == 0) {
          EXPECT_THAT(status.message(), HasSubstr("parameter 'p1' of rank 1 against rank 0"));
        }
      });
    }
  }
}

// The same three replicas on any devices of any workers, with weights that are no integers and gradients of
// all magnitudes.
TEST_F(GpuSession, ReproducibleStepsDoNotDependOnWhichDeviceOfWhichWorkerHasAReplica) {
  using Split = std::vector<std::vector<std::pair<int, std::string>>>;  // by worker: replica, device
  const std::vector<double> weights = {.1, .2, .3};
  for (const bool halves : {false, true}) {
    const int span = halves ? 14 : 120;
    const auto gradient = [span](int step, int replica, size_t i) {
      const uint64_t random = finalize64(static_cast<uint64_t>(step * 3 + replica + 1) * 1000003 + i);
      if (random % 16 == 0) return -0.0f;
      const float mantissa = 1 + static_cast<float>(random >> 41) * 0x1p-23f;
      return std::ldexp(random % 2 ? mantissa : -mantissa,
                        static_cast<int>(random / 32 % static_cast<uint64_t>(2 * span)) - span);
    };
    std::vector<float> expected;
    for (const Split& split : std::vector<Split>{{{{0, "cpu"}, {1, "cpu"}, {2, "cpu"}}},
                                                 {{{0, "cuda:0"}, {1, "cuda:0"}, {2, "cuda:0"}}},
                                                 {{{2, "cuda:0"}, {0, "cpu"}, {1, second()}}},
                                                 {{{1, "cuda:0"}, {2, "cuda:0"}}, {{0, second()}}},
                                                 {{{2, second()}}, {{1, "cpu"}, {0, "cuda:0"}}},
                                                 {{{2, "cpu"}}, {{0, "cuda:0"}}, {{1, second()}}}}) {
      for (const char* strategy : {"allreduce", "ps", "simple"}) {
        std::vector<std::vector<float>> values(split.size());
        run_ranks(split.size(), {{"reproducible", "1"}, {"bucket_size", "16K"}},
                  [&](int rank, const Settings& settings) {
                    const auto& mine = split[static_cast<size_t>(rank)];
                    std::vector<std::string> devices;
                    for (const auto& [replica, device] : mine) devices.push_back(device);
                    Trainer trainer(open(settings), devices, "adam", "lr=0.01", halves);
                    trainer.fill(0, false, [](size_t i) { return static_cast<float>(i % 5); });
                    double total = 0;
                    for (size_t r = 0; r < mine.size(); ++r) {
                      const double weight = weights[static_cast<size_t>(mine[r].first)];
                      ok(trainer.session->set_replica_weight(trainer.replicas[r], weight));
                      total += weight;
                    }
                    ok(trainer.session->set_strategy(strategy, ""));
                    ok(trainer.session->start());
                    for (int step = 0; step < 3; ++step) {
                      for (size_t r = 0; r < mine.size(); ++r) {
                        trainer.fill(r, true, [&](size_t i) { return gradient(step, mine[r].first, i); });
                      }
                      StepResult result;
                      ok(trainer.session->step(total, &result));
                      EXPECT_EQ(result.weight, 0.6);
                    }
                    values[static_cast<size_t>(rank)] = trainer.values();
                    for (size_t r = 1; r < mine.size(); ++r) EXPECT_EQ(trainer.values(r), trainer.values());
                    ok(trainer.session->close(10s));
                  });
        if (expected.empty()) expected = values[0];
        for (const auto& of_rank : values)
          EXPECT_EQ(of_rank, expected)
              << strategy << ' ' << split.size() << " workers, first on " << split[0][0].second;
      }
    }
  }
}

// Steps go on while the worker fetches values and state, in several answers from each of the others.
TEST_F(GpuSession, AWorkerThatJoinsHoldsTheBitsOfTheOthers) {
#ifndef DSGD_TEST_PLUGIN
  fake_cuda::set_delay(0, 20us);
  fake_cuda::set_delay(1, 200us);  // of the worker that joins: the others make steps meanwhile
#endif
  struct Case {
    Settings settings;
    std::vector<std::vector<std::string>> devices;  // by worker; the last one joins
  };
  for (const Case& c : std::vector<Case>{
           {{{"strategy", "allreduce"}}, {{"cuda:0"}, {"cuda:0"}, {second()}}},
           {{{"strategy", "ps"}, {"copies", "2"}}, {{"cuda:0", "cuda:0"}, {"cuda:0"}, {second(), "cpu"}}}}) {
    Settings settings = {{"min_workers", "1"}, {"max_workers", "3"}, {"bucket_size", "64K"}};
    settings.insert(c.settings.begin(), c.settings.end());
    const auto head = start_head(2, &settings);
    std::atomic<int> made{0}, last{INT_MAX}, early{0}, streams{0};
    std::vector<std::vector<float>> values(3);
    const auto work = [&](size_t w) {
      const auto log = std::make_shared<Log>(LogLevel::kDebug, [&](const LogRecord& record) {
        early += record.message.find("enters the view before") != record.message.npos;
        streams += record.message.find("fetches the state of 2 workers") != record.message.npos;
      });
      Trainer trainer(open(settings, "", log), c.devices[w], "adam", "lr=0.01", true);
      const int64_t count = 300'000;
      Tensor large{trainer.session->add_parameter("large", DType::kFloat32, {&count, 1}, true).value(), {}};
      for (Replica* replica : trainer.replicas)
        large.memory.push_back(trainer.session->alloc(replica, large.parameter).value());
      trainer.tensors.push_back(std::move(large));
      for (size_t r = 0; r < c.devices[w].size(); ++r)
        trainer.fill(r, false, [w](size_t i) { return static_cast<float>(w + i % 5); });
      ok(trainer.session->start());
      int step = static_cast<int>(trainer.session->info().steps);
      if (w == 2) last = step + 5;
      trainer.compute(0, static_cast<int>(w));
      for (; step <= last; ++step) {
        ok(trainer.session->step(1, nullptr));
        if (w == 0) made = step + 1;
      }
      values[w] = trainer.values();
      for (size_t r = 1; r < c.devices[w].size(); ++r) EXPECT_EQ(trainer.values(r), values[w]);
      ok(trainer.session->close(10s));
    };
    std::vector<std::thread> threads;
    for (size_t w = 0; w < 2; ++w) threads.emplace_back(work, w);
    while (made < 3) std::this_thread::yield();
    threads.emplace_back(work, 2);
    for (std::thread& thread : threads) thread.join();
#ifndef DSGD_TEST_PLUGIN  // a GPU may make steps faster than the worker fetches
    EXPECT_EQ(early, 0) << "it had fetched all state";
#endif
    EXPECT_EQ(streams, 1);
    EXPECT_TRUE(values[1] == values[0]);
    EXPECT_TRUE(values[2] == values[0]);
  }
#ifndef DSGD_TEST_PLUGIN
  for (int device : {0, 1}) fake_cuda::set_delay(device, 0us);
#endif
}

TEST_F(GpuSession, StepsAreOrderedBehindHeldStreamsAndDoNotWait) {
  Trainer trainer(open(), {"cuda:0"}, "sgd", "lr=1");
  ok(trainer.session->start());
  {
    // Two streams, of which one holds the first and last gradient of a bucket.
    HeldStream first, second;
    first.hold();
    second.hold();
    std::vector<float*> seen;
    for (int step = 1; step <= 3; ++step) {
      auto operation = trainer.session->step_begin(1);
      ASSERT_TRUE(operation.ok()) << operation.status().message();
      for (size_t t = 0; t < trainer.tensors.size(); ++t) {
        Tensor& tensor = trainer.tensors[t];
        HeldStream& stream = t == 1 || t == 2 ? second : first;
        stream.fill(tensor.memory[0]->gradient, tensor.parameter->count, static_cast<float>(step));
        ok(trainer.session->gradient_ready(trainer.replicas[0], tensor.parameter, stream));
      }
      ok(trainer.session->wait(*operation.value(), -1ms));
      for (Tensor& tensor : trainer.tensors) {
        seen.push_back(first.read(tensor.memory[0]->value, tensor.parameter->count));
        seen.push_back(second.read(tensor.memory[0]->value, tensor.parameter->count));
      }
    }
    ASSERT_TRUE(first.held() && second.held());
    second.release();
    first.release();
    first.finish();
    second.finish();
    for (size_t i = 0; i < seen.size(); ++i) {
      const size_t count = trainer.tensors[i / 2 % trainer.tensors.size()].parameter->count,
                   step = i / 2 / trainer.tensors.size() + 1;
      const float expected = -static_cast<float>(step * (step + 1) / 2);
      EXPECT_EQ(std::count(seen[i], seen[i] + count, expected), static_cast<std::ptrdiff_t>(count))
          << "step " << step << ", read " << i;
    }
  }
  ok(trainer.session->close(10s));
}

// Buffers of the host's for the trainer's second parameter. Records their release.
class HostOwnedBuffers {
 public:
  explicit HostOwnedBuffers(const Trainer& trainer) : parameter_(trainer.tensors[1].parameter) {
    for (auto* buffer : {&value_, &gradient_})
      *buffer = trainer.replicas[0]->device->allocate(parameter_->nbytes()).value();
  }
  void bind(const Trainer& trainer) {
    const size_t nbytes = parameter_->nbytes();
    ok(trainer.session->bind(trainer.replicas[0], parameter_, value_.get(), nbytes, gradient_.get(), nbytes,
                             [released = released_] { released->set_value(); }));
  }
  void* value() const { return value_.get(); }
  void* gradient() const { return gradient_.get(); }
  bool released(std::chrono::seconds within = 0s) const {
    return future_.wait_for(within) == std::future_status::ready;
  }

 private:
  Parameter* const parameter_;
  std::shared_ptr<void> value_, gradient_;
  const std::shared_ptr<std::promise<void>> released_ = std::make_shared<std::promise<void>>();
  const std::future<void> future_ = released_->get_future();
};

// A step whose gradients come from the stream, which ends before the device has done its work.
void step_on_stream(Trainer& trainer, cudaStream_t stream) {
  auto operation = trainer.session->step_begin(1);
  ASSERT_TRUE(operation.ok()) << operation.status().message();
  for (const Tensor& tensor : trainer.tensors)
    ok(trainer.session->gradient_ready(trainer.replicas[0], tensor.parameter, stream));
  ok(trainer.session->wait(*operation.value(), -1ms));
}

TEST_F(GpuSession, UnboundBuffersAreReleasedAfterTheirLastUse) {
  Trainer trainer(open(), {"cuda:0"}, "sgd", "lr=1");
  HostOwnedBuffers first(trainer), second(trainer), third(trainer);
  first.bind(trainer);
  ok(trainer.session->start());
  {
    HeldStream stream;
    stream.hold();
    step_on_stream(trainer, stream);
    second.bind(trainer);
    step_on_stream(trainer, stream);
    third.bind(trainer);
    ok(trainer.session->barrier(Session::Mode::kWait).status());  // comes behind what bind() has posted
    EXPECT_FALSE(first.released() || second.released());
    ASSERT_TRUE(stream.held());
    stream.release();
    EXPECT_TRUE(first.released(30s) && second.released(30s));
  }
  ok(trainer.session->close(10s));
  EXPECT_FALSE(third.released());
  trainer.session.reset();
  EXPECT_TRUE(third.released());
}

TEST_F(GpuSession, AFailedStepDoesNotEndTheWaitForUnboundBuffers) {
  Trainer trainer(open(), {"cuda:0"}, "sgd", "lr=1");
  HostOwnedBuffers first(trainer), second(trainer);
  first.bind(trainer);
  ok(trainer.session->start());
  {
    HeldStream stream;
    stream.hold();
    step_on_stream(trainer, stream);
    second.bind(trainer);
    auto unmarked = trainer.session->step_begin(1, {.timeout = 100ms});
    ASSERT_TRUE(unmarked.ok()) << unmarked.status().message();
    EXPECT_EQ(trainer.session->wait(*unmarked.value(), -1ms).code(), Code::kTimeout);
    ASSERT_TRUE(stream.held());
    EXPECT_FALSE(first.released());
    stream.release();
    EXPECT_TRUE(first.released(30s));
  }
}

TEST_F(GpuSession, UnmarkedGradientsAreReadAfterTheDefaultStreamAndStepEndsWithItsValues) {
  constexpr size_t kMost = 5000;  // elements of a tensor
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, kMost * sizeof(float), cudaHostAllocPortable), cudaSuccess);
  std::fill_n(static_cast<float*>(pinned), kMost, 1.0f);
  Trainer trainer(open(), {"cuda:0", second()}, "sgd", "lr=1");
  ok(trainer.session->start());
  for (int step = 1; step <= 20; ++step) {
    for (size_t r = 0; r < 2; ++r) {
      ASSERT_EQ(cudaSetDevice(trainer.replicas[r]->device->index()), cudaSuccess);
      for (Tensor& tensor : trainer.tensors) {
        ASSERT_EQ(cudaLaunchHostFunc(
                      nullptr, [](void*) { std::this_thread::sleep_for(100us); }, nullptr),
                  cudaSuccess);
        ASSERT_EQ(cudaMemcpyAsync(tensor.memory[r]->gradient, pinned, tensor.parameter->nbytes(),
                                  cudaMemcpyDefault, nullptr),
                  cudaSuccess);
      }
    }
    ok(trainer.session->step(1, nullptr));
    EXPECT_EQ(trainer.values(), std::vector<float>(trainer.values().size(), static_cast<float>(-step)));
    EXPECT_EQ(trainer.values(1), trainer.values());
    for (size_t r = 0; r < 2; ++r) trainer.fill(r, true, [](size_t) { return 1000.0f; });
  }
  ok(trainer.session->close(10s));
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

// No step waits for the gradient of a frozen parameter, which may so be marked while the step ends.
TEST_F(GpuSession, AFrozenParameterMayBeMarkedWhileTheStepEnds) {
  const HostStream streams[3];
  Trainer trainer(open(), {"cuda:0"}, "sgd", "lr=1");
  ok(trainer.session->start());
  ok(trainer.session->set_parameter(trainer.tensors[0].parameter, "frozen=1"));
  for (int step = 0; step < 200; ++step) {
    auto operation = trainer.session->step_begin(1);
    ASSERT_TRUE(operation.ok());
    for (size_t t = trainer.tensors.size(); t-- > 0;) {
      const Status marked =
          trainer.session->gradient_ready(trainer.replicas[0], trainer.tensors[t].parameter, streams[t % 3]);
      if (t > 0) {
        ok(marked);
      } else {
        // The step may have ended.
        EXPECT_TRUE(marked.ok() || marked.code() == Code::kState) << marked.message();
      }
    }
    ok(trainer.session->wait(*operation.value(), -1ms));
  }
  ok(trainer.session->close(10s));
}

TEST_F(GpuSession, DevicesThatAreNotThereAreRefused) {
  auto session = open({{"devices", std::string("cuda:0,").append(second())}});
  Replica* zero = session->add_replica("").value();
  Replica* other = session->add_replica("").value();
  EXPECT_EQ(zero->device->name(), "cuda:0");
  EXPECT_EQ(other->device->name(), second());
  EXPECT_EQ(session->add_replica(second()).value()->device, other->device);
  struct Case {
    const char* device;
    Code code;
    const char* says;
  };
  for (const Case& c :
       {Case{"", Code::kInvalidArgument, "replica 3 has no entry in devices = 'cuda:0,"},
        Case{"cuda", Code::kInvalidArgument, "device 'cuda' has no valid index; write cuda:0"},
        Case{"cuda:x", Code::kInvalidArgument, "has no valid index"},
        Case{"cuda:0x", Code::kInvalidArgument, "has no valid index"},
        Case{"cuda:99", Code::kInvalidArgument, "there is no device 'cuda:99': this process can use cuda:0"},
        Case{"cuda:-0", Code::kInvalidArgument, "has no valid index"},
        Case{"cuda:-1", Code::kInvalidArgument, "has no valid index"},
        Case{"cuda:99999999999", Code::kInvalidArgument,
             "device 'cuda:99999999999' does not exist: its index is too large"},
        Case{"gpu:0", Code::kUnsupported, "unknown device 'gpu:0'; use cpu or cuda:N"},
        Case{"cpu:0", Code::kUnsupported, "unknown device 'cpu:0'"}}) {
    auto replica = session->add_replica(c.device);
    EXPECT_EQ(replica.status().code(), c.code) << c.device;
    EXPECT_THAT(replica.status().message(), HasSubstr(c.says));
  }
  EXPECT_EQ(session->add_replica("cuda:00").value()->device, zero->device);
  ok(session->close(10s));
}

TEST_F(GpuSession, BuffersThatAreElsewhereThanTheirReplicaAreRefused) {
  auto session = open();
  Replica* host = session->add_replica("cpu").value();
  Replica* zero = session->add_replica("cuda:0").value();
  Replica* other = session->add_replica(second()).value();
  const int64_t count = 4;
  Parameter* parameter = session->add_parameter("weight", DType::kFloat32, {&count, 1}, true).value();
  const auto refused = [&](Replica* replica, void* memory, const std::string& says) {
    const Status status =
        session->bind(replica, parameter, memory, 16, static_cast<float*>(memory) + count, 16, {});
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("weight"), HasSubstr(says)));
  };
  std::vector<float> plain(8);
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 32, cudaHostAllocPortable), cudaSuccess);
  const std::shared_ptr<void> of_zero = zero->device->allocate(32).value(),
                              of_other = other->device->allocate(32).value();
  refused(zero, plain.data(), "the buffer is host memory, but its replica is on cuda:0");
  refused(zero, pinned, "the buffer is host memory, but its replica is on cuda:0");
  refused(host, of_zero.get(), "the value is memory of cuda:0, but its replica is on the cpu");
  if (other->device != zero->device)
    refused(zero, of_other.get(), "memory of cuda:1, but its replica is on cuda:0");
  ok(session->close(10s));
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

// The host and all GPUs can use it.
TEST_F(GpuSession, ManagedMemoryIsAnyReplicas) {
  const int64_t count = 1000;
  const size_t nbytes = count * sizeof(float);
  float *values[2], *gradients[2];
  for (float** memory : {&values[0], &values[1], &gradients[0], &gradients[1]}) {
    void* data = nullptr;
    ASSERT_EQ(cudaMallocManaged(&data, nbytes), cudaSuccess);
    *memory = static_cast<float*>(data);
  }
  auto session = open();
  ok(session->set_optimizer("sgd", "lr=1"));
  Parameter* parameter = session->add_parameter("weight", DType::kFloat32, {&count, 1}, true).value();
  Replica* const replicas[] = {session->add_replica("cuda:0").value(), session->add_replica("cpu").value()};
  device::Access access(replicas[0]->device);
  for (size_t r = 0; r < 2; ++r) {
    access.write(values[r], std::vector<float>(count, 1));
    access.write(gradients[r], std::vector<float>(count, static_cast<float>(2 + 2 * r)));
    ok(session->bind(replicas[r], parameter, values[r], nbytes, gradients[r], nbytes, {}));
  }
  ok(session->start());
  ok(session->step(1, nullptr));
  for (float* value : values) EXPECT_EQ(access.read<float>(value, count), std::vector<float>(count, -2));
  ok(session->close(10s));
  for (float* memory : {values[0], values[1], gradients[0], gradients[1]})
    ASSERT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(GpuSession, MoreMemoryThanTheDeviceHasIsAnErrorAfterWhichItGoesOn) {
  auto session = open();
  Replica* replica = session->add_replica("cuda:0").value();
  const int64_t too_many = int64_t{1} << 42, few = 4;  // 16 TiB
  Parameter* large = session->add_parameter("large", DType::kFloat32, {&too_many, 1}, true).value();
  const Status status = session->alloc(replica, large).status();
  EXPECT_EQ(status.code(), Code::kNoMemory) << status.message();
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("cuda:0: cudaMalloc"), HasSubstr("cudaErrorMemoryAllocation")));
  EXPECT_TRUE(replica->device->allocate(few).ok());
  ok(session->close(10s));
}

#ifndef DSGD_TEST_PLUGIN  // what follows holds the fake runtime up, or lets its calls fail

float* floats(void* fake_memory) { return static_cast<float*>(fake_memory); }

TEST_F(GpuSession, GradientsAreReadAfterTheirStreamsAndValuesComeBeforeWhatFollows) {
  const HostStream stream;
  Trainer trainer(open(), {"cuda:0"}, "sgd", "lr=1");
  ok(trainer.session->start());
  Tensor& large = trainer.tensors[1];
  std::vector<float> seen(large.parameter->count, -1);
  {
    const fake_cuda::Pause pause;  // nothing of the device's goes on, and nothing here waits for it
    auto operation = trainer.session->step_begin(1);
    ASSERT_TRUE(operation.ok());
    for (Tensor& tensor : trainer.tensors) {
      fake_cuda::enqueue(stream, [&tensor] {
        std::fill_n(floats(tensor.memory[0]->gradient), tensor.parameter->count, 3.0f);
      });
      ok(trainer.session->gradient_ready(trainer.replicas[0], tensor.parameter, stream));
    }
    ok(trainer.session->wait(*operation.value(), -1ms));
    EXPECT_TRUE(operation.value()->step_result().applied);
    fake_cuda::enqueue(
        stream, [&] { std::memcpy(seen.data(), large.memory[0]->value, seen.size() * sizeof(float)); });
  }
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(seen, std::vector<float>(seen.size(), -3));
  ok(trainer.session->close(10s));
}

// A step's work on one GPU takes as few calls as that many tensors and replicas allow, however their
// gradients are marked.
TEST_F(GpuSession, AStepOfManyTensorsIsOneLaunchToAddUpAndOneToUpdateAndOneForManyReplicas) {
  const HostStream stream;
  for (const size_t replicas_there : {size_t{1}, size_t{4}, size_t{5}, size_t{13}}) {
    auto session = open();
    ok(session->set_optimizer("adamw", "lr=1e-3"));
    std::vector<Replica*> replicas;
    for (size_t r = 0; r < replicas_there; ++r) replicas.push_back(session->add_replica("cuda:0").value());
    std::vector<Parameter*> parameters;
    for (int64_t p = 0; p < 61; ++p) {
      const int64_t count = p % 7 == 0 ? 10'000 : 64;
      parameters.push_back(
          session->add_parameter(std::string("p") + std::to_string(p), DType::kFloat32, {&count, 1}, true)
              .value());
      for (Replica* replica : replicas) ok(session->alloc(replica, parameters.back()).status());
    }
    ok(session->start());
    for (void* in : std::vector<void*>{stream, nullptr}) {
      const size_t launches = fake_cuda::launches();
      const fake_cuda::Alive alive = fake_cuda::alive();
      auto operation = session->step_begin(1);
      ASSERT_TRUE(operation.ok());
      for (Parameter* parameter : parameters) {
        for (Replica* replica : replicas) ok(session->gradient_ready(replica, parameter, in));
      }
      ok(session->wait(*operation.value(), -1ms));
      EXPECT_EQ(fake_cuda::launches() - launches, replicas_there <= 4 ? 2u : 3u)
          << replicas_there << " replicas";
      EXPECT_EQ(fake_cuda::alive().events, alive.events) << "nothing is made in a step";
      EXPECT_EQ(fake_cuda::alive().streams, alive.streams);
      EXPECT_EQ(fake_cuda::alive().allocations, alive.allocations);
    }
    ok(session->close(10s));
  }
}

// Data of a step that then changes nothing must not overwrite the next step's sums on the device.
TEST_F(GpuSession, AStepThatUpdatesNothingLeavesNothingUnderWay) {
  for (const bool overflow : {false, true}) {
    SCOPED_TRACE(overflow ? "gradients overflow" : "nobody contributes");
    Settings settings;
    if (overflow) settings["loss_scale"] = "4";
    Trainer trainer(open(settings), {"cuda:0", "cpu"}, "sgd", "lr=1");
    ok(trainer.session->start());
    const auto fill = [&trainer](float gradient) {
      for (size_t r : {0, 1})
        trainer.fill(r, true,
                     [&](size_t) { return gradient * static_cast<float>(trainer.session->loss_scale()); });
    };
    fill(100);
    if (overflow) trainer.overflow(1);
    StepResult result;
    std::shared_ptr<Operation> operation;
    {
      auto to_device = std::make_unique<fake_cuda::HoldCopies>(fake_cuda::HoldCopies::kToDevice);
      ok(trainer.session->step(overflow ? 1 : 0, &result));
      EXPECT_FALSE(result.applied);
      const fake_cuda::HoldCopies to_host(fake_cuda::HoldCopies::kToHost);
      // Not by the session's own means, which would wait for what is held.
      for (Tensor& tensor : trainer.tensors) {
        for (size_t r : {0, 1})
          std::fill_n(floats(tensor.memory[r]->gradient), tensor.parameter->count,
                      static_cast<float>(trainer.session->loss_scale()));
      }
      operation = trainer.session->step_begin(1).value();
      ok(trainer.session->step_flush());
      // Sums must not be made yet. No count shows that; on a slow machine the time may miss a defect.
      std::this_thread::sleep_for(50ms);
      to_device.reset();
      while (fake_cuda::copies(fake_cuda::HoldCopies::kToDevice).pending > 0) std::this_thread::yield();
    }
    ok(trainer.session->wait(*operation, -1ms));
    ok(trainer.session->step(0, nullptr));  // ends when new values are there
    EXPECT_EQ(trainer.values(), std::vector<float>(trainer.values().size(), -1));
    ok(trainer.session->close(10s));
  }
}

// Kernels that read a replica's values run before the values change, though the replica contributes nothing.
TEST_F(GpuSession, ValuesOfAReplicaWithoutWeightAreWrittenAfterItsStream) {
  const HostStream streams[] = {HostStream(0), HostStream(1)};
  for (const bool absent : {false, true}) {
    SCOPED_TRACE(absent ? "absent" : "without weight");
    Trainer trainer(open(), {"cuda:0", "cuda:1"}, "sgd", "lr=1");
    ok(trainer.session->start());
    for (size_t r : {0, 1}) trainer.fill(r, true, [](size_t) { return 1.0f; });
    if (!absent) {
      for (size_t r : {0, 1}) ok(trainer.session->set_replica_weight(trainer.replicas[r], r == 0 ? 1 : 0));
    }
    std::promise<void> go;
    float seen = -1000;
    auto operation = trainer.session->step_begin(1);
    ASSERT_TRUE(operation.ok());
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);  // whose default stream it is
    fake_cuda::enqueue(absent ? cudaStream_t{} : streams[1], [&] {
      go.get_future().wait();
      seen = floats(trainer.tensors[1].memory[1]->value)[7];
    });
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    for (Tensor& tensor : trainer.tensors) {
      ok(trainer.session->gradient_ready(trainer.replicas[0], tensor.parameter, streams[0]));
      ok(absent ? trainer.session->gradient_absent(trainer.replicas[1], tensor.parameter)
                : trainer.session->gradient_ready(trainer.replicas[1], tensor.parameter, streams[1]));
    }
    // The update must not run yet. No count shows that; on a slow machine the time may miss a defect.
    std::this_thread::sleep_for(50ms);
    go.set_value();
    ok(trainer.session->wait(*operation.value(), -1ms));
    ok(trainer.session->step(0, nullptr));
    EXPECT_EQ(seen, 0);
    EXPECT_EQ(trainer.values(1), std::vector<float>(trainer.values(1).size(), -1));
    ok(trainer.session->close(10s));
  }
}

TEST_F(GpuSession, AStreamThatCannotBeUsedIsRefusedAndTheGradientMayBeMarkedInAnother) {
  const HostStream streams[] = {HostStream(0), HostStream(1)};
  Trainer trainer(open(), {"cuda:0", "cuda:1"}, "sgd", "lr=1");
  ok(trainer.session->start());
  for (size_t r : {0, 1}) trainer.fill(r, true, [](size_t) { return 1.0f; });
  auto operation = trainer.session->step_begin(1);
  ASSERT_TRUE(operation.ok());
  for (Tensor& tensor : trainer.tensors) {
    for (size_t r : {0, 1}) {
      const auto refused = [&](const char* says) {
        const Status status =
            trainer.session->gradient_ready(trainer.replicas[r], tensor.parameter, streams[r == 1 ? 0 : 1]);
        EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
        EXPECT_EQ(status.parameter(), tensor.parameter->name);
        EXPECT_THAT(status.message(),
                    AllOf(HasSubstr("'" + tensor.parameter->name + "' in replica " + std::to_string(r)),
                          HasSubstr(says)));
      };
      refused("the stream does not belong to this device");
      {
        const fake_cuda::Capture capture(streams[r == 1 ? 0 : 1]);
        refused("is being captured into a graph");
      }
      ok(trainer.session->gradient_ready(trainer.replicas[r], tensor.parameter, streams[r]));
    }
  }
  ok(trainer.session->wait(*operation.value(), -1ms));
  ok(trainer.session->step(0, nullptr));  // ends when new values are there
  EXPECT_EQ(trainer.values(1), std::vector<float>(trainer.values(1).size(), -1));
  ok(trainer.session->close(10s));
}

// The stream was valid when marked, so a failure here is fatal.
TEST_F(GpuSession, AStreamThatFailsLaterEndsTheStep) {
  const HostStream stream;
  for (const bool flush : {false, true}) {
    Trainer trainer(open(), {"cuda:0"}, "sgd", "lr=1");
    ok(trainer.session->start());
    auto operation = trainer.session->step_begin(1);
    ASSERT_TRUE(operation.ok());
    for (Tensor& tensor : trainer.tensors) {
      const bool last = &tensor == &trainer.tensors.back();
      if (last) fake_cuda::fail("cudaEventRecord", cudaErrorIllegalAddress);
      if (last && flush) break;
      const Status status = trainer.session->gradient_ready(trainer.replicas[0], tensor.parameter, stream);
      EXPECT_EQ(status.ok(), !last);
      EXPECT_THAT(status.message(),
                  HasSubstr(last ? "parameter 'p0' in replica 0 was marked can no longer be used" : ""));
    }
    if (flush) {
      EXPECT_FALSE(trainer.session->step_flush().ok());
    }
    const Status ended = trainer.session->wait(*operation.value(), -1ms);
    EXPECT_TRUE(operation.value()->done());
    EXPECT_THAT(ended.message(),
                AllOf(HasSubstr("step 0: "),
                      HasSubstr("parameter 'p0' in replica 0 was marked can no longer be used")));
    (void)trainer.session->close(10s);
  }
}

// No message is sent, so only the step's own timer can end it.
TEST_F(GpuSession, AStepWhoseGradientsAreNeverMarkedEndsInTimeAndSaysWhich) {
  Trainer trainer(open({{"step_timeout", "200ms"}}), {"cuda:0"}, "sgd", "lr=1");
  ok(trainer.session->start());
  auto operation = trainer.session->step_begin(1);
  ASSERT_TRUE(operation.ok());
  ok(trainer.session->gradient_ready(trainer.replicas[0], trainer.tensors[0].parameter, nullptr));
  const auto until = std::chrono::steady_clock::now() + 1min;
  while (!operation.value()->done() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(operation.value()->done());
  const Status& how = operation.value()->status();
  EXPECT_EQ(how.code(), Code::kTimeout);
  EXPECT_THAT(how.message(), AllOf(HasSubstr("step 0 has not ended within step_timeout"), HasSubstr("'p1'"),
                                   HasSubstr("dsgd_step_flush")));
  ok(trainer.session->close(10s));
}

// Values of somewhat more than 64 parts of 4 MiB. The element that differs is in part 3 of the 68 parts that
// are compared; it would be in part 2 of 64.
TEST_F(GpuSession, AStepCopiesAtMost4MibOfValuesForComparison) {
  constexpr size_t kPart = 4 << 20, kOther = 64 << 10;  // buckets and the ends of parts
  const int64_t count = 67 << 20;
  std::barrier together(2);
  run_ranks(2, {}, [&](int rank, const Settings& settings) {
    Trainer trainer(open(settings), {rank == 0 ? "cuda:0" : "cpu"}, "none", "");
    Parameter* large = trainer.session->add_parameter("large", DType::kBfloat16, {&count, 1}, true).value();
    ok(trainer.session->set_parameter(large, "frozen=1"));
    const auto memory = trainer.session->alloc(trainer.replicas[0], large).value();
    ok(trainer.session->start());
    if (rank == 1) static_cast<uint16_t*>(memory->value)[count / 22] ^= 1;
    for (int step = 0; step < 4; ++step) {
      const size_t before = fake_cuda::copies(fake_cuda::HoldCopies::kToHost).nbytes;
      together.arrive_and_wait();
      const Status status = trainer.session->step(1, nullptr);
      EXPECT_EQ(status.code(), step < 3 ? Code::kOk : Code::kDiverged) << step << ": " << status.message();
      const size_t copied = fake_cuda::copies(fake_cuda::HoldCopies::kToHost).nbytes - before;
      together.arrive_and_wait();
      if (step == 3) break;  // which has compared all values
      EXPECT_GT(copied, kPart - kOther);
      EXPECT_LE(copied, kPart + kOther);
    }
    (void)trainer.session->close(0ms);
  });
}

// A graph of the host's, captured by another thread in the strictest mode, which is the default one.
TEST_F(GpuSession, AGraphThatIsCapturedMeanwhileIsNotSpoiledNorIsTheStep) {
  const HostStream stream;
  Trainer trainer(open(), {"cuda:0", "cpu"}, "sgd", "lr=1");
  ok(trainer.session->start());
  fake_cuda::set_delay(0, 300us);  // so that the device is asked whether it is done
  {
    const fake_cuda::Capture capture(stream);
    for (int step = 0; step < 5; ++step) ok(trainer.session->step(1, nullptr));
    EXPECT_FALSE(capture.spoiled());
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 1), cudaErrorStreamCaptureUnsupported);  // here it would have been
    EXPECT_TRUE(capture.spoiled());
    (void)cudaGetLastError();
  }
  fake_cuda::set_delay(0, 0us);
  ok(trainer.session->close(10s));
}

// While a blocking stream is captured, the legacy default stream cannot be used, in which this host has all
// its work.
TEST_F(GpuSession, AStepWaitsForTheCaptureOfABlockingStreamAndEndsBehindItsUpdate) {
  const HostStream blocking(0, cudaStreamDefault);
  for (const bool before : {true, false}) {
    SCOPED_TRACE(before ? "captured when the step begins" : "captured when it ends");
    Trainer trainer(open(), {"cuda:0", "cpu"}, "sgd", "lr=1");
    ok(trainer.session->start());
    for (size_t r : {0, 1}) trainer.fill(r, true, [](size_t) { return 1.0f; });
    std::optional<fake_cuda::Capture> capture;
    if (before) capture.emplace(blocking);
    auto operation = trainer.session->step_begin(1);
    ASSERT_TRUE(operation.ok());
    if (before) {
      ok(trainer.session->step_flush());
      EXPECT_FALSE(trainer.session->wait(*operation.value(), 50ms).ok());
      EXPECT_FALSE(operation.value()->done());
      EXPECT_FALSE(capture->spoiled());
      capture.reset();
    } else {
      std::optional<fake_cuda::HoldCopies> held(fake_cuda::HoldCopies::kToHost);
      const size_t before_flush = fake_cuda::copies();
      ok(trainer.session->step_flush());
      wait_for_copies(before_flush, 1);  // the step has used the default stream, and waits for its copies
      capture.emplace(blocking);
      held.reset();
    }
    ok(trainer.session->wait(*operation.value(), -1ms));
    if (capture) {
      EXPECT_FALSE(capture->spoiled());
      EXPECT_EQ(floats(trainer.tensors[1].memory[0]->value)[7], -1) << "the step has ended before its update";
      const Status refused = trainer.session->stream_wait(trainer.replicas[0], nullptr);
      EXPECT_EQ(refused.code(), Code::kState);
      EXPECT_THAT(refused.message(), HasSubstr("a blocking stream of the device is being captured"));
      capture.reset();
    }
    ok(trainer.session->step(0, nullptr));  // ends when new values are there
    EXPECT_EQ(trainer.values(), std::vector<float>(trainer.values().size(), -1));
    ok(trainer.session->close(10s));
  }
}

TEST_F(GpuSession, AGradientThatCannotBeMarkedDuringACaptureIsMarkedAfterIt) {
  const HostStream blocking(0, cudaStreamDefault);
  Trainer trainer(open(), {"cuda:0"}, "sgd", "lr=1");
  ok(trainer.session->start());
  trainer.fill(0, true, [](size_t) { return 1.0f; });
  auto operation = trainer.session->step_begin(1);
  ASSERT_TRUE(operation.ok());
  const auto mark = [&](size_t tensor) {
    return trainer.session->gradient_ready(trainer.replicas[0], trainer.tensors[tensor].parameter, nullptr);
  };
  for (size_t t = 0; t + 1 < trainer.tensors.size(); ++t) ok(mark(t));
  const size_t last = trainer.tensors.size() - 1;
  {
    const fake_cuda::Capture capture(blocking);
    for (int times = 0; times < 2; ++times) {
      const Status refused = mark(last);
      EXPECT_EQ(refused.code(), Code::kState);
      EXPECT_THAT(refused.message(), AllOf(HasSubstr("was marked cannot be used now"),
                                           HasSubstr("call again after the capture")));
    }
    EXPECT_EQ(trainer.session->step_flush().code(), Code::kState);
    EXPECT_FALSE(capture.spoiled());
  }
  ok(mark(last));
  ok(trainer.session->wait(*operation.value(), -1ms));
  ok(trainer.session->step(0, nullptr));  // ends when new values are there
  EXPECT_EQ(trainer.values(), std::vector<float>(trainer.values().size(), -1));
  ok(trainer.session->close(10s));
}

TEST_F(GpuSession, ACaptureThatDoesNotEndIsATimeout) {
  const HostStream blocking(0, cudaStreamDefault);
  Trainer trainer(open({{"step_timeout", "200ms"}}), {"cuda:0"}, "sgd", "lr=1");
  ok(trainer.session->start());
  {
    const fake_cuda::Capture capture(blocking);
    const Status late = trainer.session->step(1, nullptr);
    EXPECT_EQ(late.code(), Code::kTimeout);
    EXPECT_THAT(late.message(), HasSubstr("a blocking stream of the device is being captured"));
    EXPECT_FALSE(capture.spoiled());
  }
  (void)trainer.session->close(10s);
}

// All calls of the device return the error of a kernel, the host's perhaps.
TEST_F(GpuSession, ADeviceThatIsBrokenEndsTheSessionAndNothingHangs) {
  Trainer trainer(open({{"lease", "500ms"}}), {"cuda:0", "cpu"}, "sgd", "lr=1");
  ok(trainer.session->start());
  ok(trainer.session->step(1, nullptr));
  fake_cuda::break_device(0, cudaErrorIllegalAddress);
  const Status failed = trainer.session->step(1, nullptr);
  EXPECT_EQ(failed.code(), Code::kInternal) << failed.message();
  EXPECT_THAT(failed.message(), AllOf(HasSubstr("cuda:0"), HasSubstr("cudaErrorIllegalAddress")));
  (void)trainer.session->close(10s);
  fake_cuda::repair_device(0);
}

// A stream that dsgd knows nothing of, as of a consumer of DLPack.
TEST_F(GpuSession, AStreamThatWaitsSeesTheNewValues) {
  const HostStream stream;
  Trainer trainer(open(), {"cuda:0"}, "sgd", "lr=1");
  ok(trainer.session->stream_wait(trainer.replicas[0], stream));  // nothing yet
  ok(trainer.session->start());
  {
    const fake_cuda::Capture capture(stream);
    const Status refused = trainer.session->stream_wait(trainer.replicas[0], stream);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("is being captured into a graph"));
    EXPECT_FALSE(capture.spoiled());
  }
  trainer.compute(0, 0);
  Tensor& large = trainer.tensors[1];
  std::vector<float> before = trainer.values(large, 0), seen(before.size(), -1000);
  {
    const fake_cuda::Pause pause;
    auto operation = trainer.session->step_begin(1);
    ASSERT_TRUE(operation.ok());
    ok(trainer.session->step_flush());
    ok(trainer.session->wait(*operation.value(), -1ms));
    ok(trainer.session->stream_wait(trainer.replicas[0], stream));
    fake_cuda::enqueue(
        stream, [&] { std::memcpy(seen.data(), large.memory[0]->value, seen.size() * sizeof(float)); });
  }
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(seen, trainer.values(large, 0));
  EXPECT_NE(seen, before);
  ok(trainer.session->close(10s));
}

// Steps that end when their updates are enqueued, on a quick device and a slow one, each with a stream of its
// own: none may see another step's sums.
TEST_F(GpuSession, AQuickDeviceDoesNotRunAwayFromASlowOne) {
  const HostStream streams[] = {HostStream(0), HostStream(1)};
  for (const char* reproducible : {"0", "1"}) {
    std::vector<std::vector<float>> values;
    for (const std::vector<std::string>& devices :
         std::vector<std::vector<std::string>>{{"cuda:0", "cuda:1"}, {"cpu", "cpu"}}) {
      fake_cuda::set_delay(1, 300us);
      Trainer trainer(open({{"reproducible", reproducible}, {"bucket_size", "4K"}}), devices);
      ok(trainer.session->start());
      trainer.compute(0, 0);
      for (int step = 0; step < 12; ++step) {
        // Weights make each step's sums other ones, though not its mean, so that gradients need not be
        // written in between.
        auto operation = trainer.session->step_begin(1 + step);
        ASSERT_TRUE(operation.ok());
        for (size_t r = 0; r < 2; ++r) {
          for (Tensor& tensor : trainer.tensors) {
            ok(trainer.session->gradient_ready(trainer.replicas[r], tensor.parameter,
                                               devices[r] == "cpu" ? cudaStream_t{} : streams[r]));
          }
        }
        ok(trainer.session->wait(*operation.value(), -1ms));
        ok(trainer.session->set_learning_rate(1.0 / (1 << step % 5)));
      }
      ok(trainer.session->step(1, nullptr));
      for (size_t r = 0; r < 2; ++r) values.push_back(trainer.values(r));
      fake_cuda::set_delay(1, 0us);
      ok(trainer.session->close(10s));
    }
    for (size_t i = 1; i < values.size(); ++i) EXPECT_EQ(values[i], values[0]) << i;
  }
}

TEST_F(GpuSession, ADeviceThatDoesNotComeIsATimeoutThatNamesIt) {
  Trainer trainer(open({{"step_timeout", "200ms"}}), {"cuda:0"});
  ok(trainer.session->start());
  {
    const fake_cuda::Pause pause;
    const auto begin = std::chrono::steady_clock::now();
    const Status status = trainer.session->step(1, nullptr);
    EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("cuda:0 has not finished its enqueued work before the deadline"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  }
  EXPECT_EQ(trainer.session->step(1, nullptr).code(), Code::kTimeout);
  (void)trainer.session->close(10s);
}

// When memory is freed, CUDA waits for the device, which here waits for a host that does not end its work.
TEST_F(GpuSession, ADeviceThatHangsDoesNotHoldUpTheClose) {
  const auto before = fake_cuda::alive();
  std::atomic<int> warnings{0};
  const auto log = std::make_shared<Log>(LogLevel::kWarning, [&](const LogRecord& record) {
    if (record.message.find("dsgd does not wait longer") != std::string::npos) ++warnings;
  });
  {
    auto trainer = std::make_unique<Trainer>(open({{"step_timeout", "200ms"}}, "", log),
                                             std::vector<std::string>{"cuda:0"});
    ok(trainer->session->start());
    const fake_cuda::Pause pause;
    EXPECT_EQ(trainer->session->step(1, nullptr).code(), Code::kTimeout);
    const auto begin = std::chrono::steady_clock::now();
    ok(trainer->session->close(0ms));
    trainer.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
    EXPECT_GT(fake_cuda::alive().allocations, before.allocations);
    EXPECT_EQ(warnings, 1);
  }
  // It goes on, and what was left is released.
  ASSERT_TRUE(fake_cuda::wait_for(before));
}

TEST_F(GpuSession, BuffersOfADeviceThatHangsAreReleasedWhenItGoesOn) {
  const auto before = fake_cuda::alive();
  {
    const HostStream stream;
    auto trainer = std::make_unique<Trainer>(open({{"lease", "500ms"}}), std::vector<std::string>{"cuda:0"});
    HostOwnedBuffers first(*trainer), second(*trainer);
    first.bind(*trainer);
    ok(trainer->session->start());
    {
      const fake_cuda::Pause pause;
      step_on_stream(*trainer, stream);
      second.bind(*trainer);
      ok(trainer->session->close(0ms));
      trainer.reset();
      EXPECT_FALSE(first.released() || second.released());
    }
    EXPECT_TRUE(first.released(30s) && second.released(30s));
  }
  ASSERT_TRUE(fake_cuda::wait_for(before));
}

TEST_F(GpuSession, ClosingGoesOnWithoutComparisonWhenTheDeviceHangs) {
  const auto before = fake_cuda::alive();
  std::atomic<int> warnings{0};
  const auto log = std::make_shared<Log>(LogLevel::kWarning, [&](const LogRecord& record) {
    if (record.message.find("has not compared the values") != std::string::npos) ++warnings;
  });
  std::promise<void> closed;
  run_ranks(2, {{"lease", "500ms"}}, [&](int rank, const Settings& settings) {
    Trainer trainer(open(settings, "", log), {rank == 0 ? "cuda:0" : "cpu"});
    ok(trainer.session->start());
    ok(trainer.session->step(1, nullptr));
    if (rank == 1) closed.get_future().wait();
    {
      std::optional<fake_cuda::Pause> pause;
      if (rank == 0) pause.emplace();
      ok(trainer.session->close(-1ms));
    }
    if (rank == 0) closed.set_value();
  });
  EXPECT_EQ(warnings, 1);
  ASSERT_TRUE(fake_cuda::wait_for(before));
}

// Whatever thread does it. A context on another GPU would cost memory there, in each worker of the node.
TEST_F(GpuSession, OnlyTheDevicesOfReplicasAreTouched) {
  for (const char* strategy : {"allreduce", "ps"}) {
    fake_cuda::forget_contexts();  // one that is there may be used to ask about memory
    (void)fake_cuda::take_devices_used();
    std::vector<uint64_t> digests;
    train({{{"cuda:1"}, {"cpu"}}, {strategy}, 3, {{"gradient_norm", "1"}}}, &digests);
    EXPECT_EQ(fake_cuda::take_devices_used(), std::set<int>{1});
  }
}

TEST_F(GpuSession, ACallThatFailsOnTheDeviceEndsTheStepAndSaysWhich) {
  for (const char* function : {"launch", "cudaEventRecord", "cudaStreamWaitEvent"}) {
    SCOPED_TRACE(function);
    Trainer trainer(open(), {"cuda:1"});
    ok(trainer.session->start());
    ok(trainer.session->step(1, nullptr));
    fake_cuda::fail(function, cudaErrorIllegalAddress);
    const Status status = trainer.session->step(1, nullptr);
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("cuda:1"), HasSubstr("cudaErrorIllegalAddress")));
    EXPECT_EQ(trainer.session->step(1, nullptr).code(), Code::kInternal);
    (void)trainer.session->close(10s);
  }
}

// Two workers, whose devices are given, train. Before step 3 a third worker joins, and their copies for it
// are held.
class GivingJob {
 public:
  GivingJob(Settings settings, std::vector<std::string> devices)
      : settings_(std::move(settings)), devices_(std::move(devices)), head_(start_head(2, &settings_)) {}

  // Worker 1 does this while the copies are held. Returns whether it goes on.
  std::function<bool(Trainer&)> meanwhile;
  // Worker 1 does these before its start, and before the copies are held: allocations wait for held copies.
  std::function<void(Trainer&)> before_start = [](Trainer&) {}, before_copies = [](Trainer&) {};
  bool worker_1_fails = false;  // in a step after that

  // Returns the values of each worker at the end.
  std::vector<std::vector<float>> run() {
    std::vector<std::thread> threads;
    for (size_t w = 0; w < 2; ++w) threads.emplace_back([this, w] { work(w); });
    while (ready_ < 2) std::this_thread::yield();
    {
      fake_cuda::HoldCopies hold(fake_cuda::HoldCopies::kToHost);
      const size_t before = fake_cuda::copies(fake_cuda::HoldCopies::kToHost).count;
      threads.emplace_back([this] { work(2); });
      while (fake_cuda::copies(fake_cuda::HoldCopies::kToHost).count < before + 2) std::this_thread::yield();
      held_.set_value();
      done_.get_future().wait();
    }
    freed_.set_value();
    for (std::thread& thread : threads) thread.join();
    return values_;
  }

 private:
  void work(size_t w) {
    Trainer trainer(open(settings_), {devices_[w == 1 ? 1 : 0]});
    trainer.fill(0, false, [](size_t i) { return static_cast<float>(i % 5); });
    trainer.compute(0, static_cast<int>(w));
    if (w == 1) before_start(trainer);
    ok(trainer.session->start());
    int step = static_cast<int>(trainer.session->info().steps);
    if (w == 2) last_ = step + 3;
    for (; step <= last_; ++step) {
      if (w < 2 && step == 3) {
        if (w == 1) before_copies(trainer);
        ++ready_;
        if (w == 0) freed_future_.wait();
        if (w == 1 && !pause(trainer)) return;
      }
      const Status stepped = trainer.session->step(1, nullptr);
      if (w == 1 && worker_1_fails && !stepped.ok()) {
        (void)trainer.session->close(10s);
        return;
      }
      ok(stepped);
    }
    values_[w] = trainer.values();
    ok(trainer.session->close(10s));
  }
  bool pause(Trainer& trainer) {
    held_.get_future().wait();
    const bool goes_on = meanwhile(trainer);
    done_.set_value();
    freed_future_.wait();
    return goes_on;
  }

  Settings settings_;
  const std::vector<std::string> devices_;
  const std::unique_ptr<HeadProcess> head_;
  std::atomic<int> ready_{0}, last_{INT_MAX};
  std::promise<void> held_, done_, freed_;
  const std::shared_future<void> freed_future_ = freed_.get_future().share();
  std::vector<std::vector<float>> values_ = std::vector<std::vector<float>>(3);
};

// The head counts it as one that has left in good order: after a loss, fewer than min_workers would be left.
TEST_F(GpuSession, AWorkerMayCloseWhileItGivesItsState) {
  GivingJob job({{"min_workers", "2"}, {"max_workers", "3"}, {"lease", "1s"}}, {"cuda:0", "cuda:0"});
  job.meanwhile = [](Trainer& trainer) {
    ok(trainer.session->close(0s));
    return false;
  };
  const auto values = job.run();
  EXPECT_EQ(values[2], values[0]);
}

// The copies that are held read the buffers that were bound before.
TEST_F(GpuSession, AHostMayBindOtherBuffersWhileItsWorkerGivesItsState) {
  GivingJob job({{"min_workers", "1"}, {"max_workers", "3"}}, {"cuda:0", "cuda:0"});
  std::optional<HostOwnedBuffers> first, second;
  std::shared_ptr<TensorMemory> next;  // second's
  const auto prepare = [&next](std::optional<HostOwnedBuffers>* buffers, Trainer& trainer) {
    const Tensor& tensor = trainer.tensors[1];
    buffers->emplace(trainer);
    next = std::make_shared<TensorMemory>(*tensor.memory[0]);
    next->value = (*buffers)->value();
    next->gradient = (*buffers)->gradient();
    trainer.access[0].write(next->value, trainer.values(tensor, 0));
    trainer.access[0].write(next->gradient, std::vector<float>(tensor.parameter->count, 1));
  };
  const auto bind = [&next](HostOwnedBuffers& buffers, Trainer& trainer) {
    buffers.bind(trainer);
    trainer.tensors[1].memory[0] = next;
  };
  job.before_start = [&](Trainer& trainer) {
    prepare(&first, trainer);
    bind(*first, trainer);
  };
  job.before_copies = [&](Trainer& trainer) { prepare(&second, trainer); };
  job.meanwhile = [&](Trainer& trainer) {
    bind(*second, trainer);
    EXPECT_FALSE(first->released());
    return true;
  };
  const auto values = job.run();
  EXPECT_TRUE(first->released(30s));
  EXPECT_EQ(values[1], values[0]);
  EXPECT_EQ(values[2], values[0]);
}

// The worker that joins takes the rest of its part from worker 0.
TEST_F(GpuSession, ADeviceMayBreakWhileItsWorkerGivesItsState) {
  GivingJob job({{"min_workers", "1"}, {"max_workers", "3"}, {"lease", "1s"}}, {"cuda:0", "cuda:1"});
  job.worker_1_fails = true;
  job.meanwhile = [](Trainer&) {
    fake_cuda::break_device(1, cudaErrorIllegalAddress);
    return true;
  };
  const auto values = job.run();
  fake_cuda::repair_device(1);
  EXPECT_TRUE(values[1].empty());
  EXPECT_FALSE(values[2].empty());
  EXPECT_EQ(values[2], values[0]);
}

// Calls of worker 1's device fail at any moment of a step, also behind its updates. The step has the
// gradients of both workers, or of worker 0 alone.
TEST_F(GpuSession, ADeviceMayBreakAtAnyMomentOfAStepAndTheOthersGoOn) {
  int alone = 0, both = 0;
  for (const char* function : {"launch", "cudaEventRecord", "cudaMemcpyAsync"}) {
    for (int n = 1; n <= 8; ++n) {
      SCOPED_TRACE(std::string(function) + ", call " + std::to_string(n));
      Settings settings = {{"min_workers", "1"}, {"lease", "1s"}};
      const auto head = start_head(2, &settings);
      std::vector<std::thread> threads;
      for (int w = 0; w < 2; ++w) {
        threads.emplace_back([&, w] {
          Settings mine = settings;
          mine["rank"] = std::to_string(w);
          Trainer trainer(open(mine), {w == 0 ? "cpu" : "cuda:1"}, "sgd", "lr=1");
          trainer.fill(0, false, [](size_t) { return 0.f; });
          ok(trainer.session->start());
          float expected = 0;
          for (int step = 0; step < 5; ++step) {
            trainer.fill(0, true, [w](size_t) { return static_cast<float>(2 * w + 1); });
            if (w == 1 && step == 2) fake_cuda::fail(function, cudaErrorIllegalAddress, n);
            StepResult result;
            const Status stepped = trainer.session->step(1, &result);
            if (w == 1) fake_cuda::fail(function, cudaSuccess, 0);
            if (w == 1 && !stepped.ok()) break;
            ok(stepped);
            expected -= result.size == 2 ? 2.f : 1.f;
            if (w == 0 && step == 2) ++(result.size == 2 ? both : alone);
          }
          if (w == 0) {
            for (const float value : trainer.values()) ASSERT_EQ(value, expected);
          }
          (void)trainer.session->close(10s);
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  }
  EXPECT_GT(alone, 0);
  EXPECT_GT(both, 0);
}

TEST_F(GpuSession, DeviceErrorReachesAllWorkers) {
  fake_cuda::set_delay(0, 100us);  // so that the waiter needs a notification
  for (const char* function : {"launch", "cudaMemcpyAsync", "cudaLaunchHostFunc"}) {
    for (const char* strategy : {"allreduce", "ps"}) {
      for (const int n : {1, 2, 3}) {
        SCOPED_TRACE(std::string(function) + " " + std::to_string(n) + " of " + strategy);
        std::vector<Status> how(2);
        std::atomic<int> ended{0};
        run_ranks(2, {{"bucket_size", "4K"}, {"strategy", strategy}},
                  [&](int rank, const Settings& settings) {
                    Trainer trainer(open(settings), {rank == 0 ? "cuda:0" : "cpu"});
                    ok(trainer.session->start());
                    ok(trainer.session->step(1, nullptr));
                    ok(trainer.session->wait(*trainer.session->barrier(Session::Mode::kQueue).value(), -1ms));
                    if (rank == 0) fake_cuda::fail(function, cudaErrorIllegalAddress, n);
                    for (int step = 0; step < 100 && how[static_cast<size_t>(rank)].ok(); ++step) {
                      how[static_cast<size_t>(rank)] = trainer.session->step(1, nullptr);
                    }
                    ++ended;
                    while (ended < 2) std::this_thread::yield();  // neither learns of it by the other's close
                    (void)trainer.session->close(10s);
                  });
        EXPECT_EQ(how[0].code(), Code::kInternal) << how[0].message();
        EXPECT_FALSE(how[1].ok());
        EXPECT_THAT(how[1].message(), AllOf(HasSubstr("cuda:0"), HasSubstr("cudaErrorIllegalAddress")));
      }
    }
  }
  fake_cuda::set_delay(0, 0us);
}

TEST_F(GpuSession, WantOfMemoryAtStartEndsTheSessionWithAnError) {
  Trainer trainer(open(), {"cuda:0"});
  fake_cuda::fail("cudaMalloc", cudaErrorMemoryAllocation);
  const Status status = trainer.session->start();
  EXPECT_EQ(status.code(), Code::kNoMemory) << status.message();
  EXPECT_THAT(status.message(), HasSubstr("cuda:0: cudaMalloc"));
  (void)trainer.session->close(10s);
}

#endif

}  // namespace
}  // namespace dsgd
