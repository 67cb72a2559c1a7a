#include "core/optimizer/apply.h"

#include <cstring>

#include "core/reduce/clones.h"

namespace dsgd {
namespace {

using update::AdamCoefficients;
using update::Decay;
using update::Momentum;
using update::SgdCoefficients;

// ---- sgd

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
DSGD_INLINED void choose(const UpdateRule& rule, SgdBuffers<T> b, size_t count) {
  const SgdCoefficients<T> c = rule.as<T>().sgd;
  if (rule.momentum == Momentum::kNone)
    loop<kDecay, Momentum::kNone, false>(c, b, count);
  else if (rule.momentum == Momentum::kFirst && rule.nesterov)
    loop<kDecay, Momentum::kFirst, true>(c, b, count);
  else if (rule.momentum == Momentum::kFirst)
    loop<kDecay, Momentum::kFirst, false>(c, b, count);
  else if (rule.nesterov)
    loop<kDecay, Momentum::kRunning, true>(c, b, count);
  else
    loop<kDecay, Momentum::kRunning, false>(c, b, count);
}

// ---- adam, adamw

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
DSGD_INLINED void choose(const UpdateRule& rule, AdamBuffers<T> b, size_t count) {
  const AdamCoefficients<T> c = rule.as<T>().adam;
  switch (rule.adam_decay) {
    case Decay::kNone:
      return loop<Decay::kNone, kAmsGrad>(c, b, count);
    case Decay::kCoupled:
      return loop<Decay::kCoupled, kAmsGrad>(c, b, count);
    case Decay::kDecoupled:
      return loop<Decay::kDecoupled, kAmsGrad>(c, b, count);
  }
}

#define DSGD_RUN(type)                                                                         \
  DSGD_CLONES void run(const UpdateRule& rule, SgdBuffers<type> buffers, size_t count) {       \
    rule.sgd_decay ? choose<true>(rule, buffers, count) : choose<false>(rule, buffers, count); \
  }                                                                                            \
  DSGD_CLONES void run(const UpdateRule& rule, AdamBuffers<type> buffers, size_t count) {      \
    rule.amsgrad ? choose<true>(rule, buffers, count) : choose<false>(rule, buffers, count);   \
  }
DSGD_RUN(float)
DSGD_RUN(double)
#undef DSGD_RUN

void copy(void* to, const void* from, size_t nbytes) {
  if (to != from && nbytes > 0) std::memcpy(to, from, nbytes);
}

template <typename T>
void apply_as(const UpdateRule& rule, size_t count, const void* gradient, const void* value_in,
              void* value_out, std::span<const void* const> state_in, std::span<void* const> state_out) {
  const auto in = [&](size_t i) {
    return i < rule.state_count ? static_cast<const T*>(state_in[i]) : nullptr;
  };
  const auto out = [&](size_t i) { return i < rule.state_count ? static_cast<T*>(state_out[i]) : nullptr; };
  const T *mean = static_cast<const T*>(gradient), *value = static_cast<const T*>(value_in);
  T* result = static_cast<T*>(value_out);
  switch (rule.kind) {
    case UpdateRule::Kind::kSgd:
      return run(rule, SgdBuffers<T>{mean, value, in(0), result, out(0)}, count);
    case UpdateRule::Kind::kAdam:
      return run(rule, AdamBuffers<T>{mean, value, in(0), in(1), in(2), result, out(0), out(1), out(2)},
                 count);
    case UpdateRule::Kind::kKeep:
      copy(value_out, value_in, count * sizeof(T));
      for (size_t i = 0; i < state_in.size(); ++i) copy(state_out[i], state_in[i], count * sizeof(T));
  }
}

}  // namespace

void apply(const UpdateRule& rule, DType dtype, size_t count, const void* gradient, const void* value_in,
           void* value_out, std::span<const void* const> state_in, std::span<void* const> state_out) {
  dtype == DType::kFloat32
      ? apply_as<float>(rule, count, gradient, value_in, value_out, state_in, state_out)
      : apply_as<double>(rule, count, gradient, value_in, value_out, state_in, state_out);
}

}  // namespace dsgd
