#include "core/device/cuda/launch.h"

namespace dsgd::device::cuda {
namespace {

template <typename Kernel>
__global__ void __launch_bounds__(kThreads) run(const __grid_constant__ Kernel kernel) {
  if constexpr (Kernel::kPhases == 1) {
    kernel(ThreadIndex{blockIdx.x, threadIdx.x, 0, nullptr});
  } else {
    __shared__ double shared[kThreads];
    for (uint32_t phase = 0; phase < Kernel::kPhases; ++phase) {
      if (phase > 0) __syncthreads();
      kernel(ThreadIndex{blockIdx.x, threadIdx.x, phase, shared});
    }
  }
}

}  // namespace

cudaError_t load_kernels() {
  cudaError_t error = cudaSuccess;
  cudaFuncAttributes attributes;
#define DSGD_LOAD(...) \
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, run<__VA_ARGS__>);
  DSGD_KERNELS(DSGD_LOAD)
  return error;
}

template <typename Kernel>
cudaError_t launch(const Kernel& kernel, cudaStream_t stream) {
  run<<<kernel.blocks, kThreads, 0, stream>>>(kernel);
  return cudaGetLastError();
}
#define DSGD_INSTANTIATE(...) template cudaError_t launch(const __VA_ARGS__&, cudaStream_t);
DSGD_KERNELS(DSGD_INSTANTIATE)

}  // namespace dsgd::device::cuda
