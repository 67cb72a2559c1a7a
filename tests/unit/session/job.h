// A job of several workers inside this process, one thread and one session each, over loopback and the C ABI.
#pragma once

#include <dsgd/dsgd.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace dsgd_test {

// Owns an error for the length of a check.
struct Error {
  dsgd_error* error = nullptr;
  ~Error() { dsgd_error_free(error); }
  operator dsgd_error**() { return &error; }  // NOLINT: passed where the ABI takes it
  std::string message() const { return dsgd_error_message(error); }
  int32_t code() const { return dsgd_error_code(error); }
  int32_t rank() const { return dsgd_error_rank(error); }
};

#define DSGD_OK_OR_FAIL(call)                                         \
  do {                                                                \
    dsgd_test::Error error_;                                          \
    const int32_t status_ = (call);                                   \
    ASSERT_EQ(status_, DSGD_OK) << #call << ": " << error_.message(); \
  } while (0)

inline dsgd_op_options with_timeout(int32_t timeout_ms) {
  dsgd_op_options options;
  EXPECT_EQ(dsgd_op_options_init(&options, sizeof options), DSGD_OK);
  options.timeout_ms = timeout_ms;
  return options;
}

// All that a session has logged since the last call.
inline std::string logged(dsgd_session* session) {
  std::string all;
  dsgd_log_record* record = nullptr;
  while (dsgd_log_poll(session, 0, &record, nullptr) == DSGD_OK) {
    all += std::string(dsgd_log_record_message(record)) + '\n';
    dsgd_log_record_free(record);
  }
  return all;
}

using Settings = std::map<std::string, std::string>;

// Closes the session at the end of a scope. Declared after the buffers that dsgd_bind gets in that scope.
struct SessionCloser {
  dsgd_session* session;
  ~SessionCloser() { dsgd_close(session, -1, nullptr); }
};

// A head on a port of its own, and `workers` threads that each join it and run `body`. Returns when all are
// done. body(session, rank) runs in the worker's thread; sessions are closed and freed after it. `prepare`,
// if given, sees each worker's configuration before the settings are made. The setting `head` is where the
// head listens.
inline void run_job(int workers, const Settings& settings,
                    const std::function<void(dsgd_session*, int)>& body,
                    const std::function<void(dsgd_config*)>& prepare = nullptr) {
  dsgd_head* head = nullptr;
  std::string address;
  if (workers > 1) {
    dsgd_config* config = dsgd_config_new();
    const auto listen = settings.find("head");
    DSGD_OK_OR_FAIL(dsgd_config_set(
        config, "head", listen == settings.end() ? "127.0.0.1:0" : listen->second.c_str(), error_));
    DSGD_OK_OR_FAIL(dsgd_config_set(config, "num_workers", std::to_string(workers).c_str(), error_));
    for (const auto& [key, value] : settings) {
      if (key == "lease" || key == "token" || key == "job" || key.starts_with("tls_"))
        DSGD_OK_OR_FAIL(dsgd_config_set(config, key.c_str(), value.c_str(), error_));
    }
    DSGD_OK_OR_FAIL(dsgd_head_start(config, &head, error_));
    dsgd_config_free(config);
    address = dsgd_head_address(head);
  }
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      dsgd_config* config = dsgd_config_new();
      auto set = [&](const std::string& key, const std::string& value) {
        Error error;
        ASSERT_EQ(dsgd_config_set(config, key.c_str(), value.c_str(), error), DSGD_OK) << error.message();
      };
      set("num_workers", std::to_string(workers));
      if (workers > 1) {
        set("head", address);
        set("embed_head", "never");
        set("rank", std::to_string(worker));
      }
      if (prepare) prepare(config);
      for (const auto& [key, value] : settings) {
        if (key != "head" || workers == 1) set(key, value);
      }
      dsgd_session* session = nullptr;
      Error error;
      const int32_t status = dsgd_init(config, &session, error);
      dsgd_config_free(config);
      ASSERT_EQ(status, DSGD_OK) << error.message();
      body(session, worker);
      dsgd_finalize(session);
    });
  }
  for (std::thread& thread : threads) thread.join();
  dsgd_head_free(head);
}

}  // namespace dsgd_test
