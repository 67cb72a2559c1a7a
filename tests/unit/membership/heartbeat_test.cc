// The heartbeat alone, against a head that the test scripts.
#include "core/membership/heartbeat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "core/membership/admission.h"
#include "tests/unit/membership/sim_job.h"
#include "transport/sim/world.h"

namespace dsgd {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using transport::Duration;
using transport::SimWorld;
using transport::Time;

constexpr Duration kInterval = 1s;

class ScriptedHead final : public transport::ServerHandler {
 public:
  void on_call(transport::ServerChannel& channel, transport::Message request,
               transport::Responder respond) override {
    renewals.push_back(std::get<transport::Renew>(request));
    hellos.push_back(channel.hello());
    answer(std::move(respond));
  }
  void on_bulk_end(transport::ServerChannel&, const transport::BulkHeader&,
                   std::unique_ptr<transport::BulkReceipt>) override {}
  void on_close(transport::ServerChannel&, const Status& why) override { closed = why; }

  std::function<void(transport::Responder)> answer = [](transport::Responder respond) {
    respond(transport::Message(transport::Empty{}));
  };
  std::vector<transport::Renew> renewals;
  std::vector<transport::Hello> hellos;
  std::optional<Status> closed;
};

class HeartbeatTest : public testing::Test {
 protected:
  HeartbeatTest() {
    head_process_ = world_.start_process("node0");
    head_environment_ = world_.environment(head_process_);
    head_network_ = std::move(head_environment_->new_network("head", 1 << 20)).value();
    process_ = world_.start_process("node2");
    environment_ = world_.environment(process_);
    network_ = std::move(environment_->new_network("heart", 1 << 20)).value();
  }
  ~HeartbeatTest() override {
    stop();
    world_.run_for(1s);
    network_.reset();
    listener_.reset();
    head_network_.reset();
  }

  void listen() {
    auto listener = head_network_->listen("node0:7700", &admission());
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    listener_ = std::move(listener).value();
  }
  Admission& admission() {
    if (!admission_) {
      admission_ = std::make_unique<Admission>(head_network_->loop(), "digits", "secret",
                                               Admission::Route{head_network_.get(), &head_},
                                               Admission::Route{}, nullptr);
    }
    return *admission_;
  }
  // `durable`: the head may come back.
  void start(const std::string& token = "secret", bool durable = false) {
    HeartbeatOptions options;
    options.addresses = {"node0:7700"};
    options.hello.role = transport::Role::kHeartbeat;
    options.hello.job = "digits";
    options.token = token;
    options.hello.worker_id = "w2";
    options.hello.rank = 2;
    options.own_rank = 2;
    options.hello.view = 5;
    options.hello.library_version = library_version();
    options.lease = kLease;
    options.interval = kInterval;
    options.head_name = "the head at node0:7700, hosted by rank 0 (worker 'w0' on host node0, pid 1),";
    options.head_rank = 0;
    options.head_host = "node0";
    options.own_name = "rank 2 (worker 'w2' on host node2, pid 3)";
    options.own_host = "node2";
    HeartbeatEvents events{[this](const Status& why) {
      failures_.push_back(why);
      failed_at_ = world_.now();
    }};
    if (durable) {
      events.head_lost = [this](const Status& why) { head_losses_.push_back(why); };
      events.head_answered = [this] { ++answers_; };
    }
    heartbeat_ = std::make_shared<Heartbeat>(*network_, options, std::move(events));
    started_ = world_.now();
    heartbeat_->start();
  }
  void stop() {
    if (heartbeat_) heartbeat_->stop([this] { ++stopped_; });
    heartbeat_.reset();
  }
  // Runs until the failure, which comes at `when` after the start or a moment later.
  void expect_failure(Duration when) {
    ASSERT_TRUE(world_.run_until([this] { return !failures_.empty(); }, started_ + when + kSlack));
    EXPECT_GE((failed_at_ - started_).count(), when.count());
    world_.run_for(2 * kLease);
    ASSERT_EQ(failures_.size(), 1u);
    EXPECT_EQ(failures_[0].code(), Code::kWorkerLost);
  }

  SimWorld world_{3, {.retransmission = 200ms}};
  transport::ProcessId head_process_, process_;
  std::unique_ptr<transport::Environment> head_environment_, environment_;
  ScriptedHead head_;
  std::unique_ptr<Admission> admission_;
  std::unique_ptr<transport::Network> head_network_, network_;
  std::unique_ptr<transport::Listener> listener_;
  std::shared_ptr<Heartbeat> heartbeat_;
  std::vector<Status> failures_, head_losses_;
  int answers_ = 0;  // head_answered
  Time started_{}, failed_at_{};
  int stopped_ = 0;
};

TEST_F(HeartbeatTest, RenewsAtOnceAndThenEveryHalfInterval) {
  listen();
  start();
  world_.run_for(100 * kInterval + kInterval / 4);
  EXPECT_GE(head_.renewals.size(), 200u);
  EXPECT_LE(head_.renewals.size(), 201u);
  for (const transport::Renew& renewal : head_.renewals) {
    EXPECT_EQ(renewal.number, 2);
    EXPECT_EQ(renewal.view, 5u);
  }
  EXPECT_EQ(head_.hellos[0].worker_id, "w2");
  EXPECT_EQ(head_.hellos[0].rank, 2);
  EXPECT_TRUE(failures_.empty());
}

TEST_F(HeartbeatTest, AHeadThatDoesNotAnswerIsLostWhenTheLeaseIsOver) {
  listen();
  std::vector<transport::Responder> kept;
  head_.answer = [&](transport::Responder respond) { kept.push_back(std::move(respond)); };
  start();
  expect_failure(kLease);
  EXPECT_EQ(failures_[0].rank(), 0);
  EXPECT_EQ(failures_[0].host(), "node0");
  EXPECT_THAT(
      failures_[0].message(),
      HasSubstr(
          "the head at node0:7700, hosted by rank 0 (worker 'w0' on host node0, pid 1), has not answered "
          "for 10.0 s (lease)"));
  stop();
  world_.run_for(1s);
}

TEST_F(HeartbeatTest, TheLeaseIsCountedFromTheSendingOfTheLastRenewalThatWasAnswered) {
  listen();
  // Each answer takes 3 s; the last renewal to be answered is the one sent 5 s after the start.
  head_.answer = [this](transport::Responder respond) {
    const bool answered = world_.now() - started_ < 5500ms;
    head_network_->loop().schedule(world_.now() + (answered ? Duration(3s) : 60s),
                                   [respond] { respond(transport::Message(transport::Empty{})); });
  };
  start();
  expect_failure(5s + kLease);
}

TEST_F(HeartbeatTest, ARefusalOfTheHeadIsToldInItsOwnWords) {
  listen();
  head_.answer = [](transport::Responder respond) {
    respond(Status(Code::kWorkerLost, "rank 2 was lost: no heartbeat").with_rank(2, "node2"));
  };
  start();
  expect_failure(0s);
  EXPECT_EQ(failures_[0].rank(), 2);
  EXPECT_EQ(failures_[0].message(), "rank 2 was lost: no heartbeat");
}

// A head that was started again no longer knows the rank.
TEST_F(HeartbeatTest, AnEvictionIsToldInTheWordsOfTheHeadWithOrWithoutARank) {
  listen();
  head_.answer = [](transport::Responder respond) { respond(Status(Code::kEvicted, "it was taken out")); };
  start("secret", true);
  world_.run_for(1s);
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_EQ(failures_[0].code(), Code::kEvicted);
  EXPECT_EQ(failures_[0].message(), "it was taken out");
}

TEST_F(HeartbeatTest, AHeadThatComesBackIsDialledUntilItAnswers) {
  listen();
  start("secret", true);
  world_.run_for(1s);
  EXPECT_EQ(answers_, 1) << "the first connection";
  listener_.reset();
  world_.break_connections(process_, head_process_);
  world_.run_for(3 * kLease);
  ASSERT_EQ(head_losses_.size(), 1u);
  EXPECT_EQ(head_losses_[0].code(), Code::kWorkerLost);
  listen();
  world_.run_for(1s);
  EXPECT_EQ(answers_, 2) << "another connection, perhaps to another head";
  EXPECT_EQ(head_losses_.size(), 1u);
  EXPECT_TRUE(failures_.empty());
}

TEST_F(HeartbeatTest, AHeadThatComesBackElsewhereHasALeaseToAnswerHere) {
  listen();
  start("secret", true);
  world_.run_for(1s);
  listener_.reset();
  world_.break_connections(process_, head_process_);
  world_.run_for(3 * kLease);
  ASSERT_EQ(head_losses_.size(), 1u);
  heartbeat_->begin_lease();
  world_.run_for(kLease / 2);
  EXPECT_EQ(head_losses_.size(), 1u);
  world_.run_for(kLease);
  ASSERT_EQ(head_losses_.size(), 2u);
  EXPECT_EQ(head_losses_[1].code(), Code::kWorkerLost);
}

TEST_F(HeartbeatTest, AnyOtherErrorOfARenewalIsTheHeadsFailure) {
  listen();
  head_.answer = [](transport::Responder respond) { respond(Status(Code::kState, "which job?")); };
  start();
  expect_failure(0s);
  EXPECT_EQ(failures_[0].rank(), 0);
  EXPECT_THAT(failures_[0].message(), AllOf(HasSubstr("the head at node0:7700"), HasSubstr("which job?")));
}

TEST_F(HeartbeatTest, AConnectionThatBreaksIsALossAtOnce) {
  listen();
  start();
  world_.run_for(3500ms);
  world_.break_connections(process_, head_process_);
  started_ = world_.now();
  expect_failure(0s);
  EXPECT_THAT(failures_[0].message(), HasSubstr("was lost"));
}

TEST_F(HeartbeatTest, AProcessThatWasStoppedGoesOnIfTheHeadStillAnswers) {
  listen();
  start();
  for (int times = 0; times < 2; ++times) {
    world_.run_for(3750ms);
    world_.pause(process_);
    world_.run_for(3 * kLease);
    world_.resume(process_);
    world_.run_for(2 * kLease);
    EXPECT_TRUE(failures_.empty()) << failures_[0].message();
  }
}

TEST_F(HeartbeatTest, AProcessThatWasStoppedSaysSo) {
  for (const bool head_closes : {false, true}) {
    SCOPED_TRACE(head_closes ? "the head closes" : "the head is silent");
    if (!listener_) listen();
    failures_.clear();
    start();
    world_.run_for(3750ms);  // between two renewals
    world_.pause(process_);
    world_.run_for(2 * kLease);
    head_closes ? world_.break_connections(process_, head_process_) : world_.isolate(head_process_);
    world_.run_for(kLease);
    world_.resume(process_);
    started_ = world_.now();
    expect_failure(head_closes ? 0s : kLease);
    EXPECT_EQ(failures_[0].rank(), 2);
    EXPECT_THAT(
        failures_[0].message(),
        AllOf(HasSubstr("rank 2 (worker 'w2' on host node2, pid 3) was itself stopped"), HasSubstr("29.")));
    stop();
    world_.rejoin(head_process_);
    world_.run_for(1s);
  }
}

TEST_F(HeartbeatTest, ACutShorterThanTheLeaseIsSurvivedWheneverItBegins) {
  listen();
  start();
  for (int phase = 0; phase < 50; ++phase) {
    SCOPED_TRACE(phase);
    world_.run_for(2 * kLease + phase * kInterval / 50);
    world_.isolate(process_);
    world_.run_for(kLease - kInterval);
    world_.rejoin(process_);
    world_.run_for(2 * kLease);
    ASSERT_TRUE(failures_.empty()) << failures_[0].message();
  }
}

TEST_F(HeartbeatTest, AnUnreachableHeadIsTriedAgainUntilTheLeaseIsOver) {
  start();
  world_.run_for(4s);
  listen();
  world_.run_for(3 * kLease);
  EXPECT_TRUE(failures_.empty());
  EXPECT_GT(head_.renewals.size(), 20u);
}

TEST_F(HeartbeatTest, AHeadThatStaysUnreachableIsLostWithTheLastError) {
  start();
  expect_failure(kLease);
  EXPECT_THAT(failures_[0].message(), AllOf(HasSubstr("has not answered"), HasSubstr("last error: ")));
}

TEST_F(HeartbeatTest, WhoIsTurnedAwayAtTheDoorFailsAtOnce) {
  listen();
  start("guess");
  expect_failure(0s);
  EXPECT_THAT(failures_[0].message(), AllOf(HasSubstr("refuses heartbeats"), HasSubstr("token")));
}

// It is another process, and the head may come back.
TEST_F(HeartbeatTest, WhoIsTurnedAwayWhereAHeadComesBackGoesOnToDial) {
  listen();
  start("secret", true);
  world_.run_for(1s);
  listener_.reset();
  world_.break_connections(process_, head_process_);
  Admission stranger(head_network_->loop(), "digits", "other", Admission::Route{head_network_.get(), &head_},
                     Admission::Route{}, nullptr);
  listener_ = std::move(head_network_->listen("node0:7700", &stranger)).value();
  world_.run_for(3 * kLease);
  EXPECT_TRUE(failures_.empty()) << failures_[0].message();
  listener_.reset();
  listen();
  const int answers = answers_;
  world_.run_for(1s);
  EXPECT_TRUE(failures_.empty());
  EXPECT_EQ(answers_, answers + 1) << "the head has answered";
}

TEST_F(HeartbeatTest, StoppingClosesInGoodOrderAndNothingIsToldAfterwards) {
  for (const Duration after : {Duration(0), Duration(50us), Duration(300us), Duration(3500ms)}) {
    SCOPED_TRACE(after.count());
    if (!listener_) listen();
    stopped_ = 0;
    head_.closed.reset();
    start();
    world_.run_for(after);
    stop();
    world_.run_for(1s);
    EXPECT_EQ(stopped_, 1);
    EXPECT_TRUE(failures_.empty());
    if (after > 1s) {
      ASSERT_TRUE(head_.closed.has_value());
      EXPECT_TRUE(head_.closed->ok()) << head_.closed->message();
    }
  }
}

}  // namespace
}  // namespace dsgd
