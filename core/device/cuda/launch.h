// Puts a kernel into a stream. Two definitions: launch.cu for a GPU; the tests' fake runtime runs kernels as
// loops.
#pragma once

#include <cuda_runtime_api.h>

#include "core/device/cuda/kernels.h"

namespace dsgd::device::cuda {

template <typename Kernel>
cudaError_t launch(const Kernel& kernel, cudaStream_t stream);  // kernel.blocks blocks of kThreads threads

cudaError_t load_kernels();  // onto the current device

}  // namespace dsgd::device::cuda
