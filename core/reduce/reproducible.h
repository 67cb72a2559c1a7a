// Sums whose bits do not depend on the order of addition, nor on how replicas are split over workers: per
// block of kBlock elements all replicas agree on the largest exponent of c*g, every product becomes a 64-bit
// integer in units of that block, integers are added in any order, and the sum is converted back once. (Same
// idea as reproducible summation by pre-rounding: Demmel & Nguyen 2013; Ahrens, Demmel & Nguyen 2020.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/dtype.h"

namespace dsgd::reproducible {

inline constexpr size_t kBlock = 4096;
inline constexpr size_t block_count(size_t elements) { return (elements + kBlock - 1) / kBlock; }

// Exponent of a block: smallest e with |c*g| < 2^e for all elements. kZero: all are zero. kNotFinite: some
// NaN or infinity; the whole block's result is NaN. The maximum over replicas is what all agree on, so the
// order matters: kZero < any exponent < kNotFinite.
using Exponent = int32_t;
inline constexpr Exponent kZero = -1000000;
inline constexpr Exponent kNotFinite = 1000000;

// exponents[b] = max(exponents[b], exponent of block b of c * gradient). The product is made in double.
void raise_exponents(DType dtype, const void* gradient, size_t count, double c,
                     std::span<Exponent> exponents);
// sums[i] += round_to_nearest_even(c * gradient[i] * 2^shift) with shift such that `replicas` (1 .. 65536)
// products of the block's largest magnitude cannot overflow int64. Blocks that are kNotFinite or kZero add 0.
void accumulate(DType dtype, const void* gradient, size_t count, double c,
                std::span<const Exponent> exponents, uint32_t replicas, int64_t* sums);
// mean[i] = sums[i] * 2^-shift / weight, rounded once to the element's type (divided in double); NaN where
// the block is kNotFinite.
// float32 and float64 only; the others take half types, too.
void to_mean(DType dtype, const int64_t* sums, size_t count, std::span<const Exponent> exponents,
             uint32_t replicas, double weight, void* mean);

}  // namespace dsgd::reproducible
