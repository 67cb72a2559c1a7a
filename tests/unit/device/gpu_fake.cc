#include "tests/unit/device/gpu.h"

extern "C" const dsgd::device::Backend* dsgd_cuda_backend(void);

namespace dsgd::device {

const Backend& cuda_backend() { return *dsgd_cuda_backend(); }
int gpus() { return 2; }

}  // namespace dsgd::device
