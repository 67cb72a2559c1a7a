/* A worker for the fault tests: joins by the DSGD_* variables, then does the work of its mode until it fails
 * or is killed. Writes to stdout, one line each: "joined RANK", "started", "going" (after three rounds of the
 * work), the lines that a mode names below, and at the end "failed CODE RANK MESSAGE" or "ended". The exit
 * status is 0 also after an error of dsgd, since the host process goes on.
 *
 *   process_worker steps ELEMENTS      steps for ever
 *   process_worker overlap ELEMENTS    steps with dsgd_step_begin and gradients marked one by one
 *   process_worker allreduce ELEMENTS  all-reduces for ever
 *   process_worker barrier             barriers for ever
 *   process_worker init                joins and leaves
 *   process_worker absent-rank R       after three steps rank R sleeps, and the others wait in a barrier
 *   process_worker absent-abort R      as absent-rank; a worker whose barrier fails aborts the job
 *   process_worker abort R             rank R aborts after four steps
 *   process_worker wait                joins, starts after SIGUSR1, and steps for ever
 *   process_worker depart R            rank R closes after three steps and writes "closed"; the others make
 *                                      six more, check the means, give weight 0 once, and write "trained"
 *   process_worker close               three steps; after SIGUSR1 closes without waiting and writes "closed"
 *   process_worker close-twice         three steps; after SIGUSR1 begins a barrier and closes, without a
 * limit and, in another thread, with a limit of 0.1 s; writes "closed" process_worker leave R steps for ever;
 * rank R closes after 3 steps and SIGUSR1, and writes "closed"; the others write "alone" after the first step
 * without it
 *
 * A third argument of steps, wait and leave is a pause after each step, in microseconds.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dsgd/dsgd.h>

/* The error by its address: arguments are evaluated in any order, and the call among them sets it. */
static int report(int32_t status, dsgd_error** error) {
  if (status == DSGD_OK) return 0;
  printf("failed %s %d %s\n", dsgd_status_name(status), (int)dsgd_error_rank(*error),
         dsgd_error_message(*error));
  fflush(stdout);
  dsgd_error_free(*error);
  *error = NULL;
  return 1;
}

static void say(const char* word) {
  puts(word);
  fflush(stdout);
}

static void* close_soon(void* session) {
  usleep(300000); /* the other dsgd_close has begun */
  dsgd_error* error = NULL;
  report(dsgd_close(session, 100, &error), &error);
  return NULL;
}

/* One element of the mean gradient when workers 0 .. size - 1 but `absent` (-1: none) contribute, worker r
 * with weight and gradient r + 1. */
static float mean_gradient(int size, int absent) {
  float sum = 0, weights = 0;
  for (int r = 0; r < size; ++r) {
    if (r == absent) continue;
    sum += (float)((r + 1) * (r + 1));
    weights += (float)(r + 1);
  }
  return sum / weights;
}

/* Three steps of all workers, six without `leaver`, one in which nobody has data. The optimizer `none` gives
 * out means. */
static void depart(dsgd_session* session, int leaver, float* gradients[4], size_t elements) {
  dsgd_error* error = NULL;
  const int rank = (int)dsgd_rank(session), size = (int)dsgd_size(session);
  for (int step = 0; step < 10; ++step) {
    if (step == 3 && rank == leaver) {
      if (!report(dsgd_close(session, -1, &error), &error)) say("closed");
      return;
    }
    for (int p = 0; p < 4; ++p) {
      for (size_t i = 0; i < elements; ++i) gradients[p][i] = (float)(rank + 1);
    }
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    if (report(dsgd_step(session, step < 9 ? rank + 1 : 0, &result, &error), &error)) return;
    if (result.all_done != (step == 9)) return say("wrong all_done");
    const float want = step == 9 ? (float)(rank + 1) : mean_gradient(size, step < 3 ? -1 : leaver);
    for (int p = 0; p < 4; ++p) {
      for (size_t i = 0; i < elements; ++i) {
        if (gradients[p][i] != want) return say("wrong mean");
      }
    }
  }
  if (!report(dsgd_close(session, -1, &error), &error)) say("trained");
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const char* mode = argv[1];
  const long number = argc > 2 ? atol(argv[2]) : 0;
  const useconds_t pause_after_step = argc > 3 ? (useconds_t)atol(argv[3]) : 0;
  sigset_t told;
  sigemptyset(&told);
  sigaddset(&told, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &told, NULL);
  const size_t elements = strcmp(mode, "depart") == 0 ? 100000 : number > 0 ? (size_t)number : 1;
  dsgd_error* error = NULL;
  dsgd_config* config = dsgd_config_new();
  dsgd_session* session = NULL;
  if (report(dsgd_init(config, &session, &error), &error)) return 0;
  const int rank = (int)dsgd_rank(session);
  printf("joined %d\n", rank);
  fflush(stdout);

  if (strcmp(mode, "wait") == 0) {
    int signal;
    sigwait(&told, &signal);
  }
  int failed = 0;
  const int64_t shape[1] = {(int64_t)elements};
  dsgd_parameter* parameters[4];
  dsgd_replica* replica;
  float* gradients[4];
  failed = report(dsgd_replica_add(session, "cpu", &replica, &error), &error);
  for (int p = 0; p < 4 && !failed; ++p) {
    char name[8];
    snprintf(name, sizeof name, "p%d", p);
    void *value, *gradient;
    failed = report(dsgd_parameter_add(session, name, DSGD_FLOAT32, shape, 1, 0, &parameters[p], &error),
                    &error) ||
             report(dsgd_alloc(replica, parameters[p], &value, &gradient, &error), &error);
    if (failed) break;
    gradients[p] = gradient;
    memset(gradient, 0, elements * sizeof(float));
  }
  if (!failed && strcmp(mode, "depart") == 0) {
    failed = report(dsgd_optimizer_set(session, "none", NULL, &error), &error);
  }
  if (!failed) failed = report(dsgd_start(session, NULL, NULL, &error), &error);
  if (!failed) say("started");

  float* data = calloc(elements, sizeof *data);
  for (long round = 0; !failed; ++round) {
    if (round == 3) say("going");
    if (strcmp(mode, "init") == 0) break;
    if (strcmp(mode, "depart") == 0) {
      depart(session, (int)number, gradients, elements);
      break;
    }
    if (strcmp(mode, "close") == 0 && round >= 3) {
      int signal;
      sigwait(&told, &signal);
      if (!report(dsgd_close(session, 0, &error), &error)) say("closed");
      break;
    }
    if (strcmp(mode, "close-twice") == 0 && round >= 3) {
      int signal;
      pthread_t other;
      sigwait(&told, &signal);
      dsgd_op* op = NULL;
      failed = report(dsgd_barrier(session, NULL, NULL, &op, &error), &error);
      if (!failed && pthread_create(&other, NULL, close_soon, session) == 0) {
        if (!report(dsgd_close(session, -1, &error), &error)) say("closed");
        pthread_join(other, NULL);
      }
      dsgd_op_free(op);
      break;
    }
    if (strcmp(mode, "leave") == 0 && round == 3) {
      if (rank != number) {
        failed = report(dsgd_step(session, 1, NULL, &error), &error);
        if (!failed) say("alone");
        if (pause_after_step > 0) usleep(pause_after_step);
        continue;
      }
      int signal;
      sigwait(&told, &signal);
      if (!report(dsgd_close(session, -1, &error), &error)) say("closed");
      break;
    }
    if (strcmp(mode, "allreduce") == 0) {
      failed = report(dsgd_allreduce(session, NULL, data, data, elements * sizeof *data, DSGD_FLOAT32,
                                     DSGD_SUM, NULL, NULL, &error),
                      &error);
    } else if (strcmp(mode, "barrier") == 0) {
      failed = report(dsgd_barrier(session, NULL, NULL, NULL, &error), &error);
    } else if (strncmp(mode, "absent-", 7) == 0 && round >= 3) {
      if (rank == number) pause();
      failed = report(dsgd_barrier(session, NULL, NULL, NULL, &error), &error);
      if (failed && strcmp(mode, "absent-abort") == 0) dsgd_abort(session, "a barrier failed", NULL);
    } else if (strcmp(mode, "overlap") == 0) {
      dsgd_op* op = NULL;
      failed = report(dsgd_step_begin(session, 1, NULL, &op, &error), &error);
      for (int p = 3; p >= 0 && !failed; --p) {
        failed = report(dsgd_gradient_ready(replica, parameters[p], NULL, &error), &error);
      }
      if (!failed) failed = report(dsgd_op_wait(op, -1, &error), &error);
      dsgd_op_free(op);
    } else {
      if (strcmp(mode, "abort") == 0 && round == 4 && rank == number) {
        failed = report(dsgd_abort(session, "the host has had enough", &error), &error);
      }
      if (!failed) failed = report(dsgd_step(session, 1, NULL, &error), &error);
      if (pause_after_step > 0) usleep(pause_after_step);
    }
  }
  /* The host goes on: the session can be closed, its buffers read. */
  dsgd_finalize(session);
  dsgd_config_free(config);
  free(data);
  say("ended");
  return 0;
}
