// A session that has failed answers every call with its failure: code, rank and message of what ended the
// job.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <string>

#include "tests/unit/capi/calls.h"
#include "tests/unit/capi/header.h"

namespace {

// Calls that do not answer with the failure, and why.
const std::map<std::string, std::string> kOtherAnswers = {
    {"dsgd_close", "ends the session"},
    {"dsgd_stop_request", "takes no lock, since a signal handler may call it"},
    {"dsgd_bind_dlpack", "looks at its tensors first; then as dsgd_bind"},
    {"dsgd_session_free", "ends the session"},
    {"dsgd_finalize", "ends the session"},
    {"dsgd_abort", "the session has ended already, as was asked"},
    {"dsgd_fail", "the session has ended already, as was asked"},
    {"dsgd_rank", "constant"},
    {"dsgd_size", "constant"},
    {"dsgd_local_rank", "constant"},
    {"dsgd_local_size", "constant"},
    {"dsgd_view", "constant"},
    {"dsgd_queue_fd", "constant"},
    {"dsgd_parameter_name", "constant"},
    {"dsgd_replica_device", "constant"},
    {"dsgd_session_info_read", "tells that the session has failed"},
    {"dsgd_loss_scale", "reads what is here"},
    {"dsgd_metrics", "reads what is here"},
    {"dsgd_trace", "reads what is here"},
    {"dsgd_digest", "reads what is here"},
    {"dsgd_memory_get", "reads what is here"},
    {"dsgd_export_dlpack", "reads what is here"},
    {"dsgd_shard_new", "computes with the rank alone"},
    {"dsgd_log_fd", "constant"},
    {"dsgd_log_poll", "tells what has happened"},
    {"dsgd_queue_poll", "tells how an operation has ended"},
    {"dsgd_op_wait", "tells how an operation has ended"},
    {"dsgd_op_test", "tells how an operation has ended"},
    {"dsgd_op_abort", "ends the operation, which has ended already"},
    {"dsgd_op_object", "tells how an operation has ended"},
    {"dsgd_op_step_result", "tells how an operation has ended"},
    {"dsgd_op_id", "constant"},
    {"dsgd_op_user_data", "constant"},
    {"dsgd_op_free", "frees the handle"},
    {"dsgd_head_wait", "belongs to no session"},
    {"dsgd_head_address", "belongs to no session"},
    {"dsgd_head_free", "belongs to no session"},
};

TEST(FailedSession, EveryFunctionOfTheHeaderIsInTheTable) {
  std::set<std::string> wanted, covered;
  const std::regex handle(R"(dsgd_(session|parameter|replica|op|head) \*\w)");
  for (const auto& [function, arguments] : declared_functions()) {
    if (std::regex_search(arguments, handle)) wanted.insert(function);
  }
  for (const Call& call : calls()) covered.insert(call.function);
  for (const auto& [function, why] : kOtherAnswers) covered.insert(function);
  EXPECT_EQ(wanted, covered);
}

TEST(FailedSession, AnswersEveryCallWithItsFailure) {
  World world;
  for (const Model* model : {&world.running, &world.fresh}) {
    must(dsgd_abort(model->session, "the data set is gone", nullptr), nullptr, "dsgd_abort");
    dsgd_error* error = nullptr;
    // From now on the session has failed.
    EXPECT_EQ(dsgd_barrier(model->session, nullptr, nullptr, nullptr, &error), DSGD_ERR_ABORTED);
    dsgd_error_free(error);
  }
  for (const Call& call : calls()) {
    if (kOtherAnswers.count(call.function)) continue;
    dsgd_error* error = nullptr;
    EXPECT_EQ(call.call(world, &error), double{DSGD_ERR_ABORTED}) << call.function;
    EXPECT_EQ(dsgd_error_code(error), DSGD_ERR_ABORTED) << call.function;
    EXPECT_EQ(dsgd_error_rank(error), 0) << call.function;
    const std::string message = take_message(error);
    EXPECT_NE(message.find("the data set is gone"), std::string::npos) << call.function << ": " << message;
  }
}

TEST(FailedSession, StillTellsWhatItKnows) {
  World world;
  must(dsgd_abort(world.running.session, "enough", nullptr), nullptr, "dsgd_abort");
  EXPECT_EQ(dsgd_barrier(world.running.session, nullptr, nullptr, nullptr, nullptr), DSGD_ERR_ABORTED);
  EXPECT_EQ(dsgd_rank(world.running.session), 0);
  EXPECT_EQ(dsgd_size(world.running.session), 1);
  uint64_t digest = 0;
  EXPECT_EQ(dsgd_digest(world.running.session, &digest, nullptr), DSGD_OK);
  EXPECT_EQ(dsgd_op_wait(world.step, -1, nullptr), DSGD_OK) << "this one had ended well";
  EXPECT_EQ(dsgd_abort(world.running.session, "again", nullptr), DSGD_OK);
  EXPECT_EQ(dsgd_close(world.running.session, -1, nullptr), DSGD_OK);
}

}  // namespace
