// An optimizer's update of one parameter in one step, as plain data: made once per step on the host, used by
// any device. It has the coefficients in both element types, each rounded once.
#pragma once

#include <cstdint>

#include "core/optimizer/update.h"

namespace dsgd {

struct UpdateRule {
  enum class Kind : uint8_t { kKeep, kSgd, kAdam };  // kKeep: values and state stay
  Kind kind = Kind::kKeep;
  uint8_t state_count = 0;
  // sgd
  bool sgd_decay = false, nesterov = false;
  update::Momentum momentum = update::Momentum::kNone;
  // adam, adamw
  bool amsgrad = false;
  update::Decay adam_decay = update::Decay::kNone;

  template <typename T>
  struct Coefficients {
    update::SgdCoefficients<T> sgd{};
    update::AdamCoefficients<T> adam{};
    DSGD_COMPARABLE(Coefficients)
  };
  Coefficients<float> float32;
  Coefficients<double> float64;
  template <typename T>
  const Coefficients<T>& as() const;
  DSGD_COMPARABLE(UpdateRule)
};
template <>
inline const UpdateRule::Coefficients<float>& UpdateRule::as<float>() const {
  return float32;
}
template <>
inline const UpdateRule::Coefficients<double>& UpdateRule::as<double>() const {
  return float64;
}

}  // namespace dsgd
