#include "core/reduce/weight_sum.h"

#include <cmath>

namespace dsgd {
namespace {

constexpr int kDigitBits = 24, kLowest = -136;
constexpr int64_t kDigit = int64_t{1} << kDigitBits;

}  // namespace

void add_weight(WeightDigits& sum, double weight) {
  for (size_t k = kWeightDigits; k-- > 0;) {
    const int unit = kLowest + kDigitBits * static_cast<int>(k);
    const double digit = std::floor(std::ldexp(weight, -unit));  // both steps are exact
    sum[k] += static_cast<int64_t>(digit);
    weight -= std::ldexp(digit, unit);
  }
}

double weight_of(const WeightDigits& sum) {
  std::array<int64_t, kWeightDigits + 2> digits{};  // below 2^24 each, once carried
  int64_t carry = 0;
  for (size_t k = 0; k < digits.size(); ++k) {
    carry += k < kWeightDigits ? sum[k] : 0;
    digits[k] = carry % kDigit;
    carry /= kDigit;
  }
  size_t top = digits.size() - 1;
  while (top > 3 && digits[top] == 0) --top;
  // Two digits each are exact in a double; what is below the four only decides ties.
  const double high = static_cast<double>(digits[top] * kDigit + digits[top - 1]);
  int64_t low = digits[top - 2] * kDigit + digits[top - 3];
  for (size_t k = 0; k + 3 < top; ++k) low |= digits[k] != 0;
  const double rounded = std::ldexp(high, 2 * kDigitBits) + static_cast<double>(low);
  return std::ldexp(rounded, kLowest + kDigitBits * static_cast<int>(top - 3));
}

}  // namespace dsgd
