#include "timing.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

double percentile(double* times, size_t count, int percent) {
  qsort(times, count, sizeof *times, ascending);
  const size_t rank = (count * (size_t)percent + 99) / 100;
  return times[rank > 0 ? rank - 1 : 0];
}

const char* option(int argc, char** argv, const char* name, const char* otherwise) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  return otherwise;
}

void check_options(int argc, char** argv, const char* const* names) {
  for (int i = 1; i < argc; i += 2) {
    const char* const* name = names;
    while (*name && strcmp(argv[i], *name) != 0) ++name;
    if (!*name) die("unknown option '%s'; see --help", argv[i]);
    if (i + 1 == argc) die("%s needs a value; see --help", argv[i]);
  }
}

long count_option(int argc, char** argv, const char* name) {
  const char* text = option(argc, argv, name, NULL);
  if (!text) return 0;
  char* end;
  errno = 0;
  const long count = strtol(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || count < 1 || count > 1000000000) {
    die("%s '%s' is not a number from 1 to 1000000000", name, text);
  }
  return count;
}

size_t parse_sizes(const char* text, size_t sizes[kMaxSizes]) {
  static const char kUnits[] = "KMG";
  size_t count = 0;
  for (const char* at = text;; ++at) {
    char* end;
    errno = 0;
    unsigned long long size = strtoull(at, &end, 10);
    if (errno != 0 || end == at || *at == '-') die("--sizes '%s' is not a list like 1K,64K,1M", text);
    at = end;
    const char* unit = *at != '\0' ? strchr(kUnits, *at) : NULL;
    const unsigned shift = unit ? 10 * (unsigned)(unit - kUnits + 1) : 0;
    if (size > (1ULL << 40) >> shift) die("--sizes '%s': a size over 1024G", text);
    size <<= shift;
    if (unit) ++at;
    if (*at != '\0' && *at != ',') die("--sizes '%s' is not a list like 1K,64K,1M", text);
    if (size == 0 || size % sizeof(float) != 0)
      die("--sizes '%s': a size is not a positive multiple of 4 bytes", text);
    if (count == kMaxSizes) die("--sizes '%s': more than %d sizes", text, kMaxSizes);
    sizes[count++] = (size_t)size;
    if (*at == '\0') return count;
  }
}

size_t default_rounds(size_t bytes) {
  const size_t rounds = ((size_t)256 << 20) / bytes;
  return rounds < 5 ? 5 : rounds > 200 ? 200 : rounds;
}

void die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("bench: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

void check(int32_t status, dsgd_error** error) {
  if (status != DSGD_OK) die("%s: %s", dsgd_status_name(status), dsgd_error_message(*error));
}

enum { kPeriod = 13 };

void write_addends(float* data, size_t count, int rank, size_t round) {
  unsigned phase = (unsigned)(round % kPeriod);
  for (size_t i = 0; i < count; ++i) {
    data[i] = (float)((unsigned)rank + 1 + phase);
    if (++phase == kPeriod) phase = 0;
  }
}

void check_sums(const float* data, size_t count, int workers, size_t round) {
  const unsigned base = (unsigned)workers * ((unsigned)workers + 1) / 2;
  unsigned phase = (unsigned)(round % kPeriod);
  for (size_t i = 0; i < count; ++i) {
    const float expected = (float)(base + (unsigned)workers * phase);
    if (data[i] != expected) {
      die("wrong result: element %zu of %zu is %g instead of %g", i, count, (double)data[i],
          (double)expected);
    }
    if (++phase == kPeriod) phase = 0;
  }
}

const char kAllreduceColumns[] = "workers,bytes,algorithm,median_us,p10_us,p90_us,busbw_GBps";

void print_allreduce(int workers, size_t bytes, const char* algorithm, double* times, size_t count) {
  const double median = percentile(times, count, 50);
  printf("%d,%zu,%s,%.2f,%.2f,%.2f,%.4f\n", workers, bytes, algorithm, median, percentile(times, count, 10),
         percentile(times, count, 90), (double)bytes * 2.0 * (workers - 1) / workers / median * 1e-3);
  fflush(stdout);
}
