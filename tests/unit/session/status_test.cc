// Questions to the head of a job of which several are named.
#include "core/session/head_process.h"
#include "core/session/job_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/session/session.h"
#include "transport/uv/environment.h"

namespace dsgd {
namespace {

using testing::HasSubstr;

Config status_config(const std::string& head, const std::string& token) {
  Config config;
  for (const auto& [key, value] :
       std::map<std::string, std::string>{{"head", head}, {"num_workers", "2"}, {"token", token}})
    EXPECT_TRUE(config.set(key, value).ok()) << key;
  return config;
}

std::unique_ptr<HeadProcess> start_head(const std::string& token) {
  auto head = HeadProcess::start(status_config("127.0.0.1:0", token), transport::make_uv_environment(),
                                 std::make_shared<Log>());
  EXPECT_TRUE(head.ok()) << head.status().message();
  return std::move(head).value();
}

Result<std::string> ask(const std::string& heads) {
  return job_status(status_config(heads, "ours"), *transport::make_uv_environment(),
                    std::chrono::seconds(20));
}

TEST(Status, OfSeveralHeadsTheOneThatAnswersIsNamed) {
  const auto stranger = start_head("other"), head = start_head("ours");
  for (const std::string& heads :
       {stranger->address() + "," + head->address(), head->address() + "," + stranger->address(),
        "127.0.0.1:1," + head->address()}) {
    const auto status = ask(heads);
    ASSERT_TRUE(status.ok()) << status.status().message();
    EXPECT_EQ(nlohmann::json::parse(status.value())["head"], head->address()) << heads;
  }
}

TEST(Status, ARefusalIsToldThoughAnotherHeadDoesNotRun) {
  const auto stranger = start_head("other");
  for (const std::string& heads :
       {stranger->address() + ",127.0.0.1:1", "127.0.0.1:1," + stranger->address()}) {
    const Status refused = ask(heads).status();
    EXPECT_EQ(refused.code(), Code::kUnauthorized) << heads;
    EXPECT_THAT(refused.message(), testing::AllOf(HasSubstr(stranger->address() + ": "),
                                                  HasSubstr("127.0.0.1:1: "), HasSubstr("token")));
  }
}

}  // namespace
}  // namespace dsgd
