#include "core/reduce/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/reduce/kernels.h"

namespace dsgd {
namespace {

constexpr int64_t kDigit = int64_t{1} << kDigitBits;
constexpr int kLowestWeight = -136, kLowestSquare = -1074;
constexpr int64_t kNan = int64_t{1} << 32;  // in the last digit of squares, beside the number of infinities

// Adds a finite number >= 0 to digits of units 2^lowest, 2^(lowest + 24), ... The digits must hold all its
// bits.
void add(int64_t* digits, int lowest, double number) {
  const uint64_t bits = std::bit_cast<uint64_t>(number);
  const int exponent = static_cast<int>(bits >> 52);
  const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | (exponent > 0 ? uint64_t{1} << 52 : 0);
  if (mantissa == 0) return;
  const int position = std::max(exponent, 1) - 1075 - lowest;  // of the mantissa's lowest bit
  const int shift = position % kDigitBits;
  digits += position / kDigitBits;
  const uint64_t low = (mantissa % kDigit) << shift;
  const uint64_t rest = (low >> kDigitBits) + ((mantissa >> kDigitBits) << shift);
  digits[0] += static_cast<int64_t>(low % kDigit);
  digits[1] += static_cast<int64_t>(rest % kDigit);
  if (const uint64_t high = rest >> kDigitBits; high > 0) {
    digits[2] += static_cast<int64_t>(high % kDigit);
    if (high >= kDigit) digits[3] += static_cast<int64_t>(high / kDigit);
  }
}

double rounded(std::span<const int64_t> sum, int lowest) {
  std::array<int64_t, kSquareDigits + 2> digits{};  // below 2^24 each, once carried
  const size_t count = sum.size() + 2;
  int64_t carry = 0;
  for (size_t k = 0; k < count; ++k) {
    carry += k < sum.size() ? sum[k] : 0;
    digits[k] = carry % kDigit;
    carry /= kDigit;
  }
  size_t top = count - 1;
  while (top > 3 && digits[top] == 0) --top;
  // Two digits each are exact in a double; what is below the four only decides ties.
  const double high = static_cast<double>(digits[top] * kDigit + digits[top - 1]);
  int64_t low = digits[top - 2] * kDigit + digits[top - 3];
  for (size_t k = 0; k + 3 < top; ++k) low |= digits[k] != 0;
  const double mantissa = std::ldexp(high, 2 * kDigitBits) + static_cast<double>(low);
  return std::ldexp(mantissa, lowest + kDigitBits * static_cast<int>(top - 3));
}

}  // namespace

void add_weight(WeightDigits& sum, double weight) { add(sum.data(), kLowestWeight, weight); }
double weight_of(const WeightDigits& sum) { return rounded(sum, kLowestWeight); }

void add_squares(SquareDigits& sum, DType dtype, const void* data, size_t count) {
  constexpr size_t kGroup = 16;
  for (size_t begin = 0; begin < count; begin += kGroup) {
    const void* group = static_cast<const std::byte*>(data) + begin * dtype_size(dtype);
    const double squares = sum_of_squares(dtype, group, std::min(kGroup, count - begin));
    if (std::isfinite(squares)) {
      add(sum.data(), kLowestSquare, squares);
    } else {
      sum.back() += std::isnan(squares) ? kNan : 1;
    }
  }
}

double squares_of(const SquareDigits& sum) {
  if (sum.back() >= kNan) return std::numeric_limits<double>::quiet_NaN();
  if (sum.back() > 0) return std::numeric_limits<double>::infinity();
  return rounded(std::span(sum).first(kSquareDigits - 1), kLowestSquare);
}

}  // namespace dsgd
