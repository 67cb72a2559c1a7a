/* A worker whose model says whose gradients each step has used: in step k its gradient is a power of two of
 * its own in element k. Writes "joined", then one line for each step:
 *
 *   step K VIEW SIZE WEIGHT CHANGE SECONDS     CHANGE: of element k; SECONDS: of the monotonic clock
 *
 * then "values " and the bytes of all values in hexadecimal, or "failed CODE MESSAGE". Exit status 0 in both
 * cases.
 *
 *   process_loss_worker NUMBER STEPS ELEMENTS MICROSECONDS [DEATH [SAMPLES]]
 *
 * A pause of so many microseconds comes before each step. Before step DEATH it kills itself. With SAMPLES it
 * draws two samples of a data shard for each step, and writes a line before it:
 *
 *   drew K INDEX INDEX
 *
 * After STEPS steps it draws many, and makes steps until no worker has any left. SIGTERM to one worker makes
 * all workers stop after the same step, before STEPS.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <dsgd/dsgd.h>

static int report(int32_t status, dsgd_error** error) {
  if (status == DSGD_OK) return 0;
  printf("failed %s %s\n", dsgd_status_name(status), dsgd_error_message(*error));
  dsgd_error_free(*error);
  *error = NULL;
  return 1;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static dsgd_session* session; /* for the signal handler */

static void stop(int number) {
  (void)number;
  dsgd_stop_request(session, NULL);
}

enum { kDrawn = 64 };
static dsgd_shard* shard; /* NULL without SAMPLES */

/* Writes the samples of epoch 0; returns their number, or -1. */
static int draw(int step, size_t most) {
  dsgd_error* error = NULL;
  int64_t indices[kDrawn];
  size_t count = 0;
  if (dsgd_shard_current_epoch(shard) == 0 &&
      report(dsgd_shard_next(shard, indices, most, &count, &error), &error))
    return -1;
  printf("drew %d", step);
  for (size_t i = 0; i < count; ++i) printf(" %d", (int)indices[i]);
  puts("");
  fflush(stdout);
  return (int)count;
}

static void train(int number, int steps, int64_t elements, useconds_t pause, int death, uint64_t samples) {
  dsgd_error* error = NULL;
  dsgd_parameter* parameter;
  dsgd_replica* replica;
  float *value, *gradient;
  dsgd_step_result result;
  if (report(dsgd_parameter_add(session, "p", DSGD_FLOAT32, &elements, 1, 0, &parameter, &error), &error) ||
      report(dsgd_replica_add(session, "cpu", &replica, &error), &error) ||
      report(dsgd_alloc(replica, parameter, (void**)&value, (void**)&gradient, &error), &error) ||
      report(dsgd_optimizer_set(session, "sgd", "lr=1 momentum=0.5", &error), &error) ||
      report(dsgd_start(session, NULL, NULL, &error), &error) ||
      (samples > 0 && report(dsgd_shard_new(session, samples, 7, 0, &shard, &error), &error)))
    return;
  dsgd_session_info info;
  dsgd_session_info_init(&info, sizeof info);
  if (report(dsgd_session_info_read(session, &info, &error), &error)) return;
  dsgd_step_result_init(&result, sizeof result);
  for (int k = (int)info.steps; /* from 0 on, or from where the job is that it has joined */
       (k < steps && !result.stop) || (shard && !result.all_done && k < elements); ++k) {
    int weight = 1;
    if (shard && k < steps && draw(k, 2) < 0) return;
    if (k >= steps) {
      const int count = draw(k, kDrawn);
      if (count < 0) return;
      weight = count > 0;
    }
    memset(gradient, 0, (size_t)elements * sizeof *gradient);
    gradient[k] = (float)(1 << number);
    const float before = value[k];
    usleep(pause);
    if (k == death) raise(SIGKILL);
    if (report(dsgd_step(session, weight, &result, &error), &error)) return;
    printf("step %d %d %d %g %.9g %.6f\n", k, (int)result.view, (int)result.size, result.weight,
           (double)(before - value[k]), now());
    fflush(stdout);
  }
  while (!result.all_done) {
    if (report(dsgd_step(session, 0, &result, &error), &error)) return;
  }
  fputs("values ", stdout);
  for (size_t i = 0; i < (size_t)elements * sizeof *value; ++i) printf("%02x", ((unsigned char*)value)[i]);
  puts("");
}

int main(int count, char** words) {
  dsgd_error* error = NULL;
  if (count < 5) return 2;
  if (!report(dsgd_init(NULL, &session, &error), &error)) {
    puts("joined");
    fflush(stdout);
    signal(SIGTERM, stop);
    train(atoi(words[1]), atoi(words[2]), atoll(words[3]), (useconds_t)atoi(words[4]),
          count > 5 ? atoi(words[5]) : -1, count > 6 ? (uint64_t)atoll(words[6]) : 0);
  }
  fflush(stdout);
  dsgd_shard_free(shard);
  signal(SIGTERM, SIG_IGN);
  dsgd_finalize(session);
  return 0;
}
