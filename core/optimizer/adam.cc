#include <cmath>
#include <limits>

#include "core/optimizer/implementations.h"

namespace dsgd {
namespace {

using update::AdamCoefficients;
using update::Decay;

// A number as an unevaluated sum of two (Dekker 1971).
struct Pair {
  double high, low;
};

Pair product(Pair a, Pair b) {
  const double high = a.high * b.high;
  const double low = std::fma(a.high, b.high, -high) + (a.high * b.low + a.low * b.high);
  const double sum = high + low;
  return {sum, low - (sum - high)};
}

// By squaring, with twice the digits: unlike the C library's pow the same bits on every machine, and as good
// as exactly rounded, which counts in 1 - beta^t, where most digits cancel.
double whole_power(double base, uint64_t power) {
  Pair result{1, 0}, square{base, 0};
  for (; power > 0; power >>= 1, square = product(square, square))
    if (power & 1) result = product(result, square);
  return result.high;
}

class Adam final : public Optimizer {
 public:
  explicit Adam(bool decoupled_decay)
      : decoupled_decay_(decoupled_decay), weight_decay_(decoupled_decay ? 0.01 : 0) {
    learning_rate_ = 0.001;
  }

  Status configure(Options& options) override {
    constexpr double kLargest = std::numeric_limits<double>::max();
    const double kBelowOne = std::nextafter(1.0, 0.0);
    read_learning_rate(options);
    options.number("beta1", &beta1_, 0, kBelowOne);
    options.number("beta2", &beta2_, 0, kBelowOne);
    options.number("eps", &epsilon_, 0, kLargest);
    options.number("weight_decay", &weight_decay_, 0, kLargest);
    options.number("clip_norm", &clip_norm_, 0, kLargest);
    options.flag("amsgrad", &amsgrad_);
    return options.finish();
  }

  std::string name() const override { return decoupled_decay_ ? "adamw" : "adam"; }
  std::string settings() const override {
    return "beta1=" + number_text(beta1_) + " beta2=" + number_text(beta2_) +
           " eps=" + number_text(epsilon_) + " weight_decay=" + number_text(weight_decay_) +
           " amsgrad=" + (amsgrad_ ? "1" : "0") + clip_text();
  }
  std::span<const char* const> state_names() const override {
    static constexpr const char* kNames[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    return {kNames, amsgrad_ ? size_t{3} : 2};
  }

  UpdateRule rule(uint64_t updates, const ParameterSettings& settings) const override {
    UpdateRule rule;
    rule.state_count = static_cast<uint8_t>(state_count());
    if (settings.frozen) return rule;
    const double decay = settings.decay >= 0 ? settings.decay : weight_decay_;
    rule.kind = UpdateRule::Kind::kAdam;
    rule.amsgrad = amsgrad_;
    if (decay != 0) rule.adam_decay = decoupled_decay_ ? Decay::kDecoupled : Decay::kCoupled;
    rule.float32.adam = coefficients<float>(updates + 1, learning_rate_ * settings.rate, decay);
    rule.float64.adam = coefficients<double>(updates + 1, learning_rate_ * settings.rate, decay);
    return rule;
  }

 private:
  template <typename T>
  AdamCoefficients<T> coefficients(uint64_t step, double rate, double decay) const {
    AdamCoefficients<T> c;
    c.minus_step = static_cast<T>(-(rate / (1 - whole_power(beta1_, step))));
    c.decay = static_cast<T>(decay);
    c.keep = static_cast<T>(1 - rate * decay);
    c.mean_part = static_cast<T>(1 - beta1_);
    c.mean_keep = T{1} - c.mean_part;
    c.mean_part_small = c.mean_part < T{0.5};
    c.square_keep = static_cast<T>(beta2_);
    c.square_part = static_cast<T>(1 - beta2_);
    c.correction = static_cast<T>(std::sqrt(1 - whole_power(beta2_, step)));
    c.epsilon = static_cast<T>(epsilon_);
    return c;
  }

  bool decoupled_decay_, amsgrad_ = false;
  double beta1_ = 0.9, beta2_ = 0.999, epsilon_ = 1e-8, weight_decay_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(bool decoupled_decay) { return std::make_unique<Adam>(decoupled_decay); }

}  // namespace dsgd
