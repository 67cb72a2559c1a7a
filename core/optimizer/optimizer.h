// Optimizers: definitions and defaults of PyTorch 2.x (torch.optim.SGD, Adam, AdamW; Sutskever et al. 2013,
// Kingma & Ba 2015, Loshchilov & Hutter 2019). An optimizer makes a rule (rule.h) for each parameter and
// step: everything that is the same for all elements (bias corrections, rates), computed once in double and
// rounded to the element's type, so that unlike machines agree bit for bit. Devices carry rules out; the
// arithmetic of one element, which they share, is in update.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "core/optimizer/rule.h"
#include "transport/base/status.h"

namespace dsgd {

// The treatment of an untrained parameter by steps. Each replica changes its own values.
enum class UntrainedSync : uint8_t {
  kNone,   // nothing
  kMean,   // all replicas get the mean of their values
  kFirst,  // all replicas get the first one's values
};

// Settings of one parameter, from dsgd_parameter_set.
struct ParameterSettings {
  double rate = 1.0;    // multiplies the learning rate
  double decay = -1.0;  // replaces the weight decay when >= 0
  bool frozen = false;
  UntrainedSync sync = UntrainedSync::kNone;
  uint64_t sync_period = 1;  // steps
  // "rate=1 decay=0.1 frozen=0"; no decay: the optimizer's; sync only if it is set.
  std::string describe() const;
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
  // Largest L2 norm of the mean gradient over all parameters; a longer gradient is scaled down to it before
  // it is used, as torch.nn.utils.clip_grad_norm_ does. 0: any length.
  double clip_norm() const { return clip_norm_; }

  // Returns the update of a parameter that has had `updates` updates before (Adam's t - 1; SGD's momentum
  // buffer starts as the first gradient).
  virtual UpdateRule rule(uint64_t updates, const ParameterSettings& settings) const = 0;

 protected:
  std::string clip_text() const;  // " clip_norm=1", empty without

  double learning_rate_ = 0.01;
  double clip_norm_ = 0;
};

}  // namespace dsgd
