/* A host that was compiled against version 1.0 runs on a library whose structs have grown. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dsgd/dsgd.h"
#include "first_release.h"

static int failures = 0;

#define CHECK(condition)                                     \
  do {                                                       \
    if (!(condition)) {                                      \
      printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                            \
    }                                                        \
  } while (0)
#define MUST(call)                                                                     \
  do {                                                                                 \
    dsgd_error* error = NULL;                                                          \
    if ((call) != DSGD_OK) {                                                           \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, dsgd_error_message(error)); \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

/* A frozen struct with a guard behind it, which the library must leave alone. */
#define GUARDED(type)        \
  struct {                   \
    type value;              \
    unsigned char guard[64]; \
  }
#define RAISE_GUARD(guarded) memset((guarded).guard, 0xa5, sizeof(guarded).guard)

static int guard_holds(const unsigned char* guard, size_t nbytes) {
  for (size_t i = 0; i < nbytes; ++i) {
    if (guard[i] != 0xa5) return 0;
  }
  return 1;
}
#define CHECK_GUARD(guarded) CHECK(guard_holds((guarded).guard, sizeof(guarded).guard))

static int32_t no_transfers(void* user, int32_t rank, int32_t size, uint64_t count, dsgd_schedule* schedule) {
  (void)user, (void)rank, (void)size, (void)count, (void)schedule;
  return DSGD_OK;
}

static int32_t first_rank(void* user, const dsgd_placement* placement) {
  ++*(int*)user;
  return dsgd_placement_size(placement) - 1;
}

static void config_keys(void) {
  GUARDED(first_config_key) key;
  RAISE_GUARD(key);
  CHECK(dsgd_config_key_init((dsgd_config_key*)&key.value, sizeof key.value) == DSGD_OK);
  MUST(dsgd_config_key_at(0, (dsgd_config_key*)&key.value, &error));
  CHECK(strlen(key.value.name) > 0 && strncmp(key.value.environment, "DSGD_", 5) == 0);
  CHECK_GUARD(key);
}

static void plug_ins(dsgd_config* config, int* calls) {
  GUARDED(first_algorithm) algorithm;
  GUARDED(first_strategy) strategy;
  RAISE_GUARD(algorithm);
  RAISE_GUARD(strategy);
  CHECK(dsgd_algorithm_init((dsgd_algorithm*)&algorithm.value, sizeof algorithm.value) == DSGD_OK);
  algorithm.value.version = 1;
  algorithm.value.allreduce = no_transfers;
  MUST(dsgd_algorithm_register(config, "old_algorithm", (const dsgd_algorithm*)&algorithm.value, &error));
  CHECK_GUARD(algorithm);
  CHECK(dsgd_strategy_init((dsgd_strategy*)&strategy.value, sizeof strategy.value) == DSGD_OK);
  strategy.value.version = 1;
  strategy.value.flags = DSGD_STRATEGY_UPDATE_AT_OWNER;
  strategy.value.user = calls;
  strategy.value.owner = first_rank;
  MUST(dsgd_strategy_register(config, "old_strategy", (const dsgd_strategy*)&strategy.value, &error));
  CHECK_GUARD(strategy);
}

int main(void) {
  const int64_t shape[] = {2};
  float *value, *gradient;
  int calls = 0;
  GUARDED(first_step_result) result;
  GUARDED(first_op_options) options;
  GUARDED(first_session_info) info;
  dsgd_op* op;
  dsgd_config* config = dsgd_config_new();
  dsgd_session* session = NULL;
  dsgd_parameter* weight;
  dsgd_replica* replica;

  CHECK(sizeof(dsgd_step_result) > sizeof(first_step_result));
  CHECK(DSGD_PLUGIN_VERSION == 2);
  config_keys();
  plug_ins(config, &calls);
  MUST(dsgd_config_set(config, "num_workers", "1", &error));
  MUST(dsgd_config_set(config, "strategy", "old_strategy", &error));
  MUST(dsgd_init(config, &session, &error));
  MUST(dsgd_parameter_add(session, "weight", DSGD_FLOAT32, shape, 1, 0, &weight, &error));
  MUST(dsgd_replica_add(session, "cpu", &replica, &error));
  MUST(dsgd_alloc(replica, weight, (void**)&value, (void**)&gradient, &error));
  MUST(dsgd_start(session, NULL, NULL, &error));
  RAISE_GUARD(result);
  CHECK(dsgd_step_result_init((dsgd_step_result*)&result.value, sizeof result.value) == DSGD_OK);
  MUST(dsgd_step(session, 3, (dsgd_step_result*)&result.value, &error));
  CHECK(result.value.struct_size == sizeof(first_step_result));
  CHECK(result.value.weight == 3 && result.value.applied == 1 && result.value.size == 1);
  CHECK_GUARD(result);
  CHECK(calls > 0);
  RAISE_GUARD(info);
  CHECK(dsgd_session_info_init((dsgd_session_info*)&info.value, sizeof info.value) == DSGD_OK);
  MUST(dsgd_session_info_read(session, (dsgd_session_info*)&info.value, &error));
  CHECK(info.value.struct_size == sizeof(first_session_info));
  CHECK(info.value.state == DSGD_SESSION_STARTED && info.value.steps == 1 && info.value.replicas == 1);
  CHECK_GUARD(info);
  RAISE_GUARD(options);
  CHECK(dsgd_op_options_init((dsgd_op_options*)&options.value, sizeof options.value) == DSGD_OK);
  CHECK(options.value.timeout_ms == -1);
  options.value.user_data = &calls;
  options.value.channel = 1;
  MUST(dsgd_barrier(session, NULL, (const dsgd_op_options*)&options.value, &op, &error));
  CHECK(dsgd_op_user_data(op) == &calls);
  MUST(dsgd_op_wait(op, -1, &error));
  dsgd_op_free(op);
  CHECK_GUARD(options);
  dsgd_finalize(session);
  dsgd_config_free(config);
  return failures != 0;
}
