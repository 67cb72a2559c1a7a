// Buffers made by dsgd_alloc: one block with values and gradients, zeroed, each aligned to 64 bytes.
#pragma once

#include <cstddef>
#include <memory>

namespace dsgd {

struct TensorMemory {
  static std::shared_ptr<TensorMemory> make(size_t nbytes, bool with_gradient);  // null: no memory
  TensorMemory() = default;
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;
  ~TensorMemory();

  void* value = nullptr;
  void* gradient = nullptr;  // null for untrained parameters
  size_t nbytes = 0;

 private:
  void* block_ = nullptr;
};

}  // namespace dsgd
