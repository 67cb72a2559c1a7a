/* samples/c/digits.c as functions. Tensors come in the order of the trainers: hidden weight and bias, output
 * weight and bias. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void reference_read(const char* path);
int reference_images(int of_test);
void reference_initialise(float* const* value, unsigned seed);
/* The mean gradient of a batch, into `gradient`; returns the sum of the losses. */
double reference_backward(float* const* value, float* const* gradient, const int64_t* rows, size_t count);
double reference_accuracy(float* const* value);

#ifdef __cplusplus
}
#endif
