// Version, errors, configuration.
#include <cstring>

#include "tests/unit/capi/bad_input.h"

std::vector<BadCall> config_cases() {
  using W = World&;
  using E = dsgd_error**;
  constexpr int64_t kInvalid = DSGD_ERR_INVALID_ARGUMENT;
  return {
      {"dsgd_version", "is the header's", 0, nullptr,
       [](W, E) { return static_cast<int64_t>(dsgd_version()) - DSGD_VERSION; }},
      {"dsgd_version_string", "is the header's", 0, nullptr,
       [](W, E) { return std::strcmp(dsgd_version_string(), "1.0.0"); }},
      {"dsgd_capability", "NULL", 0, nullptr, [](W, E) { return dsgd_capability(nullptr); }},
      {"dsgd_capability", "unknown name", 0, nullptr, [](W, E) { return dsgd_capability("warp drive"); }},
      {"dsgd_capability", "empty name", 0, nullptr, [](W, E) { return dsgd_capability(""); }},
      {"dsgd_capability", "cuda in a build without it is what adding a replica says", 0, nullptr,
       [](W w, E) {
         dsgd_error* error = nullptr;
         const int32_t status = dsgd_replica_add(w.fresh.session, "cuda:0", nullptr, &error);
         const std::string message = take_message(error);
         const bool missing = status == DSGD_ERR_UNSUPPORTED &&
                              message.find("plug-in for CUDA devices cannot be loaded") != std::string::npos;
         return dsgd_capability("cuda") - (missing ? 0 : 1);
       }},
      {"dsgd_status_name", "unknown code", 0, nullptr,
       [](W, E) { return std::strcmp(dsgd_status_name(-1000), "DSGD_ERR_UNKNOWN"); }},
      {"dsgd_status_name", "positive number", 0, nullptr,
       [](W, E) { return std::strcmp(dsgd_status_name(3), "DSGD_ERR_UNKNOWN"); }},

      {"dsgd_error_code", "NULL", 0, nullptr, [](W, E) { return dsgd_error_code(nullptr); }},
      {"dsgd_error_code", "foreign handle", 0, nullptr,
       [](W w, E) { return dsgd_error_code(foreign<dsgd_error>(w.config)); }},
      {"dsgd_error_rank", "NULL", -1, nullptr, [](W, E) { return dsgd_error_rank(nullptr); }},
      {"dsgd_error_rank", "of an error without rank", -1, nullptr,
       [](W w, E) { return dsgd_error_rank(w.error); }},
      {"dsgd_error_host", "NULL", 0, nullptr, [](W, E) { return std::strlen(dsgd_error_host(nullptr)); }},
      {"dsgd_error_operation", "NULL", 0, nullptr,
       [](W, E) { return std::strlen(dsgd_error_operation(nullptr)); }},
      {"dsgd_error_parameter", "NULL", 0, nullptr,
       [](W, E) { return std::strlen(dsgd_error_parameter(nullptr)); }},
      {"dsgd_error_message", "NULL", 0, nullptr,
       [](W, E) { return std::strlen(dsgd_error_message(nullptr)); }},
      {"dsgd_error_free", "NULL", 0, nullptr, [](W, E) { return dsgd_error_free(nullptr), 0; }},
      {"dsgd_error_free", "foreign handle", 0, nullptr,
       [](W w, E) { return dsgd_error_free(foreign<dsgd_error>(w.config)), 0; }},

      {"dsgd_config_new", "gives a configuration", 0, nullptr,
       [](W, E) {
         dsgd_config* config = dsgd_config_new();
         const int64_t missing = config == nullptr;
         dsgd_config_free(config);
         return missing;
       }},
      {"dsgd_config_free", "NULL", 0, nullptr, [](W, E) { return dsgd_config_free(nullptr), 0; }},
      {"dsgd_config_free", "foreign handle", 0, nullptr,
       [](W w, E) { return dsgd_config_free(foreign<dsgd_config>(w.shard)), 0; }},
      {"dsgd_config_set", "NULL config", kInvalid, "'config' is NULL",
       [](W, E e) { return dsgd_config_set(nullptr, "lease", "1s", e); }},
      {"dsgd_config_set", "foreign config", kInvalid, "not a dsgd_config",
       [](W w, E e) { return dsgd_config_set(foreign<dsgd_config>(w.running.session), "lease", "1s", e); }},
      {"dsgd_config_set", "NULL key", kInvalid, "'key' is NULL",
       [](W w, E e) { return dsgd_config_set(w.config, nullptr, "1s", e); }},
      {"dsgd_config_set", "NULL value", kInvalid, "'value' is NULL",
       [](W w, E e) { return dsgd_config_set(w.config, "lease", nullptr, e); }},
      {"dsgd_config_set",
       "unknown key",
       kInvalid,
       {"'heartbeat_intervall'", "did you mean 'heartbeat_interval'?"},
       [](W w, E e) { return dsgd_config_set(w.config, "heartbeat_intervall", "1s", e); }},
      {"dsgd_config_set",
       "empty key",
       kInvalid,
       {"unknown key ''", "`dsgd config` lists all keys"},
       [](W w, E e) { return dsgd_config_set(w.config, "", "1s", e); }},
      {"dsgd_config_set",
       "no duration",
       kInvalid,
       {"'lease'", "'soon' is not a duration", "500ms, 10s or 5m"},
       [](W w, E e) { return dsgd_config_set(w.config, "lease", "soon", e); }},
      {"dsgd_config_set",
       "out of range",
       kInvalid,
       {"'lease'", "'1ms' is out of range; use 500ms..1h"},
       [](W w, E e) { return dsgd_config_set(w.config, "lease", "1ms", e); }},
      {"dsgd_config_set",
       "no number",
       kInvalid,
       {"'num_workers'", "'many' is not a whole number", "1..65536"},
       [](W w, E e) { return dsgd_config_set(w.config, "num_workers", "many", e); }},
      {"dsgd_config_set",
       "no switch",
       kInvalid,
       {"'reproducible'", "'perhaps' is not a switch", "write 0 or 1"},
       [](W w, E e) { return dsgd_config_set(w.config, "reproducible", "perhaps", e); }},
      {"dsgd_config_set",
       "no choice",
       kInvalid,
       {"'strategy'", "'allreduced' is not one of simple | ps | allreduce", "did you mean 'allreduce'?"},
       [](W w, E e) { return dsgd_config_set(w.config, "strategy", "allreduced", e); }},
      {"dsgd_config_load", "NULL config", kInvalid, "'config' is NULL",
       [](W, E e) { return dsgd_config_load(nullptr, "/etc/hostname", e); }},
      {"dsgd_config_load", "NULL path", kInvalid, "'path' is NULL",
       [](W w, E e) { return dsgd_config_load(w.config, nullptr, e); }},
      {"dsgd_config_load", "no such file", DSGD_ERR_NOT_FOUND, "/nonexistent/job.conf",
       [](W w, E e) { return dsgd_config_load(w.config, "/nonexistent/job.conf", e); }},
      {"dsgd_config_load", "a folder", DSGD_ERR_IO, "'/'",
       [](W w, E e) { return dsgd_config_load(w.config, "/", e); }},
      {"dsgd_config_value", "NULL config", 1, nullptr,
       [](W, E) { return dsgd_config_value(nullptr, "lease") == nullptr; }},
      {"dsgd_config_value", "NULL key", 1, nullptr,
       [](W w, E) { return dsgd_config_value(w.config, nullptr) == nullptr; }},
      {"dsgd_config_value", "unknown key", 1, nullptr,
       [](W w, E) { return dsgd_config_value(w.config, "nonsense") == nullptr; }},

      {"dsgd_config_key_init", "NULL", kInvalid, nullptr,
       [](W, E) { return dsgd_config_key_init(nullptr, sizeof(dsgd_config_key)); }},
      {"dsgd_config_key_init", "too small", kInvalid, nullptr,
       [](W, E) {
         dsgd_config_key key;
         return dsgd_config_key_init(&key, sizeof key - 1);
       }},
      {"dsgd_config_key_init", "absurdly large", kInvalid, nullptr,
       [](W, E) {
         dsgd_config_key key;
         return dsgd_config_key_init(&key, SIZE_MAX);
       }},
      {"dsgd_config_key_count", "is not 0", 0, nullptr, [](W, E) { return dsgd_config_key_count() == 0; }},
      {"dsgd_config_key_at", "NULL key", kInvalid, "'key' is NULL",
       [](W, E e) { return dsgd_config_key_at(0, nullptr, e); }},
      {"dsgd_config_key_at",
       "beyond the end",
       kInvalid,
       {"index ", "is beyond the table", "dsgd_config_key_count"},
       [](W, E e) {
         dsgd_config_key key;
         dsgd_config_key_init(&key, sizeof key);
         return dsgd_config_key_at(dsgd_config_key_count(), &key, e);
       }},
      {"dsgd_config_key_at",
       "without init",
       kInvalid,
       {"'key' has struct_size 0", "call dsgd_config_key_init"},
       [](W, E e) {
         dsgd_config_key key = {};
         return dsgd_config_key_at(0, &key, e);
       }},
      {"dsgd_config_log_hook", "NULL config", kInvalid, "'config' is NULL",
       [](W, E e) { return dsgd_config_log_hook(nullptr, nullptr, nullptr, e); }},
  };
}
