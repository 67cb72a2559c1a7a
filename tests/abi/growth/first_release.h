/* The smallest sized structs that the library accepts, frozen. Never change this file. */
#ifndef DSGD_TESTS_FIRST_RELEASE_H_
#define DSGD_TESTS_FIRST_RELEASE_H_

#include <stddef.h>
#include <stdint.h>

struct dsgd_schedule;
struct dsgd_placement;

typedef struct first_config_key {
  size_t struct_size;
  const char *name, *type, *default_value, *range, *help, *environment;
} first_config_key;

typedef struct first_step_result {
  size_t struct_size;
  int64_t step;
  int64_t view;
  int32_t size, applied, all_done, stop;
  double weight;
  double gradient_norm;
} first_step_result;

typedef struct first_session_info {
  size_t struct_size;
  uint64_t id;
  int64_t view, steps;
  int32_t state, rank, size, local_rank, local_size, replicas;
} first_session_info;

typedef struct first_op_options {
  size_t struct_size;
  void* user_data;
  int32_t timeout_ms;
  uint32_t channel;
} first_op_options;

typedef struct first_algorithm {
  size_t struct_size;
  uint32_t version;
  uint32_t flags;
  void* user;
  int32_t (*allreduce)(void* user, int32_t rank, int32_t size, uint64_t count,
                       struct dsgd_schedule* schedule);
  void (*release)(void* user);
} first_algorithm;

typedef struct first_strategy {
  size_t struct_size;
  uint32_t version;
  uint32_t flags;
  void* user;
  int32_t (*owner)(void* user, const struct dsgd_placement* placement);
  void (*release)(void* user);
} first_strategy;

#endif
