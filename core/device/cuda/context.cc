#include "core/device/cuda/context.h"

#include <type_traits>

#include "core/device/cuda/driver_function.h"

namespace dsgd::device::cuda {
namespace {

struct FoundDriver {
  DriverFunctions driver;
  cudaError_t error = cudaSuccess;
};

FoundDriver find_driver() {
  FoundDriver found;
  const auto find = [&found](const char* name, auto* function) {
    void* address = nullptr;
    if (found.error == cudaSuccess) found.error = find_driver_function(name, &address);
    if (found.error == cudaSuccess && !address) found.error = cudaErrorSymbolNotFound;
    *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(address);
  };
  find("cuDevicePrimaryCtxRetain", &found.driver.retain);
  find("cuDevicePrimaryCtxRelease", &found.driver.release);
  find("cuDevicePrimaryCtxGetState", &found.driver.state);
  find("cuCtxPushCurrent", &found.driver.push);
  find("cuCtxPopCurrent", &found.driver.pop);
  return found;
}

const FoundDriver& found_driver() {
  static const FoundDriver found = find_driver();
  return found;
}

}  // namespace

cudaError_t driver_error() { return found_driver().error; }
const DriverFunctions& driver() { return found_driver().driver; }

AnyContextGuard::AnyContextGuard() {
  int count = 0;
  if (driver_error() != cudaSuccess || cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return;
  }
  for (CUdevice device = 0; device < count && !pushed_; ++device) {
    unsigned int flags = 0;
    int active = 0;
    CUcontext context = nullptr;
    if (driver().state(device, &flags, &active) != CUDA_SUCCESS || !active) continue;
    if (driver().retain(&context, device) != CUDA_SUCCESS) continue;
    device_ = device;
    pushed_ = driver().push(context) == CUDA_SUCCESS;
    if (!pushed_) (void)driver().release(device);
  }
}

AnyContextGuard::~AnyContextGuard() {
  if (!pushed_) return;
  CUcontext popped;
  (void)driver().pop(&popped);
  (void)driver().release(device_);
}

}  // namespace dsgd::device::cuda
