// Exact sums of numbers >= 0. A number is written as integer digits; digits of several numbers are added in
// any order, by any collective, and converted back once. The result is the exact sum rounded to the nearest
// double.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/dtype.h"

namespace dsgd {

// Bits of a digit of one number. A sum of 2^31 such digits fits an int64, one of 128 an int32.
inline constexpr int kDigitBits = 24;

// Contribution weights: digit k counts units of 2^(24 k - 136).
inline constexpr size_t kWeightDigits = 8;
using WeightDigits = std::array<int64_t, kWeightDigits>;
// Weights in [kWeightLeast, kWeightLimit) keep all their bits as digits. A worker's weight is 1e-12 to 1e12,
// divided among at most 1024 replicas.
inline constexpr double kWeightLeast = 0x1p-83, kWeightLimit = 0x1p56;

// Adds a weight that is 0 or in [kWeightLeast, kWeightLimit).
void add_weight(WeightDigits& sum, double weight);
double weight_of(const WeightDigits& sum);

// Sums of squares: digit k counts units of 2^(24 k - 1074), which holds every double. The last digit counts
// infinities and NaNs.
inline constexpr size_t kSquareDigits = 92;
using SquareDigits = std::array<int64_t, kSquareDigits>;

// Adds the squares of float32 or float64 elements, summed in double 16 at a time. Where an array is cut at
// multiples of 16 elements, the parts in any order give the digits of the whole.
void add_squares(SquareDigits& sum, DType dtype, const void* data, size_t count);
double squares_of(const SquareDigits& sum);

}  // namespace dsgd
