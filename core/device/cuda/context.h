// CUDA contexts: the functions of the driver that handle them, and guards that make one current for a while.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "core/device/cuda/errors.h"

namespace dsgd::device::cuda {

// The few functions of the driver that are used; the runtime knows where they are.
struct DriverFunctions {
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&cuDevicePrimaryCtxRelease) release = nullptr;
  decltype(&cuDevicePrimaryCtxGetState) state = nullptr;
  decltype(&cuCtxPushCurrent) push = nullptr;
  decltype(&cuCtxPopCurrent) pop = nullptr;
};
// Looked up once per process. An error: some are missing, and none may be called.
cudaError_t driver_error();
const DriverFunctions& driver();

// Makes the device's context current on the calling thread while this object lives. It pushes the context
// instead of calling cudaSetDevice(), which cannot be undone: for a thread that has not chosen a device,
// cudaGetDevice() returns device 0, and setting that again would create a context there, which takes memory
// in each process. Calls while it lives do not invalidate a graph that another thread of the host captures.
class ContextGuard {
 public:
  explicit ContextGuard(const DeviceHandle* device)
      : pushed_(driver().push(device->context) == CUDA_SUCCESS) {
    if (pushed_) (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  }
  ~ContextGuard() {
    if (!pushed_) return;
    (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
    CUcontext popped;
    (void)driver().pop(&popped);
  }
  ContextGuard(const ContextGuard&) = delete;
  // False: the context is gone, with all that was made in it, since the host has reset the device.
  bool ok() const { return pushed_; }

 private:
  const bool pushed_;
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;  // then the mode to go back to
};

// The device's context is the thread's from here on to the end of the function.
#define DSGD_ENTER_CONTEXT(device)                                                             \
  const ContextGuard current(device);                                                          \
  if (!current.ok())                                                                           \
  return fail(message, Code::kInternal, "cuda:%d: its context is gone; was the device reset?", \
              (device)->index)

// Makes a context that exists already, of any device, current on the calling thread while this object lives.
// Without a current context a query about memory would fail, or create a context on device 0, which takes
// memory there in each process.
class AnyContextGuard {
 public:
  AnyContextGuard();
  ~AnyContextGuard();
  AnyContextGuard(const AnyContextGuard&) = delete;
  bool ok() const { return pushed_; }

 private:
  CUdevice device_ = 0;
  bool pushed_ = false;
};

}  // namespace dsgd::device::cuda
