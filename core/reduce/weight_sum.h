// Exact sums of weights. A weight is written as integer digits; digits of several weights are added in any order, by any
// collective, and converted back once. The result is the exact sum rounded to the nearest double.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dsgd {

// Digit k counts units of 2^(24 k - 136). A digit of one weight is below 2^24, so that 128 of them fit an int32.
inline constexpr size_t kWeightDigits = 8;
using WeightDigits = std::array<int64_t, kWeightDigits>;

// Weights that are replicas' parts of an allowed weight (1e-12 / 1024 to 1e12) have all their bits here.
inline constexpr double kWeightLimit = 0x1p56;

// Adds a weight in [0, kWeightLimit).
void add_weight(WeightDigits& sum, double weight);
double weight_of(const WeightDigits& sum);

}  // namespace dsgd
