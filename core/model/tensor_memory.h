// Buffers made by dsgd_alloc: values and gradients, as a device makes them.
#pragma once

#include <cstddef>
#include <memory>

#include "core/device/device.h"

namespace dsgd {

struct TensorMemory {
  static Result<std::shared_ptr<TensorMemory>> make(device::Device& device, size_t nbytes,
                                                    bool with_gradient);

  void* value = nullptr;
  void* gradient = nullptr;  // null for untrained parameters
  size_t nbytes = 0;

 private:
  std::shared_ptr<void> value_, gradient_;
};

}  // namespace dsgd
