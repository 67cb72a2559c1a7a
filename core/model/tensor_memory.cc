#include "core/model/tensor_memory.h"

#include <utility>

namespace dsgd {

Result<std::shared_ptr<TensorMemory>> TensorMemory::make(device::Device& device, size_t nbytes,
                                                         bool with_gradient) {
  auto memory = std::make_shared<TensorMemory>();
  DSGD_RETURN_IF_ERROR(device.allocate(nbytes).into(&memory->value_));
  memory->value = memory->value_.get();
  memory->nbytes = nbytes;
  if (!with_gradient) return memory;
  DSGD_RETURN_IF_ERROR(device.allocate(nbytes).into(&memory->gradient_));
  memory->gradient = memory->gradient_.get();
  return memory;
}

}  // namespace dsgd
