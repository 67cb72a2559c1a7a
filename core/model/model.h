// The model on this worker: parameters, replicas, the buffers bound to them, and the optimizer with its
// state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/device/device.h"
#include "core/model/loss_scale.h"
#include "core/model/tensor_memory.h"
#include "core/optimizer/optimizer.h"

namespace dsgd {

// Handles given out by the session, which owns them. Their fields are set at creation and constant.
struct Parameter {
  uint32_t index = 0;
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  size_t count = 0;  // elements
  bool trained = true;
  size_t nbytes() const { return count * dtype_size(dtype); }
  size_t state_nbytes() const { return count * dtype_size(wide(dtype)); }  // of one tensor of state
};
struct Replica {
  uint32_t index = 0;
  std::shared_ptr<device::Device> device;
};

struct Binding {
  std::byte* value = nullptr;
  std::byte* gradient = nullptr;
  bool bound = false;
  std::function<void()> release;         // called when the buffers are unbound
  std::shared_ptr<TensorMemory> memory;  // of dsgd_alloc
  bool read_only_gradient = false;       // not for the optimizer "none", which writes the mean there
};

// By parameter, by tensor of the optimizer. Zeroed.
using OptimizerState = std::vector<std::vector<std::shared_ptr<void>>>;

struct Model {
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<ParameterSettings> settings;  // by parameter
  std::vector<std::unique_ptr<Replica>> replicas;
  std::vector<double> weights;                 // by replica, negative: its part of the step's weight
  std::vector<std::vector<Binding>> bindings;  // by replica, by parameter
  std::unique_ptr<Optimizer> optimizer;
  std::vector<uint64_t> updates;  // by parameter: updates so far
  LossScale loss_scale;

  // Tensors of state that a parameter has: the optimizer's, then master values where it is of a half type.
  // All are of wide(dtype).
  size_t states_of(const Parameter& parameter) const {
    const bool master = is_half(parameter.dtype) && !optimizer->is_none();
    return static_cast<size_t>(optimizer->state_count()) + (master ? 1 : 0);
  }
  bool has_state() const {
    return std::any_of(parameters.begin(), parameters.end(), [this](const auto& parameter) {
      return parameter->trained && states_of(*parameter) > 0;
    });
  }
};

}  // namespace dsgd
