// Operations and the completion queue.
#include "tests/unit/capi/bad_input.h"

std::vector<BadCall> operation_cases() {
  using W = World&;
  using E = dsgd_error**;
  constexpr int64_t kInvalid = DSGD_ERR_INVALID_ARGUMENT, kClosed = DSGD_ERR_CLOSED;
  return {
      {"dsgd_op_id", "NULL", 0, nullptr, [](W, E) { return static_cast<int64_t>(dsgd_op_id(nullptr)); }},
      {"dsgd_op_id", "foreign handle", 0, nullptr,
       [](W w, E) { return static_cast<int64_t>(dsgd_op_id(foreign<dsgd_op>(w.shard))); }},
      {"dsgd_op_user_data", "NULL", 0, nullptr,
       [](W, E) { return static_cast<int64_t>(dsgd_op_user_data(nullptr) != nullptr); }},
      {"dsgd_op_user_data", "foreign handle", 0, nullptr,
       [](W w, E) { return static_cast<int64_t>(dsgd_op_user_data(foreign<dsgd_op>(w.shard)) != nullptr); }},
      {"dsgd_op_options_init", "NULL", kInvalid, nullptr,
       [](W, E) { return dsgd_op_options_init(nullptr, sizeof(dsgd_op_options)); }},
      {"dsgd_op_options_init", "too small", kInvalid, nullptr,
       [](W, E) {
         dsgd_op_options options;
         return dsgd_op_options_init(&options, 8);
       }},
      {"dsgd_op_wait", "NULL", kInvalid, "'op' is NULL", [](W, E e) { return dsgd_op_wait(nullptr, -1, e); }},
      {"dsgd_op_wait", "foreign handle", kInvalid, "not a dsgd_op",
       [](W w, E e) { return dsgd_op_wait(foreign<dsgd_op>(w.config), -1, e); }},
      {"dsgd_op_wait", "bad time", kInvalid, "-5", [](W w, E e) { return dsgd_op_wait(w.barrier, -5, e); }},
      {"dsgd_op_test", "NULL", kInvalid, "'op' is NULL",
       [](W, E e) {
         int32_t done = 0;
         return dsgd_op_test(nullptr, &done, e);
       }},
      {"dsgd_op_test", "NULL done", kInvalid, "'done' is NULL",
       [](W w, E e) { return dsgd_op_test(w.barrier, nullptr, e); }},
      {"dsgd_op_step_result", "NULL op", kInvalid, "'op' is NULL",
       [](W, E e) {
         dsgd_step_result result;
         dsgd_step_result_init(&result, sizeof result);
         return dsgd_op_step_result(nullptr, &result, e);
       }},
      {"dsgd_op_step_result", "NULL result", kInvalid, "'result' is NULL",
       [](W w, E e) { return dsgd_op_step_result(w.step, nullptr, e); }},
      {"dsgd_op_step_result",
       "result without init",
       kInvalid,
       {"'result' has struct_size 0", "call dsgd_step_result_init"},
       [](W w, E e) {
         dsgd_step_result result = {};
         return dsgd_op_step_result(w.step, &result, e);
       }},
      {"dsgd_op_step_result",
       "not a step",
       kInvalid,
       {"barrier", "not a step"},
       [](W w, E e) {
         dsgd_step_result result;
         dsgd_step_result_init(&result, sizeof result);
         return dsgd_op_step_result(w.barrier, &result, e);
       }},
      {"dsgd_op_abort", "NULL", kInvalid, "'op' is NULL",
       [](W, E e) { return dsgd_op_abort(nullptr, "why", e); }},
      {"dsgd_op_abort", "foreign handle", kInvalid, "not a dsgd_op",
       [](W w, E e) { return dsgd_op_abort(foreign<dsgd_op>(w.config), "why", e); }},
      {"dsgd_op_object", "NULL op", kInvalid, "'op' is NULL",
       [](W, E e) {
         dsgd_object* object = nullptr;
         return dsgd_op_object(nullptr, &object, e);
       }},
      {"dsgd_op_object", "NULL object", kInvalid, "'object' is NULL",
       [](W w, E e) { return dsgd_op_object(w.get, nullptr, e); }},
      {"dsgd_op_object",
       "another op",
       kInvalid,
       {"barrier", "not a dsgd_object_get"},
       [](W w, E e) {
         dsgd_object* object = nullptr;
         return dsgd_op_object(w.barrier, &object, e);
       }},
      {"dsgd_op_free", "NULL", 0, nullptr, [](W, E) { return dsgd_op_free(nullptr), 0; }},
      {"dsgd_op_free", "foreign handle", 0, nullptr,
       [](W w, E) { return dsgd_op_free(foreign<dsgd_op>(w.config)), 0; }},
      {"dsgd_queue_poll", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) {
         dsgd_op* ops[1];
         size_t count = 0;
         return dsgd_queue_poll(nullptr, ops, 1, 0, &count, e);
       }},
      {"dsgd_queue_poll", "NULL ops", kInvalid, "'ops' is NULL",
       [](W w, E e) {
         size_t count = 0;
         return dsgd_queue_poll(w.running.session, nullptr, 1, 0, &count, e);
       }},
      {"dsgd_queue_poll", "NULL count", kInvalid, "'count' is NULL",
       [](W w, E e) {
         dsgd_op* ops[1];
         return dsgd_queue_poll(w.running.session, ops, 1, 0, nullptr, e);
       }},
      {"dsgd_queue_poll",
       "no room",
       kInvalid,
       {"'max' is 0", "at least 1"},
       [](W w, E e) {
         dsgd_op* ops[1];
         size_t count = 0;
         return dsgd_queue_poll(w.running.session, ops, 0, 0, &count, e);
       }},
      {"dsgd_queue_poll", "bad time", kInvalid, "-3",
       [](W w, E e) {
         dsgd_op* ops[1];
         size_t count = 0;
         return dsgd_queue_poll(w.running.session, ops, 1, -3, &count, e);
       }},
      {"dsgd_queue_poll",
       "nothing in flight",
       DSGD_ERR_WAIT_TIMEOUT,
       {"no operation", "within 1 ms"},
       [](W w, E e) {
         dsgd_op* ops[1];
         size_t count = 0;
         return dsgd_queue_poll(w.fresh.session, ops, 1, 1, &count, e);
       }},
      {"dsgd_queue_poll", "closed", kClosed, "closed",
       [](W w, E e) {
         dsgd_op* ops[1];
         size_t count = 0;
         return dsgd_queue_poll(w.closed.session, ops, 1, -1, &count, e);
       }},
      {"dsgd_queue_fd", "NULL", kInvalid, nullptr, [](W, E) { return dsgd_queue_fd(nullptr); }},
      {"dsgd_queue_fd", "closed", kClosed, nullptr, [](W w, E) { return dsgd_queue_fd(w.closed.session); }},
  };
}
