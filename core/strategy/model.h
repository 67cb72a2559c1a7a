// The model on this worker: parameters, replicas, the buffers bound to them, and the optimizer with its state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/optimizer/optimizer.h"
#include "core/session/tensor_memory.h"

namespace dsgd {

class Session;

// Handles given out by the session, which owns them. Their fields are set at creation and constant.
struct Parameter {
  Session* session = nullptr;
  uint32_t index = 0;
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  size_t count = 0;  // elements
  bool trained = true;
  size_t nbytes() const { return count * dtype_size(dtype); }
};
struct Replica {
  Session* session = nullptr;
  uint32_t index = 0;
  std::string device;
};

// Zeroed memory whose pages cost nothing until they are touched: an owner of some ranges touches only those.
class StateBuffer {
 public:
  StateBuffer() = default;
  explicit StateBuffer(size_t nbytes) : data_(static_cast<std::byte*>(std::calloc(nbytes ? nbytes : 1, 1))) {}
  StateBuffer(StateBuffer&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  StateBuffer& operator=(StateBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~StateBuffer() { std::free(data_); }
  std::byte* get() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

struct Binding {
  std::byte* value = nullptr;
  std::byte* gradient = nullptr;
  bool bound = false;
  std::function<void()> release;         // called when bound no more
  std::shared_ptr<TensorMemory> memory;  // of dsgd_alloc
};

struct Model {
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<ParameterSettings> settings;             // by parameter
  std::vector<std::unique_ptr<Replica>> replicas;
  std::vector<double> weights;                         // by replica, negative: its part of the step's weight
  std::vector<std::vector<Binding>> bindings;          // by replica, by parameter
  std::unique_ptr<Optimizer> optimizer;
  std::vector<uint64_t> updates;                       // by parameter: updates so far
  std::vector<std::vector<StateBuffer>> state;         // by parameter, by tensor of the optimizer
};

}  // namespace dsgd
