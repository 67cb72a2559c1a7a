#include "tests/unit/capi/world.h"

#include <cstdio>
#include <cstdlib>

void must(int32_t status, dsgd_error* const& error, const char* what) {
  if (status >= 0) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, dsgd_status_name(status), dsgd_error_message(error));
  std::abort();
}

dsgd_op_options with_timeout(int32_t timeout_ms) {
  dsgd_op_options options;
  must(dsgd_op_options_init(&options, sizeof options), nullptr, "dsgd_op_options_init");
  options.timeout_ms = timeout_ms;
  return options;
}

int32_t discard_text(int32_t (*call)(const dsgd_session*, char**, dsgd_error**), const dsgd_session* session,
                     dsgd_error** error) {
  char* text = nullptr;
  const int32_t status = call(session, &text, error);
  dsgd_text_free(text);
  return status;
}

std::string take_message(dsgd_error* error) {
  const std::string message = dsgd_error_message(error);
  dsgd_error_free(error);
  return message;
}

dsgd_config* quiet_config() {
  dsgd_config* config = dsgd_config_new();
  dsgd_error* error = nullptr;
  must(dsgd_config_set(config, "num_workers", "1", &error), error, "num_workers");
  return config;
}

void add_model(Model* model) {
  dsgd_config* config = quiet_config();
  dsgd_error* error = nullptr;
  must(dsgd_init(config, &model->session, &error), error, "dsgd_init");
  dsgd_config_free(config);
  const int64_t matrix[] = {2, 3}, vector[] = {4};
  must(dsgd_parameter_add(model->session, "weight", DSGD_FLOAT32, matrix, 2, 0, &model->weight, &error),
       error, "weight");
  must(dsgd_parameter_add(model->session, "state", DSGD_INT32, vector, 1, DSGD_UNTRAINED, &model->state,
                          &error),
       error, "state");
  must(dsgd_replica_add(model->session, "cpu", &model->replica, &error), error, "replica");
}

World::World() {
  dsgd_error* failure = nullptr;
  config = quiet_config();
  add_model(&running);
  add_model(&fresh);
  add_model(&closed);
  must(dsgd_bind(running.replica, running.weight, running.value, sizeof running.value, running.gradient,
                 sizeof running.gradient, &failure),
       failure, "dsgd_bind");
  void* state = nullptr;
  must(dsgd_alloc(running.replica, running.state, &state, nullptr, &failure), failure, "dsgd_alloc");
  must(dsgd_memory_get(running.replica, running.state, &memory, &failure), failure, "dsgd_memory_get");
  must(dsgd_optimizer_set(running.session, "sgd", "lr=0.5", &failure), failure, "dsgd_optimizer_set");
  must(dsgd_start(running.session, nullptr, nullptr, &failure), failure, "dsgd_start");
  must(dsgd_barrier(running.session, nullptr, nullptr, &barrier, &failure), failure, "dsgd_barrier");
  must(dsgd_op_wait(barrier, -1, &failure), failure, "dsgd_op_wait");
  must(dsgd_step_begin(running.session, 1, nullptr, &step, &failure), failure, "dsgd_step_begin");
  must(dsgd_step_flush(running.session, &failure), failure, "dsgd_step_flush");
  must(dsgd_op_wait(step, -1, &failure), failure, "dsgd_op_wait");
  must(dsgd_shard_new(running.session, 10, 1, 0, &shard, &failure), failure, "dsgd_shard_new");
  must(dsgd_object_put(running.session, "name", "data", 4, -1, nullptr, 0, nullptr, nullptr, &failure),
       failure, "dsgd_object_put");
  must(dsgd_object_get(running.session, "name", nullptr, &object, nullptr, &failure), failure,
       "dsgd_object_get");
  must(dsgd_object_get(running.session, "name", nullptr, nullptr, &get, &failure), failure,
       "dsgd_object_get");
  must(dsgd_op_wait(get, -1, &failure), failure, "dsgd_op_wait");
  must(dsgd_close(closed.session, -1, &failure), failure, "dsgd_close");

  dsgd_config* for_head = quiet_config();
  must(dsgd_config_set(for_head, "head", "127.0.0.1:0", &failure), failure, "head");
  must(dsgd_head_start(for_head, &head, &failure), failure, "dsgd_head_start");
  dsgd_config_free(for_head);
  dsgd_config_set(config, "nonsense", "1", &error);
}

World::~World() {
  dsgd_error_free(error);
  dsgd_head_free(head);
  dsgd_memory_free(memory);
  dsgd_object_free(object);
  dsgd_shard_free(shard);
  dsgd_op_free(get);
  dsgd_op_free(step);
  dsgd_op_free(barrier);
  dsgd_session_free(closed.session);
  dsgd_finalize(fresh.session);
  dsgd_finalize(running.session);
  dsgd_config_free(config);
}
