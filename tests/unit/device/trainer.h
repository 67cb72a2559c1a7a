// A small model on any devices of any workers of a job in this process, for tests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/reduce/kernels.h"
#include "core/session/head_process.h"
#include "core/session/session.h"
#include "tests/unit/device/gpu.h"
#include "tests/unit/node_environment.h"

namespace dsgd {

using Settings = std::map<std::string, std::string>;

inline Registered with_cuda() {
  Registered registered;
  registered.backends["cuda"] = []() -> Result<const device::Backend*> { return &device::cuda_backend(); };
  registered.locate = [](const void* data, size_t nbytes) {
    return device::Device::locate(device::cuda_backend(), data, nbytes);
  };
  return registered;
}

inline Config config_of(const Settings& settings) {
  Config config;
  for (const auto& [key, value] : settings) {
    const Status set = config.set(key, value);
    EXPECT_TRUE(set.ok()) << set.message();
  }
  return config;
}

inline std::shared_ptr<Session> open(const Settings& settings = {}, const std::string& node = {},
                                     std::shared_ptr<Log> log = std::make_shared<Log>()) {
  auto session = Session::open(config_of(settings), std::make_unique<NodeEnvironment>(node), std::move(log),
                               with_cuda());
  EXPECT_TRUE(session.ok()) << session.status().message();
  return session.value();
}

// The second GPU, or the first where there is no other.
inline std::string second() { return device::gpus() > 1 ? "cuda:1" : "cuda:0"; }

struct Tensor {
  Parameter* parameter;
  std::vector<std::shared_ptr<TensorMemory>> memory;  // by replica
};

// Parameters of odd sizes with a replica on each of the devices; with `halves` also one in bfloat16 and one
// in float16, which have the same values and gradients as the last one in float32.
struct Trainer {
  Trainer(std::shared_ptr<Session> opened, const std::vector<std::string>& devices,
          const std::string& optimizer = "sgd", const std::string& options = "lr=0.5 momentum=0.5",
          bool halves = false)
      : session(std::move(opened)) {
    ok(session->set_optimizer(optimizer, options));
    for (const std::string& device : devices) {
      replicas.push_back(session->add_replica(device).value());
      access.emplace_back(replicas.back()->device);
    }
    std::vector<std::pair<int64_t, DType>> wanted = {
        {3, DType::kFloat32}, {5000, DType::kFloat32}, {17, DType::kFloat32}, {1, DType::kFloat32}};
    if (halves)
      wanted.insert(wanted.end(),
                    {{4103, DType::kFloat32}, {4103, DType::kBfloat16}, {4103, DType::kFloat16}});
    for (const auto& [count, dtype] : wanted) {
      Tensor tensor{
          session->add_parameter(std::string("p") + std::to_string(tensors.size()), dtype, {&count, 1}, true)
              .value(),
          {}};
      for (Replica* replica : replicas)
        tensor.memory.push_back(session->alloc(replica, tensor.parameter).value());
      tensors.push_back(std::move(tensor));
    }
  }
  template <typename Element>
  void fill(size_t replica, bool gradient, Element element) {
    for (Tensor& tensor : tensors) {
      std::vector<float> content(tensor.parameter->count);
      for (size_t i = 0; i < content.size(); ++i) content[i] = element(i);
      void* to = gradient ? tensor.memory[replica]->gradient : tensor.memory[replica]->value;
      if (is_half(tensor.parameter->dtype)) {
        std::vector<uint16_t> narrowed(content.size());
        narrow(tensor.parameter->dtype, narrowed.data(), content.data(), content.size());
        access[replica].write(to, narrowed);
      } else {
        access[replica].write(to, content);
      }
    }
  }
  // `wide`: of so unlike sizes that sums in float32 depend on their order.
  static float gradient(int step, int rank, size_t replica, size_t i, bool wide = false) {
    const float small =
        static_cast<float>((i * 7 + static_cast<size_t>(step * 5 + rank * 3) + replica) % 11) - 5;
    return wide ? std::ldexp(small, static_cast<int>(
                                        (i * 13 + static_cast<size_t>(rank * 11 + step) + replica * 7) % 28) -
                                        14)
                : small;
  }
  void compute(int step, int rank, bool wide = false) {
    const float scale = static_cast<float>(session->loss_scale());
    for (size_t r = 0; r < replicas.size(); ++r) {
      fill(r, true, [&](size_t i) { return scale * gradient(step, rank, r, i, wide); });
    }
  }
  // The last element of the last replica's gradient becomes infinite, or what is given.
  void overflow(size_t which, float infinite = std::numeric_limits<float>::infinity()) {
    const Tensor& tensor = tensors[which % tensors.size()];
    const DType dtype = tensor.parameter->dtype;
    std::byte* last = static_cast<std::byte*>(tensor.memory.back()->gradient) + tensor.parameter->nbytes() -
                      dtype_size(dtype);
    if (!is_half(dtype)) return access.back().write(last, std::vector<float>{infinite});
    std::vector<uint16_t> narrowed(1);
    narrow(dtype, narrowed.data(), &infinite, 1);
    access.back().write(last, narrowed);
  }
  std::vector<float> values(const Tensor& tensor, size_t replica) {
    const Parameter& parameter = *tensor.parameter;
    if (!is_half(parameter.dtype))
      return access[replica].read<float>(tensor.memory[replica]->value, parameter.count);
    const auto narrowed = access[replica].read<uint16_t>(tensor.memory[replica]->value, parameter.count);
    std::vector<float> widened(parameter.count);
    widen(parameter.dtype, widened.data(), narrowed.data(), parameter.count);
    return widened;
  }
  std::vector<float> values(size_t replica = 0) {
    std::vector<float> all;
    for (const Tensor& tensor : tensors) {
      const auto some = values(tensor, replica);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  // Half types are rounded from what float32 comes to.
  void check_halves() {
    std::vector<float> last;
    for (const Tensor& tensor : tensors) {
      if (!is_half(tensor.parameter->dtype)) {
        last = values(tensor, 0);
        continue;
      }
      std::vector<uint16_t> narrowed(last.size());
      narrow(tensor.parameter->dtype, narrowed.data(), last.data(), last.size());
      std::vector<float> expected(last.size());
      widen(tensor.parameter->dtype, expected.data(), narrowed.data(), last.size());
      EXPECT_EQ(values(tensor, 0), expected) << dtype_name(tensor.parameter->dtype);
      EXPECT_NE(last, expected);
    }
  }

  std::shared_ptr<Session> session;
  std::vector<Replica*> replicas;
  std::vector<device::Access> access;
  std::vector<Tensor> tensors;
};

// The norms of gradients, and the values of float32 in a Trainer with halves, are as expected up to rounding.
// Halves may round the other way; check_halves() compares those of one trainer.
inline void expect_near(const std::vector<double>& norms, const std::vector<double>& expected_norms,
                        const std::vector<std::vector<float>>& values,
                        const std::vector<std::vector<float>>& expected) {
  constexpr size_t kFloats = 3 + 5000 + 17 + 1 + 4103;
  ASSERT_EQ(norms.size(), expected_norms.size());
  for (size_t step = 0; step < norms.size(); ++step)
    EXPECT_NEAR(norms[step], expected_norms[step], 1e-6 * expected_norms[step]) << "step " << step;
  ASSERT_EQ(values.size(), expected.size());
  for (size_t w = 0; w < values.size(); ++w) {
    EXPECT_EQ(values[w], values[0]) << "rank " << w;
    ASSERT_EQ(values[w].size(), expected[w].size());
    for (size_t i = 0; i < kFloats; ++i)
      ASSERT_NEAR(values[w][i], expected[w][i], 1e-5) << "rank " << w << ", element " << i;
  }
}

using Devices = std::vector<std::vector<std::string>>;  // by rank

inline Devices on_host(Devices devices) {
  for (auto& worker : devices) worker.assign(worker.size(), "cpu");
  return devices;
}

struct TrainingJob {
  Devices devices;
  std::vector<std::string> strategies = {"allreduce"};  // in turn, one each step
  int steps = 4;
  Settings settings = {};
  std::vector<std::string> nodes = {};  // by rank; empty: all on one
  // Not of the last three, which are to stay alike.
  std::function<bool(int step, int rank, size_t tensor)> absent = {};
  std::string optimizer = "sgd", options = "lr=0.4 momentum=0.5";
  // In which steps a gradient overflows somewhere. Without a loss scale or a check of the gradients they are
  // left out, which is to come to the same.
  std::function<bool(int step)> overflows = {};
  bool zeros = false;  // instead of infinity; the step counts as any other
  bool wide = false;   // gradients, and no half types
};

// Starts a head for this number of workers, with what it must know of their settings, and puts what they need
// to find it into these.
inline std::unique_ptr<HeadProcess> start_head(size_t workers, Settings* settings) {
  (*settings)["num_workers"] = std::to_string(workers);
  if (workers == 1 && !settings->count("max_workers")) return nullptr;
  Settings of_head = {{"head", "127.0.0.1:0"}, {"num_workers", std::to_string(workers)}};
  for (const char* key : {"lease", "min_workers", "max_workers"})
    if (settings->count(key)) of_head[key] = settings->at(key);
  auto started =
      HeadProcess::start(config_of(of_head), transport::make_uv_environment(), std::make_shared<Log>());
  EXPECT_TRUE(started.ok()) << started.status().message();
  (*settings)["head"] = started.value()->address();
  (*settings)["embed_head"] = "never";
  return std::move(started).value();
}

// Runs a function as each rank of a job, on a thread of its own.
inline void run_ranks(size_t workers, const Settings& given,
                      const std::function<void(int rank, Settings settings)>& as_rank) {
  Settings settings = given;
  const std::unique_ptr<HeadProcess> head = start_head(workers, &settings);
  std::vector<std::thread> threads;
  for (size_t w = 0; w < workers; ++w) {
    Settings mine = settings;
    if (workers > 1) mine["rank"] = std::to_string(w);
    threads.emplace_back(as_rank, static_cast<int>(w), std::move(mine));
  }
  for (std::thread& thread : threads) thread.join();
}

// The values that each rank has after the job's steps; and what rank 0 is told of the gradients' norms.
inline std::vector<std::vector<float>> train(const TrainingJob& job, std::vector<uint64_t>* digests = nullptr,
                                             std::vector<double>* norms = nullptr) {
  const size_t workers = job.devices.size();
  std::vector<std::vector<float>> values(workers);
  if (digests) digests->resize(workers);
  run_ranks(workers, job.settings, [&](int rank, const Settings& settings) {
    const size_t w = static_cast<size_t>(rank);
    Trainer trainer(open(settings, job.nodes.empty() ? "" : job.nodes[w]), job.devices[w], job.optimizer,
                    job.options, !job.wide);
    trainer.fill(0, false, [rank](size_t i) { return static_cast<float>(rank + static_cast<int>(i % 5)); });
    ok(trainer.session->set_strategy(job.strategies[0], ""));
    ok(trainer.session->start());
    for (int step = 0; step < job.steps; ++step) {
      const std::string& strategy = job.strategies[static_cast<size_t>(step) % job.strategies.size()];
      if (step > 0 && job.strategies.size() > 1) ok(trainer.session->set_strategy(strategy, ""));
      const bool overflows = job.overflows && job.overflows(step);
      const auto given = job.settings.find("nonfinite");
      const std::string nonfinite = given == job.settings.end() ? "off" : given->second;
      if (overflows && !job.zeros && nonfinite == "off" && !job.settings.count("loss_scale")) continue;
      trainer.compute(step, rank, job.wide);
      if (overflows && static_cast<size_t>(step) % workers == w) {
        job.zeros ? trainer.overflow(static_cast<size_t>(step), 0)
                  : trainer.overflow(static_cast<size_t>(step));
      }
      for (size_t t = 0; job.absent && t + 3 < trainer.tensors.size(); ++t) {
        if (!job.absent(step, rank, t)) continue;
        for (Replica* replica : trainer.replicas)
          ok(trainer.session->gradient_absent(replica, trainer.tensors[t].parameter));
      }
      StepResult result;
      const Status stepped = trainer.session->step(1 + rank, &result);
      if (overflows && nonfinite == "fail") {
        EXPECT_EQ(stepped.code(), Code::kNonFinite) << stepped.message();
        EXPECT_EQ(stepped.rank(), step % static_cast<int>(workers));
        EXPECT_EQ(stepped.parameter(),
                  trainer.tensors[static_cast<size_t>(step) % trainer.tensors.size()].parameter->name);
        continue;
      }
      ok(stepped);
      const bool skipped = overflows && !job.zeros && nonfinite != "zero";
      EXPECT_EQ(result.applied, !skipped);
      EXPECT_EQ(result.skipped, skipped);
      EXPECT_EQ(result.nonfinite, overflows && nonfinite != "off" ? 1 : 0);
      EXPECT_FALSE(result.all_done);
      if (norms && rank == 0 && !skipped) norms->push_back(result.gradient_norm);
    }
    values[w] = trainer.values();
    if (!job.wide) trainer.check_halves();
    for (size_t r = 1; r < job.devices[w].size(); ++r)
      EXPECT_EQ(trainer.values(r), values[w]) << "replica " << r;
    if (digests) (*digests)[w] = trainer.session->digest().value();
    ok(trainer.session->close(std::chrono::seconds(10)));
  });
  return values;
}

}  // namespace dsgd
