#include "core/membership/head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/describe.h"
#include "tests/unit/membership/fakes.h"

namespace dsgd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using transport::JoinReply;
using transport::Message;
using transport::Role;
using transport::WatchReply;

constexpr transport::Duration kLease = 10s;

std::string worker_name(int64_t number) {
  std::string name = "w";
  return name += std::to_string(number);
}

// One worker as the head sees it.
struct Remote {
  explicit Remote(const std::string& id) : control(id), heartbeat(id, Role::kHeartbeat) {}
  FakeChannel control, heartbeat;
  Answer join, watch, leave;
  int32_t rank = -1;
  bool gone = false;
};

class HeadTest : public testing::Test {
 protected:
  explicit HeadTest(uint32_t num_workers = 3) : num_workers_(num_workers) {
    head_ = std::make_unique<Head>(loop_, HeadOptions{num_workers, kLease}, nullptr);
    head_->on_end([this](const Status& status) { ends_.push_back(status); });
  }

  Answer call(FakeChannel& channel, Message message) {
    Answer answer;
    head_->on_call(channel, std::move(message), answer.responder());
    return answer;
  }
  static transport::JoinRequest request_of(const std::string& id, uint32_t num_workers) {
    transport::JoinRequest request;
    request.member.worker_id = id;
    request.member.host = "node" + id;
    request.member.machine = "machine of " + id;
    request.member.pid = 100 + id.back();
    request.num_workers = num_workers;
    request.lease = kLease;
    return request;
  }
  Remote& come(const std::string& id, bool hosts_head = false) {
    remotes_.push_back(std::make_unique<Remote>(id));
    Remote& remote = *remotes_.back();
    head_->on_open(remote.control);
    transport::JoinRequest request = request_of(id, num_workers_);
    request.hosts_head = hosts_head;
    request.min_workers = least_, request.max_workers = most_;
    request.rejoin_timeout = rejoin_;
    request.straggler_timeout = straggler_timeout_;
    if (!machine_.empty()) request.member.machine = machine_;
    remote.join = call(remote.control, request);
    return remote;
  }
  // w0, w1, ... with ranks 0, 1, ...; all renew once and watch.
  void begin(int32_t head_rank = -1) {
    for (uint32_t i = 0; i < num_workers_; ++i) {
      come(worker_name(i), static_cast<int32_t>(i) == head_rank);
    }
    for (uint32_t i = 0; i < num_workers_; ++i) {
      ASSERT_TRUE(at(i).join.ok()) << at(i).join.status().message();
      at(i).rank = at(i).join.message<JoinReply>().rank;
      ASSERT_EQ(at(i).rank, static_cast<int32_t>(i));
      ASSERT_TRUE(renew(i).ok());
      watch(i, 0);
    }
  }
  Remote& at(size_t i) { return *remotes_[i]; }
  Answer renew(size_t i, uint64_t view = 1) {
    return call(at(i).heartbeat, transport::Renew{at(i).rank, view});
  }
  void watch(size_t i, uint64_t sequence) { at(i).watch = call(at(i).control, transport::Watch{sequence}); }
  // Time passes in the rendezvous. The workers from `first` on that have not been closed ask for the
  // progress.
  void wait_in_rendezvous(transport::Duration duration, size_t first = 0) {
    for (; duration > transport::Duration{}; duration -= kLease / 2) {
      for (size_t i = first; i < remotes_.size(); ++i) {
        if (!at(i).gone) (void)call(at(i).control, transport::GatheringRequest{});
      }
      loop_.advance(std::min(duration, kLease / 2));
    }
  }
  void leave(size_t i, Status cause = {}) {
    at(i).leave = call(at(i).control, transport::Leave{at(i).rank, 1, std::move(cause)});
  }
  Answer report(size_t i, Status cause, uint64_t view = 1) {
    return call(at(i).control, transport::Report{at(i).rank, view, std::move(cause)});
  }
  void close(size_t i, const Status& why = {}) {
    head_->on_close(at(i).heartbeat, why);
    head_->on_close(at(i).control, why);
  }
  Status news(size_t i) const {
    return remotes_[i]->watch.ok() ? remotes_[i]->watch.message<WatchReply>().cause : Status();
  }

  const uint32_t num_workers_;
  uint32_t least_ = 0, most_ = 0;  // of a worker that comes
  transport::Duration rejoin_{};
  transport::Duration straggler_timeout_{};
  std::string machine_;  // of all workers; empty: each has its own
  FakeLoop loop_;
  std::unique_ptr<Head> head_;
  std::vector<std::unique_ptr<Remote>> remotes_;
  std::vector<Status> ends_;
};

// ---- rendezvous

TEST_F(HeadTest, OnlyAWorkerThatKnowsTheJobsNonceMayRenew) {
  FakeChannel early("w1", Role::kHeartbeat);
  early.claim(1, "");
  EXPECT_EQ(head_->on_open(early).code(), Code::kState) << "the job has not begun";
  begin();
  const std::string nonce = at(0).join.message<JoinReply>().job_nonce;
  EXPECT_EQ(nonce.size(), 32u);
  EXPECT_EQ(at(2).join.message<JoinReply>().job_nonce, nonce);
  struct Case {
    const char* worker_id;
    int32_t rank;
    std::string job_nonce;
    Code code;
  };
  for (const Case& c : {Case{"w1", 1, nonce, Code::kOk}, Case{"w1", 1, "", Code::kState},
                        Case{"w1", 1, nonce + "x", Code::kState}, Case{"w1", 2, nonce, Code::kState},
                        Case{"w1", -1, nonce, Code::kState}, Case{"w1", 3, nonce, Code::kState},
                        Case{"w7", 1, nonce, Code::kState}}) {
    FakeChannel channel(c.worker_id, Role::kHeartbeat);
    channel.claim(c.rank, c.job_nonce);
    EXPECT_EQ(head_->on_open(channel).code(), c.code) << c.worker_id << " as rank " << c.rank;
  }
  EXPECT_TRUE(ends_.empty());
}

TEST_F(HeadTest, TheOldestControlConnectionsThatDoNotJoinAreClosed) {
  come("w0");
  std::vector<std::unique_ptr<FakeChannel>> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(std::make_unique<FakeChannel>("stranger"));
    EXPECT_TRUE(head_->on_open(*idle.back()).ok());
  }
  EXPECT_EQ(std::count_if(idle.begin(), idle.end(), [](const auto& channel) { return !channel->closed; }),
            64 + 3);
  EXPECT_TRUE(idle.front()->closed);
  EXPECT_FALSE(idle.back()->closed);
  EXPECT_FALSE(at(0).control.closed) << "it waits in the rendezvous";
  head_->on_close(*idle.back(), {});
  head_->on_close(*idle.front(), {});
  EXPECT_TRUE(head_->on_open(*idle.front()).ok()) << "one has gone, so nothing is closed";
  EXPECT_FALSE(idle[200 - 67]->closed);
}

TEST_F(HeadTest, NobodyIsAnsweredBeforeAllHaveComeAndThenEverybodyAgrees) {
  come("w2");
  come("w0", true);
  wait_in_rendezvous(1h);
  EXPECT_FALSE(at(0).join.given());
  EXPECT_FALSE(at(1).join.given());
  come("w1");
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(at(i).join.ok());
    const auto reply = at(i).join.message<JoinReply>();
    EXPECT_EQ(reply.view, 1u);
    EXPECT_EQ(reply.head_rank, 0);
    ASSERT_EQ(reply.members.size(), 3u);
    for (int32_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(reply.members[rank].rank, rank);
      EXPECT_EQ(reply.members[rank].worker_id, worker_name(rank));
    }
    EXPECT_EQ(reply.members[reply.rank].worker_id, at(i).control.hello().worker_id);
  }
}

TEST_F(HeadTest, AWorkerThatVanishesBeforeTheJobBeginsIsNoLoss) {
  come("w0");
  come("w1");
  head_->on_close(at(1).control, Status(Code::kWorkerLost, "reset"));
  EXPECT_EQ(head_->progress(), "1 of 3 workers have joined: 'w0' (host nodew0, pid 148)");
  come("w1");
  come("w2");
  EXPECT_TRUE(at(0).join.ok());
  EXPECT_TRUE(at(2).join.ok());
  EXPECT_FALSE(at(1).join.given());
}

TEST_F(HeadTest, AWorkerThatIsSilentForALeaseLosesItsPlace) {
  come("w0");
  come("w1");
  wait_in_rendezvous(kLease - 1ms, 1);
  EXPECT_THAT(head_->progress(), HasSubstr("2 of 3 workers"));
  loop_.advance(50ms);
  EXPECT_EQ(head_->progress(), "1 of 3 workers have joined: 'w1' (host nodew1, pid 149)");
  EXPECT_TRUE(at(0).control.closed) << "so that it joins again if it goes on";
  head_->on_close(at(0).control, {});
  EXPECT_FALSE(at(1).control.closed);
  come("w0");
  come("w2");
  EXPECT_TRUE(at(1).join.ok());
  EXPECT_TRUE(at(2).join.ok());
  for (size_t i : {1u, 2u}) EXPECT_EQ(at(i).join.message<JoinReply>().members.size(), 3u);
  loop_.advance(kLease - 1ms);
  EXPECT_FALSE(news(1).code() == Code::kWorkerLost) << "the lease in the job is a new one";
}

TEST_F(HeadTest, AHeadThatWasStoppedReadsWhatWaitingWorkersSent) {
  come("w0");
  loop_.advance(1s);
  loop_.stop_for(2 * kLease);
  loop_.advance(1ms);
  EXPECT_THAT(head_->progress(), HasSubstr("1 of 3 workers"));
  wait_in_rendezvous(2 * kLease);
  EXPECT_THAT(head_->progress(), HasSubstr("1 of 3 workers"));
}

TEST_F(HeadTest, AHeadOfItsOwnEndsWhenNoneComesAfterAWorkerHasGone) {
  for (const bool silent : {false, true}) {
    SCOPED_TRACE(silent ? "silent" : "disconnected");
    remotes_.clear();
    ends_.clear();
    head_ = std::make_unique<Head>(loop_, HeadOptions{3, kLease, 60s}, nullptr);
    head_->on_end([this](const Status& status) { ends_.push_back(status); });
    const auto go = [&](size_t i) {
      at(i).gone = true;
      if (!silent) return head_->on_close(at(i).control, Status(Code::kWorkerLost, "reset"));
      (void)call(at(i).control, transport::GatheringRequest{});
      loop_.advance(kLease + 10ms);
      head_->on_close(at(i).control, {});
    };
    loop_.advance(1h);  // the first worker may come when it likes
    EXPECT_TRUE(ends_.empty());
    come("w0");
    wait_in_rendezvous(1h);  // so may the others
    EXPECT_TRUE(ends_.empty());
    go(0);
    loop_.advance(59s);
    come("w1");  // another one has come
    wait_in_rendezvous(1h);
    EXPECT_TRUE(ends_.empty());
    go(1);
    loop_.advance(59s);
    EXPECT_TRUE(ends_.empty());
    loop_.advance(2s);
    ASSERT_EQ(ends_.size(), 1u);
    EXPECT_EQ(ends_[0].code(), Code::kTimeout);
    EXPECT_THAT(ends_[0].message(),
                AllOf(HasSubstr("'w1'"), HasSubstr(silent ? "was silent for 10.0 s (lease)" : "disconnected"),
                      HasSubstr("60.0 s (init_timeout)"), HasSubstr("0 of 3 workers")));
  }
}

TEST_F(HeadTest, WorkersThatComeAndGoDoNotFillTheLog) {
  std::vector<std::string> logged;
  auto log = std::make_shared<Log>(LogLevel::kInfo, [&](const LogRecord& r) { logged.push_back(r.message); });
  head_ = std::make_unique<Head>(loop_, HeadOptions{3, kLease, 60s}, log);
  come("w0");
  come("w1");
  for (size_t i = 1; i <= 1000; ++i) {
    head_->on_close(at(i).control, Status(Code::kWorkerLost, "reset"));
    come("w1");
  }
  ASSERT_EQ(logged.size(), 4u);
  EXPECT_THAT(logged[0], HasSubstr("1 of 3 workers have joined"));
  EXPECT_THAT(logged[1], HasSubstr("2 of 3 workers have joined"));
  EXPECT_THAT(logged[2], HasSubstr("worker 'w1' (host nodew1, pid 149) disconnected"));
  EXPECT_THAT(logged[3], HasSubstr("2 of 3 workers have joined"));
  logged.clear();
  loop_.advance(10s);
  EXPECT_THAT(logged, testing::IsSupersetOf(
                          {HasSubstr("999 more in the last 10 s: a worker disconnected before the job began"),
                           HasSubstr("999 more in the last 10 s: a worker joined again")}));
  logged.clear();
  come("w2");
  ASSERT_EQ(logged.size(), 2u) << "the first time that three are there";
  EXPECT_THAT(logged[0], HasSubstr("3 of 3 workers have joined"));
}

TEST_F(HeadTest, AWorkerThatOthersCannotReachEndsTheRendezvousForAll) {
  std::vector<std::unique_ptr<Remote>> remotes;
  for (const auto& [id, address] :
       {std::pair("w0", "10.0.0.1:4000"), {"w1", "127.0.0.1:4000"}, {"w2", "10.0.0.2:4000"}}) {
    Remote& remote = *remotes.emplace_back(std::make_unique<Remote>(id));
    transport::JoinRequest request = request_of(id, 3);
    request.member.machine = id;
    request.member.addresses = {address};
    remote.join = call(remote.control, request);
  }
  for (const auto& remote : remotes) {
    EXPECT_EQ(remote->join.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(remote->join.status().message(),
                AllOf(HasSubstr("worker 'w1' (host nodew1"), HasSubstr("127.0.0.1:4000"), HasSubstr("'w0'"),
                      HasSubstr("`interface`")));
  }
}

TEST_F(HeadTest, ARepeatedJoinTakesThePlaceOfTheOneWhoseConnectionBroke) {
  come("w0");
  come("w0");
  EXPECT_EQ(at(0).join.status().code(), Code::kExists);
  EXPECT_THAT(at(0).join.status().message(), AllOf(HasSubstr("'w0'"), HasSubstr("`worker_id`")));
  head_->on_close(at(0).control, Status(Code::kWorkerLost, "reset"));  // seen late
  come("w1");
  come("w2");
  EXPECT_TRUE(at(1).join.ok());
  EXPECT_TRUE(at(3).join.ok());
}

TEST_F(HeadTest, ASecondWorkerWithTheSameIdIsRefusedAndTheFirstGoesOn) {
  come("w0");
  FakeChannel channel("w0");
  transport::JoinRequest request = request_of("w0", 3);
  request.member.host = "elsewhere";
  const Answer answer = call(channel, request);
  EXPECT_EQ(answer.status().code(), Code::kExists);
  EXPECT_THAT(answer.status().message(), AllOf(HasSubstr("'w0'"), HasSubstr("nodew0"), HasSubstr("pid 148")));
  head_->on_close(channel, {});
  come("w1");
  come("w2");
  EXPECT_TRUE(at(0).join.ok());
}

TEST_F(HeadTest, AWorkerThatWaitsAsksHowManyHaveCome) {
  come("w0");
  const Answer answer = call(at(0).control, transport::GatheringRequest{});
  ASSERT_TRUE(answer.ok());
  EXPECT_THAT(answer.message<transport::GatheringReply>().progress, HasSubstr("1 of 3 workers have joined"));
  EXPECT_EQ(answer.message<transport::GatheringReply>().missing, -1) << "no worker has asked for a rank";
  come("w1");
  come("w2");
  EXPECT_EQ(call(at(0).control, transport::GatheringRequest{}).status().code(), Code::kState)
      << "the job has begun";
}

TEST_F(HeadTest, ALateComerIsToldThatTheJobRuns) {
  begin();
  come("late");
  EXPECT_EQ(at(3).join.status().code(), Code::kState);
  EXPECT_THAT(at(3).join.status().message(),
              AllOf(HasSubstr("'late'"), HasSubstr("all 3"), HasSubstr("`num_workers`")));
  head_->on_close(at(3).control, {});
  come("w1");
  EXPECT_EQ(at(4).join.status().code(), Code::kExists);
  EXPECT_THAT(at(4).join.status().message(),
              AllOf(HasSubstr("'w1'"), HasSubstr("rank 1"), HasSubstr("nodew1")));
  head_->on_close(at(4).control, {});
  EXPECT_FALSE(at(0).watch.given());
}

TEST_F(HeadTest, WhoComesWhileTheJobEndsMayTryAgain) {
  begin();
  leave(2);
  come("w2");
  EXPECT_EQ(at(3).join.status().code(), Code::kUnreachable);
  report(0, Status(Code::kAborted, "rank 0 stops"));
  come("w1");
  EXPECT_EQ(at(4).join.status().code(), Code::kUnreachable);
  EXPECT_THAT(at(4).join.status().message(), HasSubstr("rank 0 stops"));
}

TEST_F(HeadTest, OneConnectionCarriesOneJoin) {
  come("w0");
  EXPECT_EQ(call(at(0).control, request_of("w1", 3)).status().code(), Code::kState);
}

// ---- losses

TEST_F(HeadTest, ASilentWorkerIsLostWithinItsLeaseAndEverybodyIsTold) {
  begin();
  for (int second = 1; second < 10; ++second) {
    loop_.advance(1s);
    ASSERT_TRUE(renew(0).ok());
    ASSERT_TRUE(renew(1).ok());
  }
  loop_.advance(999ms);
  EXPECT_FALSE(at(0).watch.given());
  loop_.advance(50ms);
  for (size_t i : {0u, 1u, 2u}) {  // the silent one hears it too, if it wakes
    EXPECT_EQ(news(i).code(), Code::kWorkerLost);
    EXPECT_EQ(news(i).rank(), 2);
    EXPECT_EQ(news(i).host(), "nodew2");
    EXPECT_THAT(
        news(i).message(),
        HasSubstr(
            "rank 2 (worker 'w2' on host nodew2, pid 150) was lost: no heartbeat for 10.0 s (lease); it "
            "joined from 10.0.0.9:4711"));
  }
  EXPECT_EQ(renew(2).status().rank(), 2);
  EXPECT_TRUE(renew(0).ok());
}

TEST_F(HeadTest, AllThatAreSilentAreNamed) {
  begin();
  loop_.advance(5s);
  renew(0);
  loop_.advance(6s);
  EXPECT_THAT(news(0).message(),
              AllOf(HasSubstr("rank 1 (worker 'w1'"), HasSubstr("silent too: rank 2 (worker 'w2'"),
                    Not(HasSubstr("min_workers"))));
}

TEST_F(HeadTest, AHeadThatReceivesNothingFromSeveralWorkersIsCutOffItself) {
  begin();
  loop_.advance(11s);
  EXPECT_EQ(news(0).code(), Code::kWorkerLost);
  EXPECT_EQ(news(0).rank(), -1);
  EXPECT_THAT(news(0).message(),
              AllOf(HasSubstr("the head receives no heartbeat"), HasSubstr("rank 0 (worker 'w0'")));
}

TEST_F(HeadTest, WorkersOfOneSilentMachineHaveStopped) {
  machine_ = "m";
  begin();
  loop_.advance(11s);
  EXPECT_EQ(news(0).code(), Code::kWorkerLost);
  EXPECT_EQ(news(0).rank(), 0);
  EXPECT_THAT(news(0).message(), HasSubstr("the network or a firewall cuts it off from the head"));
}

TEST_F(HeadTest, AWorkerThatReceivesNothingFromTheHeadIsNamedItself) {
  begin(0);
  report(2, Status(Code::kWorkerLost, "the head at a:1 has not answered for 10.0 s").with_rank(0, "nodew0"));
  EXPECT_EQ(news(1).rank(), 2);
  EXPECT_THAT(news(1).message(),
              AllOf(HasSubstr("rank 2 (worker 'w2'"), HasSubstr("does not receive the head's"),
                    HasSubstr("the head at a:1"), HasSubstr("firewall")));
}

// Its cause has its rank of an earlier view, which may be the head's by now.
TEST_F(HeadTest, AWorkerWhoseProgramFailsIsNamedByItsPresentRank) {
  begin(0);
  const std::string text = "rank 0 (host nodew2, pid 7) failed: the disk is full";
  report(2, Status(Code::kWorkerLost, text).with_rank(0, "nodew2").with_operation(kHostFailure));
  EXPECT_EQ(news(1).rank(), 2);
  EXPECT_THAT(news(1).message(), testing::StartsWith(text));
}

TEST_F(HeadTest, OfWorkersThatCannotReachEachOtherTheOneInMostPairsIsNamed) {
  struct Case {
    std::vector<std::pair<size_t, int32_t>> pairs;
    int32_t head_rank, named;
  };
  for (const Case& c : {Case{{{0, 1}}, -1, 1}, Case{{{1, 0}}, -1, 1}, Case{{{1, 0}, {0, 1}}, -1, 1},
                        Case{{{1, 2}}, 2, 1}, Case{{{0, 1}, {0, 2}}, -1, 0},
                        Case{{{2, 0}, {1, 0}, {0, 1}}, -1, 0}, Case{{{0, 2}, {1, 2}}, -1, 2}}) {
    remotes_.clear();
    head_ = std::make_unique<Head>(loop_, HeadOptions{3, kLease, {}}, nullptr);
    begin(c.head_rank);
    for (const auto& [from, to] : c.pairs) {
      EXPECT_TRUE(
          call(at(from).control, transport::ReportCut{static_cast<int32_t>(from), 1,
                                                      Status(Code::kWorkerLost, "no answer from b:2"), to})
              .ok());
      EXPECT_FALSE(at(0).watch.given()) << "others may say so, too";
    }
    loop_.advance(kLease / 4);
    EXPECT_FALSE(at(0).watch.given()) << "one of them may be lost";
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(renew(i).ok());
    loop_.advance(kLease / 20);
    EXPECT_EQ(news(0).code(), Code::kWorkerLost);
    EXPECT_EQ(news(0).rank(), c.named) << news(0).message();
    EXPECT_EQ(news(0).message().rfind("rank " + std::to_string(c.named) + " ", 0), 0u) << news(0).message();
    for (const auto& [from, to] : c.pairs) {
      if (static_cast<int32_t>(from) != c.named && to != c.named) continue;
      for (const auto rank : {static_cast<int32_t>(from), to})
        EXPECT_THAT(news(0).message(), HasSubstr("(worker 'w" + std::to_string(rank) + "' on host nodew" +
                                                 std::to_string(rank)));
    }
    EXPECT_THAT(news(0).message(), AllOf(HasSubstr("no answer from b:2"), HasSubstr("firewall")));
  }
}

// Its pair still shows which of the others is cut off.
TEST_F(HeadTest, APairWithADepartedWorkerCountsButIsNotNamed) {
  for (const bool another_cut : {true, false}) {
    remotes_.clear();
    head_ = std::make_unique<Head>(loop_, HeadOptions{3, kLease, {}}, nullptr);
    begin();
    const auto cut = [this](int32_t from, int32_t to) {
      const Status why(Code::kWorkerLost, "no answer from b:2");
      EXPECT_TRUE(call(at(static_cast<size_t>(from)).control, transport::ReportCut{from, 1, why, to}).ok());
    };
    cut(0, 2);
    if (another_cut) cut(0, 1);
    leave(2);
    for (size_t i : {0u, 1u}) watch(i, 1);
    loop_.advance(kLease / 4 + kLease / 40);  // the first look; both must renew after it
    for (size_t i : {0u, 1u}) ASSERT_TRUE(renew(i).ok());
    loop_.advance(kLease / 4);
    ASSERT_EQ(at(1).watch.given(), another_cut);
    if (another_cut) {
      EXPECT_EQ(news(1).rank(), 0) << news(1).message();
      EXPECT_THAT(news(1).message(), Not(HasSubstr("rank 2")));
    }
  }
}

TEST_F(HeadTest, AWorkerMayRenewItsLeaseOnANewConnection) {
  begin();
  FakeChannel fresh("w1", Role::kHeartbeat);
  EXPECT_TRUE(call(fresh, transport::Renew{1, 1}).ok());
  EXPECT_TRUE(renew(1).ok()) << "sent before, received after";
  head_->on_close(at(1).heartbeat, Status(Code::kIo, "reset"));
  EXPECT_FALSE(at(0).watch.given()) << "the old connection is not needed any more";
  head_->on_close(fresh, Status(Code::kIo, "reset"));
  EXPECT_EQ(news(0).rank(), 1);
}

TEST_F(HeadTest, AHeadThatWasStoppedReadsItsMailBeforeItJudges) {
  begin();
  loop_.advance(9s);
  loop_.stop_for(20s);
  loop_.advance(1ms);  // the check is 20 s late
  EXPECT_FALSE(at(0).watch.given());
  for (size_t i : {0u, 1u}) ASSERT_TRUE(renew(i).ok());
  loop_.advance(9s);
  for (size_t i : {0u, 1u}) ASSERT_TRUE(renew(i).ok());
  loop_.advance(1500ms);
  EXPECT_EQ(news(0).rank(), 2);
}

// Workers have given up the head. The head may read their messages before or after its timer runs.
TEST_F(HeadTest, AHeadThatWasStoppedNamesItself) {
  for (const int32_t head_rank : {0, -1}) {
    for (const bool timer_first : {false, true}) {
      for (const bool reports : {false, true}) {
        SCOPED_TRACE(testing::Message() << "head in rank " << head_rank << ", timer first " << timer_first
                                        << ", reports " << reports);
        remotes_.clear();
        head_ = std::make_unique<Head>(loop_, HeadOptions{3, kLease, {}}, nullptr);
        begin(head_rank);
        loop_.stop_for(2 * kLease);
        if (timer_first) loop_.advance(1ms);
        if (reports) {
          report(2, Status(Code::kWorkerLost, "the head at a:1 has not answered for 10.0 s")
                        .with_rank(head_rank, "nodew0"));
        } else {
          close(2);
        }
        EXPECT_EQ(news(1).code(), Code::kWorkerLost);
        EXPECT_EQ(news(1).rank(), head_rank);
        EXPECT_THAT(news(1).message(), AllOf(HasSubstr("was itself stopped or suspended for 1"),
                                             HasSubstr("rank 2 (worker 'w2'")));
        EXPECT_EQ(news(1).message().rfind(head_rank < 0 ? "the head was" : "the head, hosted by rank 0 (", 0),
                  0u)
            << news(1).message();
      }
    }
  }
}

TEST_F(HeadTest, AWorkerLostLongAfterTheHeadWasStoppedIsNamed) {
  begin();
  loop_.stop_for(2 * kLease);
  loop_.advance(1ms);
  for (int i = 0; i < 8; ++i) {
    for (size_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(renew(rank).ok());
    loop_.advance(kLease / 4);
  }
  close(2);
  EXPECT_EQ(news(1).rank(), 2);
}

TEST_F(HeadTest, AConnectionThatEndsWithoutLeaveIsALossAtOnce) {
  struct Case {
    const char* name;
    bool heartbeat;
    Status why;
    std::string says;
  };
  const Status reset(Code::kWorkerLost, "connection reset by peer");
  for (const Case& c :
       {Case{"control broke", false, reset, "its connection to the head broke (connection reset by peer)"},
        Case{"heartbeat broke", true, reset, "its heartbeat connection to the head broke"},
        Case{"control closed", false, {}, "closed without leaving the job"},
        Case{"heartbeat closed", true, {}, "closed without leaving the job"}}) {
    SCOPED_TRACE(c.name);
    remotes_.clear();
    head_ = std::make_unique<Head>(loop_, HeadOptions{3, kLease}, nullptr);
    begin();
    head_->on_close(c.heartbeat ? at(1).heartbeat : at(1).control, c.why);
    EXPECT_EQ(news(0).code(), Code::kWorkerLost);
    EXPECT_EQ(news(2).rank(), 1);
    EXPECT_THAT(news(2).message(),
                AllOf(HasSubstr("rank 1 (worker 'w1' on host nodew1, pid 149)"), HasSubstr(c.says)));
  }
}

TEST_F(HeadTest, TheFirstCauseWins) {
  begin();
  const Answer answer =
      report(0, Status(Code::kMismatch, "parameter 'w' differs").with_rank(1, "nodew1").with_parameter("w"));
  EXPECT_TRUE(answer.ok());
  close(2, Status(Code::kWorkerLost, "reset"));  // a consequence
  report(1, Status(Code::kTimeout, "step 7 timed out"));
  for (size_t i : {0u, 1u}) {
    EXPECT_EQ(news(i).code(), Code::kMismatch);
    EXPECT_EQ(news(i).rank(), 1);
    EXPECT_EQ(news(i).parameter(), "w");
    EXPECT_EQ(news(i).message(), "parameter 'w' differs");
    watch(i, 1);
    EXPECT_FALSE(at(i).watch.given());  // there is no second cause
  }
}

TEST_F(HeadTest, AReportWithoutARankNamesTheReporter) {
  begin();
  report(1, Status(Code::kAborted, "aborted: out of patience"));
  EXPECT_EQ(news(0).code(), Code::kAborted);
  EXPECT_EQ(news(0).rank(), 1);
  EXPECT_EQ(news(0).host(), "nodew1");
}

TEST_F(HeadTest, LeavingBecauseOfACauseBreaksTheJob) {
  begin();
  leave(1, Status(Code::kClosed, "session freed in mid-step"));
  EXPECT_TRUE(at(1).leave.ok());
  EXPECT_EQ(news(0).code(), Code::kWorkerLost);  // nobody else's session was closed
  EXPECT_EQ(news(0).rank(), 1);
  EXPECT_THAT(news(0).message(),
              AllOf(HasSubstr("rank 1 (worker 'w1'"), HasSubstr("session freed in mid-step")));
}

TEST_F(HeadTest, WhoAsksLateStillHearsTheNews) {
  begin();
  leave(0);
  watch(1, 1);
  report(2, Status(Code::kAborted, "stop"));
  EXPECT_EQ(news(1).code(), Code::kAborted);
  EXPECT_EQ(at(1).watch.message<WatchReply>().sequence, 2u);
  EXPECT_EQ(at(2).watch.message<WatchReply>().left, 0);  // its first watch
  watch(2, 1);
  EXPECT_EQ(news(2).code(), Code::kAborted);
}

// ---- leaving

TEST_F(HeadTest, LeavingInGoodOrderIsNewsAndNoLoss) {
  begin();
  leave(1);
  EXPECT_TRUE(at(1).leave.ok());
  close(1);
  for (size_t i : {0u, 2u}) {
    ASSERT_TRUE(at(i).watch.ok());
    EXPECT_TRUE(news(i).ok());
    EXPECT_EQ(at(i).watch.message<WatchReply>().left, 1);
    watch(i, at(i).watch.message<WatchReply>().sequence);
  }
  for (int second = 0; second < 30; ++second) {
    loop_.advance(1s);
    renew(0), renew(2);
  }
  EXPECT_FALSE(at(0).watch.given());
  EXPECT_TRUE(ends_.empty());
}

// After a cut it may arrive there first.
TEST_F(HeadTest, AWorkerMayLeaveOnItsHeartbeatConnection) {
  begin();
  EXPECT_EQ(call(at(1).heartbeat, transport::Leave{2, 1, {}}).status().code(), Code::kState)
      << "not its rank";
  EXPECT_FALSE(at(0).watch.given());
  EXPECT_TRUE(call(at(1).heartbeat, transport::Leave{1, 1, {}}).ok());
  EXPECT_EQ(at(0).watch.message<WatchReply>().left, 1);
  watch(0, 1);
  close(1, Status(Code::kWorkerLost, "reset"));
  EXPECT_FALSE(at(0).watch.given()) << "no loss";
}

TEST_F(HeadTest, TheHostOfTheHeadGoesAfterTheOthersKnow) {
  begin(0);
  leave(0);
  EXPECT_FALSE(at(0).leave.given());
  EXPECT_EQ(at(1).watch.message<WatchReply>().left, 0);
  watch(1, 1);
  EXPECT_FALSE(at(0).leave.given());
  leave(2);  // who leaves need not be told
  EXPECT_FALSE(at(0).leave.given());
  watch(1, 2);
  EXPECT_TRUE(at(0).leave.ok());
}

TEST_F(HeadTest, TheHostOfABrokenJobGoesAfterTheOthersKnowWhy) {
  begin(0);
  close(2, Status(Code::kWorkerLost, "reset"));  // is not waited for
  leave(0, Status(Code::kWorkerLost, "rank 2 was lost"));
  EXPECT_FALSE(at(0).leave.given());
  EXPECT_EQ(news(1).rank(), 2);
  watch(1, 1);
  EXPECT_TRUE(at(0).leave.ok());
}

TEST_F(HeadTest, NewsThatAreAskedForAgainAreNotConfirmed) {
  begin(0);
  leave(2);
  leave(0);
  watch(1, 0);
  EXPECT_EQ(at(1).watch.message<WatchReply>().left, 2);
  watch(1, 1);
  EXPECT_EQ(at(1).watch.message<WatchReply>().left, 0);
  EXPECT_FALSE(at(0).leave.given());
  watch(1, 2);
  EXPECT_TRUE(at(0).leave.ok());
}

TEST_F(HeadTest, TheHostDoesNotWaitForWhoIsGone) {
  begin(0);
  leave(0);
  leave(1);
  close(2, Status(Code::kWorkerLost, "reset"));
  EXPECT_TRUE(at(0).leave.ok());
}

TEST_F(HeadTest, TheJobIsOverWhenAllHaveLeftAndHungUp) {
  begin();
  for (size_t i = 0; i < 3; ++i) {
    leave(i);
    EXPECT_TRUE(at(i).leave.ok());
  }
  loop_.advance(1s);
  EXPECT_TRUE(ends_.empty());  // answers may still be under way
  for (size_t i = 0; i < 3; ++i) close(i);
  loop_.advance(0s);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(ends_[0].ok());
  loop_.advance(1h);
  EXPECT_EQ(ends_.size(), 1u);
}

TEST_F(HeadTest, TheEndDoesNotWaitForeverForWhoDoesNotHangUp) {
  begin();
  for (size_t i = 0; i < 3; ++i) leave(i);
  loop_.advance(kLease + 1ms);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(ends_[0].ok());
}

TEST_F(HeadTest, ABrokenJobEndsWithItsCauseWhenAllAreGoneOrALeaseLater) {
  for (const bool hang_up : {true, false}) {
    SCOPED_TRACE(hang_up);
    ends_.clear();
    remotes_.clear();
    head_ = std::make_unique<Head>(loop_, HeadOptions{3, kLease}, nullptr);
    begin();
    report(1, Status(Code::kAborted, "enough"));
    loop_.advance(1ms);
    EXPECT_TRUE(ends_.empty());
    if (hang_up) {
      for (size_t i = 0; i < 3; ++i) close(i);
      loop_.advance(1ms);
    } else {
      loop_.advance(kLease);
    }
    // It asks late and is told all the same.
    head_->on_end([this](const Status& status) { ends_.push_back(status); });
    loop_.advance(1ms);
    ASSERT_EQ(ends_.size(), 1u);
    EXPECT_EQ(ends_[0].code(), Code::kAborted);
  }
}

TEST_F(HeadTest, AHeadThatHasToldItsEndRefusesWorkersForGood) {
  begin();
  report(1, Status(Code::kAborted, "enough"));
  const Answer early = come("early").join;
  EXPECT_EQ(early.status().code(), Code::kUnreachable) << "another job may begin at this address";
  loop_.advance(kLease);
  ASSERT_EQ(ends_.size(), 1u);
  const Answer late = come("late").join;
  EXPECT_EQ(late.status().code(), Code::kState);
  EXPECT_THAT(late.status().message(), HasSubstr("the job at this head is over (enough)"));
}

TEST_F(HeadTest, TimersOfADestroyedHeadDoNothing) {
  begin();
  head_.reset();
  loop_.advance(1h);
  EXPECT_FALSE(at(0).watch.given() && at(0).watch.ok());
}

// ---- nonsense

TEST_F(HeadTest, MessagesThatAreStaleForeignOrOutOfPlaceAreRefused) {
  begin();
  Remote& w1 = at(1);
  FakeChannel impostor("w9", Role::kHeartbeat);
  struct Case {
    const char* name;
    FakeChannel* channel;
    Message message;
    Code code;
    std::string says;
  };
  const std::vector<Case> cases = {
      {"stale renewal", &w1.heartbeat, transport::Renew{1, 0}, Code::kState, "view 0"},
      {"renewal of another rank", &impostor, transport::Renew{1, 1}, Code::kState, "join first"},
      {"renewal of no rank", &w1.heartbeat, transport::Renew{-1, 1}, Code::kState, "join first"},
      {"renewal beyond the ranks", &w1.heartbeat, transport::Renew{3, 1}, Code::kState, "join first"},
      {"stale report", &w1.control, transport::Report{1, 2, Status(Code::kIo, "x")}, Code::kState, "view 2"},
      {"report as another", &w1.control, transport::Report{0, 1, Status(Code::kIo, "x")},
       Code::kInvalidArgument, "worker number 0"},
      {"report without cause", &w1.control, transport::Report{1, 1, {}}, Code::kInvalidArgument, "no cause"},
      {"cut from no rank", &w1.control, transport::ReportCut{1, 1, Status(Code::kIo, "x"), -1},
       Code::kInvalidArgument, "worker number -1"},
      {"cut from itself", &w1.control, transport::ReportCut{1, 1, Status(Code::kIo, "x"), 1},
       Code::kInvalidArgument, "worker number 1"},
      {"cut beyond the ranks", &w1.control, transport::ReportCut{1, 1, Status(Code::kIo, "x"), 3},
       Code::kInvalidArgument, "worker number 3"},
      {"cut without cause", &w1.control, transport::ReportCut{1, 1, {}, 0}, Code::kInvalidArgument,
       "a cause"},
      {"cut from nobody", &impostor, transport::ReportCut{1, 1, Status(Code::kIo, "x"), 0}, Code::kState,
       "join first"},
      {"report from nobody", &impostor, transport::Report{1, 1, Status(Code::kIo, "x")}, Code::kState,
       "join first"},
      {"leave from nobody", &impostor, transport::Leave{1, 1, {}}, Code::kState, "join first"},
      {"stale leave", &w1.control, transport::Leave{1, 7, {}}, Code::kState, "view 7"},
      {"watch of the future", &w1.control, transport::Watch{5}, Code::kInvalidArgument, "after 5"},
      {"enter from nobody", &impostor, transport::Enter{1, 1}, Code::kState, "join first"},
      {"watch from nobody", &impostor, transport::Watch{0}, Code::kState, "join first"},
      {"progress of another", &w1.control, transport::Progress{0, 1}, Code::kInvalidArgument, "number 0"},
      {"stale progress", &w1.control, transport::Progress{1, 3}, Code::kState, "view 3"},
      {"progress from nobody", &impostor, transport::Progress{1, 1}, Code::kState, "join first"},
      {"an answer", &w1.control, transport::StatusReply{}, Code::kInvalidArgument, "do not take"},
      {"not for heads", &w1.control, transport::PutObject{}, Code::kInvalidArgument, "do not take"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Answer answer = call(*c.channel, c.message);
    ASSERT_TRUE(answer.given());
    EXPECT_EQ(answer.status().code(), c.code);
    EXPECT_THAT(answer.status().message(), HasSubstr(c.says));
    EXPECT_FALSE(at(0).watch.given());  // and the job goes on
  }
}

TEST_F(HeadTest, ASecondWatchReplacesTheFirst) {
  begin();
  const Answer first = at(0).watch;
  watch(0, 0);
  EXPECT_EQ(first.status().code(), Code::kState);
  leave(1);
  EXPECT_EQ(at(0).watch.message<WatchReply>().left, 1);
}

TEST_F(HeadTest, LeavingTwiceIsToldOnce) {
  begin();
  leave(1);
  leave(1);
  EXPECT_TRUE(at(1).leave.ok());
  watch(0, 1);
  EXPECT_FALSE(at(0).watch.given());
}

class ReceiptProbe final : public transport::BulkReceipt {
 public:
  explicit ReceiptProbe(Status* out) : out_(out) {}
  std::span<const std::byte> data() const override { return {}; }
  void finish(const Status& status) override { *out_ = status; }

 private:
  Status* out_;
};

TEST_F(HeadTest, BulkDataIsRefused) {
  come("w0");
  Status status;
  head_->on_bulk_end(at(0).control, transport::BulkHeader{}, std::make_unique<ReceiptProbe>(&status));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
}

// ---- progress and status

using Activity = transport::Progress::Activity;

class StatusTest : public HeadTest {
 protected:
  transport::StatusReply status() {
    FakeChannel asking("dsgd status");
    EXPECT_TRUE(head_->on_open(asking).ok());
    const Answer answer = call(asking, transport::StatusRequest{});
    EXPECT_TRUE(answer.ok());
    head_->on_close(asking, {});
    return answer.message<transport::StatusReply>();
  }
  // Of `i`, which waits for `ranks`, or computes if there are none.
  void progress(size_t i, std::vector<int32_t> ranks, uint64_t steps = 7, uint64_t view = 1) {
    transport::Progress report{at(i).rank, 1, view, steps};
    report.activity = ranks.empty() ? Activity::kComputes : Activity::kWaits;
    report.call = ranks.empty() ? 0 : 3;
    report.operation = ranks.empty() ? "" : "step 7";
    report.waits_for = std::move(ranks);
    EXPECT_TRUE(call(at(i).control, report).ok());
  }
};

TEST_F(StatusTest, OfAJobThatGathersTellsWhoHasComeAndWhoIsMissing) {
  auto reply = status();
  EXPECT_EQ(reply.state, transport::StatusReply::State::kGathering);
  EXPECT_EQ(reply.num_workers, 3u);
  EXPECT_EQ(reply.min_workers, 3u);
  EXPECT_TRUE(reply.workers.empty());
  transport::JoinRequest request = request_of("w1", 3);
  request.member.rank = 1;
  FakeChannel control("w1");
  EXPECT_TRUE(head_->on_open(control).ok());
  const Answer join = call(control, request);
  loop_.advance(2s);
  reply = status();
  ASSERT_EQ(reply.workers.size(), 1u);
  EXPECT_EQ(reply.workers[0].member.worker_id, "w1");
  EXPECT_EQ(reply.workers[0].state, transport::WorkerStatus::State::kWaiting);
  EXPECT_EQ(reply.workers[0].silence, 2s);
  EXPECT_FALSE(reply.workers[0].reported);
  EXPECT_EQ(reply.missing, (std::vector<int32_t>{0, 2}));
}

TEST_F(StatusTest, OfARunningJobHasEachWorkersProgress) {
  begin();
  progress(0, {1, 2}, 10);
  loop_.advance(2s);
  progress(0, {1}, 14);
  loop_.advance(1s);
  const auto reply = status();
  EXPECT_EQ(reply.state, transport::StatusReply::State::kRunning);
  EXPECT_EQ(reply.view, 1u);
  EXPECT_EQ(reply.head_rank, -1);
  ASSERT_EQ(reply.workers.size(), 3u);
  const transport::WorkerStatus& first = reply.workers[0];
  EXPECT_EQ(first.member.host, "nodew0");
  EXPECT_EQ(first.silence, 3s);
  EXPECT_EQ(first.age, 1s);
  EXPECT_EQ(first.progress.steps, 14u);
  EXPECT_EQ(first.progress.waits_for, std::vector<int32_t>{1});
  EXPECT_DOUBLE_EQ(first.steps_per_second, 2);
  EXPECT_FALSE(reply.workers[1].reported);
}

TEST_F(StatusTest, TellsWhoHasLeftAndWhyTheJobHasFailed) {
  begin(1);
  leave(0);
  EXPECT_EQ(status().workers[0].state, transport::WorkerStatus::State::kLeft);
  EXPECT_EQ(status().state, transport::StatusReply::State::kRunning);
  EXPECT_EQ(status().head_rank, 1);
  report(2, Status(Code::kAborted, "enough").with_rank(2));
  const auto reply = status();
  EXPECT_EQ(reply.state, transport::StatusReply::State::kFailed);
  EXPECT_EQ(reply.cause.message(), "enough");
}

TEST_F(StatusTest, OfAJobThatAllHaveLeftIsEnding) {
  begin();
  for (size_t i = 0; i < 3; ++i) leave(i);
  EXPECT_EQ(status().state, transport::StatusReply::State::kEnding);
}

// The answer to a request for a number of workers, from a process that is not in the job.
class ScaleTest : public StatusTest {
 protected:
  // With two to three workers.
  void let_views_change() {
    least_ = 2;
    head_ = std::make_unique<Head>(loop_, HeadOptions{3, kLease, {}, least_}, nullptr);
  }
  Status scale(uint32_t number) {
    FakeChannel asking("dsgd scale");
    EXPECT_TRUE(head_->on_open(asking).ok());
    const Answer answer = call(asking, transport::ScaleRequest{number});
    head_->on_close(asking, {});
    return answer.ok() ? Status() : answer.status();
  }
};

TEST_F(ScaleTest, TheNumberIsToldToThoseWhoAsk) {
  let_views_change();
  EXPECT_EQ(scale(2).code(), Code::kState) << "the job has not begun";
  begin();
  EXPECT_EQ(status().wanted_workers, 0u);
  EXPECT_TRUE(scale(2).ok());
  EXPECT_EQ(status().wanted_workers, 2u);
  EXPECT_TRUE(scale(3).ok());
  EXPECT_EQ(status().wanted_workers, 3u);
  EXPECT_EQ(status().scale_requests, 2u);
  EXPECT_TRUE(scale(3).ok());
  EXPECT_EQ(status().scale_requests, 3u) << "the workers may have been lost";
  EXPECT_EQ(status().state, transport::StatusReply::State::kRunning) << "the head itself does nothing";
}

TEST_F(ScaleTest, ANumberThatTheJobCannotHaveIsRefused) {
  let_views_change();
  begin();
  for (const uint32_t number : {0u, 1u, 4u, ~0u}) {
    const Status refused = scale(number);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << number;
    EXPECT_THAT(refused.message(), HasSubstr("min_workers = 2, max_workers = 3"));
  }
  EXPECT_EQ(status().wanted_workers, 0u);
}

TEST_F(ScaleTest, AJobWhoseViewsDoNotChangeIsNotScaled) {
  begin();
  EXPECT_EQ(scale(3).code(), Code::kUnsupported);
  report(2, Status(Code::kAborted, "enough").with_rank(2));
  EXPECT_EQ(scale(3).code(), Code::kState) << "the job has ended";
}

TEST_F(StatusTest, QuestionsHoldNoPlaceAndTheOldestIsClosedBeyondTheLimit) {
  std::vector<std::unique_ptr<FakeChannel>> asking;
  for (size_t i = 0; i <= 64 + num_workers_; ++i) {
    asking.push_back(std::make_unique<FakeChannel>("dsgd status"));
    EXPECT_TRUE(head_->on_open(*asking.back()).ok());
  }
  EXPECT_TRUE(asking.front()->closed);
  EXPECT_FALSE(asking.back()->closed);
  for (const auto& channel : asking) head_->on_close(*channel, {});
  begin();
  EXPECT_EQ(status().workers.size(), 3u);
}

class StragglerTest : public StatusTest {
 protected:
  StragglerTest() {
    least_ = 2;
    straggler_timeout_ = 30s;
    head_ =
        std::make_unique<Head>(loop_, HeadOptions{3, kLease, {}, least_, 0, {}, straggler_timeout_}, nullptr);
  }
  // All renew, and those of `waiting` report that they wait for `rank`, which computes.
  void wait_for(int32_t rank, std::vector<size_t> waiting, transport::Duration duration, uint64_t view = 1) {
    for (; duration > 0s; duration -= 2s) {
      for (size_t i = 0; i < 3; ++i) {
        if (!at(i).gone) renew(i);
      }
      for (const size_t i : waiting) progress(i, {rank}, 7, view);
      loop_.advance(2s);
    }
    for (const size_t i : waiting) progress(i, {rank}, 7, view);
  }
};

TEST_F(StragglerTest, AWorkerThatKeepsAllOthersWaitingIsEvicted) {
  begin();
  progress(1, {});
  wait_for(1, {0, 2}, 28s);
  EXPECT_FALSE(at(0).watch.given());
  wait_for(1, {0, 2}, 4s);
  ASSERT_TRUE(at(0).watch.ok());
  EXPECT_EQ(at(0).watch.message<WatchReply>().view, 2u);
  EXPECT_EQ(at(0).watch.message<WatchReply>().members.size(), 2u);
  EXPECT_THAT(news(0).message(), AllOf(HasSubstr("rank 1 (worker 'w1'"), HasSubstr("in step 7"),
                                       HasSubstr("kept the other workers waiting for 30.0 s"),
                                       HasSubstr("straggler_timeout = 30.0 s")));
  EXPECT_EQ(news(0).rank(), 1);
  EXPECT_EQ(at(1).watch.status().code(), Code::kEvicted);
  EXPECT_THAT(at(1).watch.status().message(), HasSubstr("straggler_timeout"));
}

TEST_F(StragglerTest, NobodyIsEvictedBelowMinWorkers) {
  begin();
  wait_for(1, {0, 2}, 34s);
  ASSERT_TRUE(at(0).watch.ok());
  at(1).gone = true;
  at(2).rank = 2;  // its number
  watch(0, 1);
  wait_for(1, {0}, 60s, 2);  // rank 1 of view 2 is w2
  EXPECT_FALSE(at(0).watch.given());
}

TEST_F(StragglerTest, AReportOfAnEarlierViewDoesNotCount) {
  begin();
  wait_for(1, {0, 2}, 20s);
  call(at(1).control, transport::Report{1, 1, Status(Code::kWorkerLost, "gone").with_rank(1)});
  ASSERT_TRUE(at(0).watch.ok());
  watch(0, 1), watch(2, 1);
  at(1).gone = true;
  wait_for(1, {0}, 60s, 1);  // its rank 1 is the lost worker; w2 has rank 1 now
  EXPECT_FALSE(at(0).watch.given());
}

TEST_F(StragglerTest, TheHostOfTheHeadIsNotEvicted) {
  begin(1);
  wait_for(1, {0, 2}, 60s);
  EXPECT_FALSE(at(0).watch.given());
}

TEST_F(StragglerTest, AnotherTimeoutThanTheHeadsIsRefused) {
  straggler_timeout_ = 20s;
  const Remote& remote = come("w0");
  EXPECT_EQ(remote.join.status().code(), Code::kMismatch);
  EXPECT_EQ(remote.join.status().parameter(), "straggler_timeout");
  EXPECT_THAT(remote.join.status().message(),
              HasSubstr("says straggler_timeout = 20.0 s, the head says straggler_timeout = 30.0 s"));
}

class LoneHeadTest : public HeadTest {
 protected:
  LoneHeadTest() : HeadTest(1) {}
};

TEST_F(LoneHeadTest, AJobOfOneBeginsAtOnceAndItsHostLeavesAtOnce) {
  begin(0);
  leave(0);
  EXPECT_TRUE(at(0).leave.ok());
  close(0);
  loop_.advance(0s);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(ends_[0].ok());
}

// ---- learners

class LearnerTest : public StatusTest {
 protected:
  LearnerTest() {
    head_ = std::make_unique<Head>(loop_, HeadOptions{3, kLease, {}, 2, 4}, nullptr);
    least_ = 2, most_ = 4;
    begin();
  }
  // Another job, which waits for others when fewer than its three workers are left.
  void restart(transport::Duration rejoin_timeout, int32_t head_rank = -1) {
    head_ = std::make_unique<Head>(loop_, HeadOptions{3, kLease, {}, 3, 3, rejoin_timeout}, nullptr);
    remotes_.clear();
    least_ = most_ = 3, rejoin_ = rejoin_timeout;
    begin(head_rank);
  }
  // Its answer names the present workers and, last, itself.
  Remote& learn(const std::string& id) {
    Remote& remote = come(id);
    if (remote.join.ok()) remote.rank = remote.join.message<JoinReply>().members.back().number;
    return remote;
  }
  WatchReply change(size_t i) { return at(i).watch.message<WatchReply>(); }
};

TEST_F(LearnerTest, AWorkerJoinsTheRunningJobAndEntersALaterView) {
  Remote& w3 = learn("w3");
  ASSERT_TRUE(w3.join.ok()) << w3.join.status().message();
  const auto reply = w3.join.message<JoinReply>();
  EXPECT_TRUE(reply.learner);
  EXPECT_EQ(reply.view, 1u);
  EXPECT_EQ(reply.rank, 3);
  ASSERT_EQ(reply.members.size(), 4u);
  EXPECT_EQ(reply.members[3].number, 3);
  EXPECT_FALSE(at(0).watch.given()) << "the others train on";

  EXPECT_TRUE(call(w3.heartbeat, transport::Renew{3, 1}).ok());
  watch(3, reply.sequence);
  EXPECT_TRUE(call(w3.control, transport::Enter{3, 1}).ok());
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(at(i).watch.ok());
    EXPECT_EQ(change(i).view, 2u);
    ASSERT_EQ(change(i).members.size(), 4u);
    EXPECT_EQ(change(i).members[3].worker_id, "w3");
    EXPECT_EQ(change(i).members[3].rank, 3);
    EXPECT_THAT(change(i).cause.message(), HasSubstr("has joined the job"));
  }
}

TEST_F(LearnerTest, IsJoiningInTheStatusUntilItEntersAView) {
  Remote& w3 = learn("w3");
  ASSERT_EQ(status().workers.size(), 4u);
  EXPECT_EQ(status().workers[3].state, transport::WorkerStatus::State::kJoining);
  EXPECT_EQ(status().workers[3].member.rank, -1);
  EXPECT_EQ(status().max_workers, 4u);
  EXPECT_TRUE(call(w3.control, transport::Enter{3, 1}).ok());
  progress(3, {1});
  EXPECT_EQ(status().workers[3].state, transport::WorkerStatus::State::kRunning);
  EXPECT_EQ(status().workers[3].member.rank, 3);
  EXPECT_EQ(status().workers[3].progress.waits_for, std::vector<int32_t>{1});
}

TEST_F(LearnerTest, IsLostWithoutAViewOfItsOwn) {
  Remote& w3 = learn("w3");
  close(3);
  EXPECT_FALSE(at(0).watch.given());
  close(1);
  ASSERT_TRUE(at(0).watch.ok());
  EXPECT_EQ(change(0).members.size(), 2u);
  EXPECT_EQ(call(w3.control, transport::Enter{3, 1}).status().code(), Code::kState);
}

TEST_F(LearnerTest, HearsOfViewsBeforeItsOwnAndHasItsRankInTheViewItEnters) {
  Remote& w3 = learn("w3");
  watch(3, w3.join.message<JoinReply>().sequence);
  close(0);
  ASSERT_TRUE(at(3).watch.ok());
  EXPECT_EQ(change(3).members.size(), 2u);
  watch(3, change(3).sequence);
  EXPECT_TRUE(call(w3.control, transport::Enter{3, 1}).ok());
  ASSERT_TRUE(at(3).watch.ok());
  ASSERT_EQ(change(3).members.size(), 3u);
  EXPECT_EQ(change(3).members[2].worker_id, "w3");
  EXPECT_EQ(change(3).members[2].rank, 2);
  EXPECT_EQ(change(3).members[2].number, 3);
}

TEST_F(LearnerTest, TheLastToEnterIsTheLastRank) {
  head_ = std::make_unique<Head>(loop_, HeadOptions{3, kLease, {}, 2, 5}, nullptr);
  remotes_.clear();
  most_ = 5;
  begin();
  Remote &w3 = learn("w3"), &w4 = learn("w4");
  EXPECT_TRUE(call(w4.control, transport::Enter{4, 1}).ok());
  watch(0, 1);
  EXPECT_TRUE(call(w3.control, transport::Enter{3, 1}).ok());
  ASSERT_TRUE(at(0).watch.ok());
  ASSERT_EQ(change(0).members.size(), 5u);
  EXPECT_EQ(change(0).members[3].worker_id, "w4");
  EXPECT_EQ(change(0).members[4].worker_id, "w3");
}

TEST_F(LearnerTest, ALossMayBeMadeGoodButNoMoreThanMaxWorkersAreInTheJob) {
  learn("w3");
  Remote& w4 = learn("w4");
  EXPECT_EQ(w4.join.status().code(), Code::kUnreachable) << "so that it tries again";
  EXPECT_THAT(w4.join.status().message(), HasSubstr("the job has max_workers = 4 workers"));
  close(1);
  EXPECT_TRUE(learn("w5").join.ok());
}

TEST_F(LearnerTest, AnIdIsNotUsedAgain) {
  close(1);
  Remote& again = learn("w1");
  EXPECT_EQ(again.join.status().code(), Code::kExists);
  EXPECT_THAT(again.join.status().message(), HasSubstr("which was lost; give the new worker another"));
}

TEST_F(LearnerTest, ItsFailureIsItsOwn) {
  Remote& w3 = learn("w3");
  const Status differs(Code::kMismatch, "other parameters");
  EXPECT_TRUE(call(w3.control, transport::Enter{3, 1}).ok());
  EXPECT_TRUE(call(w3.control, transport::Report{3, 1, differs}).ok());
  watch(0, 1);
  ASSERT_TRUE(at(0).watch.ok());
  EXPECT_EQ(change(0).members.size(), 3u) << "the others go on";
  report(0, differs);
  watch(1, 2);
  EXPECT_EQ(news(1).code(), Code::kMismatch) << "of a worker of the first view it ends the job";
}

TEST_F(LearnerTest, AWorkerEntersAfterOthersHaveLeft) {
  Remote& w3 = learn("w3");
  leave(0);
  watch(1, 1);
  EXPECT_TRUE(call(w3.control, transport::Enter{3, 1}).ok());
  ASSERT_TRUE(at(1).watch.ok());
  EXPECT_EQ(change(1).members.size(), 3u) << "without the one that has left";
  EXPECT_EQ(change(1).members.back().number, 3);
  EXPECT_TRUE(learn("w4").join.ok());
}

// An owner whose goodbye has reached a peer before the head hears of it: a step waits for a view without it.
TEST_F(LearnerTest, AWorkerThatLeavesAfterAPeerHasReportedItIsFollowedByAView) {
  const Status closed(Code::kWorkerLost, "rank 1 has closed its session");
  EXPECT_TRUE(call(at(0).control, transport::ReportCut{0, 1, closed, 1}).ok());
  EXPECT_FALSE(at(0).watch.given());
  leave(1);
  ASSERT_TRUE(at(0).watch.ok());
  EXPECT_EQ(change(0).view, 2u);
  EXPECT_EQ(change(0).members.size(), 2u);
  EXPECT_EQ(status().workers[1].state, transport::WorkerStatus::State::kLeft);
}

TEST_F(LearnerTest, AWorkerThatClosesBeforeItsFirstViewHasLeft) {
  learn("w3");
  leave(3);
  EXPECT_EQ(status().workers[3].state, transport::WorkerStatus::State::kLeft);
}

TEST_F(LearnerTest, AWorkerThatLeavesBecauseOfAFailureIsLost) {
  leave(1, Status(Code::kAborted, "enough"));
  EXPECT_EQ(status().state, transport::StatusReply::State::kFailed);
  EXPECT_EQ(status().workers[1].state, transport::WorkerStatus::State::kLost);
}

TEST_F(LearnerTest, NoneEntersAJobThatIsEnding) {
  Remote& w3 = learn("w3");
  for (int i = 0; i < 3; ++i) leave(i);
  const Answer refused = call(w3.control, transport::Enter{3, 1});
  EXPECT_EQ(refused.status().code(), Code::kUnreachable);
  EXPECT_GE(refused.status().rank(), 0) << "else it would count as a lost connection";
  EXPECT_EQ(learn("w4").join.status().code(), Code::kUnreachable);
}

TEST_F(LearnerTest, AViewWithTooFewWorkersIsPausedUntilOthersHaveJoined) {
  restart(4 * kLease);
  close(1);
  ASSERT_TRUE(at(0).watch.ok());
  EXPECT_TRUE(change(0).paused);
  watch(0, 1);
  Remote& w3 = learn("w3");
  ASSERT_TRUE(w3.join.ok()) << w3.join.status().message();
  watch(3, w3.join.message<JoinReply>().sequence);
  EXPECT_TRUE(call(w3.control, transport::Enter{3, 2}).ok());
  ASSERT_TRUE(at(0).watch.ok());
  EXPECT_FALSE(change(0).paused);
  EXPECT_EQ(change(0).members.size(), 3u);
}

// The job may have two to four workers.
TEST_F(LearnerTest, TheErrorNamesMinWorkersWhenTooFewAreLeft) {
  close(2);
  EXPECT_EQ(change(0).members.size(), 2u);
  EXPECT_THAT(change(0).cause.message(), Not(HasSubstr("left"))) << "the job goes on";
  watch(0, change(0).sequence);
  report(1, Status(Code::kLimit, "too long").with_rank(1, "nodew1").with_operation("step 7"));
  EXPECT_EQ(news(0).code(), Code::kLimit);
  EXPECT_EQ(news(0).rank(), 1);
  EXPECT_EQ(news(0).host(), "nodew1");
  EXPECT_EQ(news(0).operation(), "step 7");
  EXPECT_EQ(news(0).message(),
            "too long; 1 worker is left, fewer than min_workers = 2; lower `min_workers`, or set "
            "`rejoin_timeout` to wait for others");
}

TEST_F(LearnerTest, TheErrorSaysThatTheHostOfTheHeadIsLost) {
  restart(4 * kLease, 1);
  close(1);
  EXPECT_EQ(news(0).rank(), 1);
  EXPECT_THAT(news(0).message(), AllOf(HasSubstr("rank 1 (worker 'w1' on host nodew1, pid 149) was lost: "),
                                       HasSubstr("; rank 1 (worker 'w1' on host nodew1, pid 149) hosted the "
                                                 "head, and the job cannot go on without a head")));
}

TEST_F(LearnerTest, TheConnectionsOfAnEvictedWorkerAreClosedALeaseLater) {
  Remote& w3 = learn("w3");  // evicted before it is in a view
  EXPECT_TRUE(call(w3.heartbeat, transport::Renew{3, 1}).ok());
  FakeChannel fresh("w2", Role::kHeartbeat);
  EXPECT_TRUE(call(fresh, transport::Renew{2, 1}).ok());
  for (const size_t i : {2u, 3u}) EXPECT_TRUE(report(i, Status(Code::kWorkerLost, "it is broken")).ok());
  EXPECT_EQ(at(2).watch.status().code(), Code::kEvicted);
  watch(0, change(0).sequence), watch(1, change(1).sequence);
  const std::vector<FakeChannel*> evicted = {&at(2).control, &at(2).heartbeat, &fresh, &w3.control,
                                             &w3.heartbeat};
  const auto pass = [this](transport::Duration time) {
    for (const size_t i : {0u, 1u}) EXPECT_TRUE(renew(i).ok());
    loop_.advance(time);
  };
  pass(kLease / 2);
  pass(kLease / 2 - 1ms);
  for (const FakeChannel* channel : evicted) EXPECT_FALSE(channel->closed);
  EXPECT_EQ(renew(2).status().code(), Code::kEvicted) << "it can still ask";
  pass(2ms);
  for (FakeChannel* channel : evicted) {
    EXPECT_TRUE(channel->closed) << channel->hello().worker_id;
    head_->on_close(*channel, {});
  }
  EXPECT_FALSE(at(0).control.closed);
  EXPECT_FALSE(at(0).watch.given()) << "the others go on";
  pass(2 * kLease / 3);
  EXPECT_FALSE(at(0).watch.given());
}

TEST_F(LearnerTest, OneConnectionServesOneWorkerAndOnePurpose) {
  const std::string nonce = at(0).join.message<JoinReply>().job_nonce;
  const auto refused = [this](FakeChannel& channel, Message message, const std::string& why) {
    const Answer answer = call(channel, std::move(message));
    EXPECT_EQ(answer.status().code(), Code::kInvalidArgument) << why;
    EXPECT_THAT(answer.status().message(),
                HasSubstr("worker '" + channel.hello().worker_id + "' at 10.0.0.9:4711 " + why));
  };
  transport::JoinRequest twin = request_of("twin", num_workers_);
  twin.min_workers = least_, twin.max_workers = most_;
  refused(at(0).control, twin, "asks to join on the control connection of rank 0 (worker 'w0'");
  refused(at(0).heartbeat, twin, "asks to join on a connection that is not for control");
  Remote& w3 = learn("w3");
  refused(w3.control, twin, "asks to join on the control connection of rank 3 (worker 'w3'");
  at(0).control.claim(0, nonce);
  at(0).heartbeat.claim(0, nonce);
  refused(at(0).control, transport::Return{0, 1, 0},
          "asks to come back on the control connection of rank 0 (worker 'w0'");
  refused(at(0).heartbeat, transport::Return{0, 1, 0},
          "asks to come back on a connection that is not for control");
  refused(at(0).control, transport::Renew{0, 1},
          "renews its lease on a connection that is not for heartbeats");
  EXPECT_FALSE(at(0).control.closed);
  EXPECT_TRUE(renew(0).ok());
  EXPECT_EQ(status().workers.size(), 4u) << "none of them has joined";
}

TEST_F(LearnerTest, OtherSettingsAreRefused) {
  most_ = 5;
  EXPECT_THAT(learn("w3").join.status().message(),
              HasSubstr("says max_workers = 5, the head says max_workers = 4"));
}

}  // namespace
}  // namespace dsgd
