// The error reports of the table's functions. They return the code.
#pragma once

#include <cuda_runtime_api.h>

#include "core/device/cuda/handles.h"
#include "transport/base/status.h"

namespace dsgd::device::cuda {

__attribute__((format(printf, 3, 4))) int32_t fail(Message* message, Code code, const char* format, ...);
// `call`: its text, of which the message has the function's name.
int32_t failed(Message* message, const DeviceHandle* device, const char* call, cudaError_t error);

// Returns from the function if this call of CUDA's fails.
#define DSGD_CUDA(device, call)                                     \
  do {                                                              \
    if (const cudaError_t error_ = (call); error_ != cudaSuccess) { \
      (void)cudaGetLastError();                                     \
      return failed(message, device, #call, error_);                \
    }                                                               \
  } while (false)

}  // namespace dsgd::device::cuda
