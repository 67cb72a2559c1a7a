/* dsgd.h - data-parallel stochastic gradient descent, embeddable in any host. Version 1.0.
 *
 * A host program computes gradients; dsgd makes many such programs, in any language, train one model. This
 * header is the reference: nothing else need be read to use the library from C.
 *
 *   dsgd_config      how to join a job                      dsgd_op       work in progress
 *   dsgd_session     one worker's membership in a job       dsgd_shard    a worker's part of the data set
 *   dsgd_parameter   a named tensor that is trained         dsgd_error    what went wrong
 *   dsgd_replica     one copy of the model on one device    dsgd_head     the coordinator in its own process
 *   dsgd_algorithm, dsgd_strategy                           plug-ins of the host
 *
 * A trainer whose workers may have different numbers of samples. It fits y = 2x + 1, alone or as one of
 * several workers (`dsgd run -n 4 -- ./line`):
 *
 *   #include <dsgd/dsgd.h>
 *   #include <stdio.h>
 *
 *   int main(void) {
 *     const int64_t shape[] = {2};
 *     float *value, *gradient;
 *     dsgd_session *session = NULL;
 *     dsgd_parameter *line;
 *     dsgd_replica *replica;
 *     dsgd_step_result result;
 *     dsgd_error *error = NULL;
 *     int failed;
 *
 *     if (dsgd_init(NULL, &session, &error)) goto end;  // reads the DSGD_* variables
 *     if (dsgd_parameter_add(session, "line", DSGD_FLOAT32, shape, 1, 0, &line, &error)) goto end;
 *     if (dsgd_replica_add(session, "cpu", &replica, &error)) goto end;
 *     if (dsgd_alloc(replica, line, (void **)&value, (void **)&gradient, &error)) goto end;
 *     if (dsgd_optimizer_set(session, "sgd", "lr=0.1", &error)) goto end;
 *     if (dsgd_start(session, NULL, NULL, &error)) goto end;  // now all workers hold rank 0's values
 *     dsgd_step_result_init(&result, sizeof result);
 *     for (int sample = dsgd_rank(session); sample < 1001; sample += dsgd_size(session)) {
 *       float x = sample % 5 - 2, off = value[0] * x + value[1] - (2 * x + 1);
 *       gradient[0] = off * x, gradient[1] = off;
 *       if (dsgd_step(session, 1, NULL, &error)) goto end;  // the weight is the number of samples
 *     }
 *     do {  // another worker may have one sample more
 *       if (dsgd_step(session, 0, &result, &error)) goto end;
 *     } while (!result.all_done);
 *     printf("y = %.2f x + %.2f\n", value[0], value[1]);
 *   end:
 *     failed = error != NULL;
 *     if (failed) fprintf(stderr, "%s\n", dsgd_error_message(error));
 *     dsgd_error_free(error);
 *     return dsgd_finalize(session) || failed;  // finalizing compares the models a last time
 *   }
 *
 * CONVENTIONS. They hold for every function unless its own text says otherwise.
 *
 *   Result     DSGD_OK (0), or a negative code of enum dsgd_status. A function that returns a count or a rank
 *              returns it as a non-negative number, and a failure as a negative code.
 *   Errors     The last argument `error` may be NULL. A call that fails stores a new error in *error, which
 *              the caller frees. A call that succeeds does not touch it. There is no last-error state
 *              anywhere. "Errors" lists the codes that are special to a function. Any function may also
 *              return DSGD_ERR_INVALID_ARGUMENT, DSGD_ERR_NO_MEMORY and DSGD_ERR_FORKED; any function of a
 *              session, DSGD_ERR_CLOSED and the failure of the session (see Failures).
 *   Output     Other output arguments are written only on success. NULL is allowed where the text says so.
 *   NULL       A NULL handle or a NULL required argument gives DSGD_ERR_INVALID_ARGUMENT, never a crash. So
 *              does a handle of another kind. A freed handle is detected while its memory has not been
 *              reused. Every *_free ignores such handles.
 *   Strings    NUL-terminated UTF-8. An argument is copied if it is kept. A returned string belongs to the
 *              handle it came from; "static" strings live as long as the library.
 *   Names      dsgd_x_get returns a new reference to a dsgd_x, which the caller frees with dsgd_x_free. No
 *              other function is named dsgd_x_get.
 *   Terms      A view is a numbered list of the workers in the job. An epoch is a pass over the data set.
 *   Sizes      nbytes counts bytes; count and element_counts count elements. A shape counts elements,
 *              outermost dimension first; the buffer is contiguous in that order (row-major).
 *   Threads    A function may be called from any thread at any time. "One thread at a time" means that such
 *              calls on one session must not overlap. Different sessions are independent.
 *   Blocking   A function that waits for other workers, or for time to pass, has a line "Blocks". The others
 *              return at once.
 *   Deadlines  Every blocking call ends, except three calls with timeout_ms -1 (see Waiting), and
 *              dsgd_replica_add if CUDA hangs. A collective call ends within `step_timeout`, joining within
 *              `init_timeout`. A worker that dies or stops is noticed within `lease`. The error names who is
 *              missing. It may come up to 100 ms after the deadline, so that all workers name the same one. A
 *              step or another collective call that has not ended after `stall_warning` logs a warning with
 *              the missing workers and, of a step, the missing parameters.
 *   Waiting    timeout_ms counts milliseconds. 0 does not wait. -1 waits until the operation's own deadline:
 *              `step_timeout`, for joining `init_timeout`, or the timeout_ms in the options of the operation.
 *              dsgd_log_poll, dsgd_queue_poll and dsgd_head_wait wait for events that have no deadline: with
 *              -1 they may wait for ever. dsgd_close in another thread ends the first two. Below -1 is
 *              DSGD_ERR_INVALID_ARGUMENT.
 *   Mistakes   A rejected argument fails only the caller. Other workers that have made the same collective
 *              call wait until the caller repeats it correctly, or time out. Two calls fail on all workers: a
 *              dsgd_start whose model cannot be started, and a dsgd_strategy_set whose strategy or options
 *              are refused.
 *   Failures   The code of an error tells what the error ends:
 *                Code              Ends           Afterwards
 *                INVALID_ARGUMENT  the call       nothing else has changed; the same holds for STATE,
 *                                                 WAIT_TIMEOUT, NOT_FOUND, EXISTS, LIMIT, IO, UNSUPPORTED
 *                                                 and FORKED
 *                NO_MEMORY         the call       for memory that only this call needs: dsgd_alloc,
 *                                                 checkpoints, and collectives with GPU memory
 *                                  the session    for memory that communication needs
 *                MISMATCH          the operation  on all workers; a step has changed nothing
 *                NON_FINITE        the operation  a step, on all workers; it has changed nothing
 *                TIMEOUT           the operation  may still succeed on a worker that comes late
 *                                  the steps      if the operation is a step
 *                WORKER_LOST       the operation  if the worker has closed its session and its data has
 *                                                 arrived
 *                                  the steps      if the operation is a step
 *                                  the session    otherwise
 *                VIEW_CHANGED      the operation  on this worker; it may have succeeded on others
 *                DIVERGED, TORN    the steps
 *                                  the session    if two replicas of one worker differ (DIVERGED)
 *                ABORTED, CLOSED, CORRUPTED, INTERNAL, EVICTED
 *                                  the session
 *              After an error that ends the operation, the session goes on. After one that ends the steps,
 *              later steps fail with DIVERGED or TORN, while collectives and objects go on: load a
 *              checkpoint, in this session or a new one. After one that ends the session, later calls fail
 *              with the same code (see dsgd_abort), and the session can only be closed and freed.
 *              An error while joining, of any code, ends the session. UNREACHABLE, UNAUTHORIZED and
 *              ADDRESS_IN_USE come from joining, dsgd_head_start, dsgd_job_status and dsgd_job_scale alone.
 *   Losses     If the key `min_workers` is less than num_workers, the job goes on after a loss, in a new
 *              view, while at least min_workers are left. If fewer are left and the key `rejoin_timeout` is
 *              set, steps wait for others to join, at most for this time. min_workers may then be
 *              num_workers.
 *                View            Each view numbers its ranks from 0 again, in the earlier order.
 *                Step in flight  On the workers that are left, a step in flight still ends with DSGD_OK. Its
 *                                result has the new `view` and `size`. It has used the gradients of all
 *                                workers of the earlier view, or of exactly those that are left. All of them
 *                                hold the same values. First the workers agree on the state of the new view,
 *                                within `step_timeout`. Then the step has its full timeout again.
 *                Other calls     Other collectives and object calls in flight fail with
 *                                DSGD_ERR_VIEW_CHANGED. Later ones also fail with it until the workers of the
 *                                new view have agreed on its state. The first call after that fails, too,
 *                                unless the result of a step, or a call that was in flight, has shown the new
 *                                view to this worker. A call that fails here may have succeeded on other
 *                                workers. So use a channel other than 0 for collectives between steps. After
 *                                a failed call go on with the next step, and make no other collective before
 *                                it: a worker that has joined makes none. Repeat a call only if all workers
 *                                repeat it.
 *                Evicted worker  A lost worker that still runs fails with DSGD_ERR_EVICTED. It can only join
 *                                another job.
 *                Torn session    A session that is torn (see dsgd_step) fails at a change of the view, unless
 *                                it has loaded a checkpoint before.
 *                Data shards     They deal the samples that a lost worker has not used to the others.
 *                Stragglers      If the key `straggler_timeout` is set, the head evicts a worker for which
 *                                all others have waited for this time, and which itself waits for none. Such
 *                                a worker still sends heartbeats, but its program hangs, or one of its
 *                                threads is stopped. The head evicts no worker if workers wait for each
 *                                other, if fewer than min_workers would be left, or if the worker hosts the
 *                                head. `step_timeout` fails the step on all workers, so straggler_timeout
 *                                should be less, by a few heartbeat intervals. `stall_warning` only warns.
 *              Requirements:
 *                - Start the head with `dsgd head`. The loss of a worker that hosts the head ends the job.
 *                  With the key `head_state` the head may be lost, too: see dsgd_head_start.
 *                - Use allreduce, simple, a registered strategy with DSGD_STRATEGY_MEAN_AT_OWNER, or ps with
 *                  copies=2 or more: they keep the strategy's state on more than one worker. ps needs no
 *                  copies if the optimizer has no state (sgd without momentum, and no parameter of a half
 *                  type).
 *                - Do not use the optimizer "none", and leave `early_update` off.
 *              Limits:
 *                - NCCL is not used.
 *                - If a put fails with DSGD_ERR_VIEW_CHANGED, or the worker that puts is lost, some
 *                  workers may hold the whole object, and the name may be taken. Delete the object (ignore
 *                  DSGD_ERR_NOT_FOUND), and put it again.
 *                - If the view changes while a worker has not completed a step, it may copy the outcome from
 *                  another worker: trained parameters only. Untrained ones are equal again after their next
 *                  `sync`. The other host may already have changed the values. So hosts leave the values of
 *                  trained parameters to steps and loads; else a later step may fail with DSGD_ERR_DIVERGED.
 *                - A step is final when all workers have completed it. dsgd_close waits until this worker's
 *                  last step is final (see there). A worker that is lost may have completed a step that the
 *                  others then repeat without it.
 *   Joins      Views can change if `min_workers` is less than num_workers, if `max_workers` is more, or if
 *              `rejoin_timeout` is set. Then a worker may call dsgd_init while the job runs, if the job has
 *              fewer than max_workers workers, and else waits up to `init_timeout` for a place. It adds the
 *              same parameters as the others, and replicas, while the others go on training. Until its
 *              dsgd_start ends, its rank is the number of workers in the present view and its size one more,
 *              and its collectives and object calls fail with DSGD_ERR_STATE. In dsgd_start it fetches values
 *              and optimizer state, a part from each of the others, while these train on. Each of them keeps
 *              the sums of its steps for it, in at most the memory of its part: its values and their
 *              optimizer state. Then the workers go on in a new view, with this one as the last rank. It
 *              fetches the rest, while the steps of the others wait: mostly the sums of the last step, but
 *              all of a part if its worker was lost meanwhile, or if the sums that the new worker lacks are
 *              larger. It takes part from the next step on: `steps` of dsgd_session_info_read is the index of
 *              its first step. The other workers get the new view as after a loss.
 *              Limits, besides those of losses:
 *                - Its strategy is the one that the others have at that moment. It takes over their learning
 *                  rate; if its host sets rates by a schedule, it goes on with that of step `steps`.
 *                - If its dsgd_start fails, its values are undefined.
 *                - A worker id is never used again in a job. Ids that dsgd makes are new each time. With
 *                  `head_state` a later head forgets the ids of lost workers that had joined the running job,
 *                  except for the newest 64, and accepts them again. A lost worker that still runs fails with
 *                  DSGD_ERR_EVICTED in any case.
 *                - No worker joins after the worker that hosts the head has closed its session, or if workers
 *                  have closed theirs and the view with the new worker would have fewer than min_workers. A
 *                  worker that joins while others close fails with DSGD_ERR_UNREACHABLE or
 *                  DSGD_ERR_WORKER_LOST.
 *   Security   Both sides of a connection prove that they know the job's `token`, which never travels. With
 *              the keys `tls_cert`, `tls_key` and `tls_ca`, each connection is mutual TLS 1.3. Without them a
 *              connection is neither encrypted nor authenticated after the handshake: an attacker who can
 *              change packets can change gradients.
 *   Forking    In a child made by fork(), every call on a session, a parameter, a replica, an op or a head of
 *              the parent returns DSGD_ERR_FORKED. *_free works, and dsgd_finalize frees the handle; both
 *              touch nothing outside the process. Handles without outside resources (configurations, errors,
 *              objects, data shards, log records, dsgd_memory) keep working in the child, which may open
 *              sessions of its own.
 *   Host       dsgd installs no signal handler, never exits or aborts, prints nothing unless the key `log_to`
 *              says so, and lets no exception out. A worker without memory for a buffer (of a bucket, a
 *              message or an object) fails the session on all workers with DSGD_ERR_NO_MEMORY. If memory
 *              is lacking for small objects, too, only the calling worker gets DSGD_ERR_NO_MEMORY, and the
 *              others wait until their deadline; or the C++ runtime ends the process.
 *   Since      1.0 unless stated.
 */
#ifndef DSGD_DSGD_H_
#define DSGD_DSGD_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) && !defined(SWIG)
#define DSGD_API __attribute__((visibility("default")))
#else
#define DSGD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ------------------------------------------------------------------------------------------- */

#define DSGD_VERSION_MAJOR 1
#define DSGD_VERSION_MINOR 0
#define DSGD_VERSION_PATCH 0
/* Version of this header as one number, as dsgd_version returns it, for #if DSGD_VERSION >= 10100. */
#define DSGD_VERSION (DSGD_VERSION_MAJOR * 10000 + DSGD_VERSION_MINOR * 100 + DSGD_VERSION_PATCH)

/* Returns the version of the library in use: major * 10000 + minor * 100 + patch. */
DSGD_API uint32_t dsgd_version(void);

/* Returns the version of the library as text: "1.0.0". Static. */
DSGD_API const char *dsgd_version_string(void);

/* Returns 1 if the library in use has an optional part, else 0. It returns 0 for NULL and for unknown names,
 * so a host may ask an older library for a part that came later. Names:
 *   "cuda"  replicas on GPUs and NCCL: the plug-in libdsgd_cuda is installed and can be loaded. It does not
 *           tell whether this machine has a GPU; dsgd_replica_add does. */
DSGD_API int32_t dsgd_capability(const char *name);

/* ---- Status -------------------------------------------------------------------------------------------- */

/* Result codes. Numbers are never reused; a newer library may return codes that are not listed here. */
enum dsgd_status {
  DSGD_OK = 0,
  DSGD_ERR_INVALID_ARGUMENT = -1, /* an argument, key, option or size is wrong */
  DSGD_ERR_STATE = -2,            /* right call, wrong moment: step before start, gradient ready twice */
  DSGD_ERR_CLOSED = -3,           /* the session was closed */
  DSGD_ERR_FORKED = -4,           /* called in a forked child of the process that made the handle */
  DSGD_ERR_TIMEOUT = -5,          /* the operation's deadline passed; the message names who is missing */
  DSGD_ERR_WAIT_TIMEOUT = -6,     /* this wait ran out; the operation goes on and its buffers stay dsgd's */
  DSGD_ERR_ABORTED = -7,          /* a worker called dsgd_abort; the message says which and why */
  DSGD_ERR_WORKER_LOST = -8,      /* a worker or the head died, stopped, left or cannot be reached */
  DSGD_ERR_MISMATCH = -9,         /* workers disagree: names, shapes, dtypes, order of operations, settings */
  DSGD_ERR_NOT_FOUND = -10,       /* no such name, file or object */
  DSGD_ERR_EXISTS = -11,          /* the name or the worker id is taken */
  DSGD_ERR_UNAUTHORIZED = -12,    /* wrong token, job name or certificate, on either side */
  DSGD_ERR_UNREACHABLE = -13,     /* an address cannot be resolved or connected to */
  DSGD_ERR_ADDRESS_IN_USE = -14,  /* the address to listen on is taken */
  DSGD_ERR_NO_MEMORY = -15,
  DSGD_ERR_LIMIT = -16,       /* a limit of the system or of dsgd is reached (file descriptors, sizes) */
  DSGD_ERR_IO = -17,          /* reading or writing a file failed */
  DSGD_ERR_UNSUPPORTED = -18, /* known, but not in this build or not for these arguments */
  DSGD_ERR_TORN = -19,        /* an earlier step failed half-way; load a checkpoint or start a new session */
  DSGD_ERR_INTERNAL = -20,    /* a defect of dsgd; please report the message */
  DSGD_ERR_DIVERGED = -21,    /* workers or replicas hold different models; load a checkpoint or start anew */
  DSGD_ERR_CORRUPTED = -22,   /* received bytes failed their checksum; have the network checked */
  DSGD_ERR_VIEW_CHANGED = -23, /* a worker was lost or has joined; the job goes on without this call */
  DSGD_ERR_NON_FINITE = -24,   /* gradients of the step have NaN or infinity, with `nonfinite` = fail */
  DSGD_ERR_EVICTED = -25       /* the other workers go on without this one; it can only join another job */
};

/* Returns the name of a code, "DSGD_ERR_TIMEOUT"; "DSGD_ERR_UNKNOWN" for others. Static. */
DSGD_API const char *dsgd_status_name(int32_t status);

/* ---- Error --------------------------------------------------------------------------------------------- */

/* An error: what failed, where, and what to do. Immutable. The caller owns it and frees it. */
typedef struct dsgd_error dsgd_error;

DSGD_API int32_t dsgd_error_code(const dsgd_error *error); /* DSGD_ERR_*; DSGD_OK for NULL */
DSGD_API int32_t dsgd_error_rank(const dsgd_error *error); /* rank concerned; -1 if none */
DSGD_API const char *dsgd_error_host(const dsgd_error *error); /* host concerned, "" if none */
DSGD_API const char *dsgd_error_operation(const dsgd_error *error); /* "step 17"; "" if none */
DSGD_API const char *dsgd_error_parameter(const dsgd_error *error); /* parameter or key, "" if none */
DSGD_API const char *dsgd_error_message(const dsgd_error *error);   /* whole sentence; "" for NULL */
DSGD_API void dsgd_error_free(dsgd_error *error);                   /* NULL is fine */

/* ---- Configuration ------------------------------------------------------------------------------------- */

/* How to join a job: string keys with string values. `dsgd config` prints all keys with type, default, range
 * and help.
 *
 * A value comes from dsgd_config_set, else from the environment (heartbeat_interval from
 * DSGD_HEARTBEAT_INTERVAL), else from a file, else from the default. A DSGD_* variable that names no key is a
 * warning in the log. In a process that torchrun, mpirun or srun has started, or that has PyTorch's variables
 * RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, dsgd_init takes num_workers, rank, head and job from the
 * environment where nothing else gives them (key `launcher`), and the log says so.
 *
 * A duration is a whole number with the unit ns, us, ms, s, m or h ("500ms", "10s"), or 0. A size is a number
 * of bytes, or has the unit K, M, G or T, powers of 1024 ("64K", "4M"). Switches are 0 or 1. A configuration
 * may be used for several sessions, and freed right after dsgd_init.
 * Threads: one thread at a time per configuration. */
typedef struct dsgd_config dsgd_config;

/* Returns a new configuration with a copy of the current environment; NULL only when memory is exhausted. */
DSGD_API dsgd_config *dsgd_config_new(void);

/* Frees a configuration. NULL is fine. */
DSGD_API void dsgd_config_free(dsgd_config *config);

/* Sets one key.
 * Errors: DSGD_ERR_INVALID_ARGUMENT (an unknown key, for which the message names the nearest one; a value
 * that the key does not take). */
DSGD_API int32_t dsgd_config_set(dsgd_config *config, const char *key, const char *value, dsgd_error **error);

/* Reads "key = value" lines from a file; '#' begins a comment. If one line fails, nothing is set, and the
 * error names the line.
 * Errors: DSGD_ERR_NOT_FOUND, DSGD_ERR_IO, DSGD_ERR_INVALID_ARGUMENT, DSGD_ERR_LIMIT (over 1 MiB). */
DSGD_API int32_t dsgd_config_load(dsgd_config *config, const char *path, dsgd_error **error);

/* Returns the value of a key as it was set, else its default; NULL if the key is unknown. A value that stands
 * for another one (heartbeat_interval=0, an empty min_workers) comes as it is. Valid until the configuration
 * changes or is freed. */
DSGD_API const char *dsgd_config_value(const dsgd_config *config, const char *key);

/* One row of the table of keys. All strings are static. */
typedef struct dsgd_config_key {
  size_t struct_size;        /* set by dsgd_config_key_init */
  const char *name;          /* "heartbeat_interval" */
  const char *type;          /* "string", "integer", "duration", "size", "switch", "choice"; the value of an
                              * integer may also be a word of `range`, as "dynamic" of loss_scale */
  const char *default_value; /* as it would be written */
  const char *range;         /* "1..65536", "simple | ps | allreduce", "" */
  const char *help;          /* one or more sentences */
  const char *environment;   /* "DSGD_HEARTBEAT_INTERVAL" */
} dsgd_config_key;

/* Fills `key` with defaults. struct_size is sizeof(dsgd_config_key) as the caller was compiled. An older
 * caller's smaller struct is never written beyond its end. If the caller is newer than this library, the
 * fields that the library does not know are set to 0; the caller must leave them 0. */
DSGD_API int32_t dsgd_config_key_init(dsgd_config_key *key, size_t struct_size);

/* Returns the number of keys. */
DSGD_API size_t dsgd_config_key_count(void);

/* Reads row `index` of the table, 0 .. count-1, in alphabetical order. */
DSGD_API int32_t dsgd_config_key_at(size_t index, dsgd_config_key *key, dsgd_error **error);

/* ---- Logs ---------------------------------------------------------------------------------------------- */

enum dsgd_log_level { DSGD_LOG_ERROR = 0, DSGD_LOG_WARNING = 1, DSGD_LOG_INFO = 2, DSGD_LOG_DEBUG = 3 };

/* One record of the log of a session or a head. */
typedef struct dsgd_log_record dsgd_log_record;

/* Accessors. The level is of enum dsgd_log_level, and DSGD_ERR_INVALID_ARGUMENT for NULL. */
DSGD_API int32_t dsgd_log_record_level(const dsgd_log_record *record);
DSGD_API const char *dsgd_log_record_message(const dsgd_log_record *record); /* "" for NULL */
DSGD_API int64_t dsgd_log_record_time_ns(const dsgd_log_record *record);     /* Unix time in ns; 0 for NULL */
DSGD_API uint64_t dsgd_log_record_session(const dsgd_log_record *record); /* its number; 0: a head */
DSGD_API int32_t dsgd_log_record_rank(const dsgd_log_record *record);     /* -1: not known yet, or a head */
DSGD_API void dsgd_log_record_free(dsgd_log_record *record);              /* NULL is fine */

/* Receives each record at or above `log_level`. It is called from any of dsgd's threads or the caller's, one
 * call at a time per session. It must return soon, must not call dsgd functions on the session, and must not
 * throw or longjmp. The record is valid during the call and is not freed by it. */
typedef void (*dsgd_log_function)(const dsgd_log_record *record, void *user);

/* Sets the log hook of sessions and heads that are made from this configuration afterwards; NULL removes it.
 * `user` must outlive them. Without a hook, the newest 1024 records of a session wait in its log queue for
 * dsgd_log_poll; a head has no queue. With the key log_to=stderr they also go to standard error. */
DSGD_API int32_t dsgd_config_log_hook(dsgd_config *config, dsgd_log_function function, void *user,
                                      dsgd_error **error);

/* ---- Options of operations ----------------------------------------------------------------------------- */

/* Options of a call that can return an op. NULL means the defaults. The struct is copied. */
typedef struct dsgd_op_options {
  size_t struct_size; /* set by dsgd_op_options_init */
  void *user_data;    /* the host's; dsgd_op_user_data returns it; default NULL */
  int32_t timeout_ms; /* deadline in milliseconds from the call, at least 1; default -1: see Waiting */
  uint32_t channel;   /* 0 .. DSGD_CHANNELS-1; default 0; only collectives may have another */
  void *stream;       /* for collectives with data in GPU memory; default NULL: the default stream */
} dsgd_op_options;

/* Number of channels of a session. */
#define DSGD_CHANNELS 4

/* Fills `options` with defaults. struct_size: see dsgd_config_key_init. */
DSGD_API int32_t dsgd_op_options_init(dsgd_op_options *options, size_t struct_size);

/* ---- Session ------------------------------------------------------------------------------------------- */

/* One worker's membership in a job. Several sessions in one process are independent. A session owns its
 * parameters, replicas and buffers: handles to them are valid until dsgd_session_free or dsgd_finalize. */
typedef struct dsgd_session dsgd_session;
typedef struct dsgd_parameter dsgd_parameter;
typedef struct dsgd_replica dsgd_replica;
typedef struct dsgd_op dsgd_op;

/* Joins a job. Connects to the head, or becomes the head if this process can bind `head` and `embed_head`
 * allows it; waits until `num_workers` have joined; learns its rank. `config` NULL: environment and defaults.
 * With num_workers = 1 and no `head` it opens no socket. With several addresses in `head` it does not become
 * the head, but dials them until the head that serves answers (see dsgd_head_start).
 * Blocks: up to `init_timeout`, also while a host name is resolved.
 * Errors: DSGD_ERR_INVALID_ARGUMENT (configuration), DSGD_ERR_UNSUPPORTED (TLS is configured, and libssl of
 * OpenSSL 3 cannot be loaded), DSGD_ERR_UNREACHABLE (the head does not answer, or the running job has
 * max_workers workers or is ending), DSGD_ERR_UNAUTHORIZED (token, job, certificate), DSGD_ERR_EXISTS (worker
 * id or rank taken), DSGD_ERR_MISMATCH (protocol, or a key that must be equal on the head, such as
 * num_workers and lease), DSGD_ERR_STATE (the job at this head takes no further workers, or is over),
 * DSGD_ERR_ADDRESS_IN_USE, DSGD_ERR_TIMEOUT (the message names the workers that have joined),
 * DSGD_ERR_ABORTED (another worker has aborted joining), DSGD_ERR_LIMIT, DSGD_ERR_IO (a Unix socket's
 * folder). */
DSGD_API int32_t dsgd_init(const dsgd_config *config, dsgd_session **session, dsgd_error **error);

/* Joins a job, as dsgd_init, with options and an op. With `op`, the call returns at once and gives a session
 * that is joining. The op ends when the session has joined, or with an error of dsgd_init. Its deadline is
 * `init_timeout` unless the options give one. With `op` NULL the call blocks, and gives a session only on
 * success.
 *
 * While a session is joining, calls on it return DSGD_ERR_STATE, except dsgd_abort, dsgd_close, dsgd_fail,
 * dsgd_stop_request, dsgd_session_info_read, dsgd_log_*, dsgd_queue_* and dsgd_op_*. dsgd_abort and
 * dsgd_op_abort end joining at once; the head tells the workers that have come, and the job does not begin.
 * dsgd_close leaves the job silently, and another worker can take the place. If joining failed, the session
 * can only be closed and freed; other calls return the error of the op. Call dsgd_session_free or
 * dsgd_finalize in any case.
 * Blocks: with `op` NULL, up to the deadline. */
DSGD_API int32_t dsgd_init_begin(const dsgd_config *config, const dsgd_op_options *options,
                                 dsgd_session **session, dsgd_op **op, dsgd_error **error);

/* Leaves the job in good order and closes the session.
 *   Operations  Those in flight may end within timeout_ms (-1: by their own deadlines). The others end with
 *               DSGD_ERR_CLOSED. A dsgd_object_get that waits for another worker ends with it at once.
 *   Last step   If views can change, the call then waits until all other workers have completed the last step
 *               of this worker, so that no loss makes them repeat it without this worker. This takes about a
 *               round trip, or until a stopped worker goes on or is lost. After a loss the others first agree
 *               on a new view. The wait then takes up to 9/4 of a lease (13/4 with the key `head_state`), and
 *               as long again after each further loss. It takes longer while the head is lost (up to
 *               `head_timeout`) or values are copied (up to `step_timeout`).
 *               timeout_ms limits the wait, too, but leaves it at least a second; 0 means no wait. If the
 *               wait ends too early, a warning in the log says that the step may not be final. If the
 *               session fails during the wait, the call closes it all the same and returns the error, such as
 *               DSGD_ERR_EVICTED: the others may have made that step again without this worker, so its values
 *               may differ from theirs. It also returns DSGD_ERR_EVICTED if the head has evicted this worker
 *               before.
 *   Peers       The call then tells the peers and the head that this worker leaves; the time for that adds to
 *               that of the last step. Until then the steps of the peers wait for it. A peer that does not
 *               answer delays the call until timeout_ms has passed, but at least one second and at most
 *               `lease` + 100 ms. After a failure of the session the limit is half a second, except on the
 *               worker that hosts the head. Queued bytes may take another second to write. A GPU that hangs
 *               while it copies for a collective may take another `lease`. If the limit passes while the
 *               network is cut, the head may not hear that this worker leaves: the other workers may then get
 *               DSGD_ERR_WORKER_LOST. With timeout_ms = -1, a cut shorter than `lease` less
 *               `heartbeat_interval` does no harm.
 *   Afterwards  Every call on the session returns DSGD_ERR_CLOSED, except dsgd_close, dsgd_session_info_read,
 *               dsgd_log_fd, dsgd_op_*, and dsgd_queue_poll and dsgd_log_poll until their queues are empty.
 *               The host owns its buffers again.
 *   Steps       Closing marks no gradient. A step whose gradients are all marked may still end within
 *               timeout_ms. A step with unmarked gradients fails here with DSGD_ERR_CLOSED: at once, or, if
 *               views can change, after the wait for the last step. If views can change, the others make it
 *               in a view without this worker. Else it fails on the others, too, with DSGD_ERR_WORKER_LOST
 *               and this worker's rank, and their later steps with DSGD_ERR_TORN. A worker that closes
 *               between steps takes no part in later steps; those of the others go on (see dsgd_step).
 *   Comparison  After a successful step, and unless timeout_ms is 0, the call compares the values of this
 *               worker's first replica with those of the workers that have closed after the same step. It
 *               reads all values, those of dsgd_bind too, and the time for that comes on top of the limits
 *               under Peers. If values differ, the session is closed, and the worker that closes later gets
 *               DSGD_ERR_DIVERGED (see dsgd_step). Two workers that close at the same moment may not compare
 *               with each other. If the last step had all_done = 1, that step has compared all values, and
 *               dsgd_close compares nothing. If a GPU does not give its values within half of the limit under
 *               Peers, a warning says that they were not compared.
 *   Twice       Closing twice is allowed: all callers return together, with the same result, at the latest
 *               when the earliest of their deadlines has passed. dsgd_abort ends the waiting.
 *   GPUs        Last, the call waits at most a `lease` for work enqueued on a GPU (0.1 s for each further
 *               GPU), then logs a warning: the GPU may still use the buffers, and dsgd frees its own memory
 *               when the GPU is done.
 * Blocks: see Operations, Last step, Peers, Comparison and GPUs. */
DSGD_API int32_t dsgd_close(dsgd_session *session, int32_t timeout_ms, dsgd_error **error);

/* Releases the handle; NULL is fine. Ends the session without waiting for operations if it was not closed.
 * Calls in progress in other threads end with their result or with DSGD_ERR_CLOSED; the last of them releases
 * the memory. Begin no call afterwards: first remove a signal handler that calls dsgd_stop_request.
 * Blocks: only if the session was not closed, then as dsgd_close(session, 0, NULL). A binding for a
 * garbage-collected language must therefore free open sessions on a thread of its own, as the bindings of
 * dsgd do. */
DSGD_API void dsgd_session_free(dsgd_session *session);

/* Calls dsgd_close(session, -1, NULL), then dsgd_session_free, and returns what dsgd_close has returned; call
 * dsgd_close first to get the error itself. DSGD_OK for NULL. A process may exit() with open sessions. They
 * work until the library's own destructors run, which is after the program's atexit() functions and static
 * destructors; later calls return DSGD_ERR_CLOSED.
 * Blocks: as dsgd_close with timeout_ms -1. */
DSGD_API int32_t dsgd_finalize(dsgd_session *session);

/* Ends all operations of this session with DSGD_ERR_ABORTED, joining included. Every other worker fails with
 * the same code, this worker's rank and `reason` (may be NULL). Exception: a worker that joins a running job
 * and has not started aborts only itself.
 *
 * The session has failed then. Every call on a failed session returns that failure: its code, rank and
 * message. Exceptions are the calls that end it or only read local state: dsgd_close, dsgd_abort, dsgd_fail,
 * dsgd_stop_request, dsgd_rank, dsgd_size, dsgd_local_rank, dsgd_local_size, dsgd_view,
 * dsgd_session_info_read, dsgd_metrics, dsgd_trace, dsgd_loss_scale, dsgd_digest, dsgd_memory_get,
 * dsgd_export_dlpack, dsgd_shard_new, dsgd_log_*, dsgd_queue_* and dsgd_op_*. */
DSGD_API int32_t dsgd_abort(dsgd_session *session, const char *reason, dsgd_error **error);

/* Says that the program of this worker has failed, and cannot go on. If views can change (see Losses), this
 * worker is lost: the session fails with DSGD_ERR_WORKER_LOST and its own rank, and the others go on in a
 * view without it, as after the end of its process. The head need not wait for a `lease`. Otherwise, and
 * while the session is joining, this is dsgd_abort. `reason` (may be NULL) is in the errors and the log of
 * the other workers, unless the head is away at that time (`head_state`). The bindings make this call when an
 * exception leaves their block. */
DSGD_API int32_t dsgd_fail(dsgd_session *session, const char *reason, dsgd_error **error);

/* These return a non-negative number, or a negative code. */
DSGD_API int32_t dsgd_rank(const dsgd_session *session);       /* 0 .. size-1 */
DSGD_API int32_t dsgd_size(const dsgd_session *session);       /* number of workers */
DSGD_API int32_t dsgd_local_rank(const dsgd_session *session); /* rank among the workers on this node */
DSGD_API int32_t dsgd_local_size(const dsgd_session *session); /* number of workers on this node */
DSGD_API int64_t dsgd_view(const dsgd_session *session);       /* number of the view; only grows */

enum dsgd_session_state {
  DSGD_SESSION_JOINING = 0, /* the session has not joined; its rank is 0 and its size 1 until it has */
  DSGD_SESSION_JOINED = 1,  /* dsgd_start has not succeeded yet */
  DSGD_SESSION_STARTED = 2, /* the next step can begin */
  DSGD_SESSION_TORN = 3,    /* a step failed half-way or models differ; steps fail, collectives go on */
  DSGD_SESSION_FAILED = 4,  /* the session has failed; calls return its failure until it is closed */
  DSGD_SESSION_CLOSED = 5   /* dsgd_close was called */
};

typedef struct dsgd_session_info {
  size_t struct_size; /* set by dsgd_session_info_init */
  uint64_t id;        /* number unique in the process, as in dsgd_log_record_session */
  int64_t view;       /* as dsgd_view */
  int64_t steps;      /* number of steps that have succeeded, which is the index of the next one */
  int32_t state;      /* enum dsgd_session_state */
  int32_t rank;       /* as dsgd_rank; 0 .. size-1 */
  int32_t size;       /* workers in the view */
  int32_t local_rank; /* as dsgd_local_rank */
  int32_t local_size; /* as dsgd_local_size */
  int32_t replicas;   /* entries of `devices` that this worker takes, for dsgd_replica_add with NULL; not the
                       * number of replicas added */
} dsgd_session_info;

/* Fills `info` with defaults. struct_size: see dsgd_config_key_init. */
DSGD_API int32_t dsgd_session_info_init(dsgd_session_info *info, size_t struct_size);

/* Reads all fields at one moment; separate calls of dsgd_rank and dsgd_size may see two views. Works in every
 * state, after closing, too. */
DSGD_API int32_t dsgd_session_info_read(const dsgd_session *session, dsgd_session_info *info,
                                        dsgd_error **error);

/* Returns the counters of the session since dsgd_init as OpenMetrics 1.0 text, which Prometheus reads: calls,
 * failures, bytes and seconds by kind of call; steps, and their seconds by phase; bytes sent to and received
 * from each worker, and seconds waited for its data; memory held for tensors of dsgd_alloc, for the
 * optimizer, for steps and for objects. The last line is "# EOF". Data that is dropped when an operation
 * fails may be counted at one end only. Works after a failure, too.
 * Ownership: dsgd_text_free frees *text.
 * Errors: DSGD_ERR_STATE (still joining). */
DSGD_API int32_t dsgd_metrics(const dsgd_session *session, char **text, dsgd_error **error);

/* Frees a text. NULL is fine. */
DSGD_API void dsgd_text_free(char *text);

/* Returns the latest spans of the session, as many as the key `trace_spans` allows, as JSON in Chrome's Trace
 * Event Format. Perfetto (ui.perfetto.dev) shows it as a timeline: steps and their phases (gradients,
 * reduction, update); buckets and theirs (gradients, contribution, travel, update); calls; waits of 1 ms and
 * more for a worker. Operations that wait for the same worker at the same time share one span. `ts` is the
 * Unix time in microseconds and `pid` the rank, so the `traceEvents` of several workers can be put into one
 * file. With the default of `trace_spans` the call takes about 10 ms; training goes on meanwhile. Works after
 * a failure, too.
 * Ownership: dsgd_text_free frees *text.
 * Errors: DSGD_ERR_STATE (still joining). */
DSGD_API int32_t dsgd_trace(const dsgd_session *session, char **text, dsgd_error **error);

/* Takes the oldest record out of the session's log queue (see dsgd_config_log_hook). Works after close until
 * the queue is empty, then returns DSGD_ERR_CLOSED.
 * Ownership: the caller frees the record.
 * Blocks: up to timeout_ms for a record.
 * Errors: DSGD_ERR_WAIT_TIMEOUT (no record came). */
DSGD_API int32_t dsgd_log_poll(dsgd_session *session, int32_t timeout_ms, dsgd_log_record **record,
                               dsgd_error **error);

/* Returns a file descriptor that is readable while the log queue is not empty, as dsgd_queue_fd is for the
 * completion queue; or a negative code. Valid until the session is freed. */
DSGD_API int32_t dsgd_log_fd(const dsgd_session *session);

/* ---- Parameters ---------------------------------------------------------------------------------------- */

/* Element types. */
enum dsgd_dtype {
  DSGD_FLOAT32 = 0,
  DSGD_FLOAT64 = 1,
  DSGD_INT32 = 2,
  DSGD_INT64 = 3,
  DSGD_UINT8 = 4,
  DSGD_FLOAT16 = 5,  /* IEEE 754 binary16 */
  DSGD_BFLOAT16 = 6, /* the upper half of a float32 */
  DSGD_INT8 = 7,
  DSGD_UINT64 = 8
};

/* Returns the bytes per element; 0 for an unknown type. */
DSGD_API size_t dsgd_dtype_size(int32_t dtype);

/* Flags of dsgd_parameter_add. */
enum dsgd_parameter_flag {
  DSGD_UNTRAINED = 1 /* state without gradient, such as a running mean; see dsgd_parameter_set */
};

/* Registers a tensor, before dsgd_start. All workers register the same names, shapes, dtypes and flags in the
 * same order; dsgd_start checks this.
 *
 * A name is UTF-8 of 1 to 1024 bytes, without spaces (U+0020) and control characters; "['dense']['kernel']"
 * is fine. ndim is at most 64; 0 is a scalar. A dimension of 0 is valid. There are at most 2^46 elements.
 * Trained parameters are DSGD_FLOAT32, DSGD_FLOAT64, DSGD_FLOAT16 or DSGD_BFLOAT16; untrained ones any dtype.
 * `parameter` may be NULL.
 *
 * Gradients of the half types are summed and sent as float32. dsgd keeps float32 master values (Micikevicius
 * et al. 2018) and rounds `value` from them after each update. If the host has changed `value` since, its
 * master value is reset from it.
 * Threads: one thread at a time.
 * Errors: DSGD_ERR_EXISTS (name), DSGD_ERR_STATE (after start). */
DSGD_API int32_t dsgd_parameter_add(dsgd_session *session, const char *name, int32_t dtype,
                                    const int64_t *shape, size_t ndim, uint32_t flags,
                                    dsgd_parameter **parameter, dsgd_error **error);

/* Changes settings of one parameter, "key=value" words. They are equal on all workers, and are set before
 * start, or between steps by all workers.
 *   Trained    rate=F multiplies the learning rate, decay=F replaces the weight decay (F >= 0). frozen=1
 *              leaves the parameter out of steps; frozen=0 is the default.
 *   Untrained  The host may change the values of each replica. sync=none (default): steps leave them alone.
 *              sync=mean: a step that updates the model replaces them by the mean over all replicas, weighted
 *              as gradients are. sync=first: such a step replaces them by the values of the first replica of
 *              the lowest rank. sync_period=N: only every Nth step synchronises (default 1). Do not change
 *              the values between marking the last gradient and the end of the step.
 * Threads: one thread at a time.
 * Errors: DSGD_ERR_INVALID_ARGUMENT (also for sync=mean of an integer parameter; use sync=first),
 * DSGD_ERR_UNSUPPORTED (sync=mean with reproducible=1, since the mean depends on which worker has which
 * replica), DSGD_ERR_STATE (during a step). */
DSGD_API int32_t dsgd_parameter_set(dsgd_parameter *parameter, const char *options, dsgd_error **error);

/* Returns the name; "" for NULL. */
DSGD_API const char *dsgd_parameter_name(const dsgd_parameter *parameter);

/* ---- Replicas and buffers ------------------------------------------------------------------------------ */

/* Adds a copy of the model on a device, before dsgd_start. `device` is "cpu"; "cuda:0" and so on, as CUDA
 * numbers the process's GPUs; or NULL for the next entry of the configuration's `devices`, which
 * dsgd_session_info counts. `replica` may be NULL.
 *
 * The first GPU loads libdsgd_cuda.so, which is installed beside libdsgd.so. It needs the NVIDIA driver 580
 * or later if CUDA 13 built it, 535 or later if CUDA 12 did. A device may have several replicas, and a job
 * replicas on devices of all kinds. A worker has at most 1024 replicas; workers may have different numbers.
 * Threads: one thread at a time.
 * Blocks: on a GPU, while CUDA opens it, which may wait for what the GPU does. It has no deadline.
 * Errors: DSGD_ERR_UNSUPPORTED (no such kind of device here, no driver, a GPU that is too old),
 * DSGD_ERR_INVALID_ARGUMENT (no such index), DSGD_ERR_STATE, DSGD_ERR_LIMIT. */
DSGD_API int32_t dsgd_replica_add(dsgd_session *session, const char *device, dsgd_replica **replica,
                                  dsgd_error **error);

/* Returns the device: "cpu", "cuda:0"; "" for NULL. */
DSGD_API const char *dsgd_replica_device(const dsgd_replica *replica);

/* Sets the contribution weight of one replica from the next step on, instead of an equal part of the step's
 * weight: 0, or from 1e-12 to 1e12. A negative weight restores the default. Once one replica has a weight of
 * its own, all replicas of the worker must have, and the step's weight argument must be their sum or 0 (0:
 * the worker contributes nothing).
 * Threads: one thread at a time.
 * Errors: DSGD_ERR_STATE (during a step). */
DSGD_API int32_t dsgd_replica_weight(dsgd_replica *replica, double weight, dsgd_error **error);

/* Gives dsgd the host's own buffers of one parameter in one replica: values, and gradients (NULL and 0 for an
 * untrained parameter). Both hold exactly the parameter's bytes, are aligned to the element, and are memory
 * of the replica's device. No two buffers share memory: dsgd_bind checks the two that it gets, and dsgd_start
 * all of them. dsgd_bind may be called again between steps.
 *
 * dsgd_start reads the values of rank 0's first replica and writes all others. A step reads the gradient and
 * writes the value; with the optimizer "none" it writes the mean into the gradient instead.
 * Ownership: the buffers stay the host's, and stay valid until others are bound or the session is closed:
 * dsgd_close reads the values. On a GPU the work of the last step may still be under way when others are
 * bound: free the old ones by work on the default stream, or on a stream given to dsgd_stream_wait.
 * Threads: one thread at a time.
 * Errors: DSGD_ERR_INVALID_ARGUMENT (size, alignment, host memory for a GPU or the reverse), DSGD_ERR_STATE
 * (during a step). */
DSGD_API int32_t dsgd_bind(dsgd_replica *replica, dsgd_parameter *parameter, void *value, size_t value_nbytes,
                           void *gradient, size_t gradient_nbytes, dsgd_error **error);

/* Allocates the buffers of one parameter in one replica, in memory of the replica's device, zeroed, aligned
 * to 64 bytes, and binds them. dsgd may place them where peers or devices reach them. `gradient` may be NULL
 * for an untrained parameter. Calling again binds and returns the same buffers.
 * Ownership: dsgd's. They live until both the session and the last dsgd_memory of them are freed, so they
 * outlive dsgd_close.
 * Threads: one thread at a time.
 * Blocks: on a GPU, up to `step_timeout` for each buffer, while it is busy with work of the host.
 * Errors: DSGD_ERR_NO_MEMORY, DSGD_ERR_STATE, DSGD_ERR_TIMEOUT (the GPU did not allocate in time). */
DSGD_API int32_t dsgd_alloc(dsgd_replica *replica, dsgd_parameter *parameter, void **value, void **gradient,
                            dsgd_error **error);

/* A reference that keeps the buffers of dsgd_alloc mapped, for hosts with a garbage collector. */
typedef struct dsgd_memory dsgd_memory;

/* Returns a new reference to the buffers that dsgd_alloc has made.
 * Errors: DSGD_ERR_STATE (dsgd_alloc was not called for this parameter and replica). */
DSGD_API int32_t dsgd_memory_get(dsgd_replica *replica, dsgd_parameter *parameter, dsgd_memory **memory,
                                 dsgd_error **error);
/* Accessors. For NULL they return NULL or 0. */
DSGD_API void *dsgd_memory_value(const dsgd_memory *memory);
DSGD_API void *dsgd_memory_gradient(const dsgd_memory *memory); /* NULL for an untrained parameter */
DSGD_API size_t dsgd_memory_nbytes(const dsgd_memory *memory);  /* of each of the two */
DSGD_API void dsgd_memory_free(dsgd_memory *memory);            /* NULL is fine */

/* DLPack 1.x (https://github.com/dmlc/dlpack, struct DLManagedTensorVersioned). Include its dlpack.h, too, to
 * make or read one. */
struct DLManagedTensorVersioned;

/* Binds tensors, as dsgd_bind binds buffers. `gradient` is NULL for an untrained parameter. Device, dtype,
 * shape and contiguity are checked. The value tensor must not be read-only, and with the optimizer "none" the
 * gradient tensor neither.
 * Ownership: on success dsgd owns both tensors. It calls their deleters when other buffers are bound, or when
 * the session is freed; on a GPU it first waits until the device no longer uses them. A deleter may run on
 * any thread, also within a call of this library. On failure the tensors stay the caller's.
 * Threads: one thread at a time.
 * Errors: DSGD_ERR_UNSUPPORTED (another major version of DLPack), and those of dsgd_bind. */
DSGD_API int32_t dsgd_bind_dlpack(dsgd_replica *replica, dsgd_parameter *parameter,
                                  struct DLManagedTensorVersioned *value,
                                  struct DLManagedTensorVersioned *gradient, dsgd_error **error);

/* Returns tensors over the buffers of dsgd_alloc. `gradient` may be NULL, and must be for an untrained
 * parameter.
 * Ownership: each tensor keeps the buffers mapped until its deleter is called.
 * Threads: one thread at a time.
 * Errors: DSGD_ERR_STATE (dsgd_alloc was not called for this parameter and replica). */
DSGD_API int32_t dsgd_export_dlpack(dsgd_replica *replica, dsgd_parameter *parameter,
                                    struct DLManagedTensorVersioned **value,
                                    struct DLManagedTensorVersioned **gradient, dsgd_error **error);

/* ---- Optimizer and strategy ---------------------------------------------------------------------------- */

/* Chooses the optimizer, before dsgd_start; equal on all workers. Without this call it is sgd with lr=0.01.
 *   "sgd"             lr, momentum, dampening, nesterov, weight_decay, clip_norm
 *   "adam", "adamw"   lr, beta1, beta2, eps, weight_decay, amsgrad, clip_norm
 *   "none"            no update: the mean gradient is written to the gradient buffers of every replica
 * `options` are "key=value" words; NULL for defaults. Definitions and defaults are those of PyTorch
 * (torch.optim.SGD, Adam, AdamW), except the lr of "sgd", which is 0.01.
 *
 * clip_norm=F (F > 0) scales the mean gradient down to the L2 norm F over all parameters, as
 * torch.nn.utils.clip_grad_norm_ does. A loss scale is taken out first. With clip_norm every worker updates
 * and keeps optimizer state, also under "ps". "none" refuses clip_norm: clip in the host's optimizer.
 * Threads: one thread at a time.
 * Errors: DSGD_ERR_INVALID_ARGUMENT (the message names the nearest name or key), DSGD_ERR_STATE (after
 * start). */
DSGD_API int32_t dsgd_optimizer_set(dsgd_session *session, const char *name, const char *options,
                                    dsgd_error **error);

/* Sets the learning rate from the next step on, equal on all workers (the step checks): 0 or more, finite.
 * Threads: one thread at a time.
 * Errors: DSGD_ERR_STATE (during a step). */
DSGD_API int32_t dsgd_learning_rate_set(dsgd_session *session, double rate, dsgd_error **error);

/* Returns the factor by which the host multiplies its loss before the next backward pass, or a negative code.
 * It is 1 unless `loss_scale` is configured. The step divides the mean by it. If the mean is not finite, the
 * step changes nothing on any worker (skipped = 1) and halves a dynamic factor. The factor changes only at
 * the end of a step. The scheme is that of PyTorch's GradScaler (Micikevicius et al. 2018). A host with a
 * scaler of its own uses the optimizer "none" and leaves `loss_scale` and `nonfinite` off: NaN and infinity
 * of any worker are then in the mean gradient of all workers, so all scalers skip the same steps. */
DSGD_API double dsgd_loss_scale(const dsgd_session *session);

/* Chooses how gradients become new values.
 *   "simple"     through the driver, rank 0
 *   "ps"         parameter servers inside the workers, placed by consistent hashing
 *   "allreduce"  all workers reduce and update; aliases "mirrored", "multi_worker_mirrored"
 * A registered strategy has the name of its registration. `options` are "key=value" words, NULL for none:
 * algorithm=auto|direct|halving_doubling|nccl|ring, or a registered one, under "allreduce". Other strategies
 * do not have this option. With the configuration key `algorithm` = nccl, NCCL must reduce the gradients of
 * GPUs under them, too; other values of the key have no effect there.
 * copies=1..8 under "ps", by default the key `copies`: the number of workers that keep the optimizer's state
 * of each range, at most the number of servers. A job that goes on after losses needs at least 2, and
 * survives the loss of copies-1 workers at once; if all copies of a range are lost, the others fail with
 * DSGD_ERR_WORKER_LOST. Each further copy costs the bytes of one mean and an exchange before the update. An
 * optimizer without state (sgd without momentum, and no parameter of a half type) needs no copies, and pays
 * nothing for them.
 *
 * Before dsgd_start the call sets the strategy to start with. After dsgd_start it is collective: all workers
 * call it between steps with equal arguments. Optimizer state moves to where the new strategy keeps it, and
 * the next step uses the new strategy. With `op`, steps and changes of the model return DSGD_ERR_STATE until
 * the op has ended.
 * Threads: one thread at a time.
 * Blocks: with `op` NULL, up to `step_timeout`.
 * Errors: DSGD_ERR_UNSUPPORTED (this strategy or algorithm cannot run this job), DSGD_ERR_MISMATCH,
 * DSGD_ERR_STATE (a step is in flight), DSGD_ERR_LIMIT ("ps" cuts the model into more than 262144 ranges, and
 * views can change), DSGD_ERR_VIEW_CHANGED (no worker has changed its strategy: make the call again), and
 * those of dsgd_step. */
DSGD_API int32_t dsgd_strategy_set(dsgd_session *session, const char *name, const char *options,
                                   const dsgd_op_options *op_options, dsgd_op **op, dsgd_error **error);

/* Starts training: compares the workers and gives every replica of every worker the values of rank 0's first
 * replica. When the call has ended, the values are in place. Collective.
 *
 * All workers must agree on protocol, library, parameters, optimizer and strategy, on the configuration keys
 * that `dsgd config` calls equal on all workers, and on the key `fingerprint`, where a host can put the
 * versions of its own code and libraries. Every parameter of every replica must be bound. Where one is not,
 * the other workers' calls fail, too (DSGD_ERR_MISMATCH, with that worker's rank), and all may call it again.
 * On a GPU, values are read after the work that the host has enqueued on its default stream; wait for other
 * streams before. With `op`, the buffers are dsgd's, and the model cannot be changed, until the op has ended.
 *
 * On a worker that joins a running job (see Joins above), the call waits until the others have started, and
 * while they load a checkpoint, have to load one, or change the strategy. In the view in which it takes part,
 * one of the others then sends it all objects of the job; steps wait until it has them, so `step_timeout`
 * must be long enough for that.
 * Threads: one thread at a time.
 * Blocks: with `op` NULL, up to `step_timeout`.
 * Errors: DSGD_ERR_MISMATCH (the same message on all workers, before any value moves), DSGD_ERR_STATE (called
 * twice, no replica, a parameter not bound), DSGD_ERR_INVALID_ARGUMENT and DSGD_ERR_UNSUPPORTED (strategy,
 * algorithm or optimizer cannot serve these parameters, replicas and workers), DSGD_ERR_LIMIT (as
 * dsgd_strategy_set), DSGD_ERR_NO_MEMORY, DSGD_ERR_WORKER_LOST, DSGD_ERR_TIMEOUT, DSGD_ERR_ABORTED. */
DSGD_API int32_t dsgd_start(dsgd_session *session, const dsgd_op_options *options, dsgd_op **op,
                            dsgd_error **error);

/* ---- The step ------------------------------------------------------------------------------------------ */

typedef struct dsgd_step_result {
  size_t struct_size;   /* set by dsgd_step_result_init */
  int64_t step;         /* index of this step, from 0 */
  int64_t view;         /* view in which it completed */
  int32_t size;         /* workers in that view */
  int32_t applied;      /* 1: values were updated; 0: all weights were 0, or `skipped` */
  int32_t all_done;     /* 1: no data is left: all remaining workers gave weight 0. Never 1 in the first step
                         * after a change of the view */
  int32_t stop;         /* 1: some worker called dsgd_stop_request before this step */
  double weight;        /* sum of all contribution weights */
  double gradient_norm; /* L2 norm of the mean gradient before clipping; NaN if all weights were 0, if
                         * `nonfinite` skipped the step, or if `gradient_norm`, `loss_scale` and clip_norm
                         * are all off */
  int64_t nonfinite;    /* elements of gradients with NaN or infinity, over all workers; 0 if the key
                         * `nonfinite` is off */
  int32_t nonfinite_rank; /* lowest rank that has some; -1: none */
  int32_t skipped;      /* 1: no update, since gradients, or with `loss_scale` their mean, were not finite */
} dsgd_step_result;

/* Fills `result` with defaults. struct_size: see dsgd_config_key_init. */
DSGD_API int32_t dsgd_step_result_init(dsgd_step_result *result, size_t struct_size);

/* Makes one synchronous step: the mean of all replicas' gradients over all workers, sum(c*g)/sum(c), updates
 * every replica. When it returns, the new values are in every replica of this worker, and the host owns the
 * gradient buffers again. Collective. `result` may be NULL.
 *   Weight       `weight` is this worker's contribution weight c, usually its number of samples, split
 *                equally over its replicas: 0, or from 1e-12 to 1e12. 0 means that this worker has no data
 *                left, and its gradients are not read. Keep calling with 0 until result->all_done is 1.
 *   Gradients    Every gradient not marked absent is taken as ready; on a GPU, once the work that the host
 *                has enqueued on the default stream before is done. c*g and its sums must not overflow the
 *                parameter's dtype.
 *   Exactness    With `reproducible`, the bits of the outcome (values, mean gradients, weight and gradient
 *                norm in `result`) do not depend on strategy, algorithm or the split of the replicas over
 *                workers, whatever their weights. The error of an element's sum of c*g, relative to the
 *                largest |c*g| of that element, is at most 2^-24 for float32 and the half types, and 2^-53
 *                for float64 with up to 32 replicas, after each c*g was rounded to float64. With more
 *                replicas it is larger: see core/reduce/README.md. The sum is divided by the exact sum of c,
 *                and rounded to the dtype. A large element does not affect the precision of others. A c*g
 *                that is not finite makes its own element NaN; a sum of zeros is +0.
 *   Halves       With `wire` = bf16 or fp16, gradients of float32 and half parameters travel between workers
 *                as halves, and values of half parameters with the strategy "ps". Owners add in float32. All
 *                workers still get the same bits. Each worker adds its rounding error of an element to its
 *                gradient in the next step that updates, so errors do not add up over steps (Seide et al.
 *                2014; Karimireddy et al. 2019). This takes 10 bytes of memory per element. The errors are
 *                lost when the session ends. fp16 needs `loss_scale`, `reproducible` is refused, and so are
 *                algorithms that send partial sums: ring, halving_doubling and those of plug-ins. GPUs that
 *                NCCL reduces over keep float32 among themselves.
 *   Not finite   With the key `nonfinite`, the step looks for NaN and infinity in the gradients that count,
 *                which are neither absent nor of weight 0, while it sums them. Before anything changes, all
 *                workers exchange what they have found, so they decide alike. With skip and zero, `result`
 *                has the number of elements and the first rank, and the log names ranks, parameters and the
 *                first element of each (its index in row-major order). With fail, the error names them.
 *                  fail  The step fails on all workers with DSGD_ERR_NON_FINITE and the same message. The
 *                        session goes on: the next step has the same index. Stop requests then apply to it;
 *                        gradients marked absent do not.
 *                  skip  The step ends without an update: values, optimizer state with its count of steps,
 *                        and untrained parameters stay. `skipped` is 1 and `applied` 0. With the optimizer
 *                        "none" the gradient buffers keep this worker's own gradients, not the mean.
 *                  zero  These elements count as 0. Weights stay, so the mean is that of a gradient of 0.
 *                Finite gradients whose sum of c*g overflows are not found: the mean is then infinite, or
 *                NaN. A `loss_scale`, 1 included, finds that, too. With loss_scale = dynamic, a step that
 *                `skip` leaves out halves the factor; `fail` and `zero` are refused then. The check costs
 *                one small message to each worker, beside the last bucket; and a worker by itself, whose
 *                replicas are all on one GPU, waits for the GPU before it updates.
 *   Mismatch     A step on which workers disagree, or that some of them do not call, fails with
 *                DSGD_ERR_MISMATCH and changes nothing; the session goes on. Stop requests and gradients
 *                marked absent then apply to the next step.
 *   Failure      After a failure in mid-step the session is torn: later steps return DSGD_ERR_TORN, or the
 *                failure of the session if it has failed as a whole.
 *   Early update With `early_update` = 1, a GPU updates as soon as NCCL has reduced, and the op of
 *                dsgd_step_begin may end before the GPU has updated. In three cases values may then come
 *                from unfinished sums, and differ between workers: a worker or GPU fails, the job is aborted,
 *                or dsgd_close is called with timeout 0. Load a checkpoint then. A failure or an abort also
 *                fails the session, and later calls return its cause.
 *   Departures   Workers that have closed their sessions between steps (see dsgd_close) take no part in later
 *                steps, which go on as if they gave weight 0. Ranks, dsgd_size and `size` in `result` stay.
 *                Other collectives and dsgd_strategy_set need all workers, and fail from then on with
 *                DSGD_ERR_WORKER_LOST and the rank. Steps fail in the same way, on all workers and before
 *                anything changes, if the departed worker owns a part of the parameters (rank 0 under
 *                "simple"; "ps" and registered strategies as they place ranges), or if NCCL reduces GPU
 *                gradients. In a job whose workers may change (see Losses and Joins) such a step begins again
 *                in a view without the departed worker instead. A registered algorithm must give schedules
 *                for the smaller number of workers; if it fails, the step fails. If data that the departed
 *                worker sent for an earlier step is lost, the session fails on all workers with
 *                DSGD_ERR_WORKER_LOST and its rank.
 *   Comparison   All workers hold equal values of trained parameters, and dsgd compares those of their first
 *                replicas. Each step compares 1/64 of the elements of each parameter, as they are before the
 *                step, so that a difference that lasts is found within 64 steps. If the parameters have more
 *                than 256 MiB, each step compares about 4 MiB of them, and a difference is found within K
 *                steps: K is their size divided by 4 MiB, rounded up, where half types count as float32. The
 *                step with all_done = 1 and dsgd_close compare all of them. The step with all_done = 1 also
 *                compares a worker's replicas on the cpu with each other (not with the optimizer "none").
 *                Values that differ end the steps of all workers, then and later, with DSGD_ERR_DIVERGED; the
 *                message names the first parameter that differs, and the ranks. If two replicas of one worker
 *                differ, the sessions of all workers fail with this code.
 *   Checksums    Where `checksum` or TLS is on, bytes that change between two workers are found before they
 *                are used, and end the session with DSGD_ERR_CORRUPTED. Gradients that NCCL moves, within a
 *                node or with `internode` = nccl, carry no checksums. If a bit flips in one of these places,
 *                all workers get the same wrong value and no check detects it: in a sum; under "ps", in the
 *                memory of the owner of a value; on the way to the worker that adds, if that connection has
 *                neither checksums nor TLS (the default within a machine). Under "ps" the next step
 *                overwrites a value that changed at a worker other than its owner.
 * Threads: one thread at a time.
 * Blocks: up to `step_timeout`.
 * Errors: DSGD_ERR_STATE (before start, or while a step, dsgd_start, dsgd_strategy_set or
 * dsgd_checkpoint_load is in flight), DSGD_ERR_MISMATCH (rates, weights or settings differ),
 * DSGD_ERR_NON_FINITE, DSGD_ERR_WORKER_LOST, DSGD_ERR_DIVERGED, DSGD_ERR_CORRUPTED, DSGD_ERR_TIMEOUT,
 * DSGD_ERR_ABORTED, DSGD_ERR_TORN. */
DSGD_API int32_t dsgd_step(dsgd_session *session, double weight, dsgd_step_result *result,
                           dsgd_error **error);

/* Begins a step that overlaps the backward pass. Gradients are then marked one by one. The step ends when
 * every gradient is marked, ready or absent, and the op ends with it; dsgd_step_flush marks the rest. Waiting
 * marks nothing.
 *   Streams      When the op ends, a GPU may still be writing the new values. Work that the host enqueues
 *                afterwards sees them on the default stream of that GPU, and on a stream on which it has
 *                marked a gradient of that replica; for other streams call dsgd_stream_wait. With the
 *                optimizer "none" the same holds for the mean gradients.
 *   CUDA graphs  Capture no call of dsgd's, and begin no capture in a stream with marks before the step has
 *                ended. Launch the graph, then mark the gradients in the stream it was launched in. Capture
 *                in a stream with the flag cudaStreamNonBlocking: while a blocking stream is captured, CUDA
 *                forbids the default stream, so steps wait for the end of the capture, for `step_timeout` at
 *                most.
 *   NCCL         Use no other communicator on these GPUs (such as PyTorch's) from here to the end of the op,
 *                unless the gradients wait for its work in the stream in which they are marked. Two
 *                communicators that workers launch in different orders may wait for each other for ever.
 * Threads: one thread at a time.
 * Errors: DSGD_ERR_STATE (as dsgd_step). The op ends with the other errors of dsgd_step. */
DSGD_API int32_t dsgd_step_begin(dsgd_session *session, double weight, const dsgd_op_options *options,
                                 dsgd_op **op, dsgd_error **error);

/* Marks a gradient as ready: it is complete and will not change until the step ends. Gradients may be marked
 * in any order.
 *
 * For a replica on the cpu `stream` is NULL. For one on a GPU the gradient is complete once the work that
 * `stream` holds now is done. Streams are numbered as in DLPack: a cudaStream_t, 1 or NULL for the (legacy)
 * default stream, 2 for the calling thread's default stream. Gradients travel in buckets. The step may
 * therefore also wait for work that is enqueued in the stream before the last gradient of the same bucket is
 * marked. Do not destroy the stream before the step has ended: dsgd orders the new values on it. If the
 * stream fails before that, the session fails.
 * Errors: DSGD_ERR_STATE (no step begun, marked twice in one step, or the default stream while a blocking
 * stream is being captured into a graph), DSGD_ERR_INVALID_ARGUMENT (a stream for the cpu, of another device,
 * or that is being captured into a graph), the failure of the step begun, if it has failed. A gradient whose
 * stream is refused stays unmarked: mark it again after the capture, or in another stream. */
DSGD_API int32_t dsgd_gradient_ready(dsgd_replica *replica, dsgd_parameter *parameter, void *stream,
                                     dsgd_error **error);

/* Marks the gradients of `count` parameters of one replica, which are all complete in `stream`, as
 * dsgd_gradient_ready does; cheaper than as many calls. Marks all of them, or none if one cannot be marked;
 * the error names that one.
 * Errors: as dsgd_gradient_ready. */
DSGD_API int32_t dsgd_gradients_ready(dsgd_replica *replica, dsgd_parameter *const *parameters, size_t count,
                                      void *stream, dsgd_error **error);

/* Makes `stream` wait for the new values of all steps that have ended. Call it for a stream that is not the
 * default stream and on which no gradient of this replica was marked; other streams wait without it. Streams
 * are numbered as in dsgd_gradient_ready. For a replica on the cpu pass NULL; the call then does nothing.
 * Errors: DSGD_ERR_INVALID_ARGUMENT (a stream for the cpu, or that is being captured into a graph),
 * DSGD_ERR_STATE (a blocking stream is being captured, so the default stream cannot be used). */
DSGD_API int32_t dsgd_stream_wait(dsgd_replica *replica, void *stream, dsgd_error **error);

/* Marks a gradient as absent: this replica has no gradient of this parameter in the step begun, or, with none
 * begun, in the next one. Its weight then does not count for that parameter. With `absent` = "zero" in the
 * configuration it counts, with a gradient of zero, as with PyTorch's find_unused_parameters. A parameter
 * that is absent on all replicas of all workers keeps its value and optimizer state.
 * Errors: as dsgd_gradient_ready, but no step need have begun; DSGD_ERR_STATE (before start, or with
 * `early_update` = 1, where no gradient may be absent). */
DSGD_API int32_t dsgd_gradient_absent(dsgd_replica *replica, dsgd_parameter *parameter, dsgd_error **error);

/* Marks all gradients that are not marked yet as ready. Does nothing if the step has ended, since all were
 * marked.
 * Errors: DSGD_ERR_STATE (no step was begun, or a blocking stream is being captured into a graph: call it
 * again afterwards), the failure of the step begun, if it has failed. */
DSGD_API int32_t dsgd_step_flush(dsgd_session *session, dsgd_error **error);

/* Reads the result of a step's op that has ended without error.
 * Errors: DSGD_ERR_STATE (the op has not ended), DSGD_ERR_INVALID_ARGUMENT (it is not a step's), the failure
 * of the step. */
DSGD_API int32_t dsgd_op_step_result(const dsgd_op *op, dsgd_step_result *result, dsgd_error **error);

/* Asks all workers to stop. The next step that this worker begins has stop = 1 in its result, on every
 * worker. This is the only async-signal-safe function of this header, and only with `error` NULL: a SIGTERM
 * handler may call it. */
DSGD_API int32_t dsgd_stop_request(dsgd_session *session, dsgd_error **error);

/* ---- Operations ---------------------------------------------------------------------------------------- */

/* Work in progress. dsgd owns its buffers until it has ended, with success or not. Freeing an op does not end
 * the work. An op may be freed before or after its session; an op whose session was freed has ended with
 * DSGD_ERR_CLOSED at the latest. */

/* Returns the number of the op, unique in its session, for tables on the host's side; 0 for NULL. */
DSGD_API uint64_t dsgd_op_id(const dsgd_op *op);

/* Returns the user_data of the options that the op was begun with; NULL for NULL. An op has it before any
 * thread can learn that the op has ended, so a thread that polls the queue never meets an op that the host
 * does not know. */
DSGD_API void *dsgd_op_user_data(const dsgd_op *op);

/* Waits until the op has ended and returns its status. Waiting marks no gradient. Several threads may wait.
 * Blocks: up to timeout_ms.
 * Errors: DSGD_ERR_WAIT_TIMEOUT (it has not ended yet; the message names the workers that have not come and
 * the gradients that are missing, on this worker or on others; the error's rank is the first of these
 * workers), the status of the op. */
DSGD_API int32_t dsgd_op_wait(dsgd_op *op, int32_t timeout_ms, dsgd_error **error);

/* Sets *done to 1 if the op has ended, else to 0. Returns the op's status if it has ended, else DSGD_OK. */
DSGD_API int32_t dsgd_op_test(dsgd_op *op, int32_t *done, dsgd_error **error);

/* Aborts an op; does nothing if it has ended. A dsgd_object_get ends with DSGD_ERR_ABORTED, and the session
 * goes on. All other ops involve other workers: aborting one aborts the session, as dsgd_abort does. `reason`
 * may be NULL. */
DSGD_API int32_t dsgd_op_abort(dsgd_op *op, const char *reason, dsgd_error **error);

/* Releases one reference; NULL is fine. Other threads may be within calls on the op. */
DSGD_API void dsgd_op_free(dsgd_op *op);

/* Takes up to `max` ops (1 or more) out of the completion queue, and sets *count to their number. The queue
 * holds the ops that have ended and were neither polled nor freed, in the order in which they ended. Works
 * after close until the queue is empty, then returns DSGD_ERR_CLOSED.
 * Ownership: each pointer equals the one from the call that began the op, and adds one reference. Call
 * dsgd_op_free once for the poll and once for the call that began the op. So a polled op stays valid whatever
 * other threads free.
 * Blocks: up to timeout_ms for the first op.
 * Errors: DSGD_ERR_WAIT_TIMEOUT (no op has ended). */
DSGD_API int32_t dsgd_queue_poll(dsgd_session *session, dsgd_op **ops, size_t max, int32_t timeout_ms,
                                 size_t *count, dsgd_error **error);

/* Returns a file descriptor that is readable while the completion queue is not empty, for poll() and event
 * loops; or a negative code. It is dsgd's: do not read or close it. Valid until the session is freed. */
DSGD_API int32_t dsgd_queue_fd(const dsgd_session *session);

/* ---- Collectives --------------------------------------------------------------------------------------- */

/* Reductions. */
enum dsgd_reduction { DSGD_SUM = 0, DSGD_MIN = 1, DSGD_MAX = 2, DSGD_PROD = 3, DSGD_MEAN = 4 };

/* An ordered subset of the workers. NULL is the world; version 1.0 has no other. */
typedef struct dsgd_group dsgd_group;

/* These hold for all collectives:
 *   Agreement  Every worker of the group makes the calls of a channel in the same order, with equal
 *              arguments: the same function, dtype, reduction, root, number of elements, and element counts.
 *              A collective succeeds on a worker only when all workers have called it and agree. If they
 *              disagree, it fails on all workers with DSGD_ERR_MISMATCH and the same message, which shows two
 *              of the calls; the session goes on.
 *   Channels   Calls of different channels need no common order. A thread that collects metrics beside the
 *              steps uses a channel of its own. Steps, dsgd_start, dsgd_strategy_set, and calls without
 *              options use channel 0. Channels other than 0 run one collective at a time; later ones wait.
 *   Buffers    Buffers are in host memory or in memory of a GPU. Zero elements are valid. nbytes is a
 *              multiple of the element size. A failed collective leaves its output undefined. With `op`, the
 *              call waits for no other worker (see Blocks), and the buffers are dsgd's until the op ends.
 *   GPU memory Each buffer may be in host memory or on a GPU, which needs no replica. All GPU buffers of one
 *              call are on one GPU; other workers may use other memory. dsgd copies the data through host
 *              memory, which it allocates for the call. Results have the same bits as for host buffers.
 *              Managed memory counts as host memory. Freed memory of a GPU looks like host memory; with a
 *              `stream` that is not NULL the call then fails.
 *   Streams    A call with GPU memory reads and writes it after the work that `stream` of its options held at
 *              the call; streams are numbered as in dsgd_gradient_ready. Work enqueued later is not waited
 *              for. When the op ends without error, the output is written: work enqueued from then on sees it
 *              in every stream. dsgd enqueues nothing in `stream`, which may be destroyed after the call. Do
 *              not capture the call into a graph. The call fails with DSGD_ERR_STATE if the stream is the
 *              default one while a blocking stream is being captured.
 *   Ended ops  A collective that failed, was aborted or timed out no longer uses its buffers: it waits for
 *              copies in flight, of 1 MiB each, but not for `stream`. The exception is a GPU that hangs in
 *              such a copy. The op then ends at its deadline, or a `lease` after the session failed, and the
 *              message says that the GPU may still use the buffer. If a worker cannot read its buffer, the
 *              call fails on all workers; if it cannot write its result, on this worker alone.
 *   Results    Sums are made in an order fixed by rank or by the algorithm, so the same run gives the same
 *              bits. Integer sums wrap around. DSGD_MEAN is for floating point only.
 *   Threads    Any thread, if the order within the channel is the same on all workers.
 *   Blocks     With `op` NULL, up to the deadline of `options`. With `op`, the first call with memory of a
 *              GPU without a replica opens that GPU, which may wait for the host's work on it, up to the
 *              deadline.
 *   Errors     DSGD_ERR_MISMATCH, DSGD_ERR_WORKER_LOST, DSGD_ERR_TIMEOUT, DSGD_ERR_ABORTED. With GPU memory
 *              also DSGD_ERR_INVALID_ARGUMENT (two GPUs in one call; a stream of another GPU, that is being
 *              captured, or without GPU memory), DSGD_ERR_STATE, DSGD_ERR_UNSUPPORTED (the GPU),
 *              DSGD_ERR_NO_MEMORY, DSGD_ERR_INTERNAL (a call of CUDA failed). */

/* Reduces `send` of all workers into `receive` of every worker. Both buffers have nbytes bytes. The two
 * pointers are equal (in place), or the buffers do not overlap. */
DSGD_API int32_t dsgd_allreduce(dsgd_session *session, dsgd_group *group, const void *send, void *receive,
                                size_t nbytes, int32_t dtype, int32_t reduction,
                                const dsgd_op_options *options, dsgd_op **op, dsgd_error **error);

/* Gives every worker the data of rank `root`, in place. */
DSGD_API int32_t dsgd_broadcast(dsgd_session *session, dsgd_group *group, void *data, size_t nbytes,
                                int32_t dtype, int32_t root, const dsgd_op_options *options, dsgd_op **op,
                                dsgd_error **error);

/* Gives every worker the `send` of all workers, in rank order, in `receive`. `element_counts` holds the
 * number of elements of each rank (dsgd_size numbers, copied, equal on all workers); NULL: all ranks send the
 * same number. send_nbytes is the size of this rank's part, and receive_nbytes that of all parts. `send` may
 * be this rank's part of `receive`. */
DSGD_API int32_t dsgd_allgather(dsgd_session *session, dsgd_group *group, const void *send,
                                size_t send_nbytes, void *receive, size_t receive_nbytes,
                                const size_t *element_counts, int32_t dtype, const dsgd_op_options *options,
                                dsgd_op **op, dsgd_error **error);

/* Reduces `send` of all workers and gives each worker its part in `receive`. `send` is split in rank order
 * into parts of `element_counts` elements (NULL: equal parts). send_nbytes is the size of all parts, and
 * receive_nbytes that of this rank's part. `receive` may be this rank's part of `send`. */
DSGD_API int32_t dsgd_reduce_scatter(dsgd_session *session, dsgd_group *group, const void *send,
                                     size_t send_nbytes, void *receive, size_t receive_nbytes,
                                     const size_t *element_counts, int32_t dtype, int32_t reduction,
                                     const dsgd_op_options *options, dsgd_op **op, dsgd_error **error);

/* Waits until all workers have called it. */
DSGD_API int32_t dsgd_barrier(dsgd_session *session, dsgd_group *group, const dsgd_op_options *options,
                              dsgd_op **op, dsgd_error **error);

/* ---- Objects ------------------------------------------------------------------------------------------- */

/* A named object, bytes or an array, that every worker holds: a vocabulary, a tokenizer, settings, class
 * weights. */
typedef struct dsgd_object dsgd_object;

/* Copies `data`, in host memory, to every worker under `name`, UTF-8 of 1 to 1024 bytes; ends when all
 * workers have it. One worker calls it (not collective).
 *
 * `dtype` (enum dsgd_dtype) and `shape` tell the receivers, which may be in other languages, that `data` is
 * an array of up to 64 dimensions in row-major order; ndim 0 is a scalar. dtype -1 with ndim 0 means bytes
 * without a type.
 *
 * If a worker has closed its session, the call ends with DSGD_ERR_WORKER_LOST, and the remaining workers
 * still get the object. If rank 0 has closed, no worker gets it, because rank 0 decides which worker may put
 * a name. After a put that failed, some workers may hold the object: call dsgd_object_delete, which may
 * return DSGD_ERR_NOT_FOUND, before a worker puts the name again.
 * Blocks: with `op` NULL, up to the deadline of `options`.
 * Errors: DSGD_ERR_EXISTS (name), DSGD_ERR_INVALID_ARGUMENT (nbytes is not the size of the array),
 * DSGD_ERR_LIMIT (over 1 GiB), DSGD_ERR_TIMEOUT, and those of collectives. */
DSGD_API int32_t dsgd_object_put(dsgd_session *session, const char *name, const void *data, size_t nbytes,
                                 int32_t dtype, const int64_t *shape, size_t ndim,
                                 const dsgd_op_options *options, dsgd_op **op, dsgd_error **error);

/* Waits until the object of that name is put, and returns a reference to it. With `op`, `object` is NULL, and
 * dsgd_op_object gives the object.
 * Blocks: with `op` NULL, up to the deadline of `options`.
 * Errors: DSGD_ERR_TIMEOUT (it was not put within the deadline), DSGD_ERR_INVALID_ARGUMENT (`object` and `op`
 * are both given, or both NULL), and those of collectives. */
DSGD_API int32_t dsgd_object_get(dsgd_session *session, const char *name, const dsgd_op_options *options,
                                 dsgd_object **object, dsgd_op **op, dsgd_error **error);

/* Returns a new reference to the object of a dsgd_object_get that has ended without error.
 * Errors: DSGD_ERR_STATE (the op has not ended), DSGD_ERR_INVALID_ARGUMENT (it is not a dsgd_object_get), the
 * failure of the op. */
DSGD_API int32_t dsgd_op_object(const dsgd_op *op, dsgd_object **object, dsgd_error **error);

/* Deletes the object `name` on all workers; any worker may call it (not collective). Ends when no worker
 * holds the object. The name can then be put again, and dsgd_object_get waits for the new object. Objects
 * that dsgd_object_get has returned stay valid. Closed workers are skipped. If rank 0 has closed, the call
 * fails with DSGD_ERR_WORKER_LOST.
 * Blocks: with `op` NULL, up to the deadline of `options`.
 * Errors: DSGD_ERR_NOT_FOUND (not put, or deleted by another worker), DSGD_ERR_TIMEOUT (some workers may
 * still hold it), and those of collectives. */
DSGD_API int32_t dsgd_object_delete(dsgd_session *session, const char *name, const dsgd_op_options *options,
                                    dsgd_op **op, dsgd_error **error);

/* Accessors. Returned pointers are valid until dsgd_object_free. For NULL they return NULL or 0, and
 * dsgd_object_dtype -1. */
DSGD_API const void *dsgd_object_data(const dsgd_object *object);
DSGD_API size_t dsgd_object_nbytes(const dsgd_object *object);
DSGD_API int32_t dsgd_object_dtype(const dsgd_object *object); /* -1: bytes without a type */
DSGD_API size_t dsgd_object_ndim(const dsgd_object *object);   /* 0: a scalar, or bytes without a type */
DSGD_API const int64_t *dsgd_object_shape(const dsgd_object *object); /* ndim numbers */
DSGD_API void dsgd_object_free(dsgd_object *object);                  /* NULL is fine */

/* ---- Data-set sharding --------------------------------------------------------------------------------- */

/* The data shard of this worker: which sample indices it reads in an epoch. Over all workers every index 0 ..
 * samples-1 comes exactly once per epoch, whatever the number of workers. The order depends on seed and epoch
 * alone, and worker r of W takes every W-th index from the r-th on.
 *
 * A shard belongs to the session that it was made for, and is split over the workers of that session's view.
 * The indices that a worker draws between two of its calls of dsgd_step or dsgd_step_begin belong to the
 * second of these steps. A shard may outlive its session, and then keeps the last split.
 *
 * When the job goes on in a new view, the shards of all workers deal out the rest of the epoch again. A
 * worker keeps the indices that it has drawn. If a worker is lost, the indices that it drew for steps that a
 * remaining worker has completed count as used; its other indices are dealt to the other workers. So each
 * index is used once per epoch, even if workers are lost. The host must follow these rules:
 *   - Make the shards on all workers in the same order, before the same step.
 *   - After a change of the view, call dsgd_shard_next again even if it has returned 0: there may be more.
 *     The epoch is over when a worker that has no index left makes steps of weight 0 and the result of one
 *     says `all_done`. The result of the first step of a view never does.
 *   - Then go to the next epoch before the next step. A worker that goes to another epoch earlier gives up
 *     the indices that it has not drawn.
 *   - A worker that joins a running job begins with the epoch that dsgd_shard_current_epoch returns after
 *     dsgd_start. It is the next one if the others have just ended an epoch; so epochs count up by one.
 *   - A worker that closes its session in mid-epoch has drawn all that it will use. If no new view follows,
 *     the rest of its part is skipped in this epoch, and all_done does not wait for it.
 *   - Draw the indices of a step just before the step. If a worker is lost, all indices that it had drawn
 *     when its last step began count as used, also those drawn ahead for later steps.
 * After a change of the view, dsgd_shard_position is an estimate until the next epoch. A checkpoint holds the
 * samples that were drawn, exactly.
 *
 * If the lists of samples are too long for one message of 64 KiB, which takes several hundred workers, a
 * warning says so, shards keep the split that they had, and the unused samples of lost workers are skipped in
 * this epoch. A worker that joins then fails in dsgd_start with DSGD_ERR_LIMIT.
 * Threads: one thread at a time per shard. */
typedef struct dsgd_shard dsgd_shard;

enum dsgd_shard_flag { DSGD_SHARD_SEQUENTIAL = 1 /* do not shuffle */ };

/* Makes the shard of a data set of `samples` samples, at the beginning of epoch 0. samples, seed and flags
 * are equal on all workers. If other workers had a shard of the same samples, seed and flags when the present
 * view began, the new shard begins at their position in the data; dsgd_shard_current_epoch returns the
 * epoch.
 * Errors: DSGD_ERR_INVALID_ARGUMENT (more than 2^63 - 1 samples, or unknown flags). */
DSGD_API int32_t dsgd_shard_new(const dsgd_session *session, uint64_t samples, uint64_t seed, uint32_t flags,
                                dsgd_shard **shard, dsgd_error **error);

/* Goes to the beginning of an epoch: 0, 1, 2, ...
 * Blocks: as dsgd_shard_next.
 * Errors: as dsgd_shard_next. */
DSGD_API int32_t dsgd_shard_epoch(dsgd_shard *shard, uint64_t epoch, dsgd_error **error);

/* Goes to a position in an epoch's order of all samples: the workers together have read the first `position`
 * indices, and worker r of W takes every W-th of the rest from the r-th on. A job can thus resume in
 * mid-epoch with another number of workers. All workers pass the same epoch and position.
 * Blocks: as dsgd_shard_next.
 * Errors: DSGD_ERR_INVALID_ARGUMENT (position > samples), and those of dsgd_shard_next. */
DSGD_API int32_t dsgd_shard_seek(dsgd_shard *shard, uint64_t epoch, uint64_t position, dsgd_error **error);

/* Returns the position of all workers together in the epoch, for dsgd_shard_seek.
 * It assumes that every worker has drawn as many indices since the last seek as this one. Once
 * dsgd_shard_next has returned fewer than `max`, it is the number of samples. After a change of the view, or
 * a checkpoint, it counts the samples that are drawn; they may not be the first ones. 0 for NULL. */
DSGD_API uint64_t dsgd_shard_position(const dsgd_shard *shard);

/* Writes the next indices, at most `max` (1 or more), to `indices`, which has room for so many, and their
 * number to *count; 0 when this worker has drawn its part of the epoch.
 * Blocks: only if views can change (see Losses and Joins), while the workers of a new view deal out the rest
 * of the epoch. The limit is that of a step. If the session closes or fails meanwhile, the call goes on with
 * the last split.
 * Errors: DSGD_ERR_STATE (this worker has joined a running job, and dsgd_start has not ended). */
DSGD_API int32_t dsgd_shard_next(dsgd_shard *shard, int64_t *indices, size_t max, size_t *count,
                                 dsgd_error **error);

/* Returns the number of indices of a whole epoch on this worker, in the present view. 0 for NULL. */
DSGD_API uint64_t dsgd_shard_size(const dsgd_shard *shard);
DSGD_API void dsgd_shard_free(dsgd_shard *shard);           /* NULL is fine */

/* Returns the epoch that the shard is in: the one of the last dsgd_shard_epoch or dsgd_shard_seek, or of the
 * checkpoint that was loaded. 0 for NULL. */
DSGD_API uint64_t dsgd_shard_current_epoch(const dsgd_shard *shard);

/* ---- Checkpoints --------------------------------------------------------------------------------------- */

/* A checkpoint is a folder DIR/step-NNNNNNNNNN with files in the safetensors format, one of each worker, and
 * manifest.json. It holds
 *   - the values of all parameters; of untrained ones those of rank 0's first replica,
 *   - the optimizer's state, its number of updates and learning rate, a dynamic loss scale,
 *   - the index of the next step,
 *   - the samples that the workers have drawn from the data shards of the session that the host has not
 *     freed.
 * A host that updates by itself (optimizer "none") saves the state of its own optimizer itself.
 *
 * The folder DIR is on a file system that all workers share. Give each training run a folder of its own.
 * If the key `checkpoint_interval` is set, dsgd itself saves a checkpoint every `checkpoint_interval` steps,
 * into `checkpoint_dir`; if that fails, the log says why and training goes on. `checkpoint_keep` is the
 * number of checkpoints that stay.
 *
 * A checkpoint becomes visible only when it is complete. If a worker dies while a checkpoint is saved,
 * earlier checkpoints are not affected, and the next save removes the incomplete files. Files carry checksums
 * (XXH3).
 *
 * Tensors are named as parameters ("dense.weight"). State is named as in PyTorch, behind a space
 * ("dense.weight exp_avg"), with "master_value" for float32 master values. A tensor of more than 1 MiB may
 * be cut, and so may smaller state under "ps". A part is one-dimensional, and its name ends with its elements
 * ("dense.weight [0:65536]"). */

/* Saves a checkpoint of the model as it is between two steps. Collective: all workers call it between the
 * same steps.
 *
 * The call copies this worker's part of the model; the files are written while steps go on. The memory of the
 * copy is kept for the next save. If the previous checkpoint is still being written, the call waits for it.
 * `folder` is DIR; NULL: `checkpoint_dir`. With `op`, the call returns when the model may change again,
 * and the op ends when the checkpoint exists. dsgd_close waits for it as for other operations.
 * Threads: one thread at a time.
 * Blocks: for the copy, and with `op` NULL until the checkpoint exists, up to the deadline of `options`.
 * Errors: DSGD_ERR_EXISTS (the folder has a checkpoint of this or a later step), DSGD_ERR_IO,
 * DSGD_ERR_NOT_FOUND (a worker does not see the folder that rank 0 has made), DSGD_ERR_STATE (before start,
 * or a step in flight), DSGD_ERR_TORN and DSGD_ERR_DIVERGED (the steps have ended with it),
 * DSGD_ERR_INVALID_ARGUMENT (no folder), DSGD_ERR_LIMIT (more than 1024 data shards), DSGD_ERR_TIMEOUT,
 * DSGD_ERR_NO_MEMORY for the copy, which ends the call alone, and those of collectives. */
DSGD_API int32_t dsgd_checkpoint_save(dsgd_session *session, const char *folder,
                                      const dsgd_op_options *options, dsgd_op **op, dsgd_error **error);

/* Loads a checkpoint into a started session, whose next step is then the one after the checkpoint.
 * Collective: all workers call it between the same steps, usually right after dsgd_start. If it fails there
 * with DSGD_ERR_VIEW_CHANGED, repeat it on all workers until it returns another status. If the load had
 * failed on another worker before the view changed, the repeated call fails with the same code.
 *
 * A worker that has joined a running job may make the call before its first step, as a restarted program
 * does. It holds the state of the others already. The call waits until they begin their next step, load, save
 * or collective, or until its deadline. If that is a load, it takes part; else it returns DSGD_OK and changes
 * nothing. If the worker does not make the call, a load of the others waits for it until their deadline.
 *
 * `folder` is DIR, whose newest checkpoint is loaded, or one checkpoint DIR/step-NNNNNNNNNN; NULL:
 * `checkpoint_dir`. The number of workers, the strategy, the devices and the number of replicas may differ
 * from those that saved. Parameters must have the same names, dtypes and shapes, in any order, and the
 * optimizer the same name. Its options, except the learning rate, and the settings of parameters are those
 * of the session. State that the checkpoint lacks, such as a momentum that was off, begins at zero.
 *
 * Every worker reads and checks all files before anything changes; it needs memory for a second copy of
 * values and optimizer state meanwhile. An error changes nothing, except that a device that fails while it
 * gets the values fails the session. A session whose steps have ended with DSGD_ERR_TORN or
 * DSGD_ERR_DIVERGED can step again afterwards.
 *
 * Data shards made before the call continue where the checkpoint was taken. They are found by samples, seed
 * and flags, in the order of their creation; dsgd_shard_current_epoch and dsgd_shard_position tell where
 * they are. With the same number of workers each continues exactly. With another number the rest of the
 * epoch is dealt again. A shard is left out if the workers were in different epochs when they saved.
 * Threads: one thread at a time.
 * Blocks: with `op` NULL, up to the deadline of `options`.
 * Errors: DSGD_ERR_NOT_FOUND (there is no checkpoint, as when a job is first started: go on without one),
 * DSGD_ERR_IO (a file is missing or damaged, or cannot be read: the message names it), DSGD_ERR_MISMATCH
 * (the checkpoint does not fit the model, or workers find different checkpoints), DSGD_ERR_STATE,
 * DSGD_ERR_INVALID_ARGUMENT, DSGD_ERR_TIMEOUT, DSGD_ERR_NO_MEMORY, and those of collectives. */
DSGD_API int32_t dsgd_checkpoint_load(dsgd_session *session, const char *folder,
                                      const dsgd_op_options *options, dsgd_op **op, dsgd_error **error);

/* ---- Digest -------------------------------------------------------------------------------------------- */

/* Returns a 64-bit digest of the values of all parameters, in order, of this worker's first replica, for
 * comparison between workers. Equal bits give an equal digest; all NaNs have the same digest, because GPUs
 * and CPUs produce different NaN bits. The buffers are read during the call. Not collective; not during a
 * step.
 * Threads: one thread at a time.
 * Blocks: with a replica on a GPU, up to `step_timeout`, for work enqueued before.
 * Errors: DSGD_ERR_STATE (no replica, a parameter of the first replica not bound, or a step in flight),
 * DSGD_ERR_TIMEOUT (the GPU). */
DSGD_API int32_t dsgd_digest(dsgd_session *session, uint64_t *digest, dsgd_error **error);

/* ---- Head ---------------------------------------------------------------------------------------------- */

/* A head that runs outside the workers. */
typedef struct dsgd_head dsgd_head;

/* Binds the configuration's `head` address (port 0: any) and serves one job until it is stopped. `config`
 * NULL: environment and defaults. The head ends with DSGD_ERR_TIMEOUT if a worker disconnects, or is silent
 * for a `lease`, before the job begins and no worker joins within `init_timeout`.
 *
 * With the key `head_state`, a path, the head keeps all that it knows of the running job in that file, and
 * tells the workers nothing before it is on the disk. If the head is lost, the workers train on and dial it
 * again, for `head_timeout`. A head that is then started with the same file, keys and token goes on with the
 * job. With port 0 it uses the previous head's port. It must be reachable at the same address; another port
 * is refused, another host is a warning. A worker that does not reconnect within a `lease` is lost. If none
 * has come back, the workers may be unable to reach this head: it waits for `head_timeout`, in which another
 * head can take over the job, and then ends the job. While there is no head, no loss is decided, and no
 * worker joins. If another process at the address refuses the workers, such as the head of another job, they
 * dial on until `head_timeout`; their error then has the last refusal of each address. A worker that closes
 * its session waits for a head up to a `lease`. A head that starts later counts the worker as lost.
 * The path may be a symbolic link. The file and the file beside it that ends in ".lock" can be read by their
 * user alone (mode 0600), for the file has a secret of the job; the token is in it only as a keyed hash. The
 * file is removed when the job ends, well or not; the lock stays. If a change cannot be stored, the job ends
 * with an error that names the file. A worker that would host the head refuses the key.
 *
 * With `head_state` = "etcd://HOST:PORT,HOST:PORT/PREFIX" the head keeps its state in etcd (3.4 or later)
 * instead, and several heads of one job may run, each on a machine of its own. One serves; the others stand
 * by, and refuse workers until one of them takes over: the lease in etcd of a lost head ends after a `lease`,
 * at least 2 s. The key `head` of the workers lists the addresses of all. A head whose lease in etcd is over
 * tells the workers nothing more, closes their connections, and ends with DSGD_ERR_WORKER_LOST. One that
 * stands by ends with DSGD_OK when the job has ended, well or not. The end of the job removes the state.
 * etcd:// is plain HTTP. If the job uses TLS, the head warns of it, unless all servers are on the loopback
 * interface. "etcds://..." is HTTPS, and needs the keys `tls_cert`, `tls_key` and `tls_ca`. A CA of `tls_ca`
 * must have signed the server's certificate, which must be for the host in `head_state`. After these files
 * are replaced, new connections use the new ones. Both need libcurl.so.4 at run time.
 * Blocks: to resolve a host name in `head`, up to `init_timeout`; for the first answer of etcd, up to a
 * quarter of its lease, and at most 5 s, for each server.
 * Errors: DSGD_ERR_ADDRESS_IN_USE, DSGD_ERR_UNREACHABLE (an unknown host name, or an address of another
 * machine), DSGD_ERR_TIMEOUT (the host name was not resolved), DSGD_ERR_LIMIT (file descriptors),
 * DSGD_ERR_UNSUPPORTED (as dsgd_init); for `head_state` DSGD_ERR_EXISTS (another head uses it),
 * DSGD_ERR_CORRUPTED (damaged, or another file), DSGD_ERR_MISMATCH (of a job with other keys, another token
 * or another port, or the server is not etcd), DSGD_ERR_IO, DSGD_ERR_NOT_FOUND (its folder),
 * DSGD_ERR_UNREACHABLE and DSGD_ERR_TIMEOUT (etcd), DSGD_ERR_UNAUTHORIZED (etcd or the head refuses the
 * other's certificate), DSGD_ERR_STATE (etcd refuses a request), DSGD_ERR_UNSUPPORTED (no libcurl). */
DSGD_API int32_t dsgd_head_start(const dsgd_config *config, dsgd_head **head, dsgd_error **error);

/* Returns the head's address for the key `head` of workers, with the port that was bound; "" for NULL. */
DSGD_API const char *dsgd_head_address(const dsgd_head *head);

/* Waits until the job has ended. Returns DSGD_OK if all workers left in good order, else the job's failure.
 * Blocks: up to timeout_ms.
 * Errors: DSGD_ERR_WAIT_TIMEOUT (the job goes on). */
DSGD_API int32_t dsgd_head_wait(dsgd_head *head, int32_t timeout_ms, dsgd_error **error);

/* Stops the head. A job that goes on has lost its head then; its state (key `head_state`) stays, so that
 * another head can take it up. NULL is fine. No call of dsgd_head_wait may be in progress. */
DSGD_API void dsgd_head_free(dsgd_head *head);

/* Asks the head of a job for its state, from any process that has the job's `head`, `job`, `token` and TLS
 * keys; `config` NULL: environment and defaults. The caller takes no place in the job. `dsgd status` prints
 * the answer as a table.
 *
 * The answer is one JSON object. Later versions may add fields. Times are in seconds.
 *   job                the configuration's
 *   head               address of the head that has answered, one of the configuration's
 *   state              "gathering": workers are still to come; "running"; "paused": too few workers are left,
 *                      and the job waits for others to join; "ending": all have left; "failed"
 *   view, head_rank    number of the view, null while gathering; the worker that hosts the head, or null
 *   num_workers, min_workers, max_workers
 *   wanted_workers     of the last dsgd_job_scale, else null
 *   scale_requests     how many calls of dsgd_job_scale the head has taken
 *   error              the cause of "failed", else null
 *   missing, refused   while gathering: ranks that have not come, if the others have asked for ranks; the
 *                      last refusal of a worker, or null
 *   workers            those that have come, in the order of their first ranks:
 *     rank, worker_id, host, pid   rank: in the present view; while gathering, the one that the worker asks
 *                      for; null: none
 *     state            "waiting": the job has not begun; "running"; "joining": it is in no view yet; "left":
 *                      it has closed its session in good order; "lost", also by its own failure
 *     silence          time since the last heartbeat
 *     view, steps      at the time of the last report: the worker's view, and the steps that have succeeded
 *     steps_per_second over the last reports
 *     report_age       time since the last report; a worker reports once per `heartbeat_interval`
 *     activity         "computes": no call is open, or only its own host and GPUs delay the open ones;
 *                      "waits": for other workers; "busy": it writes or sends
 *     operation, waiting, waits_for, seconds   of the open call at the time of the report: its name, what it
 *                      waits for as a sentence, the ranks, and how long it had been open
 * Fields that are not known, or no longer, are null.
 * Ownership: dsgd_text_free frees *text.
 * Blocks: up to timeout_ms; -1: up to `init_timeout`.
 * Errors: DSGD_ERR_UNREACHABLE (no head there), DSGD_ERR_UNAUTHORIZED (token, job), DSGD_ERR_MISMATCH
 * (another version of dsgd), DSGD_ERR_STATE (a worker, not a head), DSGD_ERR_TIMEOUT, DSGD_ERR_WORKER_LOST
 * (the connection broke), DSGD_ERR_UNSUPPORTED (as dsgd_init). */
DSGD_API int32_t dsgd_job_status(const dsgd_config *config, int32_t timeout_ms, char **text,
                                 dsgd_error **error);

/* Tells the head of a running job how many workers the job shall have. The head starts and stops no process.
 * It keeps the number, and gives it out as wanted_workers of dsgd_job_status: a program that starts workers,
 * such as `dsgd run`, then starts more of them or stops some. Each call makes scale_requests one more, so
 * that the same number can be asked for again after a loss. `config` as for dsgd_job_status. A head that is
 * started again has forgotten both.
 * Blocks: up to timeout_ms; -1: up to `init_timeout`.
 * Errors: DSGD_ERR_INVALID_ARGUMENT (fewer than `min_workers`, or more than `max_workers`),
 * DSGD_ERR_UNSUPPORTED (the workers of the job cannot change), DSGD_ERR_STATE (the job has not begun, or has
 * ended), and those of dsgd_job_status. */
DSGD_API int32_t dsgd_job_scale(const dsgd_config *config, int32_t workers, int32_t timeout_ms,
                                dsgd_error **error);

/* ---- Plug-ins ------------------------------------------------------------------------------------------ */

/* Algorithms and strategies of the host's own. They are registered with a configuration under a name, before
 * dsgd_init and on all workers alike. The keys `algorithm` and `strategy`, and dsgd_strategy_set, then take
 * the name. Names have 1 to 64 lower-case letters, digits and '_', and begin with a letter. Register first:
 * dsgd_config_set and dsgd_config_load refuse names that they do not know.
 *
 * The functions of a plug-in are pure: from the same arguments they always give the same answer, on every
 * worker. They only say where bytes go and who owns what; dsgd moves them. So a plug-in can neither block a
 * worker nor lose a step. Its answers are checked, and compared between workers, before anything is moved.
 * The functions are called from any thread, also by several at a time. They must return soon, and must not
 * throw, longjmp, or call dsgd functions other than those named here (calls on a session from a plug-in
 * function return DSGD_ERR_STATE). */
#define DSGD_PLUGIN_VERSION 1 /* version of the contracts below; a library accepts versions 1 to its own */

enum dsgd_transfer {
  DSGD_TRANSFER_SEND = 0,   /* to the peer */
  DSGD_TRANSFER_REDUCE = 1, /* from the peer, and added to the elements of this rank */
  DSGD_TRANSFER_COPY = 2    /* from the peer, in place of the elements of this rank */
};

/* One rank's part of an all-reduce, while an algorithm writes it; valid during that call. */
typedef struct dsgd_schedule dsgd_schedule;

/* Adds a transfer of elements [begin, begin + count) to or from rank `peer`. Rounds are numbered from 0. A
 * SEND of a round sends the elements as they were before the round. Elements received in a round are added or
 * copied in the order of these calls.
 *
 * For each transfer the sender adds a SEND, and the receiver a REDUCE or COPY of the same length in the same
 * round; several between the same two ranks are matched in the order of the calls. A transfer begins as soon
 * as those before it that touch the same elements are over, so several small transfers overlap better than
 * one large one, down to some 100 KiB. A rank has at most 65535 transfers, and all ranks together 2^20, which
 * a ring reaches at 512 workers: the operation fails if there are more.
 * Errors: DSGD_ERR_INVALID_ARGUMENT (an unknown kind of transfer). */
DSGD_API int32_t dsgd_schedule_add(dsgd_schedule *schedule, int32_t transfer, int32_t round, int32_t peer,
                                   uint64_t begin, uint64_t count, dsgd_error **error);

typedef struct dsgd_algorithm {
  size_t struct_size; /* set by dsgd_algorithm_init */
  uint32_t version;   /* DSGD_PLUGIN_VERSION of the header that the plug-in was compiled with */
  uint32_t flags;     /* none are defined yet; 0 */
  void *user;         /* for the functions; may be NULL */
  /* Writes the transfers of rank `rank` of `size` (> 1) in an all-reduce of `count` (> 0) elements in place.
   * dsgd calls it for every rank and checks the complete schedule: at the end every rank must hold every
   * rank's contribution exactly once, added in the same order. Returns DSGD_OK, or a code with which the
   * operation then fails on all workers: one of DSGD_ERR_INVALID_ARGUMENT, STATE, NOT_FOUND, NO_MEMORY,
   * LIMIT, UNSUPPORTED; others become DSGD_ERR_INTERNAL. */
  int32_t (*allreduce)(void *user, int32_t rank, int32_t size, uint64_t count, dsgd_schedule *schedule);
  /* Called once, from any thread, when nothing uses the plug-in any more: configuration and sessions are
   * freed. Must not call dsgd. May be NULL. */
  void (*release)(void *user);
} dsgd_algorithm;

/* Fills `algorithm` with zeros. struct_size: see dsgd_config_key_init. */
DSGD_API int32_t dsgd_algorithm_init(dsgd_algorithm *algorithm, size_t struct_size);

/* Registers an algorithm for the all-reduces of the strategy "allreduce" and of dsgd_allreduce. The struct is
 * copied. On failure `release` is not called.
 * Threads: one thread at a time per configuration.
 * Errors: DSGD_ERR_EXISTS (the name is taken), DSGD_ERR_UNSUPPORTED (version). */
DSGD_API int32_t dsgd_algorithm_register(dsgd_config *config, const char *name,
                                         const dsgd_algorithm *algorithm, dsgd_error **error);

/* Work of the owner of a range (dsgd_strategy.flags). MEAN: the owner divides the sum and sends the mean;
 * every worker updates (as "simple"). UPDATE: the owner also updates and sends the new values (as "ps"). */
enum dsgd_strategy_flags { DSGD_STRATEGY_MEAN_AT_OWNER = 0, DSGD_STRATEGY_UPDATE_AT_OWNER = 1 };

/* The range that an owner is asked for; valid during that call. */
typedef struct dsgd_placement dsgd_placement;
DSGD_API const char *dsgd_placement_parameter(const dsgd_placement *placement); /* name; "" for NULL */
DSGD_API uint64_t dsgd_placement_begin(const dsgd_placement *placement); /* first element of the range */
DSGD_API uint64_t dsgd_placement_count(const dsgd_placement *placement); /* elements, at most 65536 */
DSGD_API int32_t dsgd_placement_size(const dsgd_placement *placement);   /* number of workers */
/* Returns the options of dsgd_strategy_set, at most 4096 bytes; "" for none, and for NULL. */
DSGD_API const char *dsgd_placement_options(const dsgd_placement *placement);

typedef struct dsgd_strategy {
  size_t struct_size; /* set by dsgd_strategy_init */
  uint32_t version;   /* DSGD_PLUGIN_VERSION of the header that the plug-in was compiled with */
  uint32_t flags;     /* one of dsgd_strategy_flags */
  void *user;         /* for the functions; may be NULL */
  /* Returns the rank that owns the range, 0 .. size-1, or one of the codes of dsgd_algorithm.allreduce, with
   * which dsgd_start or dsgd_strategy_set then fails. The division of a parameter into ranges is the same for
   * every owner. */
  int32_t (*owner)(void *user, const dsgd_placement *placement);
  /* Called once, from any thread, when nothing uses the plug-in any more: configuration and sessions are
   * freed. Must not call dsgd. May be NULL. */
  void (*release)(void *user);
} dsgd_strategy;

/* Fills `strategy` with zeros. struct_size: see dsgd_config_key_init. */
DSGD_API int32_t dsgd_strategy_init(dsgd_strategy *strategy, size_t struct_size);

/* Registers a strategy: which worker owns which range. Otherwise as dsgd_algorithm_register. */
DSGD_API int32_t dsgd_strategy_register(dsgd_config *config, const char *name, const dsgd_strategy *strategy,
                                        dsgd_error **error);

#ifdef __cplusplus
}
#endif

#endif /* DSGD_DSGD_H_ */
