// Element loops of reductions, on host memory. Plain loops that the compiler vectorises, with a portable
// baseline and an AVX2/AVX-512 clone picked at load time (target_clones), compiled with -ffp-contract=off:
// every clone gives the same bits. Buffers are aligned to the element; pointers given as source and
// destination do not overlap unless equal.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"

namespace dsgd {

// Half types are widened first: of all functions here, only those that say so take them.

// destination[i] = destination[i] (op) source[i]. kMean adds (the division comes at the end); the
// smaller or larger of a NaN and a number is the NaN; integers wrap around.
void reduce_into(DType dtype, Reduction reduction, void* destination, const void* source, size_t count);
// The same bits whichever of the two is which: sums and products that are NaN are the one quiet NaN, and of
// zeros of both signs the smaller is the negative one. For algorithms in which one worker computes a (op) b
// and another b (op) a.
void reduce_symmetric(DType dtype, Reduction reduction, void* destination, const void* source, size_t count);
// destination[i] = a[i] (op) b[i]
void reduce_to(DType dtype, Reduction reduction, void* destination, const void* a, const void* b,
               size_t count);
// destination[i] /= divisor, in the element's type. float32 and float64 only.
void divide(DType dtype, void* destination, size_t count, double divisor);

// destination[i] = c * source[i] (first) or destination[i] + c * source[i], with c rounded to the element's
// type and the product rounded before the sum. `dtype` is the source's; half types are added up in float32.
void weighted_set(DType dtype, void* destination, const void* source, size_t count, double c);
void weighted_add(DType dtype, void* destination, const void* source, size_t count, double c);

// Half types: to and from float32.
void widen(DType dtype, float* destination, const void* source, size_t count);
void narrow(DType dtype, void* destination, const float* source, size_t count);
// master[i] = followed(master[i], value[i]), of half.h; values are widened.
void follow(DType dtype, float* master, const float* value, size_t count);

// Sum of squares in double, element i in lane i mod 16, lanes added at the end: a fixed order (same bits
// everywhere) whose additions need not wait for each other.
double sum_of_squares(DType dtype, const void* data, size_t count);

}  // namespace dsgd
