// Buffers made by dsgd_alloc: values and gradients, zeroed, on the host in one block, each aligned to 64 bytes.
#pragma once

#include <cstddef>
#include <memory>

#include "core/device/device.h"

namespace dsgd {

struct TensorMemory {
  static Result<std::shared_ptr<TensorMemory>> make(device::Device& device, size_t nbytes, bool with_gradient);
  TensorMemory() = default;
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;
  ~TensorMemory();

  void* value = nullptr;
  void* gradient = nullptr;  // null for untrained parameters
  size_t nbytes = 0;

 private:
  static std::shared_ptr<TensorMemory> make_on_host(size_t nbytes, bool with_gradient);  // null: no memory

  void* block_ = nullptr;
  std::shared_ptr<void> device_value_, device_gradient_;
};

}  // namespace dsgd
