// Parameters, replicas, buffers, DLPack.
#include <cmath>
#include <cstring>
#include <limits>

#include "capi/src/dlpack.h"
#include "tests/unit/capi/bad_input.h"

std::vector<BadCall> model_cases() {
  using W = World&;
  using E = dsgd_error**;
  constexpr int64_t kInvalid = DSGD_ERR_INVALID_ARGUMENT, kClosed = DSGD_ERR_CLOSED, kState = DSGD_ERR_STATE;
  static const int64_t kShape[] = {2, 3};
  static float buffer[8];
  static void* out;
  static DLManagedTensorVersioned tensor{};  // version 0, which no function accepts
  const auto add = [](dsgd_session* session, const char* name, int32_t dtype, const int64_t* shape,
                      size_t ndim, uint32_t flags, E e) -> int64_t {
    return dsgd_parameter_add(session, name, dtype, shape, ndim, flags, nullptr, e);
  };
  return {
      {"dsgd_dtype_size", "unknown", 0, nullptr,
       [](W, E) { return dsgd_dtype_size(99) + dsgd_dtype_size(-1); }},
      {"dsgd_parameter_add", "NULL session", kInvalid, "'session' is NULL",
       [=](W, E e) { return add(nullptr, "x", DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "foreign session", kInvalid, "not a dsgd_session",
       [=](W w, E e) {
         return add(foreign<dsgd_session>(w.fresh.replica), "x", DSGD_FLOAT32, kShape, 2, 0, e);
       }},
      {"dsgd_parameter_add", "closed", kClosed, "closed",
       [=](W w, E e) { return add(w.closed.session, "x", DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "NULL name", kInvalid, "'name' is NULL",
       [=](W w, E e) { return add(w.fresh.session, nullptr, DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "empty name", kInvalid, {"'name' is an empty string", "give a name"},
       [=](W w, E e) { return add(w.fresh.session, "", DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "bad dtype", kInvalid, {"dtype 99", "enum dsgd_dtype (0 to 8)"},
       [=](W w, E e) { return add(w.fresh.session, "x", 99, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "trained integers", kInvalid, {"'x'", "not int32", "DSGD_UNTRAINED"},
       [=](W w, E e) { return add(w.fresh.session, "x", DSGD_INT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "NULL shape", kInvalid, "'shape' is NULL",
       [=](W w, E e) { return add(w.fresh.session, "x", DSGD_FLOAT32, nullptr, 2, 0, e); }},
      {"dsgd_parameter_add", "too many dimensions", kInvalid, {"ndim is 1000", "at most 64"},
       [=](W w, E e) { return add(w.fresh.session, "x", DSGD_FLOAT32, kShape, 1000, 0, e); }},
      {"dsgd_parameter_add", "negative dimension", kInvalid, {"'x'", "dimension -3"},
       [=](W w, E e) {
         const int64_t shape[] = {2, -3};
         return add(w.fresh.session, "x", DSGD_FLOAT32, shape, 2, 0, e);
       }},
      {"dsgd_parameter_add", "more bytes than there are", kInvalid, {"'x'", "more than 2^46 elements"},
       [=](W w, E e) {
         const int64_t shape[] = {INT64_MAX, INT64_MAX};
         return add(w.fresh.session, "x", DSGD_FLOAT32, shape, 2, 0, e);
       }},
      {"dsgd_parameter_add", "unknown flag", kInvalid, {"flags 8", "dsgd_parameter_flag"},
       [=](W w, E e) { return add(w.fresh.session, "x", DSGD_FLOAT32, kShape, 2, 8, e); }},
      {"dsgd_parameter_add", "name with a space", kInvalid, {"'a b'", "no spaces or control characters"},
       [=](W w, E e) { return add(w.fresh.session, "a b", DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "name with a line break", kInvalid, {"'a?b'", "no spaces or control characters"},
       [=](W w, E e) { return add(w.fresh.session, "a\nb", DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "name with a control character of two bytes", kInvalid, {"'a?31mb'", "no spaces or control characters"},
       [=](W w, E e) { return add(w.fresh.session, "a\xc2\x9b" "31mb", DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "name not UTF-8", kInvalid, "is not UTF-8 from byte 1 on",
       [=](W w, E e) { return add(w.fresh.session, "a\xff\xfe", DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "name with an overlong form", kInvalid, "is not UTF-8 from byte 2 on",
       [=](W w, E e) { return add(w.fresh.session, "\xc3\xa4\xc0\xaf", DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "name with a surrogate", kInvalid, "is not UTF-8 from byte 0 on",
       [=](W w, E e) { return add(w.fresh.session, "\xed\xa0\x80", DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "name too long", kInvalid, {"has 1025 bytes", "at most 1024"},
       [=](W w, E e) { return add(w.fresh.session, std::string(1025, 'x').c_str(), DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "name taken", DSGD_ERR_EXISTS, {"'weight'", "is taken", "one of its own"},
       [=](W w, E e) { return add(w.fresh.session, "weight", DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_add", "after start", kState, {"'late'", "before dsgd_start"},
       [=](W w, E e) { return add(w.running.session, "late", DSGD_FLOAT32, kShape, 2, 0, e); }},
      {"dsgd_parameter_set", "NULL parameter", kInvalid, "'parameter' is NULL",
       [](W, E e) { return dsgd_parameter_set(nullptr, "rate=2", e); }},
      {"dsgd_parameter_set", "NULL options", kInvalid, "'options' is NULL",
       [](W w, E e) { return dsgd_parameter_set(w.fresh.weight, nullptr, e); }},
      {"dsgd_parameter_set", "unknown option", kInvalid, {"'weight'", "'froze'", "did you mean 'frozen'?"},
       [](W w, E e) { return dsgd_parameter_set(w.fresh.weight, "froze=1", e); }},
      {"dsgd_parameter_set", "no number", kInvalid, {"'rate'", "'weight'", "'fast' is not a finite number"},
       [](W w, E e) { return dsgd_parameter_set(w.fresh.weight, "rate=fast", e); }},
      {"dsgd_parameter_set", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_parameter_set(w.closed.weight, "rate=2", e); }},
      {"dsgd_parameter_name", "NULL", 0, nullptr,
       [](W, E) { return std::strlen(dsgd_parameter_name(nullptr)); }},

      {"dsgd_replica_add", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_replica_add(nullptr, "cpu", nullptr, e); }},
      {"dsgd_replica_add", "unknown device", DSGD_ERR_UNSUPPORTED, {"'abacus'", "cpu", "cuda:N"},
       [](W w, E e) { return dsgd_replica_add(w.fresh.session, "abacus", nullptr, e); }},
      {"dsgd_replica_add", "empty device", kInvalid, "'device'",
       [](W w, E e) { return dsgd_replica_add(w.fresh.session, "", nullptr, e); }},
      {"dsgd_replica_add", "after start", kState, {"replicas", "before dsgd_start"},
       [](W w, E e) { return dsgd_replica_add(w.running.session, "cpu", nullptr, e); }},
      {"dsgd_replica_add", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_replica_add(w.closed.session, "cpu", nullptr, e); }},
      {"dsgd_replica_device", "NULL", 0, nullptr, [](W, E) { return std::strlen(dsgd_replica_device(nullptr)); }},
      {"dsgd_replica_device", "foreign handle", 0, nullptr,
       [](W w, E) { return std::strlen(dsgd_replica_device(foreign<dsgd_replica>(w.fresh.weight))); }},
      {"dsgd_replica_weight", "NULL", kInvalid, "'replica' is NULL",
       [](W, E e) { return dsgd_replica_weight(nullptr, 1, e); }},
      {"dsgd_replica_weight", "not a number", kInvalid, {"weight is nan", "from 1e-12 to 1e12"},
       [](W w, E e) { return dsgd_replica_weight(w.fresh.replica, std::nan(""), e); }},
      {"dsgd_replica_weight", "infinite", kInvalid, {"weight is inf", "from 1e-12 to 1e12"},
       [](W w, E e) {
         return dsgd_replica_weight(w.fresh.replica, std::numeric_limits<double>::infinity(), e);
       }},
      {"dsgd_replica_weight", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_replica_weight(w.closed.replica, 1, e); }},

      {"dsgd_bind", "NULL replica", kInvalid, "'replica' is NULL",
       [](W w, E e) { return dsgd_bind(nullptr, w.fresh.weight, buffer, 24, buffer, 24, e); }},
      {"dsgd_bind", "NULL parameter", kInvalid, "'parameter' is NULL",
       [](W w, E e) { return dsgd_bind(w.fresh.replica, nullptr, buffer, 24, buffer, 24, e); }},
      {"dsgd_bind", "NULL value", kInvalid, "'value' is NULL",
       [](W w, E e) { return dsgd_bind(w.fresh.replica, w.fresh.weight, nullptr, 24, buffer, 24, e); }},
      {"dsgd_bind", "NULL gradient", kInvalid, {"'weight' is trained", "'gradient' must not be NULL", "DSGD_UNTRAINED"},
       [](W w, E e) { return dsgd_bind(w.fresh.replica, w.fresh.weight, buffer, 24, nullptr, 0, e); }},
      {"dsgd_bind", "gradient is the value", kInvalid, {"'weight'", "share memory", "a buffer of its own"},
       [](W w, E e) { return dsgd_bind(w.fresh.replica, w.fresh.weight, buffer, 24, buffer, 24, e); }},
      {"dsgd_bind", "gradient overlaps the value", kInvalid, {"'weight'", "share memory", "a buffer of its own"},
       [](W w, E e) { return dsgd_bind(w.fresh.replica, w.fresh.weight, buffer, 24, buffer + 5, 24, e); }},
      {"dsgd_bind", "value too small", kInvalid, {"'weight'", "the value has 20 bytes", "24 are needed (6 of float32)"},
       [](W w, E e) { return dsgd_bind(w.fresh.replica, w.fresh.weight, buffer, 20, buffer, 24, e); }},
      {"dsgd_bind", "gradient too large", kInvalid, {"'weight'", "the gradient has 28 bytes", "24 are needed (6 of float32)"},
       [](W w, E e) { return dsgd_bind(w.fresh.replica, w.fresh.weight, buffer, 24, buffer, 28, e); }},
      {"dsgd_bind", "not aligned", kInvalid, {"'weight'", "the value is not aligned to 4 bytes"},
       [](W w, E e) {
         return dsgd_bind(w.fresh.replica, w.fresh.weight, reinterpret_cast<char*>(buffer) + 1, 24, buffer,
                          24, e);
       }},
      {"dsgd_bind", "gradient of an untrained parameter", kInvalid, {"'state'", "has no gradient", "give NULL and 0"},
       [](W w, E e) { return dsgd_bind(w.fresh.replica, w.fresh.state, buffer, 16, buffer, 16, e); }},
      {"dsgd_bind", "of two sessions", kInvalid, {"'weight'", "another session", "handles of one session"},
       [](W w, E e) { return dsgd_bind(w.fresh.replica, w.running.weight, buffer, 24, buffer, 24, e); }},
      {"dsgd_bind", "exchanged handles", kInvalid, "not a dsgd_replica",
       [](W w, E e) {
         return dsgd_bind(foreign<dsgd_replica>(w.fresh.weight), foreign<dsgd_parameter>(w.fresh.replica),
                          buffer, 24, buffer, 24, e);
       }},
      {"dsgd_bind", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_bind(w.closed.replica, w.closed.weight, buffer, 24, buffer, 24, e); }},
      {"dsgd_alloc", "NULL replica", kInvalid, "'replica' is NULL",
       [](W w, E e) { return dsgd_alloc(nullptr, w.fresh.weight, &out, &out, e); }},
      {"dsgd_alloc", "NULL value", kInvalid, "'value' is NULL",
       [](W w, E e) { return dsgd_alloc(w.fresh.replica, w.fresh.weight, nullptr, &out, e); }},
      {"dsgd_alloc", "NULL gradient", kInvalid, "'gradient' is NULL",
       [](W w, E e) { return dsgd_alloc(w.fresh.replica, w.fresh.weight, &out, nullptr, e); }},
      {"dsgd_alloc", "of two sessions", kInvalid, {"'weight'", "another session", "handles of one session"},
       [](W w, E e) { return dsgd_alloc(w.fresh.replica, w.running.weight, &out, &out, e); }},
      {"dsgd_alloc", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_alloc(w.closed.replica, w.closed.weight, &out, &out, e); }},
      {"dsgd_memory_get", "NULL replica", kInvalid, "'replica' is NULL",
       [](W w, E e) {
         dsgd_memory* memory = nullptr;
         return dsgd_memory_get(nullptr, w.running.state, &memory, e);
       }},
      {"dsgd_memory_get", "NULL memory", kInvalid, "'memory' is NULL",
       [](W w, E e) { return dsgd_memory_get(w.running.replica, w.running.state, nullptr, e); }},
      {"dsgd_memory_get", "without dsgd_alloc", kState, {"'weight'", "replica 0", "call dsgd_alloc first"},
       [](W w, E e) {
         dsgd_memory* memory = nullptr;
         return dsgd_memory_get(w.running.replica, w.running.weight, &memory, e);
       }},
      {"dsgd_memory_value", "NULL", 1, nullptr, [](W, E) { return dsgd_memory_value(nullptr) == nullptr; }},
      {"dsgd_memory_gradient", "NULL", 1, nullptr,
       [](W, E) { return dsgd_memory_gradient(nullptr) == nullptr; }},
      {"dsgd_memory_gradient", "untrained", 1, nullptr,
       [](W w, E) { return dsgd_memory_gradient(w.memory) == nullptr; }},
      {"dsgd_memory_nbytes", "NULL", 0, nullptr, [](W, E) { return dsgd_memory_nbytes(nullptr); }},
      {"dsgd_memory_free", "NULL", 0, nullptr, [](W, E) { return dsgd_memory_free(nullptr), 0; }},

      {"dsgd_bind_dlpack", "NULL replica", kInvalid, "'replica' is NULL",
       [](W w, E e) { return dsgd_bind_dlpack(nullptr, w.fresh.state, &tensor, nullptr, e); }},
      {"dsgd_bind_dlpack", "NULL value", kInvalid, "'value' is NULL",
       [](W w, E e) { return dsgd_bind_dlpack(w.fresh.replica, w.fresh.state, nullptr, nullptr, e); }},
      {"dsgd_bind_dlpack", "NULL gradient", kInvalid, "'gradient' is NULL",
       [](W w, E e) { return dsgd_bind_dlpack(w.fresh.replica, w.fresh.weight, &tensor, nullptr, e); }},
      {"dsgd_bind_dlpack", "another major version", DSGD_ERR_UNSUPPORTED, {"'state'", "DLPack 0.0", "version 1"},
       [](W w, E e) { return dsgd_bind_dlpack(w.fresh.replica, w.fresh.state, &tensor, nullptr, e); }},
      {"dsgd_export_dlpack", "NULL value", kInvalid, "'value' is NULL",
       [](W w, E e) { return dsgd_export_dlpack(w.running.replica, w.running.state, nullptr, nullptr, e); }},
      {"dsgd_export_dlpack", "without dsgd_alloc", kState, {"'weight'", "replica 0", "call dsgd_alloc first"},
       [](W w, E e) {
         DLManagedTensorVersioned* value = nullptr;
         return dsgd_export_dlpack(w.running.replica, w.running.weight, &value, nullptr, e);
       }},
      {"dsgd_export_dlpack", "gradient of an untrained parameter", kInvalid, {"'state'", "untrained", "pass NULL"},
       [](W w, E e) {
         DLManagedTensorVersioned *value = nullptr, *gradient = nullptr;
         return dsgd_export_dlpack(w.running.replica, w.running.state, &value, &gradient, e);
       }},
  };
}
