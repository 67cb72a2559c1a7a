#include "core/device/cuda/errors.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace dsgd::device::cuda {

int32_t fail(Message* message, Code code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message->text, sizeof message->text, format, arguments);
  va_end(arguments);
  return static_cast<int32_t>(code);
}

int32_t failed(Message* message, const DeviceHandle* device, const char* call, cudaError_t error) {
  const Code code = error == cudaErrorMemoryAllocation ? Code::kNoMemory : Code::kInternal;
  return fail(message, code, "cuda:%d: %.*s failed: %s (%s)", device->index,
              static_cast<int>(std::strcspn(call, "(")), call, cudaGetErrorString(error),
              cudaGetErrorName(error));
}

}  // namespace dsgd::device::cuda
