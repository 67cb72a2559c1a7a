// Functions of CUDA's driver, which the runtime finds, so that nothing links with the driver.
#pragma once

#include <cuda_runtime_api.h>

namespace dsgd::device::cuda {

// Finds a driver function: in the version of CUDA 12.0, or with a toolkit before 12.5 in that toolkit's
// version. Sets `*address` to null if the driver lacks it.
inline cudaError_t find_driver_function(const char* name, void** address) {
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, address, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, address, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) *address = nullptr;
  return error;
}

}  // namespace dsgd::device::cuda
