#include "tests/unit/capi/calls.h"

#include <cstdint>

#include "capi/src/dlpack.h"

// Every call would be right in the parent, in this or another state of the session.
std::vector<Call> calls() {
  using W = World&;
  using E = dsgd_error**;
  static float data[24];
  static void* out;
  static DLManagedTensorVersioned tensor, *exported;
  static const int64_t shape[] = {2};
  static dsgd_op* op;
  static dsgd_log_record* record;
  static dsgd_memory* memory;
  static dsgd_object* object;
  static dsgd_shard* shard;
  static size_t count;
  static int32_t done;
  static uint64_t digest;
  static dsgd_session_info info;
  dsgd_session_info_init(&info, sizeof info);
  return {
      {"dsgd_close", true, [](W w, E e) { return dsgd_close(w.running.session, 0, e); }},
      {"dsgd_abort", true, [](W w, E e) { return dsgd_abort(w.running.session, "why", e); }},
      {"dsgd_fail", true, [](W w, E e) { return dsgd_fail(w.running.session, "why", e); }},
      {"dsgd_rank", false, [](W w, E) { return dsgd_rank(w.running.session); }},
      {"dsgd_size", false, [](W w, E) { return dsgd_size(w.running.session); }},
      {"dsgd_local_rank", false, [](W w, E) { return dsgd_local_rank(w.running.session); }},
      {"dsgd_local_size", false, [](W w, E) { return dsgd_local_size(w.running.session); }},
      {"dsgd_view", false, [](W w, E) { return static_cast<double>(dsgd_view(w.running.session)); }},
      {"dsgd_session_info_read", true,
       [](W w, E e) { return dsgd_session_info_read(w.running.session, &info, e); }},
      {"dsgd_metrics", true, [](W w, E e) { return discard_text(dsgd_metrics, w.running.session, e); }},
      {"dsgd_trace", true, [](W w, E e) { return discard_text(dsgd_trace, w.running.session, e); }},
      {"dsgd_loss_scale", false, [](W w, E) { return dsgd_loss_scale(w.running.session); }},
      {"dsgd_log_fd", false, [](W w, E) { return dsgd_log_fd(w.running.session); }},
      {"dsgd_log_poll", true, [](W w, E e) { return dsgd_log_poll(w.running.session, 0, &record, e); }},

      {"dsgd_parameter_add", true,
       [](W w, E e) {
         return dsgd_parameter_add(w.fresh.session, "new", DSGD_FLOAT32, shape, 1, 0, nullptr, e);
       }},
      {"dsgd_parameter_set", true,
       [](W w, E e) { return dsgd_parameter_set(w.running.weight, "rate=1", e); }},
      {"dsgd_replica_add", true,
       [](W w, E e) { return dsgd_replica_add(w.fresh.session, "cpu", nullptr, e); }},
      {"dsgd_replica_weight", true, [](W w, E e) { return dsgd_replica_weight(w.running.replica, 1, e); }},
      {"dsgd_bind", true,
       [](W w, E e) { return dsgd_bind(w.fresh.replica, w.fresh.weight, data, 24, data + 12, 24, e); }},
      {"dsgd_alloc", true,
       [](W w, E e) { return dsgd_alloc(w.fresh.replica, w.fresh.state, &out, nullptr, e); }},
      {"dsgd_memory_get", true,
       [](W w, E e) { return dsgd_memory_get(w.running.replica, w.running.state, &memory, e); }},
      {"dsgd_bind_dlpack", true,
       [](W w, E e) { return dsgd_bind_dlpack(w.fresh.replica, w.fresh.state, &tensor, nullptr, e); }},
      {"dsgd_export_dlpack", true,
       [](W w, E e) {
         return dsgd_export_dlpack(w.running.replica, w.running.state, &exported, nullptr, e);
       }},

      {"dsgd_optimizer_set", true,
       [](W w, E e) { return dsgd_optimizer_set(w.fresh.session, "sgd", "lr=1", e); }},
      {"dsgd_learning_rate_set", true,
       [](W w, E e) { return dsgd_learning_rate_set(w.running.session, 0.5, e); }},
      {"dsgd_checkpoint_save", true,
       [](W w, E e) { return dsgd_checkpoint_save(w.running.session, "/dsgd/none", nullptr, nullptr, e); }},
      {"dsgd_checkpoint_load", true,
       [](W w, E e) { return dsgd_checkpoint_load(w.running.session, "/dsgd/none", nullptr, nullptr, e); }},
      {"dsgd_strategy_set", true,
       [](W w, E e) { return dsgd_strategy_set(w.running.session, "ps", nullptr, nullptr, nullptr, e); }},
      {"dsgd_start", true, [](W w, E e) { return dsgd_start(w.fresh.session, nullptr, nullptr, e); }},
      {"dsgd_step", true, [](W w, E e) { return dsgd_step(w.running.session, 1, nullptr, e); }},
      {"dsgd_step_begin", true,
       [](W w, E e) { return dsgd_step_begin(w.running.session, 1, nullptr, &op, e); }},
      {"dsgd_step_flush", true, [](W w, E e) { return dsgd_step_flush(w.running.session, e); }},
      {"dsgd_gradient_ready", true,
       [](W w, E e) { return dsgd_gradient_ready(w.running.replica, w.running.weight, nullptr, e); }},
      {"dsgd_gradients_ready", true,
       [](W w, E e) { return dsgd_gradients_ready(w.running.replica, &w.running.weight, 1, nullptr, e); }},
      {"dsgd_gradient_absent", true,
       [](W w, E e) { return dsgd_gradient_absent(w.running.replica, w.running.weight, e); }},
      {"dsgd_stream_wait", true, [](W w, E e) { return dsgd_stream_wait(w.running.replica, nullptr, e); }},
      {"dsgd_stop_request", true, [](W w, E e) { return dsgd_stop_request(w.running.session, e); }},
      {"dsgd_digest", true, [](W w, E e) { return dsgd_digest(w.running.session, &digest, e); }},

      {"dsgd_op_wait", true, [](W w, E e) { return dsgd_op_wait(w.barrier, -1, e); }},
      {"dsgd_op_test", true, [](W w, E e) { return dsgd_op_test(w.barrier, &done, e); }},
      {"dsgd_op_step_result", true,
       [](W w, E e) {
         dsgd_step_result result;
         dsgd_step_result_init(&result, sizeof result);
         return dsgd_op_step_result(w.step, &result, e);
       }},
      {"dsgd_op_abort", true, [](W w, E e) { return dsgd_op_abort(w.barrier, "why", e); }},
      {"dsgd_op_object", true, [](W w, E e) { return dsgd_op_object(w.get, &object, e); }},
      {"dsgd_queue_poll", true,
       [](W w, E e) {
         const int32_t status = dsgd_queue_poll(w.running.session, &op, 1, 0, &count, e);
         if (status == DSGD_OK) dsgd_op_free(op);
         return status;
       }},
      {"dsgd_queue_fd", false, [](W w, E) { return dsgd_queue_fd(w.running.session); }},

      {"dsgd_allreduce", true,
       [](W w, E e) {
         return dsgd_allreduce(w.running.session, nullptr, data, data, 8, DSGD_FLOAT32, DSGD_SUM, nullptr,
                               nullptr, e);
       }},
      {"dsgd_broadcast", true,
       [](W w, E e) {
         return dsgd_broadcast(w.running.session, nullptr, data, 8, DSGD_FLOAT32, 0, nullptr, nullptr, e);
       }},
      {"dsgd_allgather", true,
       [](W w, E e) {
         return dsgd_allgather(w.running.session, nullptr, data, 8, data + 12, 8, nullptr, DSGD_FLOAT32,
                               nullptr, nullptr, e);
       }},
      {"dsgd_reduce_scatter", true,
       [](W w, E e) {
         return dsgd_reduce_scatter(w.running.session, nullptr, data, 8, data + 12, 8, nullptr, DSGD_FLOAT32,
                                    DSGD_SUM, nullptr, nullptr, e);
       }},
      {"dsgd_barrier", true,
       [](W w, E e) { return dsgd_barrier(w.running.session, nullptr, nullptr, nullptr, e); }},
      {"dsgd_object_put", true,
       [](W w, E e) {
         return dsgd_object_put(w.running.session, "y", "z", 1, -1, nullptr, 0, nullptr, nullptr, e);
       }},
      {"dsgd_object_delete", true,
       [](W w, E e) { return dsgd_object_delete(w.running.session, "name", nullptr, nullptr, e); }},
      {"dsgd_object_get", true,
       [](W w, E e) { return dsgd_object_get(w.running.session, "name", nullptr, &object, nullptr, e); }},
      {"dsgd_shard_new", true,
       [](W w, E e) { return dsgd_shard_new(w.running.session, 4, 0, 0, &shard, e); }},
      {"dsgd_head_wait", true, [](W w, E e) { return dsgd_head_wait(w.head, 0, e); }},
  };
}
