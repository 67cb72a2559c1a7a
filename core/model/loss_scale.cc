#include "core/model/loss_scale.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

namespace dsgd {

void LossScale::configure(std::string text) {
  text_ = std::move(text);
  int64_t number = 1;
  std::from_chars(text_.data(), text_.data() + text_.size(), number);
  factor_ = dynamic() ? kFirst : static_cast<double>(number);
}

void LossScale::restore(double factor, int age) {
  if (!dynamic()) return;
  factor_ = std::clamp(factor, kLeast, kLargest);
  since_ = std::clamp(age, 0, kInterval - 1);
}

void LossScale::stepped(bool finite) {
  if (!dynamic()) return;
  if (!finite) {
    factor_ = std::max(factor() * kBackoff, kLeast);
    since_ = 0;
  } else if (++since_ == kInterval) {
    factor_ = std::min(factor() * kGrowth, kLargest);
    since_ = 0;
  }
}

}  // namespace dsgd
