// Sessions, logs, the head.
#include <cstring>

#include "tests/unit/capi/bad_input.h"

namespace {

int32_t init_with(const char* key, const char* value, dsgd_error** error) {
  dsgd_config* config = quiet_config();
  dsgd_config_set(config, key, value, nullptr);
  dsgd_session* session = nullptr;
  const int32_t status = dsgd_init(config, &session, error);
  dsgd_config_free(config);
  return status;
}

int32_t read_info(const dsgd_session* session, size_t struct_size, dsgd_error** error) {
  dsgd_session_info info = {};
  info.struct_size = struct_size;
  return dsgd_session_info_read(session, &info, error);
}

}  // namespace

std::vector<BadCall> session_cases() {
  using W = World&;
  using E = dsgd_error**;
  constexpr int64_t kInvalid = DSGD_ERR_INVALID_ARGUMENT, kClosed = DSGD_ERR_CLOSED;
  std::vector<BadCall> cases = {
      {"dsgd_init", "NULL session", kInvalid, "'session' is NULL",
       [](W w, E e) { return dsgd_init(w.config, nullptr, e); }},
      {"dsgd_init", "foreign config", kInvalid, "not a dsgd_config",
       [](W w, E e) {
         dsgd_session* session = nullptr;
         return dsgd_init(foreign<dsgd_config>(w.shard), &session, e);
       }},
      {"dsgd_init",
       "several workers and no head",
       kInvalid,
       {"'head' is not set", "num_workers is 2", "DSGD_HEAD"},
       [](W, E e) { return init_with("num_workers", "2", e); }},
      {"dsgd_init",
       "a head at no address",
       kInvalid,
       {"head = 0.0.0.0:7700 names no machine", "give the address"},
       [](W, E e) { return init_with("head", "0.0.0.0:7700", e); }},
      {"dsgd_init_begin", "NULL session", kInvalid, "'session' is NULL",
       [](W w, E e) {
         dsgd_op* op = nullptr;
         return dsgd_init_begin(w.config, nullptr, nullptr, &op, e);
       }},
      {"dsgd_init_begin", "foreign config", kInvalid, "not a dsgd_config",
       [](W w, E e) {
         dsgd_session* session = nullptr;
         dsgd_op* op = nullptr;
         return dsgd_init_begin(foreign<dsgd_config>(w.shard), nullptr, &session, &op, e);
       }},
      {"dsgd_init_begin",
       "a channel",
       kInvalid,
       {"channel is 1", "only collectives"},
       [](W w, E e) {
         dsgd_op_options options = with_timeout(-1);
         options.channel = 1;
         dsgd_session* session = nullptr;
         dsgd_op* op = nullptr;
         return dsgd_init_begin(w.config, &options, &session, &op, e);
       }},
      {"dsgd_close", "NULL", kInvalid, "'session' is NULL", [](W, E e) { return dsgd_close(nullptr, 0, e); }},
      {"dsgd_close", "foreign session", kInvalid, "not a dsgd_session",
       [](W w, E e) { return dsgd_close(foreign<dsgd_session>(w.config), 0, e); }},
      {"dsgd_close", "bad time", kInvalid, "-2",
       [](W w, E e) { return dsgd_close(w.running.session, -2, e); }},
      {"dsgd_close", "twice is fine", 0, nullptr,
       [](W w, E e) { return dsgd_close(w.closed.session, -1, e); }},
      {"dsgd_session_free", "NULL", 0, nullptr, [](W, E) { return dsgd_session_free(nullptr), 0; }},
      {"dsgd_session_free", "foreign handle", 0, nullptr,
       [](W w, E) { return dsgd_session_free(foreign<dsgd_session>(w.config)), 0; }},
      {"dsgd_finalize", "NULL", 0, nullptr, [](W, E) { return dsgd_finalize(nullptr); }},
      {"dsgd_finalize", "foreign handle", 0, nullptr,
       [](W w, E) { return dsgd_finalize(foreign<dsgd_session>(w.config)), 0; }},
      {"dsgd_abort", "NULL", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_abort(nullptr, "why", e); }},
      {"dsgd_abort", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_abort(w.closed.session, "why", e); }},
      {"dsgd_fail", "NULL", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_fail(nullptr, "why", e); }},
      {"dsgd_fail", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_fail(w.closed.session, "why", e); }},

      {"dsgd_session_info_init", "NULL", kInvalid, nullptr,
       [](W, E) { return dsgd_session_info_init(nullptr, sizeof(dsgd_session_info)); }},
      {"dsgd_session_info_init", "too small", kInvalid, nullptr,
       [](W, E) {
         dsgd_session_info info;
         return dsgd_session_info_init(&info, 8);
       }},
      {"dsgd_session_info_read", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return read_info(nullptr, sizeof(dsgd_session_info), e); }},
      {"dsgd_session_info_read", "foreign session", kInvalid, "not a dsgd_session",
       [](W w, E e) { return read_info(foreign<dsgd_session>(w.config), sizeof(dsgd_session_info), e); }},
      {"dsgd_session_info_read", "NULL info", kInvalid, "'info' is NULL",
       [](W w, E e) { return dsgd_session_info_read(w.running.session, nullptr, e); }},
      {"dsgd_session_info_read",
       "info was not initialized",
       kInvalid,
       {"'info'", "struct_size 0", "dsgd_session_info_init"},
       [](W w, E e) { return read_info(w.running.session, 0, e); }},
      {"dsgd_session_info_read", "closed is fine", 0, nullptr,
       [](W w, E e) { return read_info(w.closed.session, sizeof(dsgd_session_info), e); }},

      {"dsgd_metrics", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return discard_text(dsgd_metrics, nullptr, e); }},
      {"dsgd_metrics", "NULL text", kInvalid, "'text' is NULL",
       [](W w, E e) { return dsgd_metrics(w.running.session, nullptr, e); }},
      {"dsgd_metrics", "closed", kClosed, "closed",
       [](W w, E e) { return discard_text(dsgd_metrics, w.closed.session, e); }},
      {"dsgd_trace", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return discard_text(dsgd_trace, nullptr, e); }},
      {"dsgd_trace", "NULL text", kInvalid, "'text' is NULL",
       [](W w, E e) { return dsgd_trace(w.running.session, nullptr, e); }},
      {"dsgd_trace", "closed", kClosed, "closed",
       [](W w, E e) { return discard_text(dsgd_trace, w.closed.session, e); }},
      {"dsgd_text_free", "NULL", 0, nullptr, [](W, E) { return dsgd_text_free(nullptr), 0; }},

      {"dsgd_log_poll", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) {
         dsgd_log_record* record = nullptr;
         return dsgd_log_poll(nullptr, 0, &record, e);
       }},
      {"dsgd_log_poll", "NULL record", kInvalid, "'record' is NULL",
       [](W w, E e) { return dsgd_log_poll(w.running.session, 0, nullptr, e); }},
      {"dsgd_log_poll", "bad time", kInvalid, "-7",
       [](W w, E e) {
         dsgd_log_record* record = nullptr;
         return dsgd_log_poll(w.running.session, -7, &record, e);
       }},
      {"dsgd_log_poll", "closed and empty", kClosed, "closed",
       [](W w, E e) {
         dsgd_log_record* record = nullptr;
         while (dsgd_log_poll(w.closed.session, 0, &record, nullptr) == DSGD_OK) dsgd_log_record_free(record);
         return dsgd_log_poll(w.closed.session, -1, &record, e);
       }},
      {"dsgd_log_record_level", "NULL", kInvalid, nullptr,
       [](W, E) { return dsgd_log_record_level(nullptr); }},
      {"dsgd_log_record_message", "NULL", 0, nullptr,
       [](W, E) { return std::strlen(dsgd_log_record_message(nullptr)); }},
      {"dsgd_log_record_time_ns", "NULL", 0, nullptr, [](W, E) { return dsgd_log_record_time_ns(nullptr); }},
      {"dsgd_log_record_session", "NULL", 0, nullptr, [](W, E) { return dsgd_log_record_session(nullptr); }},
      {"dsgd_log_record_rank", "NULL", -1, nullptr, [](W, E) { return dsgd_log_record_rank(nullptr); }},
      {"dsgd_log_fd", "NULL", kInvalid, nullptr, [](W, E) { return dsgd_log_fd(nullptr); }},
      {"dsgd_log_fd", "foreign session", kInvalid, nullptr,
       [](W w, E) { return dsgd_log_fd(foreign<dsgd_session>(w.config)); }},
      {"dsgd_log_record_free", "NULL", 0, nullptr, [](W, E) { return dsgd_log_record_free(nullptr), 0; }},

      {"dsgd_head_start", "NULL head", kInvalid, "'head' is NULL",
       [](W w, E e) { return dsgd_head_start(w.config, nullptr, e); }},
      {"dsgd_head_start", "foreign config", kInvalid, "not a dsgd_config",
       [](W w, E e) {
         dsgd_head* head = nullptr;
         return dsgd_head_start(foreign<dsgd_config>(w.shard), &head, e);
       }},
      {"dsgd_head_start",
       "no address",
       kInvalid,
       {"`head` is not set", "127.0.0.1:7700"},
       [](W w, E e) {
         dsgd_head* head = nullptr;
         return dsgd_head_start(w.config, &head, e);
       }},
      {"dsgd_head_start",
       "address in use",
       DSGD_ERR_ADDRESS_IN_USE,
       {"127.0.0.1:", "in use", "port 0"},
       [](W w, E e) {
         dsgd_config* config = quiet_config();
         dsgd_config_set(config, "head", dsgd_head_address(w.head), nullptr);
         dsgd_head* head = nullptr;
         const int32_t status = dsgd_head_start(config, &head, e);
         dsgd_config_free(config);
         return status;
       }},
      {"dsgd_head_address", "NULL", 0, nullptr, [](W, E) { return std::strlen(dsgd_head_address(nullptr)); }},
      {"dsgd_head_address", "foreign handle", 0, nullptr,
       [](W w, E) { return std::strlen(dsgd_head_address(foreign<dsgd_head>(w.shard))); }},
      {"dsgd_head_wait", "NULL", kInvalid, "'head' is NULL",
       [](W, E e) { return dsgd_head_wait(nullptr, 0, e); }},
      {"dsgd_head_wait", "bad time", kInvalid, "-9", [](W w, E e) { return dsgd_head_wait(w.head, -9, e); }},
      {"dsgd_head_wait",
       "nobody has come",
       DSGD_ERR_WAIT_TIMEOUT,
       {"after 0 ms"},
       [](W w, E e) { return dsgd_head_wait(w.head, 0, e); }},
      {"dsgd_job_status", "foreign config", kInvalid, "not a dsgd_config",
       [](W w, E e) {
         char* text = nullptr;
         return dsgd_job_status(foreign<dsgd_config>(w.shard), 0, &text, e);
       }},
      {"dsgd_job_status", "NULL text", kInvalid, "'text' is NULL",
       [](W w, E e) { return dsgd_job_status(w.config, 0, nullptr, e); }},
      {"dsgd_job_status", "bad time", kInvalid, "-2",
       [](W w, E e) {
         char* text = nullptr;
         return dsgd_job_status(w.config, -2, &text, e);
       }},
      {"dsgd_job_status",
       "no address",
       kInvalid,
       {"`head` is not set", "10.0.0.1:7700"},
       [](W w, E e) {
         char* text = nullptr;
         return dsgd_job_status(w.config, 1000, &text, e);
       }},
      {"dsgd_job_scale", "foreign config", kInvalid, "not a dsgd_config",
       [](W w, E e) { return dsgd_job_scale(foreign<dsgd_config>(w.shard), 2, 0, e); }},
      {"dsgd_job_scale", "no workers", kInvalid, "workers is 0",
       [](W w, E e) { return dsgd_job_scale(w.config, 0, 0, e); }},
      {"dsgd_job_scale", "bad time", kInvalid, "-2",
       [](W w, E e) { return dsgd_job_scale(w.config, 2, -2, e); }},
      {"dsgd_job_scale", "no address", kInvalid, "`head` is not set",
       [](W w, E e) { return dsgd_job_scale(w.config, 2, 1000, e); }},
      {"dsgd_head_free", "NULL", 0, nullptr, [](W, E) { return dsgd_head_free(nullptr), 0; }},
      {"dsgd_head_free", "foreign handle", 0, nullptr,
       [](W w, E) { return dsgd_head_free(foreign<dsgd_head>(w.config)), 0; }},
  };
  const std::pair<const char*, int64_t (*)(const dsgd_session*)> numbers[] = {
      {"dsgd_rank", [](const dsgd_session* session) -> int64_t { return dsgd_rank(session); }},
      {"dsgd_size", [](const dsgd_session* session) -> int64_t { return dsgd_size(session); }},
      {"dsgd_local_rank", [](const dsgd_session* session) -> int64_t { return dsgd_local_rank(session); }},
      {"dsgd_local_size", [](const dsgd_session* session) -> int64_t { return dsgd_local_size(session); }},
      {"dsgd_view", [](const dsgd_session* session) -> int64_t { return dsgd_view(session); }},
      {"dsgd_loss_scale",
       [](const dsgd_session* session) { return static_cast<int64_t>(dsgd_loss_scale(session)); }},
  };
  for (const auto& [name, number] : numbers) {
    cases.push_back({name, "NULL", kInvalid, nullptr, [number = number](W, E) { return number(nullptr); }});
    cases.push_back({name, "foreign session", kInvalid, nullptr,
                     [number = number](W w, E) { return number(foreign<dsgd_session>(w.config)); }});
    cases.push_back(
        {name, "closed", kClosed, nullptr, [number = number](W w, E) { return number(w.closed.session); }});
  }
  return cases;
}
