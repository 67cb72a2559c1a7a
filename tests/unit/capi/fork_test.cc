// In a forked child every call on a handle of the parent that stands for more than memory says so, and frees work.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/capi/header.h"
#include "tests/unit/capi/world.h"
#include "tests/unit/fork.h"

struct DLManagedTensorVersioned {  // large enough to be looked into
  uint64_t words[64];
};

namespace {

struct Call {
  const char* function;
  bool has_error;  // an error argument, which then must tell the same
  std::function<double(World&, dsgd_error**)> call;
};

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
  return {
      {"dsgd_close", true, [](W w, E e) { return dsgd_close(w.running.session, 0, e); }},
      {"dsgd_abort", true, [](W w, E e) { return dsgd_abort(w.running.session, "why", e); }},
      {"dsgd_rank", false, [](W w, E) { return dsgd_rank(w.running.session); }},
      {"dsgd_size", false, [](W w, E) { return dsgd_size(w.running.session); }},
      {"dsgd_local_rank", false, [](W w, E) { return dsgd_local_rank(w.running.session); }},
      {"dsgd_local_size", false, [](W w, E) { return dsgd_local_size(w.running.session); }},
      {"dsgd_epoch", false, [](W w, E) { return static_cast<double>(dsgd_epoch(w.running.session)); }},
      {"dsgd_loss_scale", false, [](W w, E) { return dsgd_loss_scale(w.running.session); }},
      {"dsgd_log_poll", true, [](W w, E e) { return dsgd_log_poll(w.running.session, 0, &record, e); }},

      {"dsgd_parameter_add", true,
       [](W w, E e) { return dsgd_parameter_add(w.fresh.session, "new", DSGD_FLOAT32, shape, 1, 0, nullptr, e); }},
      {"dsgd_parameter_set", true, [](W w, E e) { return dsgd_parameter_set(w.running.weight, "rate=1", e); }},
      {"dsgd_replica_add", true, [](W w, E e) { return dsgd_replica_add(w.fresh.session, "cpu", nullptr, e); }},
      {"dsgd_replica_weight", true, [](W w, E e) { return dsgd_replica_weight(w.running.replica, 1, e); }},
      {"dsgd_bind", true,
       [](W w, E e) { return dsgd_bind(w.fresh.replica, w.fresh.weight, data, 24, data + 12, 24, e); }},
      {"dsgd_alloc", true, [](W w, E e) { return dsgd_alloc(w.fresh.replica, w.fresh.state, &out, nullptr, e); }},
      {"dsgd_memory_get", true,
       [](W w, E e) { return dsgd_memory_get(w.running.replica, w.running.state, &memory, e); }},
      {"dsgd_bind_dlpack", true,
       [](W w, E e) { return dsgd_bind_dlpack(w.fresh.replica, w.fresh.state, &tensor, nullptr, e); }},
      {"dsgd_export_dlpack", true,
       [](W w, E e) { return dsgd_export_dlpack(w.running.replica, w.running.state, &exported, nullptr, e); }},

      {"dsgd_optimizer_set", true, [](W w, E e) { return dsgd_optimizer_set(w.fresh.session, "sgd", "lr=1", e); }},
      {"dsgd_learning_rate_set", true, [](W w, E e) { return dsgd_learning_rate_set(w.running.session, 0.5, e); }},
      {"dsgd_strategy_set", true, [](W w, E e) { return dsgd_strategy_set(w.running.session, "ps", nullptr, e); }},
      {"dsgd_start", true, [](W w, E e) { return dsgd_start(w.fresh.session, e); }},
      {"dsgd_step", true, [](W w, E e) { return dsgd_step(w.running.session, 1, nullptr, e); }},
      {"dsgd_step_begin", true, [](W w, E e) { return dsgd_step_begin(w.running.session, 1, &op, e); }},
      {"dsgd_step_flush", true, [](W w, E e) { return dsgd_step_flush(w.running.session, e); }},
      {"dsgd_gradient_ready", true,
       [](W w, E e) { return dsgd_gradient_ready(w.running.replica, w.running.weight, nullptr, e); }},
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
      {"dsgd_queue_poll", true, [](W w, E e) { return dsgd_queue_poll(w.running.session, &op, 1, 0, &count, e); }},
      {"dsgd_queue_fd", false, [](W w, E) { return dsgd_queue_fd(w.running.session); }},

      {"dsgd_allreduce", true,
       [](W w, E e) {
         return dsgd_allreduce(w.running.session, nullptr, data, 8, DSGD_FLOAT32, DSGD_SUM, nullptr, e);
       }},
      {"dsgd_broadcast", true,
       [](W w, E e) { return dsgd_broadcast(w.running.session, nullptr, data, 8, DSGD_FLOAT32, 0, nullptr, e); }},
      {"dsgd_allgather", true,
       [](W w, E e) {
         return dsgd_allgather(w.running.session, nullptr, data, 8, data + 12, 8, nullptr, DSGD_FLOAT32, nullptr, e);
       }},
      {"dsgd_reduce_scatter", true,
       [](W w, E e) {
         return dsgd_reduce_scatter(w.running.session, nullptr, data, 8, data + 12, 8, nullptr, DSGD_FLOAT32, DSGD_SUM,
                                    nullptr, e);
       }},
      {"dsgd_barrier", true, [](W w, E e) { return dsgd_barrier(w.running.session, nullptr, nullptr, e); }},
      {"dsgd_object_put", true, [](W w, E e) { return dsgd_object_put(w.running.session, "y", "z", 1, e); }},
      {"dsgd_object_get", true,
       [](W w, E e) { return dsgd_object_get(w.running.session, "name", 0, &object, e); }},
      {"dsgd_shard_new", true, [](W w, E e) { return dsgd_shard_new(w.running.session, 4, 0, 0, &shard, e); }},
      {"dsgd_head_wait", true, [](W w, E e) { return dsgd_head_wait(w.head, 0, e); }},
  };
}

// What takes such a handle and yet does not say DSGD_ERR_FORKED.
const std::map<std::string, std::string> kExceptions = {
    {"dsgd_session_free", "frees what the child has"},
    {"dsgd_finalize", "frees what the child has"},
    {"dsgd_op_free", "frees what the child has"},
    {"dsgd_head_free", "frees what the child has"},
    {"dsgd_parameter_name", "has no code to return; the text is the handle's"},
    {"dsgd_replica_device", "has no code to return; the text is the handle's"},
    {"dsgd_head_address", "has no code to return; the text is the handle's"},
    {"dsgd_op_id", "has no code to return; the number is the handle's"},
};

TEST(ForkTable, has_every_function_of_the_header_that_takes_such_a_handle) {
  std::set<std::string> wanted, covered;
  const std::regex handle(R"(dsgd_(session|parameter|replica|op|head) \*\w)");  // not **: those are given out
  for (const auto& [function, arguments] : declared_functions()) {
    if (std::regex_search(arguments, handle)) wanted.insert(function);
  }
  for (const Call& call : calls()) EXPECT_TRUE(covered.insert(call.function).second) << call.function << " is there twice";
  for (const auto& [function, why] : kExceptions) EXPECT_TRUE(covered.insert(function).second) << function << " is in both";
  EXPECT_GT(wanted.size(), 45u);
  EXPECT_EQ(wanted, covered);
}

// What is wrong in the child, a line each; nothing if all is well.
std::string look_around(World* world) {
  std::string wrong;
  for (const Call& call : calls()) {
    for (const bool with_error : {true, false}) {
      dsgd_error* error = nullptr;
      const double result = call.call(*world, with_error ? &error : nullptr);
      const std::string message = dsgd_error_message(error);
      const bool told = !call.has_error || !with_error ||
                        (dsgd_error_code(error) == DSGD_ERR_FORKED && message.find("fork") != std::string::npos);
      if (result != double{DSGD_ERR_FORKED} || !told) {
        wrong += std::string(call.function) + ": " + std::to_string(result) + ", '" + message + "'\n";
      }
      dsgd_error_free(error);
    }
  }
  if (dsgd_op_id(world->barrier) == 0) wrong += "dsgd_op_id: 0\n";
  if (dsgd_parameter_name(world->running.weight) != std::string("weight")) wrong += "dsgd_parameter_name\n";
  if (dsgd_replica_device(world->running.replica) != std::string("cpu")) wrong += "dsgd_replica_device\n";
  if (*dsgd_head_address(world->head) == '\0') wrong += "dsgd_head_address\n";
  // What holds nothing outside of the process goes on working.
  int64_t indices[16];
  size_t count = 0;
  if (dsgd_shard_next(world->shard, indices, 16, &count, nullptr) != DSGD_OK || count != 10) wrong += "dsgd_shard_next\n";
  if (dsgd_object_nbytes(world->object) != 4) wrong += "dsgd_object_nbytes\n";
  if (dsgd_memory_nbytes(world->memory) != 16) wrong += "dsgd_memory_nbytes\n";
  if (dsgd_config_set(world->config, "lease", "3s", nullptr) != DSGD_OK) wrong += "dsgd_config_set\n";
  if (*dsgd_error_message(world->error) == '\0') wrong += "dsgd_error_message\n";
  delete world;  // frees and finalizes everything
#ifndef __SANITIZE_THREAD__  // TSan ends a child that starts threads
  Model own;               // a session of its own
  add_model(&own);
  if (dsgd_barrier(own.session, nullptr, nullptr, nullptr) != DSGD_OK) wrong += "no session of its own\n";
  dsgd_finalize(own.session);
#endif
  return wrong;
}

TEST(Fork, a_child_is_told_by_every_call_and_frees_in_peace) {
  auto* world = new World;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = dsgd_test::fork_outside_the_allocator();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string wrong = look_around(world);
    const bool told = write(ends[1], wrong.data(), wrong.size()) == static_cast<ssize_t>(wrong.size());
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  std::string wrong;
  char part[4096];
  for (ssize_t count; (count = read(ends[0], part, sizeof part)) > 0;) wrong.append(part, static_cast<size_t>(count));
  close(ends[0]);
  EXPECT_EQ(wrong, "");
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(dsgd_step(world->running.session, 1, nullptr, nullptr), DSGD_OK) << "the parent goes on";
  EXPECT_EQ(dsgd_head_wait(world->head, 0, nullptr), DSGD_ERR_WAIT_TIMEOUT) << "and so does its head";
  delete world;
}

}  // namespace
