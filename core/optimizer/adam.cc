#include <cmath>
#include <limits>

#include "core/optimizer/implementations.h"
#include "core/optimizer/update.h"
#include "core/reduce/clones.h"

namespace dsgd {
namespace {

using update::AdamCoefficients;
using update::Decay;

template <typename T>
struct AdamBuffers {
  const T *gradient, *value_in, *mean_in, *square_in,
      *largest_in;  // largest_in and largest_out: null without amsgrad
  T *value_out, *mean_out, *square_out, *largest_out;
};

template <Decay kDecay, bool kAmsGrad, typename T>
DSGD_INLINED void loop(AdamCoefficients<T> c, AdamBuffers<T> b, size_t count) {
  DSGD_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    T mean = b.mean_in[i], square = b.square_in[i], largest = kAmsGrad ? b.largest_in[i] : T{0};
    b.value_out[i] =
        update::adam<kDecay, kAmsGrad>(c, b.gradient[i], b.value_in[i], &mean, &square, &largest);
    b.mean_out[i] = mean;
    b.square_out[i] = square;
    if constexpr (kAmsGrad) b.largest_out[i] = largest;
  }
}

template <bool kAmsGrad, typename T>
DSGD_INLINED void choose(Decay decay, AdamCoefficients<T> c, AdamBuffers<T> b, size_t count) {
  switch (decay) {
    case Decay::kNone:
      return loop<Decay::kNone, kAmsGrad>(c, b, count);
    case Decay::kCoupled:
      return loop<Decay::kCoupled, kAmsGrad>(c, b, count);
    case Decay::kDecoupled:
      return loop<Decay::kDecoupled, kAmsGrad>(c, b, count);
  }
}

#define DSGD_ADAM(type)                                                                                \
  DSGD_CLONES void run(Decay decay, bool amsgrad, AdamCoefficients<type> c, AdamBuffers<type> buffers, \
                       size_t count) {                                                                 \
    amsgrad ? choose<true>(decay, c, buffers, count) : choose<false>(decay, c, buffers, count);        \
  }
DSGD_ADAM(float)
DSGD_ADAM(double)
#undef DSGD_ADAM

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

  Status configure(Options& options) {
    constexpr double kLargest = std::numeric_limits<double>::max();
    const double kBelowOne = std::nextafter(1.0, 0.0);
    options.number("lr", &learning_rate_, 0, kLargest);
    options.number("beta1", &beta1_, 0, kBelowOne);
    options.number("beta2", &beta2_, 0, kBelowOne);
    options.number("eps", &epsilon_, 0, kLargest);
    options.number("weight_decay", &weight_decay_, 0, kLargest);
    options.flag("amsgrad", &amsgrad_);
    return options.finish();
  }

  std::string describe() const override {
    return std::string(decoupled_decay_ ? "adamw" : "adam") + " lr=" + number_text(learning_rate_) +
           " beta1=" + number_text(beta1_) + " beta2=" + number_text(beta2_) +
           " eps=" + number_text(epsilon_) + " weight_decay=" + number_text(weight_decay_) +
           " amsgrad=" + (amsgrad_ ? "1" : "0");
  }
  int state_count() const override { return amsgrad_ ? 3 : 2; }

  void apply(DType dtype, size_t count, uint64_t updates, const ParameterSettings& settings,
             const void* gradient, const void* value_in, void* value_out,
             std::span<const void* const> state_in, std::span<void* const> state_out) const override {
    if (settings.frozen) return keep(dtype, count, value_in, value_out, state_in, state_out);
    const ApplyArguments arguments{count,    updates,   settings, gradient,
                                   value_in, value_out, state_in, state_out};
    dtype == DType::kFloat32 ? apply_as<float>(arguments) : apply_as<double>(arguments);
  }

 private:
  template <typename T>
  void apply_as(const ApplyArguments& a) const {
    const double decay = a.settings.decay >= 0 ? a.settings.decay : weight_decay_;
    const Decay kind = decay == 0 ? Decay::kNone : decoupled_decay_ ? Decay::kDecoupled : Decay::kCoupled;
    const AdamBuffers<T> buffers{static_cast<const T*>(a.gradient),
                                 static_cast<const T*>(a.value_in),
                                 static_cast<const T*>(a.state_in[0]),
                                 static_cast<const T*>(a.state_in[1]),
                                 amsgrad_ ? static_cast<const T*>(a.state_in[2]) : nullptr,
                                 static_cast<T*>(a.value_out),
                                 static_cast<T*>(a.state_out[0]),
                                 static_cast<T*>(a.state_out[1]),
                                 amsgrad_ ? static_cast<T*>(a.state_out[2]) : nullptr};
    run(kind, amsgrad_, coefficients<T>(a.updates + 1, learning_rate_ * a.settings.rate, decay), buffers,
        a.count);
  }

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

Result<std::unique_ptr<Optimizer>> make_adam(Options options, bool decoupled_decay) {
  auto optimizer = std::make_unique<Adam>(decoupled_decay);
  if (Status status = optimizer->configure(options); !status.ok()) return status;
  return std::unique_ptr<Optimizer>(std::move(optimizer));
}

}  // namespace dsgd
