/* Measures what checkpoints cost the steps beside which they are written. README.md says what is measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"

static const char kHelp[] =
    "bench_checkpoint --folder DIR [--steps N] [--elements N] [--interval N]\n"
    "\n"
    "Makes steps with adam in a job that the environment names: first without checkpoints, then with one\n"
    "after every --interval steps. Rank 0 prints CSV:\n"
    "workers,elements,interval,step_us,step_beside_us,save_us,share. save_us is the time until\n"
    "dsgd_checkpoint_save returns and the model may change again; share is its part of the training time.\n"
    "  --folder    for the checkpoints; it must not have any\n"
    "  --steps     timed steps (default 200)\n"
    "  --elements  of the one float32 parameter (default 4194304, 16 MiB)\n"
    "  --interval  steps between checkpoints (default 50)";

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--help") == 0) return puts(kHelp) < 0;
  static const char* const kOptions[] = {"--folder", "--steps", "--elements", "--interval", NULL};
  check_options(argc, argv, kOptions);
  const char* folder = option(argc, argv, "--folder", NULL);
  if (!folder) die("--folder is missing");
  const size_t asked = (size_t)count_option(argc, argv, "--steps"), steps = asked ? asked : 200;
  const size_t every = (size_t)count_option(argc, argv, "--interval"), interval = every ? every : 50;
  const long of_one = count_option(argc, argv, "--elements");
  const int64_t elements = of_one ? of_one : 4194304;

  dsgd_error* error = NULL;
  dsgd_session* session;
  dsgd_replica* replica;
  dsgd_parameter* parameter;
  void *value, *gradient;
  check(dsgd_init(NULL, &session, &error), &error);
  check(dsgd_replica_add(session, "cpu", &replica, &error), &error);
  check(dsgd_parameter_add(session, "w", DSGD_FLOAT32, &elements, 1, 0, &parameter, &error), &error);
  check(dsgd_alloc(replica, parameter, &value, &gradient, &error), &error);
  for (int64_t i = 0; i < elements; ++i) ((float*)gradient)[i] = 1.0f;
  check(dsgd_optimizer_set(session, "adam", "lr=0.001", &error), &error);
  check(dsgd_start(session, NULL, NULL, &error), &error);

  double step_us[2] = {0, 0}, save_us = 0;
  size_t saves = 0;
  for (int saving = 0; saving < 2; ++saving) {
    dsgd_op* op = NULL;
    for (size_t i = 0; i < steps; ++i) {
      const double began = now_us();
      check(dsgd_step(session, 1.0, NULL, &error), &error);
      step_us[saving] += now_us() - began;
      if (!saving || (i + 1) % interval != 0) continue;
      if (op)
        check(dsgd_op_wait(op, -1, &error), &error); /* it ended long ago, or the interval is too short */
      dsgd_op_free(op);
      const double saved = now_us();
      check(dsgd_checkpoint_save(session, folder, NULL, &op, &error), &error);
      save_us += now_us() - saved;
      ++saves;
    }
    if (op) check(dsgd_op_wait(op, -1, &error), &error);
    dsgd_op_free(op);
  }
  if (dsgd_rank(session) == 0) {
    puts("workers,elements,interval,step_us,step_beside_us,save_us,share");
    printf("%d,%lld,%zu,%.1f,%.1f,%.1f,%.4f\n", (int)dsgd_size(session), (long long)elements, interval,
           step_us[0] / (double)steps, step_us[1] / (double)steps, saves ? save_us / (double)saves : 0.0,
           save_us / (step_us[1] + save_us));
  }
  return dsgd_finalize(session);
}
