// Optimizer, strategy, start, steps.
#include <cmath>
#include <limits>

#include "tests/unit/capi/bad_input.h"

std::vector<BadCall> step_cases() {
  using W = World&;
  using E = dsgd_error**;
  constexpr int64_t kInvalid = DSGD_ERR_INVALID_ARGUMENT, kClosed = DSGD_ERR_CLOSED, kState = DSGD_ERR_STATE;
  return {
      {"dsgd_optimizer_set", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_optimizer_set(nullptr, "sgd", nullptr, e); }},
      {"dsgd_optimizer_set", "NULL name", kInvalid, "'name' is NULL",
       [](W w, E e) { return dsgd_optimizer_set(w.fresh.session, nullptr, nullptr, e); }},
      {"dsgd_optimizer_set",
       "unknown name",
       kInvalid,
       {"'adamww'", "did you mean 'adamw'?"},
       [](W w, E e) { return dsgd_optimizer_set(w.fresh.session, "adamww", nullptr, e); }},
      {"dsgd_optimizer_set",
       "unknown option",
       kInvalid,
       {"'sgd'", "'momentun'", "did you mean 'momentum'?"},
       [](W w, E e) { return dsgd_optimizer_set(w.fresh.session, "sgd", "momentun=0.9", e); }},
      {"dsgd_optimizer_set",
       "option without value",
       kInvalid,
       {"'lr'", "'sgd'", "key=value"},
       [](W w, E e) { return dsgd_optimizer_set(w.fresh.session, "sgd", "lr", e); }},
      {"dsgd_optimizer_set",
       "no number",
       kInvalid,
       {"'lr'", "'sgd'", "'high' is not a finite number"},
       [](W w, E e) { return dsgd_optimizer_set(w.fresh.session, "sgd", "lr=high", e); }},
      {"dsgd_optimizer_set",
       "negative rate",
       kInvalid,
       {"'lr'", "'sgd'", "'-1' is not at least 0"},
       [](W w, E e) { return dsgd_optimizer_set(w.fresh.session, "sgd", "lr=-1", e); }},
      {"dsgd_optimizer_set",
       "after start",
       kState,
       {"before dsgd_start", "dsgd_learning_rate_set"},
       [](W w, E e) { return dsgd_optimizer_set(w.running.session, "sgd", "lr=0.5", e); }},
      {"dsgd_optimizer_set", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_optimizer_set(w.closed.session, "sgd", nullptr, e); }},
      {"dsgd_learning_rate_set", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_learning_rate_set(nullptr, 0.1, e); }},
      {"dsgd_learning_rate_set",
       "not a number",
       kInvalid,
       {"rate is nan", "finite and not negative"},
       [](W w, E e) { return dsgd_learning_rate_set(w.running.session, std::nan(""), e); }},
      {"dsgd_learning_rate_set",
       "negative",
       kInvalid,
       {"rate is -0.1", "finite and not negative"},
       [](W w, E e) { return dsgd_learning_rate_set(w.running.session, -0.1, e); }},
      {"dsgd_learning_rate_set", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_learning_rate_set(w.closed.session, 0.1, e); }},
      {"dsgd_strategy_set", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_strategy_set(nullptr, "ps", nullptr, nullptr, nullptr, e); }},
      {"dsgd_strategy_set", "NULL name", kInvalid, "'name' is NULL",
       [](W w, E e) { return dsgd_strategy_set(w.fresh.session, nullptr, nullptr, nullptr, nullptr, e); }},
      {"dsgd_strategy_set",
       "unknown name",
       kInvalid,
       {"'all_reduce'", "did you mean 'allreduce'?", "simple, ps, allreduce"},
       [](W w, E e) {
         return dsgd_strategy_set(w.fresh.session, "all_reduce", nullptr, nullptr, nullptr, e);
       }},
      {"dsgd_strategy_set",
       "unknown option",
       kInvalid,
       {"'allreduce'", "'algoritm'", "did you mean 'algorithm'?"},
       [](W w, E e) {
         return dsgd_strategy_set(w.fresh.session, "allreduce", "algoritm=ring", nullptr, nullptr, e);
       }},
      {"dsgd_strategy_set",
       "bad option",
       kInvalid,
       {"'algorithm'", "'allreduce'", "'round' is not one of auto, direct, halving_doubling, nccl, ring"},
       [](W w, E e) {
         return dsgd_strategy_set(w.fresh.session, "allreduce", "algorithm=round", nullptr, nullptr, e);
       }},
      {"dsgd_strategy_set",
       "unknown name after start",
       kInvalid,
       {"'simpel'", "did you mean 'simple'?"},
       [](W w, E e) { return dsgd_strategy_set(w.running.session, "simpel", nullptr, nullptr, nullptr, e); }},
      {"dsgd_strategy_set", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_strategy_set(w.closed.session, "ps", nullptr, nullptr, nullptr, e); }},
      {"dsgd_start", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_start(nullptr, nullptr, nullptr, e); }},
      {"dsgd_start",
       "not bound",
       kState,
       {"'weight'", "replica 0", "dsgd_bind or dsgd_alloc"},
       [](W w, E e) { return dsgd_start(w.fresh.session, nullptr, nullptr, e); }},
      {"dsgd_start",
       "twice",
       kState,
       {"called before", "started once"},
       [](W w, E e) { return dsgd_start(w.running.session, nullptr, nullptr, e); }},
      {"dsgd_start", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_start(w.closed.session, nullptr, nullptr, e); }},

      {"dsgd_step_result_init", "NULL", kInvalid, nullptr,
       [](W, E) { return dsgd_step_result_init(nullptr, sizeof(dsgd_step_result)); }},
      {"dsgd_step_result_init", "too small", kInvalid, nullptr,
       [](W, E) {
         dsgd_step_result result;
         return dsgd_step_result_init(&result, 48);  // 56 in 1.0
       }},
      {"dsgd_step_result_init", "absurdly large", kInvalid, nullptr,
       [](W, E) {
         dsgd_step_result result;
         return dsgd_step_result_init(&result, SIZE_MAX);
       }},
      {"dsgd_step", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_step(nullptr, 1, nullptr, e); }},
      {"dsgd_step", "foreign session", kInvalid, "not a dsgd_session",
       [](W w, E e) { return dsgd_step(foreign<dsgd_session>(w.running.replica), 1, nullptr, e); }},
      {"dsgd_step",
       "before start",
       kState,
       {"step", "dsgd_start first"},
       [](W w, E e) { return dsgd_step(w.fresh.session, 1, nullptr, e); }},
      {"dsgd_step",
       "negative weight",
       kInvalid,
       {"weight is -1;", "from 1e-12 to 1e12"},
       [](W w, E e) { return dsgd_step(w.running.session, -1, nullptr, e); }},
      {"dsgd_step",
       "weight is not a number",
       kInvalid,
       {"weight is nan", "from 1e-12 to 1e12"},
       [](W w, E e) { return dsgd_step(w.running.session, std::nan(""), nullptr, e); }},
      {"dsgd_step",
       "infinite weight",
       kInvalid,
       {"weight is inf", "from 1e-12 to 1e12"},
       [](W w, E e) {
         return dsgd_step(w.running.session, std::numeric_limits<double>::infinity(), nullptr, e);
       }},
      {"dsgd_step",
       "result without init",
       kInvalid,
       {"'result' has struct_size 0", "call dsgd_step_result_init"},
       [](W w, E e) {
         dsgd_step_result result = {};
         return dsgd_step(w.running.session, 1, &result, e);
       }},
      {"dsgd_step",
       "unknown field in the result",
       kInvalid,
       {"'result'", "byte 72", "leave it zero"},
       [](W w, E e) {
         struct {
           dsgd_step_result known;
           int64_t unknown;
         } result;
         dsgd_step_result_init(&result.known, sizeof result);
         result.unknown = 1;
         return dsgd_step(w.running.session, 1, &result.known, e);
       }},
      {"dsgd_step", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_step(w.closed.session, 1, nullptr, e); }},
      {"dsgd_step_begin", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) {
         dsgd_op* op = nullptr;
         return dsgd_step_begin(nullptr, 1, nullptr, &op, e);
       }},
      {"dsgd_step_begin", "NULL op", kInvalid, "'op' is NULL",
       [](W w, E e) { return dsgd_step_begin(w.running.session, 1, nullptr, nullptr, e); }},
      {"dsgd_step_begin",
       "negative weight",
       kInvalid,
       {"weight is -2;", "from 1e-12 to 1e12"},
       [](W w, E e) {
         dsgd_op* op = nullptr;
         return dsgd_step_begin(w.running.session, -2, nullptr, &op, e);
       }},
      {"dsgd_step_begin",
       "before start",
       kState,
       {"step", "dsgd_start first"},
       [](W w, E e) {
         dsgd_op* op = nullptr;
         return dsgd_step_begin(w.fresh.session, 1, nullptr, &op, e);
       }},
      {"dsgd_step_begin",
       "a channel",
       kInvalid,
       {"the channel is 1", "only collectives"},
       [](W w, E e) {
         dsgd_op* op = nullptr;
         dsgd_op_options options;
         dsgd_op_options_init(&options, sizeof options);
         options.channel = 1;
         return dsgd_step_begin(w.running.session, 1, &options, &op, e);
       }},
      {"dsgd_step_begin", "closed", kClosed, "closed",
       [](W w, E e) {
         dsgd_op* op = nullptr;
         return dsgd_step_begin(w.closed.session, 1, nullptr, &op, e);
       }},
      {"dsgd_gradient_ready", "NULL replica", kInvalid, "'replica' is NULL",
       [](W w, E e) { return dsgd_gradient_ready(nullptr, w.running.weight, nullptr, e); }},
      {"dsgd_gradient_ready", "NULL parameter", kInvalid, "'parameter' is NULL",
       [](W w, E e) { return dsgd_gradient_ready(w.running.replica, nullptr, nullptr, e); }},
      {"dsgd_gradient_ready",
       "no step begun",
       kState,
       {"'weight'", "no step is in flight", "dsgd_step_begin"},
       [](W w, E e) { return dsgd_gradient_ready(w.running.replica, w.running.weight, nullptr, e); }},
      {"dsgd_gradient_ready",
       "marked twice",
       kState,
       {"'weight'", "replica 0 was marked ready before", "mark each once"},
       [](W, E e) {
         Model model;
         add_model(&model);
         const int64_t one = 1;
         dsgd_parameter* other = nullptr;  // not marked, so that the step does not end
         must(dsgd_parameter_add(model.session, "other", DSGD_FLOAT32, &one, 1, 0, &other, nullptr), nullptr,
              "dsgd_parameter_add");
         for (dsgd_parameter* parameter : {model.weight, model.state, other}) {
           void *value, *gradient;
           must(dsgd_alloc(model.replica, parameter, &value, &gradient, nullptr), nullptr, "dsgd_alloc");
         }
         must(dsgd_start(model.session, nullptr, nullptr, nullptr), nullptr, "dsgd_start");
         dsgd_op* op = nullptr;
         must(dsgd_step_begin(model.session, 0, nullptr, &op, nullptr), nullptr, "dsgd_step_begin");
         must(dsgd_gradient_ready(model.replica, model.weight, nullptr, nullptr), nullptr,
              "dsgd_gradient_ready");
         const int32_t status = dsgd_gradient_ready(model.replica, model.weight, nullptr, e);
         must(dsgd_step_flush(model.session, nullptr), nullptr, "dsgd_step_flush");
         must(dsgd_op_wait(op, -1, nullptr), nullptr, "dsgd_op_wait");
         dsgd_op_free(op);
         dsgd_finalize(model.session);
         return status;
       }},
      {"dsgd_gradient_ready",
       "of two sessions",
       kInvalid,
       {"'weight'", "another session", "handles of one session"},
       [](W w, E e) { return dsgd_gradient_ready(w.running.replica, w.fresh.weight, nullptr, e); }},
      {"dsgd_gradient_ready", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_gradient_ready(w.closed.replica, w.closed.weight, nullptr, e); }},
      {"dsgd_gradients_ready", "NULL replica", kInvalid, "'replica' is NULL",
       [](W w, E e) { return dsgd_gradients_ready(nullptr, &w.running.weight, 1, nullptr, e); }},
      {"dsgd_gradients_ready", "NULL parameters", kInvalid, "'parameters' is NULL",
       [](W w, E e) { return dsgd_gradients_ready(w.running.replica, nullptr, 1, nullptr, e); }},
      {"dsgd_gradients_ready", "one is NULL", kInvalid, "'parameters[1]' is NULL",
       [](W w, E e) {
         dsgd_parameter* const parameters[] = {w.running.weight, nullptr};
         return dsgd_gradients_ready(w.running.replica, parameters, 2, nullptr, e);
       }},
      {"dsgd_gradients_ready",
       "one is a foreign handle",
       kInvalid,
       {"'parameters[1]'", "not a dsgd_parameter"},
       [](W w, E e) {
         dsgd_parameter* const parameters[] = {w.running.weight, foreign<dsgd_parameter>(w.config)};
         return dsgd_gradients_ready(w.running.replica, parameters, 2, nullptr, e);
       }},
      {"dsgd_gradients_ready",
       "one of another session",
       kInvalid,
       {"'weight'", "another session"},
       [](W w, E e) { return dsgd_gradients_ready(w.running.replica, &w.fresh.weight, 1, nullptr, e); }},
      {"dsgd_gradients_ready",
       "one is untrained",
       kInvalid,
       {"'state'", "untrained"},
       [](W w, E e) {
         dsgd_parameter* const parameters[] = {w.running.weight, w.running.state};
         return dsgd_gradients_ready(w.running.replica, parameters, 2, nullptr, e);
       }},
      {"dsgd_gradients_ready",
       "a stream for the cpu",
       kInvalid,
       {"replica 0", "cpu", "call without a stream"},
       [](W w, E e) { return dsgd_gradients_ready(w.running.replica, &w.running.weight, 1, &w, e); }},
      {"dsgd_gradients_ready",
       "no step begun",
       kState,
       {"'weight'", "no step is in flight", "dsgd_step_begin"},
       [](W w, E e) { return dsgd_gradients_ready(w.running.replica, &w.running.weight, 1, nullptr, e); }},
      {"dsgd_gradients_ready", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_gradients_ready(w.closed.replica, &w.closed.weight, 1, nullptr, e); }},
      {"dsgd_stream_wait", "NULL replica", kInvalid, "'replica' is NULL",
       [](W, E e) { return dsgd_stream_wait(nullptr, nullptr, e); }},
      {"dsgd_stream_wait",
       "a stream for the cpu",
       kInvalid,
       {"replica 0", "cpu", "call without a stream"},
       [](W w, E e) { return dsgd_stream_wait(w.running.replica, &w, e); }},
      {"dsgd_stream_wait", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_stream_wait(w.closed.replica, nullptr, e); }},
      {"dsgd_gradient_absent", "NULL replica", kInvalid, "'replica' is NULL",
       [](W w, E e) { return dsgd_gradient_absent(nullptr, w.running.weight, e); }},
      {"dsgd_gradient_absent", "NULL parameter", kInvalid, "'parameter' is NULL",
       [](W w, E e) { return dsgd_gradient_absent(w.running.replica, nullptr, e); }},
      {"dsgd_gradient_absent",
       "of an untrained parameter",
       kInvalid,
       {"'state'", "has no gradient"},
       [](W w, E e) { return dsgd_gradient_absent(w.running.replica, w.running.state, e); }},
      {"dsgd_gradient_absent",
       "of two sessions",
       kInvalid,
       {"'weight'", "another session", "handles of one session"},
       [](W w, E e) { return dsgd_gradient_absent(w.running.replica, w.fresh.weight, e); }},
      {"dsgd_gradient_absent", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_gradient_absent(w.closed.replica, w.closed.weight, e); }},
      {"dsgd_step_flush", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_step_flush(nullptr, e); }},
      {"dsgd_step_flush",
       "no step begun",
       kState,
       {"no step is in flight", "dsgd_step_begin"},
       [](W w, E e) { return dsgd_step_flush(w.fresh.session, e); }},
      {"dsgd_step_flush", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_step_flush(w.closed.session, e); }},
      {"dsgd_stop_request", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_stop_request(nullptr, e); }},
      {"dsgd_stop_request", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_stop_request(w.closed.session, e); }},
      {"dsgd_digest", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) {
         uint64_t digest = 0;
         return dsgd_digest(nullptr, &digest, e);
       }},
      {"dsgd_digest", "NULL digest", kInvalid, "'digest' is NULL",
       [](W w, E e) { return dsgd_digest(w.running.session, nullptr, e); }},
      {"dsgd_digest",
       "not bound",
       kState,
       {"'weight'", "replica 0", "dsgd_bind or dsgd_alloc"},
       [](W w, E e) {
         uint64_t digest = 0;
         return dsgd_digest(w.fresh.session, &digest, e);
       }},
      {"dsgd_digest", "closed", kClosed, "closed",
       [](W w, E e) {
         uint64_t digest = 0;
         return dsgd_digest(w.closed.session, &digest, e);
       }},
  };
}
