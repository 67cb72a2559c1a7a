// Functions of CUDA's driver, which the runtime finds, so that nothing links with the driver.
#pragma once

#include <cuda_runtime_api.h>

namespace dsgd::device::cuda {

// Finds a function as CUDA 12.0 has it. `*address` is null if the driver has none.
inline cudaError_t find_driver_function(const char* name, void** address) {
  cudaDriverEntryPointQueryResult how = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, address, 12000, cudaEnableDefault, &how);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, address, cudaEnableDefault, &how);
#endif
  if (error != cudaSuccess || how != cudaDriverEntryPointSuccess) *address = nullptr;
  return error;
}

}  // namespace dsgd::device::cuda
