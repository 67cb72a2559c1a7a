// Sums whose bits depend neither on the order of addition nor on how replicas are split over workers. For
// each element all replicas agree on the largest exponent of their products c*g; each product becomes an
// integer in units of that exponent; integers are added in any order; the sum is converted back once.
// (Pre-rounding as in Demmel and Nguyen, "Parallel Reproducible Summation", 2015, with an exponent per
// element instead of fixed bins.) README.md says why.
//
// Error: the sum of R products of an element differs from the exact one by at most
//   float32  2^-24 of its largest product for R <= 8 (32-bit sums),
//            R * 2^(h-62) of it above (64-bit sums)
//   float64  R * 2^(h-63) of it, which is 2^-53 for R = 32
// where 2^h is the smallest power of two >= R. The mean is rounded once more, to the element's type. Every
// product is rounded to double before.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"

namespace dsgd::reproducible {

// The types in which exponents and sums travel: uint8 or int32, and int32 or int64.
DType exponent_type(DType dtype);
DType sum_type(DType dtype, uint32_t replicas);

// exponents[i] = max(exponents[i], exponent of c * gradient[i]). Exponents begin as zero bytes. c is a weight
// in [kWeightLeast, kWeightLimit).
void raise_exponents(DType dtype, const void* gradient, size_t count, double c, void* exponents);
// sums[i] += c * gradient[i] in units of exponents[i], rounded to nearest even. Sums begin as zero.
// `replicas`, 1 to 65536, products cannot overflow.
void accumulate(DType dtype, const void* gradient, size_t count, double c, const void* exponents,
                uint32_t replicas, void* sums);
// mean[i] = sums[i] / weight, rounded to the element's type; NaN where a product was not finite. float32 and
// float64 only; the functions above take half types, too, whose means are float32.
void to_mean(DType dtype, const void* sums, size_t count, const void* exponents, uint32_t replicas,
             double weight, void* mean);

}  // namespace dsgd::reproducible
