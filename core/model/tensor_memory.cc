#include "core/model/tensor_memory.h"

#include <utility>

namespace dsgd {

Result<std::shared_ptr<TensorMemory>> TensorMemory::make(device::Device& device, size_t nbytes,
                                                         bool with_gradient) {
  auto memory = std::make_shared<TensorMemory>();
  auto value = device.allocate(nbytes);
  if (!value.ok()) return value.status();
  memory->value_ = std::move(value).value();
  memory->value = memory->value_.get();
  memory->nbytes = nbytes;
  if (!with_gradient) return memory;
  auto gradient = device.allocate(nbytes);
  if (!gradient.ok()) return gradient.status();
  memory->gradient_ = std::move(gradient).value();
  memory->gradient = memory->gradient_.get();
  return memory;
}

}  // namespace dsgd
