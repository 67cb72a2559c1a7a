// One of everything that dsgd.h hands out, for tests that misuse it: handles of a session that runs, of one
// that has not been started, and of one that is closed. All with one worker, so that nothing is contacted.
#pragma once

#include <cstdint>
#include <string>

#include "dsgd/dsgd.h"

struct Model {
  dsgd_session* session = nullptr;
  dsgd_replica* replica = nullptr;
  dsgd_parameter* weight = nullptr;  // float32 [2, 3]
  dsgd_parameter* state = nullptr;   // int32 [4], untrained
  float value[6] = {1, 2, 3, 4, 5, 6};
  float gradient[6] = {1, 1, 1, 1, 1, 1};
};

struct World {
  World();
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  dsgd_config* config = nullptr;
  Model running;  // started; `weight` has the host's buffers, `state` dsgd's
  Model fresh;    // not started, `weight` and `state` not bound
  Model closed;
  dsgd_op* barrier = nullptr;  // ended, of `running`
  dsgd_op* step = nullptr;     // ended, of `running`
  dsgd_op* get = nullptr;      // ended, of `running`: of the object "name"
  dsgd_shard* shard = nullptr;
  dsgd_object* object = nullptr;
  dsgd_memory* memory = nullptr;  // of running.state
  dsgd_head* head = nullptr;
  dsgd_error* error = nullptr;  // of an unknown key
};

// Ends the test program with the message if a call that must succeed has failed. The error is taken by
// reference since the call that sets it stands in the same argument list.
void must(int32_t status, dsgd_error* const& error, const char* what);

// A configuration of one worker that no environment variable reaches.
dsgd_config* quiet_config();
// Opens a session with `quiet_config` and adds the model to it.
void add_model(Model* model);

dsgd_op_options with_timeout(int32_t timeout_ms);

// Calls dsgd_metrics or dsgd_trace and frees the text.
int32_t discard_text(int32_t (*call)(const dsgd_session*, char**, dsgd_error**), const dsgd_session* session,
                     dsgd_error** error);

// Takes the error apart and frees it.
std::string take_message(dsgd_error* error);
