/* Shared by the C programs here: a clock, percentiles, lists of sizes, and the end of a program that failed.
 */
#ifndef DSGD_BENCH_TIMING_H_
#define DSGD_BENCH_TIMING_H_

#include <stddef.h>

#include <dsgd/dsgd.h>

enum { kMaxSizes = 32 };

/* Microseconds of a monotonic clock. */
double now_us(void);

/* Sorts `times` and returns the element below which `percent` of them lie (nearest rank). */
double percentile(double* times, size_t count, int percent);

/* Value of "--name VALUE" among the arguments, else `otherwise`. */
const char* option(int argc, char** argv, const char* name, const char* otherwise);

/* Ends the program unless every argument is one of `names` (a NULL-terminated list of options), each followed
 * by its value. */
void check_options(int argc, char** argv, const char* const* names);

/* Value of an option that counts something: a number from 1 to 1e9, else the program ends. 0 if the option is
 * not given. */
long count_option(int argc, char** argv, const char* name);

/* Reads "1K,64K,1M" (bytes; K, M, G are powers of 1024; positive multiples of 4) into `sizes`; returns their
 * number. */
size_t parse_sizes(const char* text, size_t sizes[kMaxSizes]);

/* Timed operations for a size, if no number is asked for: 200 for what is short, 5 for what is long. */
size_t default_rounds(size_t bytes);

/* Input of an all-reduce, and the check of its sum: small whole numbers, so that sums are exact in any order;
 * other ones in every round, so that no old result passes. */
void write_addends(float* data, size_t count, int rank, size_t round);
void check_sums(const float* data, size_t count, int workers, size_t round);

/* Prints the row of `kAllreduceColumns` for `count` timed operations. Sorts `times`. */
extern const char kAllreduceColumns[];
void print_allreduce(int workers, size_t bytes, const char* algorithm, double* times, size_t count);

/* Ends the program with a message on stderr. */
void die(const char* format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Ends the program with the error's message unless `status` is DSGD_OK. Takes the error's address, since
 * arguments are evaluated in any order and the call among them sets it. */
void check(int32_t status, dsgd_error** error);

#endif /* DSGD_BENCH_TIMING_H_ */
