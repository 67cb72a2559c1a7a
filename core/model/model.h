// The model on this worker: parameters, replicas, the buffers bound to them, and the optimizer with its
// state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
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
};

// Events in the host's streams after which the gradients of a replica that is not on the host are complete.
// Written when gradients are marked, under the session's lock, before the step is told of them; then only the
// step uses them. `streams` is an exception: gradients of frozen parameters, which no step waits for, may be
// marked at any time.
struct StreamMarks {
  struct OfBucket {  // one mark for all of its gradients in a stream
    struct Stream {
      void* stream;
      uint32_t parameter;  // the first one that was marked there
    };
    std::vector<Stream> streams;  // in this step
    std::vector<std::unique_ptr<device::DeviceEvent>>
        marks;  // of these, recorded when the bucket is complete; kept for later steps
  };
  std::vector<OfBucket> buckets;                // of the plan
  std::vector<char> marked;                     // by parameter, in this step; else the default stream counts
  std::vector<void*> streams;                   // of this step's marks, each once; under Model::streams_mutex
  std::unique_ptr<device::DeviceEvent> values;  // recorded in the default stream; for streams without marks
};

// By parameter, by tensor of the optimizer. Zeroed.
using OptimizerState = std::vector<std::vector<std::shared_ptr<void>>>;

struct Model {
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<ParameterSettings> settings;  // by parameter
  std::vector<std::unique_ptr<Replica>> replicas;
  std::vector<double> weights;                 // by replica, negative: its part of the step's weight
  std::vector<std::vector<Binding>> bindings;  // by replica, by parameter
  std::vector<StreamMarks> stream_marks;       // by replica
  std::mutex streams_mutex;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<uint64_t> updates;  // by parameter: updates so far
  LossScale loss_scale;
};

}  // namespace dsgd
