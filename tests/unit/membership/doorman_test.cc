#include "core/membership/doorman.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/membership/head.h"
#include "tests/unit/membership/fakes.h"

namespace dsgd {
namespace {

using testing::HasSubstr;
using testing::Not;
using transport::Role;

// Never called: the doorman only hands the pointer on.
transport::Network* network_at(uintptr_t place) { return reinterpret_cast<transport::Network*>(place); }

class DoormanTest : public testing::Test {
 protected:
  FakeLoop loop_;
  Head head_handler_{loop_, HeadOptions{1, 1s}, nullptr};
  Head peer_handler_{loop_, HeadOptions{1, 1s}, nullptr};
  std::vector<std::string> logged_;
  std::shared_ptr<Log> log_ = std::make_shared<Log>(
      LogLevel::kWarning, [this](LogLevel, const std::string& message) { logged_.push_back(message); });
  Doorman::Route head_{network_at(0x1000), &head_handler_};
  Doorman::Route peer_{network_at(0x2000), &peer_handler_};

  static transport::Hello good(Role role) {
    transport::Hello hello;
    hello.role = role;
    hello.job = "digits";
    hello.token = "secret";
    hello.worker_id = "w1";
    hello.library_version = library_version();
    return hello;
  }
};

TEST_F(DoormanTest, RoutesByRole) {
  Doorman doorman("digits", "secret", head_, peer_, log_);
  for (Role role : {Role::kControl, Role::kHeartbeat, Role::kPeer}) {
    auto decision = doorman.on_hello(good(role), "10.0.0.7:99");
    ASSERT_TRUE(decision.ok()) << decision.status().message();
    const Doorman::Route& expected = role == Role::kPeer ? peer_ : head_;
    EXPECT_EQ(decision.value().network, expected.network);
    EXPECT_EQ(decision.value().handler, expected.handler);
  }
  EXPECT_TRUE(logged_.empty());
}

TEST_F(DoormanTest, WhoHasNoTokenWritesNoLinesOfItsOwnIntoTheLog) {
  Doorman doorman("digits", "secret", head_, peer_, log_);
  transport::Hello hello = good(Role::kControl);
  hello.token = "guess";
  hello.job = std::string(100000, 'x');
  hello.worker_id = "w1\n[error] all is lost";
  std::vector<std::string> told;
  doorman.on_refused([&](const std::string& why) { told.push_back(why); });
  EXPECT_FALSE(doorman.on_hello(hello, "10.0.0.7:99").ok());
  ASSERT_EQ(logged_.size(), 1u);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(logged_[0], HasSubstr(told[0]));
  EXPECT_THAT(logged_[0], AllOf(HasSubstr("w1?[error]"), Not(HasSubstr("\n"))));
  EXPECT_LT(logged_[0].size(), 1000u);
}

TEST_F(DoormanTest, RefusesWhoDoesNotBelong) {
  struct Case {
    const char* name;
    std::function<void(transport::Hello&)> spoil;
    Code code;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {"wrong token",
       [](auto& h) { h.token = "secreT"; },
       Code::kUnauthorized,
       {"w1", "10.0.0.7:99", "token", "`token`"}},
      {"no token", [](auto& h) { h.token = ""; }, Code::kUnauthorized, {"token"}},
      {"longer token", [](auto& h) { h.token = "secretsecret"; }, Code::kUnauthorized, {"token"}},
      {"shorter token", [](auto& h) { h.token = "sec"; }, Code::kUnauthorized, {"token"}},
      {"wrong job", [](auto& h) { h.job = "other"; }, Code::kUnauthorized, {"'other'", "'digits'", "`job`"}},
      {"protocol",
       [](auto& h) { h.protocol = 77; },
       Code::kMismatch,
       {"protocol 77", "protocol 1", "install"}},
      {"major version",
       [](auto& h) { h.library_version = "9.1.2"; },
       Code::kMismatch,
       {"9.1.2", library_version()}},
      {"no version", [](auto& h) { h.library_version = ""; }, Code::kMismatch, {library_version()}},
  };
  Doorman doorman("digits", "secret", head_, peer_, log_);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    transport::Hello hello = good(Role::kControl);
    c.spoil(hello);
    auto decision = doorman.on_hello(hello, "10.0.0.7:99");
    ASSERT_FALSE(decision.ok());
    EXPECT_EQ(decision.status().code(), c.code);
    for (const std::string& text : c.says) EXPECT_THAT(decision.status().message(), HasSubstr(text));
    EXPECT_EQ(logged_, std::vector{decision.status().message()});
    logged_.clear();
  }
}

TEST_F(DoormanTest, WhoHasNoTokenLearnsNothingOfTheJob) {
  Doorman doorman("digits", "secret", head_, peer_, log_);
  transport::Hello hello = good(Role::kControl);
  hello.token = "guess";
  hello.job = "other";
  hello.protocol = 77;
  auto decision = doorman.on_hello(hello, "10.0.0.7:99");
  EXPECT_EQ(decision.status().code(), Code::kUnauthorized);
  EXPECT_THAT(decision.status().message(), Not(HasSubstr("digits")));
  EXPECT_THAT(decision.status().message(), Not(HasSubstr("secret")));
}

TEST_F(DoormanTest, EmptyTokensAreEqual) {
  Doorman doorman("digits", "", head_, peer_, log_);
  transport::Hello hello = good(Role::kPeer);
  hello.token = "";
  EXPECT_TRUE(doorman.on_hello(hello, "x").ok());
  hello.token = std::string(1, '\0');
  EXPECT_EQ(doorman.on_hello(hello, "x").status().code(), Code::kUnauthorized);
}

TEST_F(DoormanTest, AMinorVersionMayDiffer) {
  Doorman doorman("digits", "secret", head_, peer_, log_);
  transport::Hello hello = good(Role::kControl);
  const std::string version = library_version();
  hello.library_version = version.substr(0, version.find('.')) + ".999.1";
  EXPECT_TRUE(doorman.on_hello(hello, "x").ok());
}

TEST_F(DoormanTest, SaysWhichRoleTheProcessLacks) {
  Doorman worker("digits", "secret", {}, peer_, log_);
  auto to_head = worker.on_hello(good(Role::kControl), "x");
  EXPECT_EQ(to_head.status().code(), Code::kState);
  EXPECT_THAT(to_head.status().message(), HasSubstr("`head`"));
  Doorman head("digits", "secret", head_, {}, log_);
  auto to_peer = head.on_hello(good(Role::kPeer), "x");
  EXPECT_EQ(to_peer.status().code(), Code::kState);
  EXPECT_THAT(to_peer.status().message(), HasSubstr("head"));
}

}  // namespace
}  // namespace dsgd
