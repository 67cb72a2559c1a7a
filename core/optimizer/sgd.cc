#include <limits>

#include "core/optimizer/implementations.h"

namespace dsgd {
namespace {

class Sgd final : public Optimizer {
 public:
  Status configure(Options& options) override {
    constexpr double kLargest = std::numeric_limits<double>::max();
    read_learning_rate(options);
    options.number("momentum", &momentum_, 0, kLargest);
    options.number("dampening", &dampening_, 0, 1);
    options.flag("nesterov", &nesterov_);
    options.number("weight_decay", &weight_decay_, 0, kLargest);
    options.number("clip_norm", &clip_norm_, 0, kLargest);
    Status status = options.finish();
    if (status.ok() && nesterov_ && (momentum_ == 0 || dampening_ != 0))
      return Status(
                 Code::kInvalidArgument,
                 "optimizer 'sgd': nesterov=1 needs a momentum above 0 and no dampening, but momentum is " +
                     number_text(momentum_) + " and dampening is " + number_text(dampening_))
          .with_parameter("nesterov");
    return status;
  }

  std::string name() const override { return "sgd"; }
  std::string settings() const override {
    return "momentum=" + number_text(momentum_) + " dampening=" + number_text(dampening_) +
           " nesterov=" + (nesterov_ ? "1" : "0") + " weight_decay=" + number_text(weight_decay_) +
           clip_text();
  }
  std::span<const char* const> state_names() const override {
    static constexpr const char* kNames[] = {"momentum_buffer"};
    return {kNames, momentum_ != 0 ? size_t{1} : 0};
  }

  UpdateRule rule(uint64_t updates, const ParameterSettings& settings) const override {
    UpdateRule rule;
    rule.state_count = static_cast<uint8_t>(state_count());
    if (settings.frozen) return rule;
    const double decay = settings.decay >= 0 ? settings.decay : weight_decay_;
    rule.kind = UpdateRule::Kind::kSgd;
    rule.sgd_decay = decay != 0;
    rule.nesterov = nesterov_;
    if (momentum_ != 0) rule.momentum = updates == 0 ? update::Momentum::kFirst : update::Momentum::kRunning;
    rule.float32.sgd = coefficients<float>(settings, decay);
    rule.float64.sgd = coefficients<double>(settings, decay);
    return rule;
  }

 private:
  template <typename T>
  update::SgdCoefficients<T> coefficients(const ParameterSettings& settings, double decay) const {
    return {static_cast<T>(-learning_rate_ * settings.rate), static_cast<T>(decay), static_cast<T>(momentum_),
            static_cast<T>(1 - dampening_)};
  }

  double momentum_ = 0, dampening_ = 0, weight_decay_ = 0;
  bool nesterov_ = false;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd() { return std::make_unique<Sgd>(); }

}  // namespace dsgd
