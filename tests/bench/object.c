/* Measures dsgd_object_put. A worker; `dsgd run -n 4 -- bench_object` runs a job of four, and rank 0 prints
 * one line of CSV per size. README.md says what is measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"

static const char kHelp[] =
    "bench_object [--sizes 1K,64K,1M,16M,64M] [--rounds N] [--putter RANK]\n"
    "\n"
    "Measures dsgd_object_put, from call to return, in a job that the environment names (`dsgd run`).\n"
    "Checks every object on every worker. Rank 0 prints CSV:\n"
    "workers,bytes,putter,median_us,p10_us,p90_us,delivered_GBps. delivered_GBps is the number of bytes\n"
    "that all other workers received, divided by the time.\n"
    "  --sizes   bytes of the object; K, M, G are powers of 1024\n"
    "  --rounds  timed puts per size; by default 5 (64M) to 200 (1M and less)\n"
    "  --putter  the rank that puts the object (default 0)";

/* Fills times[0..rounds) with the microseconds of each put; zeros on workers that put nothing. */
static void measure(dsgd_session* session, int is_putter, unsigned char* data, size_t bytes, size_t rounds,
                    double* times) {
  enum { kWarmUp = 2 };
  dsgd_error* error = NULL;
  for (size_t round = 0; round < kWarmUp + rounds; ++round) {
    memset(data, (int)(round % 251) + 1, bytes);
    check(dsgd_barrier(session, NULL, NULL, NULL, &error), &error);
    const double began = now_us();
    if (is_putter) check(dsgd_object_put(session, "x", data, bytes, -1, NULL, 0, NULL, NULL, &error), &error);
    if (round >= kWarmUp) times[round - kWarmUp] = is_putter ? now_us() - began : 0;
    dsgd_object* object;
    check(dsgd_object_get(session, "x", NULL, &object, NULL, &error), &error);
    if (dsgd_object_nbytes(object) != bytes || memcmp(dsgd_object_data(object), data, bytes) != 0)
      die("wrong object");
    dsgd_object_free(object);
    check(dsgd_barrier(session, NULL, NULL, NULL, &error), &error);
    if (is_putter) check(dsgd_object_delete(session, "x", NULL, NULL, &error), &error);
  }
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--help") == 0) return puts(kHelp) < 0;
  static const char* const kOptions[] = {"--sizes", "--rounds", "--putter", NULL};
  check_options(argc, argv, kOptions);
  size_t sizes[kMaxSizes];
  const size_t size_count = parse_sizes(option(argc, argv, "--sizes", "1K,64K,1M,16M,64M"), sizes);
  const size_t rounds_asked = (size_t)count_option(argc, argv, "--rounds");
  const int putter = (int)count_option(argc, argv, "--putter");

  dsgd_error* error = NULL;
  dsgd_session* session;
  check(dsgd_init(NULL, &session, &error), &error);
  const int workers = dsgd_size(session), rank = dsgd_rank(session);
  if (putter >= workers) die("--putter %d: there are %d workers", putter, workers);
  if (rank == 0) puts("workers,bytes,putter,median_us,p10_us,p90_us,delivered_GBps");

  for (size_t s = 0; s < size_count; ++s) {
    const size_t bytes = sizes[s], rounds = rounds_asked ? rounds_asked : default_rounds(bytes);
    unsigned char* data = malloc(bytes);
    double* times = malloc(rounds * sizeof *times);
    if (!data || !times) die("out of memory for %zu bytes", bytes);
    measure(session, rank == putter, data, bytes, rounds, times);
    check(dsgd_allreduce(session, NULL, times, times, rounds * sizeof *times, DSGD_FLOAT64, DSGD_MAX, NULL,
                         NULL, &error),
          &error);
    if (rank == 0) {
      const double median = percentile(times, rounds, 50);
      printf("%d,%zu,%d,%.2f,%.2f,%.2f,%.4f\n", workers, bytes, putter, median, percentile(times, rounds, 10),
             percentile(times, rounds, 90), (double)bytes * (workers - 1) / median * 1e-3);
      fflush(stdout);
    }
    free(times);
    free(data);
  }
  dsgd_finalize(session);
  return 0;
}
