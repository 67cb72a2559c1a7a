// Element loops of reductions, on host memory. Plain loops that the compiler vectorises, with a portable
// baseline and an AVX2/AVX-512 clone picked at load time (target_clones), compiled with -ffp-contract=off:
// every clone gives the same bits. Buffers are aligned to the element; pointers given as source and
// destination do not overlap unless equal.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/non_finite.h"

namespace dsgd {

// Only functions that say so take half types. For the others the caller widens them first.

// destination[i] = destination[i] (op) source[i]. kMean adds (the division comes at the end); the
// smaller or larger of a NaN and a number is the NaN; integers wrap around.
void reduce_into(DType dtype, Reduction reduction, void* destination, const void* source, size_t count);
// As reduce_into, but a (op) b and b (op) a have the same bits: each NaN result of a sum or product is the
// quiet NaN, and -0 counts as less than +0. For algorithms in which one worker computes a (op) b and another
// b (op) a.
void reduce_symmetric(DType dtype, Reduction reduction, void* destination, const void* source, size_t count);
// destination[i] = a[i] (op) b[i]
void reduce_to(DType dtype, Reduction reduction, void* destination, const void* a, const void* b,
               size_t count);
// destination[i] /= divisor, in the element's type. float32 and float64 only.
void divide(DType dtype, void* destination, size_t count, double divisor);

// destination[i] = c * source[i] (first) or destination[i] + c * source[i], with c rounded to the element's
// type and the product rounded before the sum. `dtype` is the source's; half types are added up in float32.
// With `found`, elements of the source that are not finite count as zero and are added to it.
void weighted_set(DType dtype, void* destination, const void* source, size_t count, double c,
                  NonFinite* found = nullptr);
void weighted_add(DType dtype, void* destination, const void* source, size_t count, double c,
                  NonFinite* found = nullptr);

// Half types: to and from float32.
void widen(DType dtype, float* destination, const void* source, size_t count);
void narrow(DType dtype, void* destination, const float* source, size_t count);
// narrowed[i] = narrow(v), next[i] = v - narrowed[i], with v = source[i] + factor * residual[i]. The residual
// is the previous rounding error, so errors do not accumulate over steps. An error that is not finite becomes
// 0. `rounded`, if not null, gets narrowed[i] as float32; it may be `source`. The others do not overlap.
void narrow_with_residual(DType dtype, void* narrowed, const float* source, const float* residual,
                          float factor, float* next, float* rounded, size_t count);
// master[i] = current_master(master[i], value[i]), of half.h; values are widened.
void refresh_masters(DType dtype, float* master, const float* value, size_t count);

// Sum of squares in double, element i in lane i mod 16, lanes added at the end: a fixed order (same bits
// everywhere) whose additions need not wait for each other.
double sum_of_squares(DType dtype, const void* data, size_t count);

}  // namespace dsgd
