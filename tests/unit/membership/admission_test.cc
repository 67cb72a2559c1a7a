#include "core/membership/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/retry.h"
#include "core/membership/head.h"
#include "tests/unit/membership/fakes.h"

namespace dsgd {
namespace {

using testing::HasSubstr;
using testing::Not;
using transport::Role;

// Never called: the admission only hands the pointer on.
transport::Network* network_at(uintptr_t place) { return reinterpret_cast<transport::Network*>(place); }

class AdmissionTest : public testing::Test {
 protected:
  FakeLoop loop_;
  Head head_handler_{loop_, HeadOptions{1, 1s}, nullptr};
  Head peer_handler_{loop_, HeadOptions{1, 1s}, nullptr};
  std::vector<std::string> logged_;
  std::shared_ptr<Log> log_ = std::make_shared<Log>(
      LogLevel::kWarning, [this](const LogRecord& record) { logged_.push_back(record.message); });
  Admission::Route head_{network_at(0x1000), &head_handler_};
  Admission::Route peer_{network_at(0x2000), &peer_handler_};

  static transport::Hello good(Role role) {
    transport::Hello hello;
    hello.role = role;
    hello.job = "digits";
    hello.worker_id = "w1";
    hello.library_version = library_version();
    return hello;
  }
};

TEST_F(AdmissionTest, RoutesByRole) {
  Admission admission(loop_, "digits", "secret", head_, peer_, log_);
  for (Role role : {Role::kControl, Role::kHeartbeat, Role::kPeer}) {
    auto decision = admission.on_hello(good(role), "10.0.0.7:99");
    ASSERT_TRUE(decision.ok()) << decision.status().message();
    const Admission::Route& expected = role == Role::kPeer ? peer_ : head_;
    EXPECT_EQ(decision.value().network, expected.network);
    EXPECT_EQ(decision.value().handler, expected.handler);
  }
  EXPECT_TRUE(logged_.empty());
}

TEST_F(AdmissionTest, AHeadThatStandsByRefusesWorkersThatThenTryAgain) {
  Admission admission(loop_, "digits", "secret", head_, peer_, log_);
  int refusals = 0;
  admission.on_refused([&](const std::string&) { ++refusals; });
  admission.stand_by(Status(Code::kUnreachable, "it stands by"));
  for (Role role : {Role::kControl, Role::kHeartbeat}) {
    const Status refused = admission.on_hello(good(role), "10.0.0.7:99").status();
    EXPECT_EQ(refused.message(), "it stands by");
    EXPECT_FALSE(is_final(refused));
  }
  transport::Hello stranger = good(Role::kControl);
  stranger.job = "letters";
  EXPECT_EQ(admission.on_hello(stranger, "10.0.0.7:99").status().code(), Code::kUnauthorized);
  EXPECT_EQ(refusals, 1) << "the other refusals are no mistakes";
  admission.stand_by({});
  EXPECT_TRUE(admission.on_hello(good(Role::kControl), "10.0.0.7:99").ok());
}

// An answer is all that a probe is for: its connection is not kept.
TEST_F(AdmissionTest, AProbeIsAnsweredWithARefusalThatIsFinal) {
  Admission admission(loop_, "digits", "secret", head_, peer_, log_);
  admission.accept_probes(network_at(0x3000));
  auto decision = admission.on_hello(good(Role::kProbe), "10.0.0.7:99");
  ASSERT_TRUE(decision.ok()) << decision.status().message();
  FakeChannel channel("w1", Role::kProbe);
  const Status refused = decision.value().handler->on_open(channel);
  EXPECT_FALSE(refused.ok());
  EXPECT_TRUE(is_final(refused)) << "the dialling side would try again";
  EXPECT_TRUE(logged_.empty());
}

TEST_F(AdmissionTest, WrongTokenCannotInjectLogLines) {
  Admission admission(loop_, "digits", "secret", head_, peer_, log_);
  transport::Hello hello = good(Role::kControl);
  hello.job = std::string(100000, 'x');
  hello.worker_id = "w1\n[error] all is lost";
  std::vector<std::string> told;
  admission.on_refused([&](const std::string& why) { told.push_back(why); });
  EXPECT_FALSE(admission.on_wrong_token(hello, "10.0.0.7:99").ok());
  ASSERT_EQ(logged_.size(), 1u);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(logged_[0], HasSubstr(told[0]));
  EXPECT_THAT(logged_[0], AllOf(HasSubstr("w1?[error]"), Not(HasSubstr("\n"))));
  EXPECT_LT(logged_[0].size(), 1000u);
}

// 48 000 refused connections wrote 1.6 MB a second.
TEST_F(AdmissionTest, RefusalsAreLoggedOnceAndThenCountedByCause) {
  Admission admission(loop_, "digits", "secret", head_, peer_, log_);
  size_t told = 0;
  admission.on_refused([&](const std::string&) { ++told; });
  transport::Hello stranger = good(Role::kControl), other_job = good(Role::kControl);
  other_job.job = "other";
  for (int i = 0; i < 1000; ++i) {
    stranger.worker_id = "w" + std::to_string(i);
    (void)admission.on_wrong_token(stranger, "10.0.0.7:99");
  }
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(admission.on_hello(other_job, "10.0.0.7:99").ok());
  ASSERT_EQ(logged_.size(), 2u);
  EXPECT_THAT(logged_[0], AllOf(HasSubstr("'w0'"), HasSubstr("token is wrong")));
  EXPECT_THAT(logged_[1], HasSubstr("'other'"));
  EXPECT_EQ(told, 1002u);
  logged_.clear();

  loop_.advance(11s);
  EXPECT_THAT(logged_, testing::UnorderedElementsAre(
                           "further connections refused in the last 10 s because their token is wrong: 999",
                           "further connections refused in the last 10 s because they want another job: 1"));
  logged_.clear();
  (void)admission.on_wrong_token(stranger, "10.0.0.7:99");  // it goes on: still only counted
  EXPECT_TRUE(logged_.empty());
  loop_.advance(10s);
  EXPECT_EQ(logged_, std::vector<std::string>{
                         "further connections refused in the last 10 s because their token is wrong: 1"});
  logged_.clear();
  loop_.advance(20s);  // quiet, so the next one is news
  EXPECT_TRUE(logged_.empty());
  (void)admission.on_wrong_token(stranger, "10.0.0.7:99");
  ASSERT_EQ(logged_.size(), 1u);
  EXPECT_THAT(logged_[0], HasSubstr("'w999'"));
}

TEST_F(AdmissionTest, ADestroyedAdmissionLogsNoCounts) {
  {
    Admission admission(loop_, "digits", "secret", head_, peer_, log_);
    for (int i = 0; i < 3; ++i) (void)admission.on_wrong_token(good(Role::kControl), "10.0.0.7:99");
  }
  logged_.clear();
  loop_.advance(11s);
  EXPECT_TRUE(logged_.empty());
}

TEST_F(AdmissionTest, RefusesConnectionsOfOtherJobs) {
  struct Case {
    const char* name;
    std::function<void(transport::Hello&)> spoil;
    Code code;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
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
  for (const Case& c : cases) {
    Admission admission(loop_, "digits", "secret", head_, peer_, log_);
    SCOPED_TRACE(c.name);
    transport::Hello hello = good(Role::kControl);
    c.spoil(hello);
    auto decision = admission.on_hello(hello, "10.0.0.7:99");
    ASSERT_FALSE(decision.ok());
    EXPECT_EQ(decision.status().code(), c.code);
    for (const std::string& text : c.says) EXPECT_THAT(decision.status().message(), HasSubstr(text));
    EXPECT_EQ(logged_, std::vector{decision.status().message()});
    logged_.clear();
  }
}

TEST_F(AdmissionTest, WrongTokenErrorGivesRemedyAndNoJobDetails) {
  Admission admission(loop_, "digits", "secret", head_, peer_, log_);
  EXPECT_EQ(admission.token(), "secret");
  transport::Hello hello = good(Role::kControl);
  hello.job = "other";
  hello.protocol = 77;
  const Status why = admission.on_wrong_token(hello, "10.0.0.7:99");
  EXPECT_EQ(why.code(), Code::kUnauthorized);
  EXPECT_THAT(why.message(), AllOf(HasSubstr("w1"), HasSubstr("10.0.0.7:99"), HasSubstr("same `token`")));
  EXPECT_THAT(why.message(), Not(HasSubstr("digits")));
  EXPECT_THAT(why.message(), Not(HasSubstr("secret")));
}

TEST_F(AdmissionTest, AMinorVersionMayDiffer) {
  Admission admission(loop_, "digits", "secret", head_, peer_, log_);
  transport::Hello hello = good(Role::kControl);
  const std::string version = library_version();
  hello.library_version = version.substr(0, version.find('.')) + ".999.1";
  EXPECT_TRUE(admission.on_hello(hello, "x").ok());
}

TEST_F(AdmissionTest, SaysWhichRoleTheProcessLacks) {
  Admission worker(loop_, "digits", "secret", {}, peer_, log_);
  auto to_head = worker.on_hello(good(Role::kControl), "x");
  EXPECT_EQ(to_head.status().code(), Code::kState);
  EXPECT_THAT(to_head.status().message(), HasSubstr("`head`"));
  Admission head(loop_, "digits", "secret", head_, {}, log_);
  auto to_peer = head.on_hello(good(Role::kPeer), "x");
  EXPECT_EQ(to_peer.status().code(), Code::kState);
  EXPECT_THAT(to_peer.status().message(), HasSubstr("head"));
}

}  // namespace
}  // namespace dsgd
