// The update of one element, for every optimizer. Host and device code share it; it is compiled without
// contraction of products and sums (-ffp-contract=off, -fmad=false), so that unlike machines compute the same
// bits. The order of the operations is that of PyTorch's single-tensor implementations.
#pragma once

#include <cmath>

#if defined(__CUDACC__)
#define DSGD_ELEMENT __host__ __device__ __forceinline__
#else
#define DSGD_ELEMENT __attribute__((always_inline)) inline
#endif

#if defined(__cpp_impl_three_way_comparison)
#define DSGD_COMPARABLE(type) bool operator==(const type&) const = default;
#else
#define DSGD_COMPARABLE(type)  // nvcc compiles an older C++, and compares nothing
#endif

namespace dsgd::update {

// Coefficients of one step, rounded to the element's type.
template <typename T>
struct SgdCoefficients {
  T minus_rate;     // -lr
  T decay;          // weight decay
  T momentum;       // mu
  T gradient_part;  // 1 - dampening
  DSGD_COMPARABLE(SgdCoefficients)
};

// kFirst: the buffer is not set yet, it becomes the gradient.
enum class Momentum { kNone, kFirst, kRunning };

// v -= lr * d with d = g + decay * v, averaged in the momentum buffer b (Sutskever et al. 2013, in PyTorch's
// form, where the rate stays outside of the buffer). `buffer` is not touched without momentum.
template <bool kDecay, Momentum kMomentum, bool kNesterov, typename T>
DSGD_ELEMENT T sgd(const SgdCoefficients<T>& c, T gradient, T value, T buffer_in, T* buffer_out) {
  T direction = gradient;
  if constexpr (kDecay) direction = direction + c.decay * value;
  if constexpr (kMomentum != Momentum::kNone) {
    T buffer = direction;
    if constexpr (kMomentum == Momentum::kRunning)
      buffer = buffer_in * c.momentum + c.gradient_part * direction;
    *buffer_out = buffer;
    direction = kNesterov ? direction + c.momentum * buffer : buffer;
  }
  return value + c.minus_rate * direction;
}

template <typename T>
struct AdamCoefficients {
  T minus_step;          // -lr / (1 - beta1^t)
  T decay;               // weight decay, coupled
  T keep;                // 1 - lr * weight decay, decoupled
  T mean_part;           // 1 - beta1
  T mean_keep;           // 1 - mean_part, of the rounded one
  bool mean_part_small;  // mean_part < 1/2: which of two equal forms of the average loses fewer bits
  T square_keep;         // beta2
  T square_part;         // 1 - beta2
  T correction;          // sqrt(1 - beta2^t)
  T epsilon;
  DSGD_COMPARABLE(AdamCoefficients)
};

enum class Decay { kNone, kCoupled, kDecoupled };  // kDecoupled: AdamW (Loshchilov & Hutter 2019)

// v -= step * m / (sqrt(s) / correction + epsilon), with m and s the running averages of gradient and square
// (Kingma & Ba 2015); with kAmsGrad the largest s so far (Reddi et al. 2018). m, s and largest are updated in
// place.
template <Decay kDecay, bool kAmsGrad, typename T>
DSGD_ELEMENT T adam(const AdamCoefficients<T>& c, T gradient, T value, T* mean, T* square, T* largest) {
  using std::sqrt;
  if constexpr (kDecay == Decay::kDecoupled) value = value * c.keep;
  if constexpr (kDecay == Decay::kCoupled) gradient = gradient + c.decay * value;
  const T change = gradient - *mean;
  *mean = c.mean_part_small ? *mean + c.mean_part * change : gradient - change * c.mean_keep;
  *square = *square * c.square_keep + c.square_part * gradient * gradient;
  T scale = *square;
  if constexpr (kAmsGrad) {
    // A NaN stays, whichever side it is on.
    if (!(*largest >= scale) && *largest == *largest) *largest = scale;
    scale = *largest;
  }
  const T denominator = sqrt(scale) / c.correction + c.epsilon;
  return value + c.minus_step * *mean / denominator;
}

}  // namespace dsgd::update
