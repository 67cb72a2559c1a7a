// Whole sessions whose replicas are on GPUs: of the fake runtime, whose streams are threads, or real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "core/session/session.h"
#include "tests/unit/device/gpu.h"
#ifndef DSGD_TEST_PLUGIN
#include "tests/unit/device/fake_cuda.h"
#endif
#include "transport/uv/environment.h"

namespace dsgd {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using Settings = std::map<std::string, std::string>;

Registered with_cuda() {
  Registered registered;
  registered.backends["cuda"] = []() -> Result<const device::Backend*> { return &device::cuda_backend(); };
  return registered;
}

Config config_of(const Settings& settings) {
  Config config;
  for (const auto& [key, value] : settings) {
    const Status set = config.set(key, value);
    EXPECT_TRUE(set.ok()) << set.message();
  }
  return config;
}

std::shared_ptr<Session> open(const Settings& settings = {}) {
  auto session = Session::open(config_of(settings), transport::make_uv_environment(), std::make_shared<Log>(), with_cuda());
  EXPECT_TRUE(session.ok()) << session.status().message();
  return session.value();
}

void ok(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }

// The second GPU, or the first where there is no other.
std::string second() { return device::gpus() > 1 ? "cuda:1" : "cuda:0"; }

struct Tensor {
  Parameter* parameter;
  std::vector<std::shared_ptr<TensorMemory>> memory;  // by replica
};

// Parameters of odd sizes with a replica on each of the devices.
struct Trainer {
  Trainer(std::shared_ptr<Session> opened, const std::vector<std::string>& devices, const std::string& optimizer = "sgd",
          const std::string& options = "lr=0.5 momentum=0.5")
      : session(std::move(opened)) {
    ok(session->set_optimizer(optimizer, options));
    for (const std::string& device : devices) {
      replicas.push_back(session->add_replica(device).value());
      access.emplace_back(replicas.back()->device);
    }
    for (const int64_t count : {3, 5000, 17, 1}) {
      Tensor tensor{session->add_parameter(std::string("p") + std::to_string(tensors.size()), DType::kFloat32, {&count, 1}, true).value(), {}};
      for (Replica* replica : replicas) tensor.memory.push_back(session->alloc(replica, tensor.parameter).value());
      tensors.push_back(std::move(tensor));
    }
  }
  template <typename Element>
  void fill(size_t replica, bool gradient, Element element) {
    for (Tensor& tensor : tensors) {
      std::vector<float> content(tensor.parameter->count);
      for (size_t i = 0; i < content.size(); ++i) content[i] = element(i);
      access[replica].write(gradient ? tensor.memory[replica]->gradient : tensor.memory[replica]->value, content);
    }
  }
  void compute(int step, int rank) {
    for (size_t r = 0; r < replicas.size(); ++r) {
      fill(r, true, [&](size_t i) {
        return static_cast<float>((i * 7 + static_cast<size_t>(step * 5 + rank * 3) + r) % 11) - 5;
      });
    }
  }
  std::vector<float> values(size_t replica = 0) {
    std::vector<float> all;
    for (const Tensor& tensor : tensors) {
      const auto some = access[replica].read<float>(tensor.memory[replica]->value, tensor.parameter->count);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  std::shared_ptr<Session> session;
  std::vector<Replica*> replicas;
  std::vector<device::Access> access;
  std::vector<Tensor> tensors;
};

#ifdef DSGD_TEST_PLUGIN
class GpuSession : public testing::Test {};
#else
class GpuSession : public testing::Test {
 protected:
  GpuSession() : before_(fake_cuda::alive()) {}
  ~GpuSession() override {
    const fake_cuda::Alive after = fake_cuda::alive();
    EXPECT_EQ(after.streams, before_.streams);
    EXPECT_EQ(after.events, before_.events);
    EXPECT_EQ(after.allocations, before_.allocations);
  }

 private:
  const fake_cuda::Alive before_;
};
#endif

// What `steps` steps give on these devices of the ranks, with a change of strategy after each step if there are several.
std::vector<std::vector<float>> train(const std::vector<std::vector<std::string>>& devices, const std::vector<std::string>& strategies,
                                      int steps, Settings settings, std::vector<uint64_t>* digests = nullptr) {
  const size_t workers = devices.size();
  std::vector<std::vector<float>> values(workers);
  std::unique_ptr<HeadProcess> head;
  if (workers > 1) {
    settings["num_workers"] = std::to_string(workers);
    auto started = HeadProcess::start(config_of({{"head", "127.0.0.1:0"}, {"num_workers", settings["num_workers"]}}),
                                      transport::make_uv_environment(), std::make_shared<Log>());
    EXPECT_TRUE(started.ok()) << started.status().message();
    head = std::move(started).value();
    settings["head"] = head->address();
    settings["embed_head"] = "never";
  }
  if (digests) digests->resize(workers);
  std::vector<std::thread> threads;
  for (size_t w = 0; w < workers; ++w) {
    threads.emplace_back([&, w] {
      Settings mine = settings;
      if (workers > 1) mine["rank"] = std::to_string(w);
      Trainer trainer(open(mine), devices[w]);
      const int rank = static_cast<int>(w);
      trainer.fill(0, false, [rank](size_t i) { return static_cast<float>(rank + static_cast<int>(i % 5)); });
      ok(trainer.session->set_strategy(strategies[0], ""));
      ok(trainer.session->start());
      for (int step = 0; step < steps; ++step) {
        if (step > 0 && strategies.size() > 1) ok(trainer.session->set_strategy(strategies[static_cast<size_t>(step) % strategies.size()], ""));
        trainer.compute(step, rank);
        StepResult result;
        ok(trainer.session->step(1 + rank, &result));
        EXPECT_TRUE(result.applied);
      }
      values[w] = trainer.values();
      for (size_t r = 1; r < devices[w].size(); ++r) EXPECT_EQ(trainer.values(r), values[w]) << "replica " << r;
      if (digests) (*digests)[w] = trainer.session->digest().value();
      ok(trainer.session->close(10s));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return values;
}

TEST_F(GpuSession, AGpuIsThere) { ASSERT_GT(device::gpus(), 0); }

TEST_F(GpuSession, AnyMixOfDevicesGivesTheBitsOfTheHost) {
  using Devices = std::vector<std::vector<std::string>>;
  const std::vector<Devices> mixes = {{{"cuda:0"}, {"cpu"}}, {{"cpu"}, {second()}}, {{"cuda:0"}, {second()}}, {{"cuda:0"}}};
  for (const Devices& devices : mixes) {
    Devices host = devices;
    for (auto& worker : host) worker.assign(worker.size(), "cpu");
    for (const std::vector<std::string>& strategies :
         std::vector<std::vector<std::string>>{{"allreduce"}, {"ps"}, {"simple"}, {"ps", "allreduce", "simple", "allreduce", "ps"}}) {
      for (const char* reproducible : {"0", "1"}) {
        SCOPED_TRACE(devices[0][0] + "... " + strategies[0] + " reproducible=" + reproducible);
        const Settings settings = {{"reproducible", reproducible}, {"bucket_size", "4K"}};
        std::vector<uint64_t> digests;
        const auto values = train(devices, strategies, 6, settings, &digests);
        const auto expected = train(host, strategies, 6, settings);
        for (size_t w = 0; w < values.size(); ++w) {
          EXPECT_EQ(values[w], expected[w]) << "rank " << w;
          EXPECT_EQ(digests[w], digests[0]);
        }
      }
    }
  }
}

TEST_F(GpuSession, SeveralReplicasOnSeveralDevicesAgreeWithTheHost) {
  const std::vector<std::vector<std::string>> devices = {{"cuda:0", "cuda:0", "cpu"}, {second(), "cuda:0"}};
  const std::vector<std::vector<std::string>> host = {{"cpu", "cpu", "cpu"}, {"cpu", "cpu"}};
  for (const char* strategy : {"allreduce", "ps", "simple"}) {
    // Integers, so sums are exact in any order; the weights' sum is no power of two, so only the mean rounds, alike.
    EXPECT_EQ(train(devices, {strategy}, 4, {}), train(host, {strategy}, 4, {}));
    EXPECT_EQ(train(devices, {strategy}, 4, {{"reproducible", "1"}}), train(host, {strategy}, 4, {{"reproducible", "1"}}));
  }
}

#ifndef DSGD_TEST_PLUGIN  // what follows holds the fake runtime up, or lets its calls fail

float* floats(void* fake_memory) { return static_cast<float*>(fake_memory); }

TEST_F(GpuSession, GradientsAreReadAfterTheirStreamsAndValuesComeBeforeWhatFollows) {
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    Trainer trainer(open(), {"cuda:0"}, "sgd", "lr=1");
    ok(trainer.session->start());
    Tensor& large = trainer.tensors[1];
    std::vector<float> seen(large.parameter->count, -1);
    {
      const fake_cuda::Pause pause;  // nothing of the device's goes on, and nothing here waits for it
      auto operation = trainer.session->step_begin(1);
      ASSERT_TRUE(operation.ok());
      for (Tensor& tensor : trainer.tensors) {
        fake_cuda::enter(stream, [&tensor] { std::fill_n(floats(tensor.memory[0]->gradient), tensor.parameter->count, 3.0f); });
        ok(trainer.session->gradient_ready(trainer.replicas[0], tensor.parameter, stream));
      }
      ok(trainer.session->wait(*operation.value(), -1ms));
      EXPECT_TRUE(operation.value()->step_result().applied);
      fake_cuda::enter(stream, [&] { std::memcpy(seen.data(), large.memory[0]->value, seen.size() * sizeof(float)); });
    }
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(seen, std::vector<float>(seen.size(), -3));
    ok(trainer.session->close(10s));
  }
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(GpuSession, WhatIsNotMarkedIsReadAfterTheDefaultStreamAndABlockingStepEndsWithTheValues) {
  Trainer trainer(open(), {"cuda:0", "cuda:1"}, "sgd", "lr=1");
  ok(trainer.session->start());
  for (int step = 1; step <= 20; ++step) {
    for (size_t r = 0; r < 2; ++r) {
      for (Tensor& tensor : trainer.tensors) {
        fake_cuda::enter(nullptr, [&tensor, r] {
          std::this_thread::sleep_for(100us);
          std::fill_n(floats(tensor.memory[r]->gradient), tensor.parameter->count, 1.0f);
        });
      }
    }
    ok(trainer.session->step(1, nullptr));
    EXPECT_EQ(trainer.values(), std::vector<float>(trainer.values().size(), static_cast<float>(-step)));
    EXPECT_EQ(trainer.values(1), trainer.values());
    for (size_t r = 0; r < 2; ++r) {
      for (Tensor& tensor : trainer.tensors) std::fill_n(floats(tensor.memory[r]->gradient), tensor.parameter->count, 1000.0f);
    }
  }
  ok(trainer.session->close(10s));
}

// Steps that end when their updates are entered, on a quick device and a slow one, each with a stream of its own: none may see
// another step's sums.
TEST_F(GpuSession, AQuickDeviceDoesNotRunAwayFromASlowOne) {
  cudaStream_t streams[2];
  for (int device : {0, 1}) {
    ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&streams[device], cudaStreamNonBlocking), cudaSuccess);
  }
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  for (const char* reproducible : {"0", "1"}) {
    std::vector<std::vector<float>> values;
    for (const std::vector<std::string>& devices : std::vector<std::vector<std::string>>{{"cuda:0", "cuda:1"}, {"cpu", "cpu"}}) {
      fake_cuda::set_delay(1, 300us);
      Trainer trainer(open({{"reproducible", reproducible}, {"bucket_size", "4K"}}), devices);
      ok(trainer.session->start());
      trainer.compute(0, 0);
      for (int step = 0; step < 12; ++step) {
        // Weights make each step's sums other ones, though not its mean, so that gradients need not be written in between.
        auto operation = trainer.session->step_begin(1 + step);
        ASSERT_TRUE(operation.ok());
        for (size_t r = 0; r < 2; ++r) {
          for (Tensor& tensor : trainer.tensors) {
            ok(trainer.session->gradient_ready(trainer.replicas[r], tensor.parameter, devices[r] == "cpu" ? nullptr : streams[r]));
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
  for (cudaStream_t stream : streams) ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(GpuSession, ADeviceThatDoesNotComeIsATimeoutThatNamesIt) {
  Trainer trainer(open({{"step_timeout", "200ms"}}), {"cuda:0"});
  ok(trainer.session->start());
  {
    const fake_cuda::Pause pause;
    const auto begin = std::chrono::steady_clock::now();
    const Status status = trainer.session->step(1, nullptr);
    EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("cuda:0 has not done in time"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  }
  EXPECT_EQ(trainer.session->step(1, nullptr).code(), Code::kTorn);
  (void)trainer.session->close(10s);
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
    EXPECT_EQ(trainer.session->step(1, nullptr).code(), Code::kTorn);
    (void)trainer.session->close(10s);
  }
}

TEST_F(GpuSession, WhatFailsOnOneWorkersDeviceTheOthersAreToldAtOnce) {
  for (const char* function : {"launch", "cudaMemcpyAsync", "cudaLaunchHostFunc"}) {
    for (const char* strategy : {"allreduce", "ps"}) {
      for (const int n : {1, 2, 3}) {
        SCOPED_TRACE(std::string(function) + " " + std::to_string(n) + " of " + strategy);
        auto head = HeadProcess::start(config_of({{"head", "127.0.0.1:0"}, {"num_workers", "2"}}), transport::make_uv_environment(),
                                       std::make_shared<Log>());
        ASSERT_TRUE(head.ok());
        std::vector<Status> how(2);
        std::atomic<int> ended{0};
        std::vector<std::thread> threads;
        for (int rank = 0; rank < 2; ++rank) {
          threads.emplace_back([&, rank] {
            Trainer trainer(open({{"head", head.value()->address()}, {"embed_head", "never"}, {"num_workers", "2"},
                                  {"rank", std::to_string(rank)}, {"bucket_size", "4K"}, {"strategy", strategy}}),
                            {rank == 0 ? "cuda:0" : "cpu"});
            ok(trainer.session->start());
            ok(trainer.session->step(1, nullptr));
            ok(trainer.session->wait(*trainer.session->barrier(Session::Mode::kQueue).value(), -1ms));
            if (rank == 0) fake_cuda::fail(function, cudaErrorIllegalAddress, n);
            for (int step = 0; step < 3 && how[static_cast<size_t>(rank)].ok(); ++step) {
              how[static_cast<size_t>(rank)] = trainer.session->step(1, nullptr);
            }
            ++ended;
            while (ended < 2) std::this_thread::yield();  // neither learns of it by the other's close
            (void)trainer.session->close(10s);
          });
        }
        for (std::thread& thread : threads) thread.join();
        EXPECT_EQ(how[0].code(), Code::kInternal) << how[0].message();
        EXPECT_FALSE(how[1].ok());
        EXPECT_THAT(how[1].message(), AllOf(HasSubstr("cuda:0"), HasSubstr("cudaErrorIllegalAddress")));
      }
    }
  }
}

TEST_F(GpuSession, WantOfMemoryAtStartEndsTheSessionWithAnError) {
  Trainer trainer(open(), {"cuda:0"});
  fake_cuda::fail("cudaMalloc", cudaErrorMemoryAllocation);
  const Status status = trainer.session->start();
  EXPECT_EQ(status.code(), Code::kNoMemory) << status.message();
  EXPECT_THAT(status.message(), HasSubstr("cuda:0: cudaMalloc"));
  (void)trainer.session->close(10s);
}

TEST_F(GpuSession, DevicesAndBuffersThatDoNotFitAreRefused) {
  auto session = open({{"devices", "cuda:0,cuda:1,cpu,cuda"}});
  Replica* zero = session->add_replica("").value();
  Replica* one = session->add_replica("").value();
  EXPECT_EQ(zero->device->name(), "cuda:0");
  EXPECT_EQ(one->device->name(), "cuda:1");
  EXPECT_EQ(session->add_replica("cuda:1").value()->device, one->device);
  struct Case {
    const char* device;
    Code code;
    const char* says;
  };
  for (const Case& c : {Case{"", Code::kInvalidArgument, "device 'cuda' has no index; write cuda:0"},
                        Case{"cuda:x", Code::kInvalidArgument, "has no index"}, Case{"cuda:0x", Code::kInvalidArgument, "has no index"},
                        Case{"cuda:2", Code::kInvalidArgument, "there is no device 'cuda:2'"},
                        Case{"cuda:99999999999", Code::kInvalidArgument, "has no index"},
                        Case{"gpu:0", Code::kUnsupported, "there is no device 'gpu:0'; there are: cpu, cuda:0"},
                        Case{"cpu:0", Code::kUnsupported, "there is no device 'cpu:0'"}}) {
    auto replica = session->add_replica(c.device);
    EXPECT_EQ(replica.status().code(), c.code) << c.device;
    EXPECT_THAT(replica.status().message(), HasSubstr(c.says));
  }
  const int64_t count = 4;
  Parameter* parameter = session->add_parameter("weight", DType::kFloat32, {&count, 1}, true).value();
  float host[8] = {};
  auto on_one = session->alloc(one, parameter).value();
  const Status from_host = session->bind(zero, parameter, host, 16, host + 4, 16, {});
  EXPECT_EQ(from_host.code(), Code::kInvalidArgument);
  EXPECT_THAT(from_host.message(), AllOf(HasSubstr("weight"), HasSubstr("the buffer is host memory, but its replica is on cuda:0")));
  const Status elsewhere = session->bind(zero, parameter, on_one->value, 16, on_one->gradient, 16, {});
  EXPECT_EQ(elsewhere.code(), Code::kInvalidArgument);
  EXPECT_THAT(elsewhere.message(), HasSubstr("memory of cuda:1, but its replica is on cuda:0"));
  ok(session->close(10s));
}

#endif

}  // namespace
}  // namespace dsgd
