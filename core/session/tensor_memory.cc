#include "core/session/tensor_memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace dsgd {

Result<std::shared_ptr<TensorMemory>> TensorMemory::make(device::Device& device, size_t nbytes, bool with_gradient) {
  std::shared_ptr<TensorMemory> memory;
  if (device.is_host()) {
    memory = make_on_host(nbytes, with_gradient);
    if (memory) return memory;
    return Status(Code::kNoMemory, "cpu: no memory for " + std::to_string(nbytes) + " bytes, twice");
  }
  memory = std::make_shared<TensorMemory>();
  auto value = device.allocate(nbytes);
  if (!value.ok()) return value.status();
  memory->device_value_ = std::move(value).value();
  memory->value = memory->device_value_.get();
  memory->nbytes = nbytes;
  if (!with_gradient) return memory;
  auto gradient = device.allocate(nbytes);
  if (!gradient.ok()) return gradient.status();
  memory->device_gradient_ = std::move(gradient).value();
  memory->gradient = memory->device_gradient_.get();
  return memory;
}

std::shared_ptr<TensorMemory> TensorMemory::make_on_host(size_t nbytes, bool with_gradient) {
  constexpr size_t kAlign = 64;
  if (nbytes > (SIZE_MAX - 4 * kAlign) / 2) return nullptr;
  const size_t part = (nbytes + kAlign - 1) / kAlign * kAlign + kAlign;  // never empty, never adjacent
  const size_t total = with_gradient ? 2 * part : part;
  auto memory = std::make_shared<TensorMemory>();
  memory->block_ = std::aligned_alloc(kAlign, total);
  if (!memory->block_) return nullptr;
  std::memset(memory->block_, 0, total);  // also touches the pages once, here rather than in the first step
  memory->value = memory->block_;
  memory->gradient = with_gradient ? static_cast<char*>(memory->block_) + part : nullptr;
  memory->nbytes = nbytes;
  return memory;
}

TensorMemory::~TensorMemory() { std::free(block_); }

}  // namespace dsgd
