// Optimizers: definitions and defaults of PyTorch 2.x (torch.optim.SGD, Adam, AdamW; Sutskever et al. 2013,
// Kingma & Ba 2015, Loshchilov & Hutter 2019). The arithmetic of one element is an inline function in
// update.h, to be shared with other devices; everything that is the same for all elements (bias corrections,
// rates) is computed once per step in double and passed as the element's type, so that unlike machines agree
// bit for bit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "transport/base/status.h"

namespace dsgd {

// Multipliers of one parameter, from dsgd_parameter_set.
struct ParameterSettings {
  double rate = 1.0;    // multiplies the learning rate
  double decay = -1.0;  // replaces the weight decay when >= 0
  bool frozen = false;
};

class Optimizer {
 public:
  // Names: sgd, adam, adamw, none. `options` are "key=value" words.
  static Result<std::unique_ptr<Optimizer>> make(std::string_view name, std::string_view options);
  virtual ~Optimizer() = default;

  virtual std::string describe() const = 0;  // canonical "sgd lr=0.1 momentum=0.9 ...", part of the signature
  virtual bool is_none() const { return false; }
  // State tensors per parameter, each with the parameter's dtype and element count, zero at first (sgd with
  // momentum: 1, adam: 2, amsgrad: 3).
  virtual int state_count() const = 0;
  double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double rate) { learning_rate_ = rate; }

  // Updates `count` elements. `updates`: number of updates this parameter has had before this one (Adam's t -
  // 1; SGD's momentum buffer starts as the first gradient). Values and state are read from *_in and written
  // to *_out, which may be the same buffer but may not overlap otherwise. `gradient` is the mean. Buffers
  // hold `dtype` (float32 or float64).
  virtual void apply(DType dtype, size_t count, uint64_t updates, const ParameterSettings& settings,
                     const void* gradient, const void* value_in, void* value_out,
                     std::span<const void* const> state_in, std::span<void* const> state_out) const = 0;

 protected:
  double learning_rate_ = 0.01;
};

}  // namespace dsgd
