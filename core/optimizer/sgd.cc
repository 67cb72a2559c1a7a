#include <limits>

#include "core/optimizer/implementations.h"
#include "core/optimizer/update.h"
#include "core/reduce/clones.h"

namespace dsgd {
namespace {

using update::Momentum;
using update::SgdCoefficients;

struct SgdKind {
  bool decay;
  Momentum momentum;
  bool nesterov;
};

template <typename T>
struct SgdBuffers {
  const T *gradient, *value_in, *buffer_in;  // buffer_in and buffer_out: null without momentum
  T *value_out, *buffer_out;
};

template <bool kDecay, Momentum kMomentum, bool kNesterov, typename T>
DSGD_INLINED void loop(SgdCoefficients<T> c, SgdBuffers<T> b, size_t count) {
  DSGD_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    T buffer_out = 0;
    const T buffer_in = kMomentum == Momentum::kRunning ? b.buffer_in[i] : T{0};
    b.value_out[i] =
        update::sgd<kDecay, kMomentum, kNesterov>(c, b.gradient[i], b.value_in[i], buffer_in, &buffer_out);
    if constexpr (kMomentum != Momentum::kNone) b.buffer_out[i] = buffer_out;
  }
}

template <bool kDecay, typename T>
DSGD_INLINED void choose(SgdKind kind, SgdCoefficients<T> c, SgdBuffers<T> b, size_t count) {
  if (kind.momentum == Momentum::kNone)
    loop<kDecay, Momentum::kNone, false>(c, b, count);
  else if (kind.momentum == Momentum::kFirst && kind.nesterov)
    loop<kDecay, Momentum::kFirst, true>(c, b, count);
  else if (kind.momentum == Momentum::kFirst)
    loop<kDecay, Momentum::kFirst, false>(c, b, count);
  else if (kind.nesterov)
    loop<kDecay, Momentum::kRunning, true>(c, b, count);
  else
    loop<kDecay, Momentum::kRunning, false>(c, b, count);
}

#define DSGD_SGD(type)                                                                                  \
  DSGD_CLONES void run(SgdKind kind, SgdCoefficients<type> c, SgdBuffers<type> buffers, size_t count) { \
    kind.decay ? choose<true>(kind, c, buffers, count) : choose<false>(kind, c, buffers, count);        \
  }
DSGD_SGD(float)
DSGD_SGD(double)
#undef DSGD_SGD

class Sgd final : public Optimizer {
 public:
  Status configure(Options& options) {
    constexpr double kLargest = std::numeric_limits<double>::max();
    options.number("lr", &learning_rate_, 0, kLargest);
    options.number("momentum", &momentum_, 0, kLargest);
    options.number("dampening", &dampening_, 0, 1);
    options.flag("nesterov", &nesterov_);
    options.number("weight_decay", &weight_decay_, 0, kLargest);
    Status status = options.finish();
    if (status.ok() && nesterov_ && (momentum_ == 0 || dampening_ != 0))
      return Status(
                 Code::kInvalidArgument,
                 "optimizer 'sgd': nesterov=1 needs a momentum above 0 and no dampening, but momentum is " +
                     number_text(momentum_) + " and dampening is " + number_text(dampening_))
          .with_parameter("nesterov");
    return status;
  }

  std::string describe() const override {
    return "sgd lr=" + number_text(learning_rate_) + " momentum=" + number_text(momentum_) +
           " dampening=" + number_text(dampening_) + " nesterov=" + (nesterov_ ? "1" : "0") +
           " weight_decay=" + number_text(weight_decay_);
  }
  int state_count() const override { return momentum_ != 0 ? 1 : 0; }

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
    const Momentum momentum = momentum_ == 0   ? Momentum::kNone
                              : a.updates == 0 ? Momentum::kFirst
                                               : Momentum::kRunning;
    const SgdCoefficients<T> coefficients{static_cast<T>(-learning_rate_ * a.settings.rate),
                                          static_cast<T>(decay), static_cast<T>(momentum_),
                                          static_cast<T>(1 - dampening_)};
    const bool buffered = momentum != Momentum::kNone;
    const SgdBuffers<T> buffers{static_cast<const T*>(a.gradient), static_cast<const T*>(a.value_in),
                                buffered ? static_cast<const T*>(a.state_in[0]) : nullptr,
                                static_cast<T*>(a.value_out),
                                buffered ? static_cast<T*>(a.state_out[0]) : nullptr};
    run({decay != 0, momentum, nesterov_}, coefficients, buffers, a.count);
  }

  double momentum_ = 0, dampening_ = 0, weight_decay_ = 0;
  bool nesterov_ = false;
};

}  // namespace

Result<std::unique_ptr<Optimizer>> make_sgd(Options options) {
  auto optimizer = std::make_unique<Sgd>();
  if (Status status = optimizer->configure(options); !status.ok()) return status;
  return std::unique_ptr<Optimizer>(std::move(optimizer));
}

}  // namespace dsgd
