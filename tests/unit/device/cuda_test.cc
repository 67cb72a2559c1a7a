// The CUDA backend on the fake runtime: that nothing waits, what happens when a call fails or a machine lacks
// something, and that nothing is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/device/device.h"
#include "tests/unit/device/fake_cuda.h"
#include "tests/unit/device/gpu.h"
#include "tests/unit/device/leak_test.h"

extern "C" const dsgd::device::Backend* dsgd_cuda_backend(void);

namespace dsgd::device {
namespace {

using testing::HasSubstr;

class Cuda : public fake_cuda::LeakTest {
 protected:
  ~Cuda() override {
    fake_cuda::set_devices(2);
    EXPECT_EQ(fake_cuda::current_device(), 0) << "the host's current device was changed";
  }
  static std::shared_ptr<Device> open(int32_t index = 0) {
    return Device::open(*dsgd_cuda_backend(), index).value();
  }
  static void expect_error(const Status& status, Code code, const std::string& says) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(says));
  }
  // Done within a minute, or the test fails.
  static void wait(DeviceEvent& event) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!event.done().value()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::yield();
    }
  }
};

TEST_F(Cuda, MissingDriverOrDeviceIsNamed) {
  constexpr const char* kTooOld =
      CUDART_VERSION >= 13000
          ? "the NVIDIA driver is too old; CUDA 13.0 needs the NVIDIA driver 580 or later"
          : "the NVIDIA driver is too old; CUDA 12.2 needs the NVIDIA driver 535 or later";
  struct Case {
    int count;
    cudaError_t error;
    int driver;
    int32_t index;
    Code code;
    const char* says;
  };
  for (const Case& c :
       {Case{0, cudaErrorInsufficientDriver, 0, 0, Code::kUnsupported,
             "there is no NVIDIA driver on this machine"},
        Case{0, cudaErrorInsufficientDriver, 12010, 0, Code::kUnsupported, kTooOld},
        Case{1, cudaSuccess, 12010, 0, Code::kUnsupported, kTooOld},  // as the runtime of CUDA 12 has it
        Case{0, cudaErrorIllegalAddress, 13000, 0, Code::kUnsupported, "cudaErrorIllegalAddress"},
        Case{0, cudaErrorNoDevice, 13000, 0, Code::kInvalidArgument,
             "there is no device 'cuda:0': this process can use none"},
        Case{0, cudaSuccess, 13000, 0, Code::kInvalidArgument, "this process can use none"},
        Case{1, cudaSuccess, 13000, 1, Code::kInvalidArgument,
             "there is no device 'cuda:1': this process can use cuda:0"},
        Case{2, cudaSuccess, 13000, 2, Code::kInvalidArgument, "this process can use cuda:0 to cuda:1"},
        Case{2, cudaSuccess, 13000, -1, Code::kInvalidArgument, "there is no device 'cuda:-1'"}}) {
    SCOPED_TRACE(c.says);
    fake_cuda::set_devices(c.count, c.error, c.driver);
    auto device = Device::open(*dsgd_cuda_backend(), c.index);
    ASSERT_FALSE(device.ok());
    expect_error(device.status(), c.code, c.says);
  }
}

TEST_F(Cuda, ABackendOfAnotherReleaseIsRefused) {
  Backend other = *dsgd_cuda_backend();
  other.version = kBackendVersion + 1;
  auto device = Device::open(other, 0);
  ASSERT_FALSE(device.ok());
  expect_error(device.status(), Code::kUnsupported, "has version 6, this library knows version 5");
  other.locate = [](const void*, uint64_t, int32_t*, Message*) -> int32_t { std::abort(); };
  int here = 0;
  EXPECT_EQ(Device::locate(other, &here, sizeof here).value(), "");
}

TEST_F(Cuda, TellsNameAndDescription) {
  auto device = open(1);
  EXPECT_EQ(device->name(), "cuda:1");
  EXPECT_EQ(device->describe(), "cuda:1: Fake GPU, compute capability 9.0, 2.0 GiB");
  EXPECT_FALSE(device->is_host());
}

TEST_F(Cuda, NothingWaitsForTheDevice) {
  auto device = open();
  auto queue = std::move(device->new_queue()).value();
  auto event = std::move(device->new_event()).value();
  auto from_host = std::move(device->new_event()).value();
  auto values = device->allocate(4000).value(), staging = device->allocate_staging(4000).value();
  for (int i = 0; i < 1000; ++i) static_cast<float*>(staging.get())[i] = 1;
  {
    fake_cuda::Pause pause;
    const Term term{values.get(), 2};
    const SumPiece sum{0, 1000, 0, 1};
    void* target = values.get();
    const UpdatePiece update{0, 1000, 4, 0, 1, Action::kMean, {}, {}};
    EXPECT_TRUE(queue->copy(values.get(), staging.get(), 4000).ok());
    EXPECT_TRUE(queue->sum(DType::kFloat32, {&sum, 1}, {&term, 1}, values.get()).ok());
    EXPECT_TRUE(device->record_stream(*from_host, nullptr).ok());
    EXPECT_TRUE(queue->wait(*from_host).ok());
    EXPECT_TRUE(queue->update(DType::kFloat32, {&update, 1}, {&target, 1}, values.get()).ok());
    EXPECT_TRUE(queue->copy(staging.get(), values.get(), 4000).ok());
    EXPECT_TRUE(queue->record(*event).ok());
    EXPECT_FALSE(event->done().value());
  }
  wait(*event);
  EXPECT_EQ(static_cast<float*>(staging.get())[999], 0.5f);
}

// Getting memory and giving back what there is waits for the device, as CUDA does it, but not for ever.
TEST_F(Cuda, ADeviceThatHangsIsGivenUpAndReleasedLater) {
  const fake_cuda::Alive before = fake_cuda::alive();
  std::vector<std::string> warnings;
  TimeLimits limits{std::chrono::milliseconds(50), std::chrono::milliseconds(50),
                    [&](const std::string& message) { warnings.push_back(message); }};
  {
    auto device = Device::open(*dsgd_cuda_backend(), 1, limits).value();
    auto queue = std::move(device->new_queue()).value();
    auto event = std::move(device->new_event()).value();
    auto memory = device->allocate(4000).value(), more = device->allocate(4000).value(),
         staging = device->allocate_staging(4000).value();
    {
      const fake_cuda::Pause pause;
      EXPECT_TRUE(queue->copy(memory.get(), staging.get(), 4000).ok());
      // The pause also stops the stream that zeroes memory.
      const Status late = device->allocate(8).status();
      expect_error(late, Code::kTimeout, "cuda:1 has not allocated 8 bytes within");
      more.reset();  // behind the one that is late
    }
    while (!device->allocate(8).ok()) std::this_thread::yield();  // it goes on, and so does this
    EXPECT_EQ(warnings.size(), 1u);
    ok(finish(*device, *queue));
    const fake_cuda::Pause pause;
    EXPECT_TRUE(queue->copy(memory.get(), staging.get(), 4000).ok());
    memory.reset();
    staging.reset();
    queue.reset();
    event.reset();
    device.reset();
    EXPECT_GT(fake_cuda::alive().allocations, before.allocations);
  }
  ASSERT_TRUE(fake_cuda::wait_for(before));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("cuda:1 has not finished its enqueued work"));
}

TEST_F(Cuda, OfSeveralDevicesThatHangOneIsWaitedForLong) {
  const fake_cuda::Alive before = fake_cuda::alive();
  TimeLimits limits{.allocation = std::chrono::hours(1), .release = std::chrono::hours(1)};
  *limits.hangs = true;  // another one does
  {
    auto device = Device::open(*dsgd_cuda_backend(), 1, limits).value();
    auto queue = std::move(device->new_queue()).value();
    auto memory = device->allocate(4000).value(), staging = device->allocate_staging(4000).value();
    const fake_cuda::Pause pause;
    EXPECT_TRUE(queue->copy(memory.get(), staging.get(), 4000).ok());
    memory.reset();  // would return in an hour
    staging.reset();
    queue.reset();
    device.reset();
    EXPECT_GT(fake_cuda::alive().allocations, before.allocations);
  }
  ASSERT_TRUE(fake_cuda::wait_for(before));
}

// A gradient that a host stream is still writing is summed after it.
TEST_F(Cuda, AQueueWaitsForAStreamOfTheHosts) {
  auto device = open();
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  auto queue = std::move(device->new_queue()).value();
  auto ready = std::move(device->new_event()).value(), done = std::move(device->new_event()).value();
  auto gradient = device->allocate(4000).value(), bucket = device->allocate(4000).value();
  auto staging = device->allocate_staging(4000).value();
  const Term term{gradient.get(), 3};
  const SumPiece sum{0, 1000, 0, 1};
  for (float round = 1; round < 50; ++round) {
    fake_cuda::enqueue(stream, [&] {
      std::this_thread::yield();
      for (int i = 0; i < 1000; ++i) static_cast<float*>(gradient.get())[i] = round;
    });
    EXPECT_TRUE(device->record_stream(*ready, stream).ok());
    EXPECT_TRUE(queue->wait(*ready).ok());
    EXPECT_TRUE(queue->sum(DType::kFloat32, {&sum, 1}, {&term, 1}, bucket.get()).ok());
    EXPECT_TRUE(queue->copy(staging.get(), bucket.get(), 4000).ok());
    EXPECT_TRUE(queue->record(*done).ok());
    EXPECT_TRUE(device->stream_wait(stream, *done).ok());  // the host may write its gradient again after this
    wait(*done);
    ASSERT_EQ(static_cast<float*>(staging.get())[0], 3 * round);
    ASSERT_EQ(static_cast<float*>(staging.get())[999], 3 * round);
  }
  (void)cudaStreamDestroy(stream);
}

TEST_F(Cuda, BuffersOfTheWrongKindAreNamed) {
  auto first = open(0), second = open(1);
  auto of_first = first->allocate(1000).value(), pinned = first->allocate_staging(1000).value();
  std::vector<char> plain(1000);
  EXPECT_TRUE(first->check(of_first.get(), 1000).ok());
  expect_error(first->check(plain.data(), 1000), Code::kInvalidArgument,
               "the buffer is host memory, but its replica is on cuda:0");
  expect_error(first->check(pinned.get(), 1000), Code::kInvalidArgument, "the buffer is host memory");
  expect_error(second->check(of_first.get(), 1000), Code::kInvalidArgument,
               "the buffer is memory of cuda:0, but its replica is on cuda:1");
  expect_error(first->check(of_first.get(), 1001), Code::kInvalidArgument, "the buffer");
}

TEST_F(Cuda, MemoryTellsItsDevice) {
  const auto locate = [](const void* data, size_t nbytes) {
    return Device::locate(*dsgd_cuda_backend(), data, nbytes);
  };
  auto first = open(0), second = open(1);
  auto of_first = first->allocate(1000).value(), pinned = first->allocate_staging(1000).value();
  const auto of_second = second->allocate(1000).value();
  std::vector<char> plain(1000);
  void* managed = nullptr;
  ASSERT_EQ(cudaMallocManaged(&managed, 1000), cudaSuccess);
  for (const void* on_host : {static_cast<void*>(plain.data()), pinned.get(), managed})
    EXPECT_EQ(locate(on_host, 1000).value(), "");
  EXPECT_EQ(locate(nullptr, 0).value(), "");
  EXPECT_EQ(locate(of_first.get(), 1000).value(), "cuda:0");
  EXPECT_EQ(locate(of_second.get(), 1000).value(), "cuda:1");
  EXPECT_EQ(locate(static_cast<char*>(of_second.get()) + 999, 1).value(), "cuda:1");
  expect_error(locate(of_second.get(), 1001).status(), Code::kInvalidArgument,
               "memory of cuda:1 at one end only, so its size of 1001 bytes is wrong");
  ASSERT_EQ(cudaFree(managed), cudaSuccess);
}

TEST_F(Cuda, LocatingMemoryUsesNoDeviceThatIsNotInUse) {
  const auto locate = [](const void* data) { return Device::locate(*dsgd_cuda_backend(), data, 8).value(); };
  fake_cuda::forget_contexts();
  (void)fake_cuda::take_devices_used();
  double plain = 0;
  EXPECT_EQ(locate(&plain), "");
  EXPECT_TRUE(fake_cuda::take_devices_used().empty());
  const auto second = open(1);
  const auto memory = second->allocate(8).value();
  (void)fake_cuda::take_devices_used();
  EXPECT_EQ(locate(memory.get()), "cuda:1");
  EXPECT_EQ(locate(&plain), "");
  EXPECT_FALSE(fake_cuda::take_devices_used().count(0)) << "the thread's own device, which nobody uses";
}

TEST_F(Cuda, ADeviceThatWasResetIsAnErrorAndNotAnotherDevice) {
  auto device = open(1);
  fake_cuda::fail("cuCtxPushCurrent", cudaErrorContextIsDestroyed);
  expect_error(device->allocate(8).status(), Code::kInternal, "cuda:1: its context is gone");
  EXPECT_TRUE(device->allocate(8).ok());
}

TEST_F(Cuda, AFailureNamesTheDeviceTheCallAndTheReason) {
  auto device = open(1);
  auto queue = std::move(device->new_queue()).value();
  auto event = std::move(device->new_event()).value();
  auto memory = device->allocate(16 * sizeof(double)).value();
  const Term term{memory.get(), 2};
  const SumPiece sum{0, 16, 0, 1};
  void* target = memory.get();
  const UpdatePiece update{0, 16, 4, 0, 1, Action::kMean, {}, {}};
  struct Case {
    const char* function;
    std::function<Status()> call;
  };
  const std::vector<Case> cases = {
      {"cudaGetDeviceProperties", [&] { return Device::open(*dsgd_cuda_backend(), 1).status(); }},
      {"cudaMalloc", [&] { return device->allocate(64).status(); }},
      {"cudaMemsetAsync", [&] { return device->allocate(64).status(); }},
      {"cudaStreamSynchronize", [&] { return device->allocate(64).status(); }},
      {"cudaHostAlloc", [&] { return device->allocate_staging(64).status(); }},
      {"cudaHostRegister", [&] { return device->allocate_staging_parts(64, {{0, 64}}).status(); }},
      {"cudaPointerGetAttributes", [&] { return device->check(memory.get(), 64); }},
      {"cudaDeviceGetStreamPriorityRange", [&] { return device->new_queue().status(); }},
      {"cudaStreamCreateWithPriority", [&] { return device->new_queue().status(); }},
      {"cudaStreamCreateWithFlags", [&] { return device->new_queue().status(); }},
      {"cudaMemcpyAsync", [&] { return queue->copy(memory.get(), memory.get(), 64); }},
      {"launch", [&] { return queue->sum(DType::kFloat32, {&sum, 1}, {&term, 1}, memory.get()); }},
      {"launch", [&] { return queue->sum(DType::kFloat64, {&sum, 1}, {&term, 1}, memory.get()); }},
      {"launch", [&] { return queue->update(DType::kFloat32, {&update, 1}, {&target, 1}, memory.get()); }},
      {"cudaEventCreateWithFlags", [&] { return device->new_event().status(); }},
      {"cudaEventRecord", [&] { return queue->record(*event); }},
      {"cudaEventRecord", [&] { return device->record_stream(*event, nullptr); }},
      {"cudaStreamWaitEvent", [&] { return queue->wait(*event); }},
      {"cudaStreamWaitEvent", [&] { return device->stream_wait(nullptr, *event); }},
      {"cudaEventQuery", [&] { return event->done().status(); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.function);
    fake_cuda::fail(c.function, cudaErrorIllegalAddress);
    expect_error(c.call(), Code::kInternal, "cuda:1: ");
    fake_cuda::fail(c.function, cudaErrorIllegalAddress);
    expect_error(c.call(), Code::kInternal, "(cudaErrorIllegalAddress)");
    EXPECT_TRUE(c.call().ok()) << "once";
  }
  fake_cuda::fail("cuDevicePrimaryCtxRetain", cudaErrorIllegalAddress);
  expect_error(Device::open(*dsgd_cuda_backend(), 1).status(), Code::kInternal,
               "cuda:1: cuDevicePrimaryCtxRetain failed with code 46");
  fake_cuda::fail("cudaMalloc", cudaErrorMemoryAllocation);
  expect_error(device->allocate(64).status(), Code::kNoMemory, "cudaMalloc");
}

// A step's launches do not grow with the number of tensors, and nothing is made in it.
TEST_F(Cuda, ManyTensorsTakeFewLaunches) {
  auto device = open();
  auto queue = std::move(device->new_queue()).value();
  auto event = std::move(device->new_event()).value();
  auto memory = device->allocate(161 * 4096).value(), bucket = device->allocate(161 * 4096).value();
  std::vector<SumPiece> sums;
  std::vector<UpdatePiece> updates;
  std::vector<Term> terms;
  std::vector<void*> targets;
  for (uint32_t t = 0; t < 161; ++t) {
    char* tensor = static_cast<char*>(memory.get()) + t * 4096;
    sums.push_back({t * 1024, 1000, t, 1});
    terms.push_back({tensor, 1});
    updates.push_back({t * 1024, 1000, 2, t, 1, Action::kMean, {}, {}});
    targets.push_back(tensor);
  }
  const size_t before = fake_cuda::launches();
  const fake_cuda::Alive alive = fake_cuda::alive();
  EXPECT_TRUE(queue->sum(DType::kFloat32, sums, terms, bucket.get()).ok());
  EXPECT_TRUE(queue->update(DType::kFloat32, updates, targets, bucket.get()).ok());
  EXPECT_TRUE(queue->record(*event).ok());
  wait(*event);
  EXPECT_EQ(fake_cuda::launches() - before, 1u + 1u);
  EXPECT_EQ(fake_cuda::alive().events, alive.events);
  EXPECT_EQ(fake_cuda::alive().streams, alive.streams);
  EXPECT_EQ(fake_cuda::alive().allocations, alive.allocations);
}

// Teams are made of devices that differ, and NCCL takes two processes on one GPU if they say that their
// machines do.
TEST_F(Cuda, IsAnotherDeviceUnderAnotherHostIdOfNccl) {
  const auto identity = [](int32_t index, std::optional<std::string> host) {
    host ? setenv("NCCL_HOSTID", host->c_str(), 1) : unsetenv("NCCL_HOSTID");
    const DeviceId id = open(index)->identity();
    unsetenv("NCCL_HOSTID");
    return std::vector<uint8_t>(std::begin(id.bytes), std::end(id.bytes));
  };
  const std::vector<std::optional<std::string>> hosts = {std::nullopt, "", "a", "b", "ab", "ba"};
  std::set<std::vector<uint8_t>> seen;
  for (const auto& host : hosts) {
    for (int32_t index : {0, 1}) {
      SCOPED_TRACE(host.value_or("not set") + ", cuda:" + std::to_string(index));
      EXPECT_EQ(identity(index, host), identity(index, host));
      EXPECT_TRUE(seen.insert(identity(index, host)).second) << "as another";
    }
  }
}

// NCCL refuses two of them in one communicator.
TEST_F(Cuda, SlicesOfOneGpuAreOneDevice) {
  const auto id = [](int32_t index) {
    const DeviceId found = open(index)->identity();
    return std::vector<uint8_t>(std::begin(found.bytes), std::end(found.bytes));
  };
  const auto first = id(0);
  EXPECT_NE(first, id(1));
  fake_cuda::share_bus(true);
  EXPECT_EQ(id(0), id(1));
  fake_cuda::share_bus(false);
  EXPECT_EQ(first, id(0));
}

TEST_F(Cuda, NewMemoryIsZeroedWhileABlockingStreamOfTheHostsIsBusy) {
  auto device = open();
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault), cudaSuccess);
  std::atomic<bool> go{false};
  fake_cuda::enqueue(blocking, [&go] {
    while (!go) std::this_thread::yield();
  });
  auto allocated = std::async(std::launch::async, [&] { return device->allocate(100); });
  EXPECT_EQ(allocated.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  go = true;
  auto memory = allocated.get();
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  EXPECT_EQ(static_cast<const char*>(memory.value().get())[99], 0);
  ASSERT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

// All that was made in its context has gone.
TEST_F(Cuda, AfterAResetOfTheDeviceItsHandlesAreLeftAlone) {
  auto device = open(1);
  auto memory = device->allocate(100).value(), staging = device->allocate_staging(100).value();
  auto queue = std::move(device->new_queue()).value();
  auto event = std::move(device->new_event()).value();
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  (void)fake_cuda::take_devices_used();
  expect_error(device->allocate(1).status(), Code::kInternal, "was the device reset?");
  EXPECT_FALSE(event->done().ok());
  memory.reset();
  staging.reset();
  queue.reset();
  event.reset();
  device.reset();
  EXPECT_TRUE(fake_cuda::take_devices_used().empty());
  EXPECT_TRUE(open(1)->allocate(1).ok());  // in a new context
}

}  // namespace
}  // namespace dsgd::device
