/* Measures what a step costs besides the gradients: the model is that of the digits samples, and the
 * gradients are constant. README.md says what is measured; step.py, Step.java and go/step.go do the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"

static const char kHelp[] =
    "bench_step [--steps N] [--elements N]\n"
    "\n"
    "Measures dsgd_step on a model of four parameters (9610 floats) in a job that the environment names, and "
    "checks the\n"
    "values afterwards. Rank 0 prints CSV: language,workers,median_us,p10_us,p90_us.\n"
    "  --steps     timed steps (default 2000); as many go before them to warm up\n"
    "  --elements  one parameter of N elements instead of the four";

static struct {
  const char* name;
  int64_t shape[2];
  size_t ndim;
} tensors[] = {{"hidden.weight", {64, 128}, 2},
               {"hidden.bias", {128}, 1},
               {"output.weight", {128, 10}, 2},
               {"output.bias", {10}, 1}};
enum { kMaxTensors = sizeof tensors / sizeof tensors[0] };

static size_t elements(int tensor) {
  size_t count = 1;
  for (size_t d = 0; d < tensors[tensor].ndim; ++d) count *= (size_t)tensors[tensor].shape[d];
  return count;
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--help") == 0) return puts(kHelp) < 0;
  static const char* const kOptions[] = {"--steps", "--elements", NULL};
  check_options(argc, argv, kOptions);
  const size_t asked = (size_t)count_option(argc, argv, "--steps"), steps = asked ? asked : 2000;
  const long of_one = count_option(argc, argv, "--elements");
  const int tensor_count = of_one ? 1 : kMaxTensors;
  if (of_one) tensors[0].shape[0] = of_one, tensors[0].shape[1] = 1;

  dsgd_error* error = NULL;
  dsgd_session* session;
  dsgd_replica* replica;
  check(dsgd_init(NULL, &session, &error), &error);
  check(dsgd_replica_add(session, "cpu", &replica, &error), &error);
  float* values[kMaxTensors];
  for (int t = 0; t < tensor_count; ++t) {
    dsgd_parameter* parameter;
    void *value, *gradient;
    check(dsgd_parameter_add(session, tensors[t].name, DSGD_FLOAT32, tensors[t].shape, tensors[t].ndim, 0,
                             &parameter, &error),
          &error);
    check(dsgd_alloc(replica, parameter, &value, &gradient, &error), &error);
    for (size_t i = 0; i < elements(t); ++i) ((float*)gradient)[i] = 1.0f;
    values[t] = value;
  }
  /* A power of two: the values can be told exactly. */
  check(dsgd_optimizer_set(session, "sgd", "lr=0.0009765625", &error), &error);
  check(dsgd_start(session, NULL, NULL, &error), &error);

  double* times = malloc(2 * steps * sizeof *times);
  if (!times) die("out of memory for %zu steps", steps);
  for (size_t i = 0; i < 2 * steps; ++i) {
    const double began = now_us();
    check(dsgd_step(session, 1.0, NULL, &error), &error);
    times[i] = now_us() - began;
  }

  const float expected = -(float)(2 * steps) / 1024.0f;
  for (int t = 0; t < tensor_count; ++t) {
    for (size_t i = 0; i < elements(t); ++i) {
      if (values[t][i] != expected) {
        die("wrong value: element %zu of %s is %g instead of %g", i, tensors[t].name, (double)values[t][i],
            (double)expected);
      }
    }
  }
  if (dsgd_rank(session) == 0) {
    double* timed = times + steps;
    puts("language,workers,median_us,p10_us,p90_us");
    printf("c,%d,%.2f,%.2f,%.2f\n", (int)dsgd_size(session), percentile(timed, steps, 50),
           percentile(timed, steps, 10), percentile(timed, steps, 90));
  }
  free(times);
  dsgd_finalize(session);
  return 0;
}
