#include "core/device/cuda/launch.h"

namespace dsgd::device::cuda {
namespace {

template <typename Kernel>
__global__ void __launch_bounds__(kThreads) run(const __grid_constant__ Kernel kernel) {
  kernel(Block{blockIdx.x, threadIdx.x, blockDim.x});
}

template <typename... Kernels>
cudaError_t load() {
  cudaError_t error = cudaSuccess;
  cudaFuncAttributes attributes;
  ((error = error == cudaSuccess ? cudaFuncGetAttributes(&attributes, run<Kernels>) : error), ...);
  return error;
}

}  // namespace

cudaError_t load_kernels() {
  return load<SumKernel<float>, SumKernel<double>, SumKernel<Float16>, SumKernel<Bfloat16>, SquareKernel<float>, SquareKernel<double>,
              SquareSumKernel, UpdateKernel<float>, UpdateKernel<double>, UpdateKernel<Float16>, UpdateKernel<Bfloat16>>();
}

template <typename Kernel>
cudaError_t launch(const Kernel& kernel, cudaStream_t stream) {
  static_assert(sizeof(Kernel) <= 4096, "kernel parameters have 4 KiB");
  run<<<kernel.blocks, kThreads, 0, stream>>>(kernel);
  return cudaGetLastError();
}

template cudaError_t launch(const SumKernel<float>&, cudaStream_t);
template cudaError_t launch(const SumKernel<double>&, cudaStream_t);
template cudaError_t launch(const SumKernel<Float16>&, cudaStream_t);
template cudaError_t launch(const SumKernel<Bfloat16>&, cudaStream_t);
template cudaError_t launch(const SquareKernel<float>&, cudaStream_t);
template cudaError_t launch(const SquareKernel<double>&, cudaStream_t);
template cudaError_t launch(const SquareSumKernel&, cudaStream_t);
template cudaError_t launch(const UpdateKernel<float>&, cudaStream_t);
template cudaError_t launch(const UpdateKernel<double>&, cudaStream_t);
template cudaError_t launch(const UpdateKernel<Float16>&, cudaStream_t);
template cudaError_t launch(const UpdateKernel<Bfloat16>&, cudaStream_t);

}  // namespace dsgd::device::cuda
