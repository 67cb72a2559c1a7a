// In a forked child every call on a handle of the parent that stands for more than memory says so, and frees
// work.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/capi/calls.h"
#include "tests/unit/capi/header.h"
#include "tests/unit/capi/world.h"
#include "tests/unit/fork.h"

namespace {

// Functions that take such a handle and do not return DSGD_ERR_FORKED.
const std::map<std::string, std::string> kNotRefused = {
    {"dsgd_session_free", "frees what the child has"},
    {"dsgd_finalize", "frees what the child has"},
    {"dsgd_op_free", "frees what the child has"},
    {"dsgd_head_free", "frees what the child has"},
    {"dsgd_parameter_name", "has no code to return; the text is the handle's"},
    {"dsgd_replica_device", "has no code to return; the text is the handle's"},
    {"dsgd_head_address", "has no code to return; the text is the handle's"},
    {"dsgd_op_id", "has no code to return; the number is the handle's"},
    {"dsgd_op_user_data", "has no code to return; the pointer is the host's"},
};

TEST(ForkTable, has_every_function_of_the_header_that_takes_such_a_handle) {
  std::set<std::string> wanted, covered;
  const std::regex handle(R"(dsgd_(session|parameter|replica|op|head) \*\w)");  // not **: those are given out
  for (const auto& [function, arguments] : declared_functions()) {
    if (std::regex_search(arguments, handle)) wanted.insert(function);
  }
  for (const Call& call : calls())
    EXPECT_TRUE(covered.insert(call.function).second) << call.function << " is there twice";
  for (const auto& [function, why] : kNotRefused)
    EXPECT_TRUE(covered.insert(function).second) << function << " is in both";
  EXPECT_GT(wanted.size(), 45u);
  EXPECT_EQ(wanted, covered);
}

// Returns the problems in the child, a line each; empty if there are none.
std::string look_around(World* world) {
  std::string wrong;
  for (const Call& call : calls()) {
    for (const bool with_error : {true, false}) {
      dsgd_error* error = nullptr;
      const double result = call.call(*world, with_error ? &error : nullptr);
      const std::string message = dsgd_error_message(error);
      const bool is_head = call.function == std::string("dsgd_head_wait");
      const auto has = [&](const char* text) { return message.find(text) != std::string::npos; };
      const bool told = !call.has_error || !with_error ||
                        (dsgd_error_code(error) == DSGD_ERR_FORKED && has("fork") &&
                         has(is_head ? "dsgd_head_start" : "dsgd_init"));
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
  // Handles without outside resources keep working.
  int64_t indices[16];
  size_t count = 0;
  if (dsgd_shard_next(world->shard, indices, 16, &count, nullptr) != DSGD_OK || count != 10)
    wrong += "dsgd_shard_next\n";
  if (dsgd_object_nbytes(world->object) != 4) wrong += "dsgd_object_nbytes\n";
  if (dsgd_object_dtype(world->object) != -1) wrong += "dsgd_object_dtype\n";
  if (dsgd_memory_nbytes(world->memory) != 16) wrong += "dsgd_memory_nbytes\n";
  if (dsgd_config_set(world->config, "lease", "3s", nullptr) != DSGD_OK) wrong += "dsgd_config_set\n";
  if (*dsgd_error_message(world->error) == '\0') wrong += "dsgd_error_message\n";
  delete world;                // frees and finalizes everything
#ifndef DSGD_SANITIZED_THREAD  // TSan ends a child that starts threads
  Model own;                   // a session of its own
  add_model(&own);
  if (dsgd_barrier(own.session, nullptr, nullptr, nullptr, nullptr) != DSGD_OK)
    wrong += "no session of its own\n";
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
  for (ssize_t count; (count = read(ends[0], part, sizeof part)) > 0;)
    wrong.append(part, static_cast<size_t>(count));
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
