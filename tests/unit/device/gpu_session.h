// Shared by tests of sessions with GPUs: a fixture that finds leaks, and streams of the host's.
#pragma once

#include <gtest/gtest.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <thread>
#include <utility>

#include "core/device/cuda/driver_function.h"
#ifndef DSGD_TEST_PLUGIN
#include "tests/unit/device/leak_test.h"
#endif

namespace dsgd {

#ifdef DSGD_TEST_PLUGIN
class GpuSession : public testing::Test {};
#else
class GpuSession : public fake_cuda::LeakTest {};

inline void wait_for_copies(size_t before, size_t enqueued) {
  while (fake_cuda::copies() < before + enqueued) std::this_thread::yield();
}
#endif

// A stream of the host's.
class HostStream {
 public:
  explicit HostStream(int device = 0, unsigned int flags = cudaStreamNonBlocking) {
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, flags), cudaSuccess);
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  }
  ~HostStream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  HostStream(const HostStream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Work in this stream waits from hold() until the test releases it. dsgd's own work must neither wait for
// that nor overtake it. The stream waits for a number in memory: a host function that waits would hold up all
// others. Make all objects before the first one holds, since CUDA may let an allocation wait for a stream.
class HeldStream {
 public:
  HeldStream() {
    void* memory = nullptr;
    must(cudaHostAlloc(&memory, kFloats * sizeof(float) + sizeof(uint32_t), cudaHostAllocPortable));
    pinned_ = static_cast<float*>(memory);
    released_ = new (pinned_ + kFloats) std::atomic<uint32_t>(0);
  }
  ~HeldStream() {
    release();
    must(cudaStreamSynchronize(stream_));
    must(cudaFreeHost(pinned_));
  }
  HeldStream(const HeldStream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void hold() {
    void* wait = nullptr;
    must(device::cuda::find_driver_function("cuStreamWaitValue32", &wait));
    ASSERT_NE(wait, nullptr);
    ASSERT_EQ(reinterpret_cast<decltype(&cuStreamWaitValue32)>(wait)(
                  stream_, reinterpret_cast<CUdeviceptr>(released_), 1, CU_STREAM_WAIT_VALUE_GEQ),
              CUDA_SUCCESS);
  }
  void release() { released_->store(1); }
  bool held() const { return released_->load() == 0; }
  void fill(void* there, size_t count, float value) {
    float* here = floats(count);
    std::fill_n(here, count, value);
    must(cudaMemcpyAsync(there, here, count * sizeof(float), cudaMemcpyDefault, stream_));
  }
  float* read(const void* there, size_t count) {  // valid when the stream is done
    float* here = floats(count);
    must(cudaMemcpyAsync(here, there, count * sizeof(float), cudaMemcpyDefault, stream_));
    return here;
  }
  void finish() { must(cudaStreamSynchronize(stream_)); }

 private:
  static void must(cudaError_t error) { ASSERT_EQ(error, cudaSuccess); }
  float* floats(size_t count) {
    EXPECT_LE(used_ + count, kFloats);
    return pinned_ + std::exchange(used_, used_ + count);
  }

  const HostStream stream_;
  std::atomic<uint32_t>* released_ = nullptr;
  static constexpr size_t kFloats = 1 << 17;
  float* pinned_ = nullptr;
  size_t used_ = 0;
};

}  // namespace dsgd
