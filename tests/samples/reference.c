/* The C trainer's own functions, for comparison. */
#define main digits_main
#include "samples/c/digits.c"
#undef main

#include "tests/samples/reference.h"

void reference_read(const char* path) { read_data(path); }
int reference_images(int of_test) { return of_test ? test.rows : train.rows; }

static Tensors tensors(float* const* of) {
  const Tensors all = {of[0], of[1], of[2], of[3]};
  return all;
}
void reference_initialise(float* const* value, unsigned seed) {
  Tensors values = tensors(value);
  initialise(&values, seed);
}
double reference_backward(float* const* value, float* const* gradient, const int64_t* rows, size_t count) {
  const Tensors values = tensors(value);
  Tensors gradients = tensors(gradient);
  return backward(&values, &gradients, rows, count);
}
double reference_accuracy(float* const* value) {
  const Tensors values = tensors(value);
  return test_accuracy(&values);
}
