// Optimizers, with the definitions and, except sgd's learning rate, the defaults of PyTorch 2.x
// (torch.optim.SGD, Adam, AdamW; Sutskever et al. 2013, Kingma & Ba 2015, Loshchilov & Hutter 2019). For each
// parameter and step an optimizer makes a rule (rule.h). It has all that is equal for all elements (bias
// corrections, rates), computed once in double and rounded to the element's type, so that unlike machines
// agree bit for bit. Devices apply rules. They share the arithmetic of one element (update.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "core/optimizer/rule.h"
#include "transport/base/status.h"

namespace dsgd {

class Options;

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

  virtual Status configure(Options& options) = 0;  // called once, by make()
  virtual std::string name() const = 0;
  virtual std::string settings() const = 0;  // "momentum=0.9 dampening=0 ...", without the learning rate
  std::string describe() const;              // "sgd lr=0.1 momentum=0.9 dampening=0 ..."
  virtual bool is_none() const { return false; }
  // Names of the state tensors of a parameter, as in PyTorch; checkpoints use them. Each tensor has the
  // parameter's element count, the dtype wide(dtype), and zeros at first. sgd with momentum has 1, adam 2,
  // amsgrad 3.
  virtual std::span<const char* const> state_names() const = 0;
  int state_count() const { return static_cast<int>(state_names().size()); }
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

  // Reads the option lr.
  void read_learning_rate(Options& options);
  // The host sets it between steps, while the loop may tell a worker that joins.
  std::atomic<double> learning_rate_{0.01};
  double clip_norm_ = 0;
};

}  // namespace dsgd
