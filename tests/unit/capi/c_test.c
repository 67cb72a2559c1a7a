/* A host in plain C: one worker that uses every part of dsgd.h the way it is meant. */
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dsgd/dsgd.h"

static int failures = 0;

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      failures++;                                                               \
    }                                                                           \
  } while (0)

#define MUST(call)                                                                                \
  do {                                                                                            \
    dsgd_error* error = NULL;                                                                     \
    int32_t status = (call);                                                                      \
    if (status < 0) {                                                                             \
      fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, dsgd_status_name(status), \
              dsgd_error_message(error));                                                         \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)

static int records = 0;
static void count_record(const dsgd_log_record* record, void* user) {
  CHECK(dsgd_log_record_level(record) >= DSGD_LOG_ERROR && dsgd_log_record_level(record) <= DSGD_LOG_DEBUG);
  CHECK(dsgd_log_record_time_ns(record) > 0 && dsgd_log_record_session(record) > 0 &&
        dsgd_log_record_rank(record) <= 0);
  CHECK(strlen(dsgd_log_record_message(record)) > 0 && user == &records);
  records++;
}

/* y = 2 x0 - x1, learned by gradient descent on the squared error; returns the loss. */
static double gradient_of(const float* value, float* gradient) {
  static const float inputs[4][2] = {{0, 1}, {1, 0}, {1, 1}, {2, 1}};
  double loss = 0;
  gradient[0] = gradient[1] = 0;
  for (int i = 0; i < 4; i++) {
    const float wanted = 2 * inputs[i][0] - inputs[i][1];
    const float error = value[0] * inputs[i][0] + value[1] * inputs[i][1] - wanted;
    loss += (double)(error * error) / 4;
    gradient[0] += 2 * error * inputs[i][0] / 4;
    gradient[1] += 2 * error * inputs[i][1] / 4;
  }
  return loss;
}

static void train(dsgd_session* session) {
  const int64_t shape[1] = {2};
  dsgd_parameter* weight;
  dsgd_replica* replica;
  dsgd_memory* memory;
  dsgd_step_result result;
  void *value, *gradient;
  uint64_t before, after;
  MUST(dsgd_parameter_add(session, "weight", DSGD_FLOAT32, shape, 1, 0, &weight, &error));
  CHECK(strcmp(dsgd_parameter_name(weight), "weight") == 0);
  MUST(dsgd_parameter_set(weight, "rate=1 decay=0", &error));
  MUST(dsgd_replica_add(session, NULL, &replica, &error));
  CHECK(strcmp(dsgd_replica_device(replica), "cpu") == 0);
  MUST(dsgd_alloc(replica, weight, &value, &gradient, &error));
  MUST(dsgd_memory_get(replica, weight, &memory, &error));
  CHECK(dsgd_memory_value(memory) == value && dsgd_memory_gradient(memory) == gradient);
  CHECK(dsgd_memory_nbytes(memory) == 2 * sizeof(float) && (uintptr_t)value % 64 == 0);
  MUST(dsgd_optimizer_set(session, "sgd", "lr=0.1 momentum=0.9", &error));
  MUST(dsgd_strategy_set(session, "allreduce", NULL, NULL, NULL, &error));
  MUST(dsgd_start(session, NULL, NULL, &error));
  MUST(dsgd_digest(session, &before, &error));

  CHECK(dsgd_step_result_init(&result, sizeof result) == DSGD_OK);
  double loss = 1;
  for (int step = 0; step < 200; step++) {
    loss = gradient_of(value, gradient);
    MUST(dsgd_step(session, 4, &result, &error));
    CHECK(result.step == step && result.size == 1 && result.applied == 1 && result.weight == 4);
  }
  CHECK(loss < 1e-6);
  CHECK(isnan(result.gradient_norm));
  MUST(dsgd_digest(session, &after, &error));
  CHECK(before != after);

  /* The overlapping form, a new rate, a switch of strategy, and the end of the data. */
  dsgd_op* op;
  MUST(dsgd_learning_rate_set(session, 0.0, &error));
  MUST(dsgd_strategy_set(session, "ps", NULL, NULL, NULL, &error));
  MUST(dsgd_strategy_set(session, "last", NULL, NULL, NULL, &error));
  MUST(dsgd_step_begin(session, 4, NULL, &op, &error));
  MUST(dsgd_gradient_ready(replica, weight, NULL, &error));
  CHECK(dsgd_gradient_ready(replica, weight, NULL, NULL) == DSGD_ERR_STATE);
  MUST(dsgd_op_wait(op, -1, &error));
  MUST(dsgd_op_step_result(op, &result, &error));
  CHECK(result.step == 200 && result.applied == 1);
  dsgd_op_free(op);
  MUST(dsgd_digest(session, &before, &error));
  MUST(dsgd_stop_request(session, &error));
  MUST(dsgd_step(session, 0, &result, &error));
  CHECK(result.applied == 0 && result.all_done == 1 && result.stop == 1);
  MUST(dsgd_digest(session, &after, &error));
  CHECK(before == after);
  dsgd_memory_free(memory);
}

static void collect(dsgd_session* session) {
  double data[2] = {1.5, 2.5}, part[2] = {0, 0};
  dsgd_op *op, *ops[4];
  size_t count = 0;
  int32_t done = 0;
  MUST(dsgd_allreduce(session, NULL, data, data, sizeof data, DSGD_FLOAT64, DSGD_MEAN, NULL, NULL, &error));
  CHECK(data[0] == 1.5 && data[1] == 2.5);
  MUST(dsgd_broadcast(session, NULL, data, sizeof data, DSGD_FLOAT64, 0, NULL, NULL, &error));
  MUST(dsgd_allgather(session, NULL, data, sizeof data, part, sizeof part, NULL, DSGD_FLOAT64, NULL, NULL,
                      &error));
  CHECK(part[0] == 1.5 && part[1] == 2.5);
  data[0] = 7;
  MUST(dsgd_reduce_scatter(session, NULL, data, sizeof data, part, sizeof part, NULL, DSGD_FLOAT64, DSGD_SUM,
                           NULL, NULL, &error));
  CHECK(part[0] == 7);
  MUST(dsgd_allreduce(session, NULL, NULL, NULL, 0, DSGD_UINT8, DSGD_SUM, NULL, NULL, &error));

  /* Blocking calls leave nothing in the queue; the others come out of it as the pointers that the host has.
   */
  CHECK(dsgd_queue_poll(session, ops, 4, 0, &count, NULL) == DSGD_ERR_WAIT_TIMEOUT);
  MUST(dsgd_barrier(session, NULL, NULL, &op, &error));
  CHECK(dsgd_op_id(op) != 0);
  struct pollfd readable = {dsgd_queue_fd(session), POLLIN, 0};
  CHECK(readable.fd >= 0 && poll(&readable, 1, 10000) == 1);
  MUST(dsgd_queue_poll(session, ops, 4, -1, &count, &error));
  CHECK(count == 1 && ops[0] == op);
  dsgd_op_free(ops[0]);
  CHECK(poll(&readable, 1, 0) == 0);
  MUST(dsgd_op_test(op, &done, &error));
  CHECK(done == 1);
  dsgd_op_free(op);
}

#if DSGD_VERSION < 10000 || DSGD_VERSION / 10000 != DSGD_VERSION_MAJOR
#error "DSGD_VERSION is wrong"
#endif

static void share(dsgd_session* session) {
  dsgd_object* object;
  dsgd_shard* shard;
  int64_t indices[8];
  size_t count = 0;
  int seen[10] = {0};
  MUST(dsgd_object_put(session, "vocabulary", "abc", 3, -1, NULL, 0, NULL, NULL, &error));
  MUST(dsgd_object_get(session, "vocabulary", NULL, &object, NULL, &error));
  CHECK(dsgd_object_nbytes(object) == 3 && memcmp(dsgd_object_data(object), "abc", 3) == 0);
  dsgd_object_free(object);

  MUST(dsgd_shard_new(session, 10, 42, 0, &shard, &error));
  CHECK(dsgd_shard_size(shard) == 10);
  MUST(dsgd_shard_epoch(shard, 3, &error));
  do {
    MUST(dsgd_shard_next(shard, indices, 8, &count, &error));
    for (size_t i = 0; i < count; i++) seen[indices[i]]++;
  } while (count > 0);
  for (int i = 0; i < 10; i++) CHECK(seen[i] == 1);
  CHECK(dsgd_shard_position(shard) == 10);
  CHECK(dsgd_shard_current_epoch(shard) == 3);
  MUST(dsgd_shard_seek(shard, 3, 7, &error));
  MUST(dsgd_shard_next(shard, indices, 8, &count, &error));
  CHECK(count == 3);
  dsgd_shard_free(shard);
}

/* Plug-ins: with one worker neither has anything to do but the owner to be asked. */
static int asked = 0, released = 0;

static int32_t exchange(void* user, int32_t rank, int32_t size, uint64_t count, dsgd_schedule* schedule) {
  (void)user;
  if (size != 2) return DSGD_ERR_UNSUPPORTED;
  if (dsgd_schedule_add(schedule, DSGD_TRANSFER_SEND, 0, 1 - rank, 0, count, NULL)) return DSGD_ERR_INTERNAL;
  return dsgd_schedule_add(schedule, DSGD_TRANSFER_REDUCE, 0, 1 - rank, 0, count, NULL);
}

static int32_t last(void* user, const dsgd_placement* placement) {
  CHECK(strlen(dsgd_placement_parameter(placement)) > 0 &&
        strcmp(dsgd_placement_options(placement), "") == 0);
  CHECK(dsgd_placement_begin(placement) + dsgd_placement_count(placement) > 0);
  ++*(int*)user;
  return dsgd_placement_size(placement) - 1;
}

static void count_release(void* user) { ++*(int*)user; }

static void add_plugins(dsgd_config* config) {
  dsgd_algorithm algorithm;
  dsgd_strategy strategy;
  MUST(dsgd_algorithm_init(&algorithm, sizeof algorithm));
  algorithm.version = DSGD_PLUGIN_VERSION;
  algorithm.user = &released;
  algorithm.allreduce = exchange;
  algorithm.release = count_release;
  MUST(dsgd_algorithm_register(config, "exchange", &algorithm, &error));
  MUST(dsgd_strategy_init(&strategy, sizeof strategy));
  strategy.version = DSGD_PLUGIN_VERSION;
  strategy.flags = DSGD_STRATEGY_UPDATE_AT_OWNER;
  strategy.user = &asked;
  strategy.owner = last;
  MUST(dsgd_strategy_register(config, "last", &strategy, &error));
  MUST(dsgd_config_set(config, "algorithm", "exchange", &error));
}

int main(void) {
  dsgd_config* config = dsgd_config_new();
  dsgd_session* session = NULL;
  MUST(dsgd_config_set(config, "num_workers", "1", &error));
  MUST(dsgd_config_set(config, "log_level", "debug", &error));
  add_plugins(config);
  MUST(dsgd_config_log_hook(config, count_record, &records, &error));
  CHECK(strcmp(dsgd_config_value(config, "log_level"), "debug") == 0);
  MUST(dsgd_init(config, &session, &error));
  dsgd_config_free(config);
  CHECK(dsgd_rank(session) == 0 && dsgd_size(session) == 1);
  CHECK(dsgd_local_rank(session) == 0 && dsgd_local_size(session) == 1);
  CHECK(dsgd_view(session) >= 0);
  train(session);
  collect(session);
  share(session);
  MUST(dsgd_close(session, -1, &error));
  CHECK(dsgd_rank(session) == DSGD_ERR_CLOSED);
  dsgd_session_free(session);
  CHECK(asked > 0 && released == 1);
  CHECK(records >= 3); /* the start and two changes of strategy, for example */
  printf("%d failures\n", failures);
  return failures != 0;
}
