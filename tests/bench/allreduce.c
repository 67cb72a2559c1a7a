/* Measures float32 sum all-reduce, in place. A worker of its own: `dsgd run -n 2 -- bench_allreduce` makes a
 * job of it, and rank 0 prints one line of CSV per size. README.md says what is measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"

static const char kHelp[] =
    "bench_allreduce [--sizes 1K,64K,1M,16M,100M] [--rounds N]\n"
    "\n"
    "Measures dsgd_allreduce of float32 sums in place, in a job that the environment names (`dsgd run`), and "
    "checks every\n"
    "result. Rank 0 prints CSV: workers,bytes,algorithm,median_us,p10_us,p90_us,busbw_GBps.\n"
    "  --sizes   bytes per worker; K, M, G are powers of 1024\n"
    "  --rounds  timed operations per size; by default 5 (100M) to 200 (1M and less)";

/* Fills times[0..rounds) with this worker's microseconds from call to return. */
static void measure(dsgd_session* session, float* data, size_t bytes, size_t rounds, double* times) {
  enum { kWarmUp = 2 };
  const size_t count = bytes / sizeof *data;
  const int rank = dsgd_rank(session), workers = dsgd_size(session);
  dsgd_error* error = NULL;
  for (size_t round = 0; round < kWarmUp + rounds; ++round) {
    write_addends(data, count, rank, round);
    check(dsgd_barrier(session, NULL, NULL, NULL, &error), &error);
    const double began = now_us();
    check(dsgd_allreduce(session, NULL, data, data, bytes, DSGD_FLOAT32, DSGD_SUM, NULL, NULL, &error),
          &error);
    if (round >= kWarmUp) times[round - kWarmUp] = now_us() - began;
    check_sums(data, count, workers, round);
  }
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--help") == 0) return puts(kHelp) < 0;
  static const char* const kOptions[] = {"--sizes", "--rounds", NULL};
  check_options(argc, argv, kOptions);
  size_t sizes[kMaxSizes];
  const size_t size_count = parse_sizes(option(argc, argv, "--sizes", "1K,64K,1M,16M,100M"), sizes);
  const size_t rounds_asked = (size_t)count_option(argc, argv, "--rounds");

  dsgd_error* error = NULL;
  dsgd_config* config = dsgd_config_new();
  if (!config) die("out of memory");
  dsgd_session* session;
  check(dsgd_init(config, &session, &error), &error);
  const int workers = dsgd_size(session), rank = dsgd_rank(session);
  if (rank == 0) puts(kAllreduceColumns);

  for (size_t s = 0; s < size_count; ++s) {
    const size_t bytes = sizes[s], rounds = rounds_asked ? rounds_asked : default_rounds(bytes);
    float* data = malloc(bytes);
    double* times = malloc(rounds * sizeof *times);
    if (!data || !times) die("out of memory for %zu bytes", bytes);
    measure(session, data, bytes, rounds, times);
    /* An operation takes as long as its slowest worker. */
    check(dsgd_allreduce(session, NULL, times, times, rounds * sizeof *times, DSGD_FLOAT64, DSGD_MAX, NULL,
                         NULL, &error),
          &error);
    if (rank == 0) print_allreduce(workers, bytes, dsgd_config_value(config, "algorithm"), times, rounds);
    free(times);
    free(data);
  }
  dsgd_finalize(session);
  dsgd_config_free(config);
  return 0;
}
