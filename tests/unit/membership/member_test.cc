// Members, heartbeats and the head together, in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/membership/sim_job.h"

namespace dsgd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using transport::Death;
using transport::Duration;
using transport::SimWorld;
using transport::Time;

class MemberTest : public testing::Test {
 protected:
  explicit MemberTest(const transport::SimOptions& network = {}) : world_(7, network) {}

  // The head in a process of its own on "node0", which also hosts worker w0 when it is embedded.
  void start_head(uint32_t num_workers, bool embedded) {
    num_workers_ = num_workers;
    const auto process = world_.start_process("node0");
    head_ = std::make_unique<SimHead>(world_, process, "node0", num_workers, kLease);
    if (embedded) {
      SimWorkerOptions options;
      options.hosts_head = true;
      start_in(process, options);
    }
  }
  SimWorker& start_in(transport::ProcessId process, SimWorkerOptions options) {
    options.num_workers = num_workers_;
    options.lease = kLease;
    workers_.push_back(std::make_unique<SimWorker>(world_, process, options));
    return *workers_.back();
  }
  // Worker w<n> in a process of its own on "node<n>".
  SimWorker& start_worker(uint32_t n, SimWorkerOptions options = {}) {
    std::string host = "node";
    options.id = "w";
    options.id += std::to_string(n);
    return start_in(world_.start_process(host += std::to_string(n)), options);
  }
  void run_until(const std::function<bool()>& predicate, Duration limit) {
    ASSERT_TRUE(world_.run_until(predicate, world_.now() + limit))
        << "nothing after " << limit.count() << " ns";
  }
  // A whole job; worker i has rank i.
  void start_job(uint32_t num_workers, bool embedded) {
    start_head(num_workers, embedded);
    for (uint32_t n = embedded ? 1 : 0; n < num_workers; ++n) start_worker(n);
    run_until([this] { return all([](SimWorker& w) { return w.ok(); }); }, 5s);
    for (uint32_t n = 0; n < num_workers; ++n) ASSERT_EQ(workers_[n]->rank(), static_cast<int32_t>(n));
  }
  bool all(const std::function<bool(SimWorker&)>& predicate) {
    return std::all_of(workers_.begin(), workers_.end(), [&](const auto& w) { return predicate(*w); });
  }
  SimWorker& at(size_t i) { return *workers_[i]; }
  // All but one are told, within the limit, of a cause that names `rank`, and once.
  void expect_all_told_but(size_t except, int32_t rank, Duration limit,
                           const std::vector<std::string>& says) {
    const Time start = world_.now();
    run_until([&] { return all([&](SimWorker& w) { return &w == &at(except) || !w.broken.empty(); }); },
              2 * kLease + kSlack);
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (i == except) continue;
      SCOPED_TRACE(at(i).options.id);
      ASSERT_EQ(at(i).broken.size(), 1u);
      const Status& status = at(i).broken[0];
      EXPECT_EQ(status.code(), Code::kWorkerLost) << status.message();
      EXPECT_EQ(status.rank(), rank) << status.message();
      EXPECT_LE((at(i).broken_at - start).count(), (limit + kSlack).count());
      for (const std::string& text : says) EXPECT_THAT(status.message(), HasSubstr(text));
    }
  }
  std::string full_name(size_t i) {
    return "rank " + std::to_string(at(i).rank()) + " (worker '" + at(i).options.id + "' on host " +
           at(i).host + ", pid " + std::to_string(at(i).pid) + ")";
  }

  SimWorld world_;
  uint32_t num_workers_ = 2;
  std::unique_ptr<SimHead> head_;
  std::vector<std::unique_ptr<SimWorker>> workers_;  // end before the head they talk to
};

// ---- joining

TEST_F(MemberTest, WorkersThatComeBeforeTheHeadFindIt) {
  num_workers_ = 2;
  start_worker(0);
  start_worker(1);
  world_.run_for(3s);
  start_head(2, false);
  run_until([this] { return all([](SimWorker& w) { return w.joined.has_value(); }); }, 1s);
  for (auto& w : workers_) {
    ASSERT_TRUE(w->ok()) << w->joined->status().message();
    EXPECT_EQ(w->joined->value().head_rank, -1);
  }
  EXPECT_EQ(at(0).rank(), 0);
  EXPECT_EQ(at(1).rank(), 1);
}

TEST_F(MemberTest, AWorkerThatStopsWhileItWaitsLosesItsPlaceAndOneThatRunsKeepsIt) {
  start_head(3, false);
  start_worker(0);
  start_worker(1);
  world_.run_for(1s);
  world_.pause(at(0).process);
  world_.run_for(3 * kLease);
  start_worker(2);
  start_worker(3);
  run_until([this] { return at(1).ok() && at(2).ok() && at(3).ok(); }, 1s);
  world_.resume(at(0).process);
  run_until([this] { return at(0).joined.has_value(); }, 1s);
  EXPECT_EQ(at(0).joined->status().code(), Code::kState);
  EXPECT_THAT(at(0).joined->status().message(), HasSubstr("cannot join: the job has all 3 workers"));
}

TEST_F(MemberTest, AWorkerThatWaitsForTheJobSaysSoAtDoublingIntervals) {
  SimWorker& w = start_worker(1);
  world_.run_for(4s);
  start_head(2, false);
  world_.run_for(14s);
  start_worker(0);
  run_until([&] { return w.joined.has_value(); }, 2s);
  world_.run_for(60s);
  ASSERT_EQ(w.warnings.size(), 3u);
  EXPECT_THAT(w.warnings[0],
              AllOf(HasSubstr("waiting for the head at node0:7700 (3.0 s): "), HasSubstr("node0")));
  EXPECT_THAT(w.warnings[1],
              AllOf(HasSubstr("waiting for the other workers (6.0 s): 1 of 2 workers have joined"),
                    HasSubstr("'w1'")));
  EXPECT_THAT(w.warnings[2], HasSubstr("(12.0 s)"));
}

TEST_F(MemberTest, ASupervisedWorkerReportsInsteadThatItDialsTheHeadAndThenThatItWaits) {
  SimWorkerOptions options;
  options.supervised = true;
  SimWorker& w = start_worker(1, options);
  world_.run_for(4s);
  ASSERT_EQ(w.reports.size(), 2u);
  EXPECT_EQ(w.reports[0].kind, WorkerReport::Kind::kDialing);
  EXPECT_EQ(w.reports[0].text, "") << "no attempt has failed yet";
  EXPECT_EQ(w.reports[1].kind, WorkerReport::Kind::kDialing);
  EXPECT_THAT(w.reports[1].text, HasSubstr("node0"));
  start_head(2, false);
  world_.run_for(14s);
  ASSERT_EQ(w.reports.size(), 3u);
  EXPECT_EQ(w.reports[2].kind, WorkerReport::Kind::kWaiting);
  EXPECT_THAT(w.reports[2].text, HasSubstr("1 of 2 workers have joined"));
  EXPECT_TRUE(w.warnings.empty());
}

// The head's process is stopped: its system accepts the connection, and nothing answers.
TEST_F(MemberTest, ASupervisedWorkerReportsAHeadThatDoesNotAnswer) {
  start_head(2, false);
  world_.pause(head_->process);
  SimWorkerOptions options;
  options.supervised = true;
  SimWorker& w = start_worker(1, options);
  world_.run_for(1s);
  ASSERT_EQ(w.reports.size(), 1u);
  EXPECT_EQ(w.reports[0].kind, WorkerReport::Kind::kDialing);
  world_.run_for(kLease);
  ASSERT_EQ(w.reports.size(), 2u);
  EXPECT_EQ(w.reports[1].kind, WorkerReport::Kind::kDialing);
  EXPECT_THAT(w.reports[1].text, AllOf(HasSubstr("node0:7700"), HasSubstr("no answer")));
}

TEST_F(MemberTest, AnUnreachableHeadIsAnErrorAtTheDeadline) {
  SimWorkerOptions options;
  options.patience = 5s;
  SimWorker& w = start_worker(1, options);
  const Time start = world_.now();
  run_until([&] { return w.joined.has_value(); }, 5s + kSlack);
  EXPECT_GE((w.joined_at - start).count(), Duration(5s).count());
  EXPECT_EQ(w.joined->status().code(), Code::kUnreachable);
  EXPECT_THAT(w.joined->status().message(),
              AllOf(HasSubstr("worker 'w1' (host node1"), HasSubstr("the head at node0:7700"),
                    HasSubstr("within init_timeout"), HasSubstr("`head`"), HasSubstr("firewall")));
}

TEST_F(MemberTest, AnIncompleteJobIsAnErrorThatSaysWhoHasCome) {
  start_head(3, false);
  SimWorkerOptions options;
  options.patience = 5s;
  SimWorker& first = start_worker(0, options);
  world_.run_for(2s);
  options.patience = 30s;
  SimWorker& second = start_worker(1, options);
  run_until([&] { return first.joined.has_value(); }, 3s + kSlack);
  EXPECT_EQ(first.joined->status().code(), Code::kTimeout);
  EXPECT_THAT(first.joined->status().message(),
              AllOf(HasSubstr("2 of 3 workers have joined"), HasSubstr("'w0'"), HasSubstr("'w1'"),
                    HasSubstr("within init_timeout:"),
                    HasSubstr("; start the missing workers, or raise `init_timeout`")));
  // Its place is free again, and the others can still come.
  start_worker(0);
  start_worker(2);
  run_until([&] { return second.joined.has_value(); }, 2s);
  EXPECT_TRUE(second.ok());
  EXPECT_EQ(first.calls_of_joined, 1);
}

TEST_F(MemberTest, WhatTheHeadRefusesEndsTheAttemptAtOnce) {
  struct Case {
    const char* name;
    std::function<void(SimWorkerOptions&)> spoil;
    Code code;
    std::string says;
  };
  const std::vector<Case> cases = {
      {"token", [](auto& o) { o.token = "guess"; }, Code::kUnauthorized, "`token`"},
      {"id taken", [](auto& o) { o.id = "w0"; }, Code::kExists, "worker id 'w0' is taken"},
      {"rank taken", [](auto& o) { o.rank = 2; }, Code::kExists, "rank 2"},
      {"rank out of range", [](auto& o) { o.rank = 3; }, Code::kInvalidArgument, "rank 3"},
      {"size", [](auto& o) { o.num_workers = 4; }, Code::kMismatch, "num_workers = 4"},
      {"lease", [](auto& o) { o.lease = 30s; }, Code::kMismatch, "lease = 30"},
  };
  start_head(3, false);
  SimWorkerOptions first;
  first.rank = 2;
  start_worker(0, first);
  world_.run_for(1s);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SimWorkerOptions options;
    options.id = "x";
    options.num_workers = 3;
    c.spoil(options);
    SimWorker worker(world_, world_.start_process("node9"), options);
    run_until([&] { return worker.joined.has_value(); }, 1s);
    EXPECT_EQ(worker.joined->status().code(), c.code);
    EXPECT_THAT(worker.joined->status().message(), HasSubstr(c.says));
    EXPECT_FALSE(at(0).joined.has_value());
  }
}

TEST_F(MemberTest, OfSeveralHeadsOneThatRefusesIsPassedOver) {
  SimHead stranger(world_, world_.start_process("node8"), "node8", 2, kLease, "other");
  num_workers_ = 2;
  SimWorkerOptions options;
  options.head_host = "node8:7700,node0";
  start_worker(0, options);
  start_worker(1, options);
  world_.run_for(3s);
  EXPECT_TRUE(all([](SimWorker& w) { return !w.joined; }));
  start_head(2, false);
  run_until([this] { return all([](SimWorker& w) { return w.joined.has_value(); }); }, 2s);
  EXPECT_TRUE(all([](SimWorker& w) { return w.ok(); })) << at(0).joined->status().message();
}

TEST_F(MemberTest, ARefusalOfAllHeadsEndsTheAttemptAtOnceAndNamesEach) {
  SimHead one(world_, world_.start_process("node8"), "node8", 2, kLease, "other");
  SimHead two(world_, world_.start_process("node9"), "node9", 2, kLease, "another");
  SimWorkerOptions options;
  options.head_host = "node8:7700,node9";
  start_worker(0, options);
  run_until([this] { return at(0).joined.has_value(); }, 2s);
  const Status& refused = at(0).joined->status();
  EXPECT_EQ(refused.code(), Code::kUnauthorized);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("node8:7700: worker 'w0'"), HasSubstr("; node9:7700: worker 'w0'")));
}

TEST_F(MemberTest, ALateComerIsRefusedAtOnceAndTheJobGoesOn) {
  start_job(2, true);
  SimWorkerOptions options;
  options.id = "late";
  SimWorker late(world_, world_.start_process("node9"), options);
  run_until([&] { return late.joined.has_value(); }, 1s);
  EXPECT_EQ(late.joined->status().code(), Code::kState);
  world_.run_for(2 * kLease);
  EXPECT_TRUE(all([](SimWorker& w) { return w.broken.empty(); }));
}

TEST_F(MemberTest, AConnectionThatBreaksInTheRendezvousIsMadeAnew) {
  start_head(2, false);
  SimWorker& early = start_worker(0);
  world_.run_for(1s);
  for (int i = 0; i < 3; ++i) {
    world_.break_connections(early.process, head_->process);
    world_.run_for(1s);
  }
  SimWorker& late = start_worker(1);
  run_until([&] { return early.joined.has_value() && late.joined.has_value(); }, 1s);
  EXPECT_TRUE(early.ok() && late.ok());
}

TEST_F(MemberTest, AHeadThatIsRestartedInTheRendezvousIsFoundAgain) {
  start_head(2, false);
  SimWorker& early = start_worker(0);
  world_.run_for(1s);
  world_.kill(head_->process, Death::kReset);
  world_.run_for(1s);
  world_.finish_killed(head_->process);
  start_head(2, false);
  SimWorker& late = start_worker(1);
  run_until([&] { return early.joined.has_value() && late.joined.has_value(); }, 2s);
  EXPECT_TRUE(early.ok() && late.ok());
}

TEST_F(MemberTest, AHeadThatIsGoneAtTheDeadlineIsUnreachableAndItsLastWordIsTold) {
  start_head(2, false);
  SimWorkerOptions options;
  options.patience = 5s;
  SimWorker& w = start_worker(0, options);
  world_.run_for(3s);
  world_.kill(head_->process, Death::kReset);
  run_until([&] { return w.joined.has_value(); }, 2s + kSlack);
  EXPECT_EQ(w.joined->status().code(), Code::kUnreachable) << w.joined->status().message();
  EXPECT_THAT(w.joined->status().message(),
              AllOf(HasSubstr("the head at node0:7700 has gone"), HasSubstr("1 of 2 workers have joined")));
  world_.finish_killed(head_->process);
}

TEST_F(MemberTest, AWorkerThatDiesInTheRendezvousMayBeStartedAgain) {
  start_head(2, false);
  SimWorker& dead = start_worker(0);
  world_.run_for(1s);
  world_.kill(dead.process, Death::kReset);
  world_.run_for(1s);
  SimWorker& again = start_worker(0);
  SimWorker& other = start_worker(1);
  run_until([&] { return again.joined.has_value() && other.joined.has_value(); }, 1s);
  EXPECT_TRUE(again.ok() && other.ok());
  world_.run_for(2 * kLease);
  EXPECT_TRUE(again.broken.empty() && other.broken.empty());
}

TEST_F(MemberTest, LeavingEndsAJoinUnderWay) {
  start_head(2, false);
  SimWorker& w = start_worker(0);
  world_.run_for(1s);
  w.leave();
  run_until([&] { return w.calls_of_done == 1 && w.joined.has_value(); }, kSlack);
  EXPECT_EQ(w.joined->status().code(), Code::kClosed);
  start_worker(0);
  start_worker(1);
  run_until([&] { return at(1).ok() && at(2).ok(); }, 1s);
  EXPECT_EQ(w.calls_of_joined, 1);
}

TEST_F(MemberTest, MembersThatAreDestroyedInMidJoinAreForgotten) {
  start_head(2, false);
  for (const Duration after : {Duration(0), Duration(100us), Duration(300us), Duration(1ms), Duration(1s)}) {
    SimWorkerOptions options;
    options.id = "fleeting";
    SimWorker worker(world_, world_.start_process("node9"), options);
    world_.run_for(after);
    EXPECT_FALSE(worker.joined.has_value());
    worker.destroy();
  }
  start_worker(0);
  start_worker(1);
  run_until([&] { return at(0).ok() && at(1).ok(); }, 1s);
}

// ---- losses

TEST_F(MemberTest, AHealthyJobGoesOnForLong) {
  start_job(4, true);
  world_.run_for(20 * kLease);
  EXPECT_TRUE(all([](SimWorker& w) { return w.broken.empty() && w.left.empty(); }));
}

TEST_F(MemberTest, AKilledWorkerIsNamedToAllOthers) {
  for (const Death death : {Death::kReset, Death::kSilent}) {
    SCOPED_TRACE(death == Death::kReset);
    workers_.clear();
    head_.reset();
    start_job(4, true);
    world_.run_for(3s);
    world_.kill(at(2).process, death);
    expect_all_told_but(2, 2, death == Death::kReset ? Duration(0) : kLease, {full_name(2)});
  }
}

TEST_F(MemberTest, AStoppedWorkerIsNamedWithinTheLeaseAndLearnsOfItWhenItWakes) {
  start_job(3, false);
  world_.run_for(3s);
  world_.pause(at(1).process);
  expect_all_told_but(1, 1, kLease, {full_name(1), "for 10.0 s (lease)", "no heartbeat"});
  world_.run_for(kLease);
  EXPECT_TRUE(at(1).broken.empty());
  world_.resume(at(1).process);
  run_until([this] { return !at(1).broken.empty(); }, kSlack);
  EXPECT_EQ(at(1).broken[0].rank(), 1) << at(1).broken[0].message();
}

TEST_F(MemberTest, AWorkerStoppedForLessThanItsLeaseIsNotLost) {
  start_job(3, true);
  for (size_t i : {1u, 0u}) {  // the host of the head, too
    world_.run_for(3s);
    world_.pause(at(i).process);
    world_.run_for(8s);
    world_.resume(at(i).process);
    world_.run_for(2 * kLease);
    EXPECT_TRUE(all([](SimWorker& w) { return w.broken.empty(); }));
  }
}

TEST_F(MemberTest, AWorkerThatIsCutOffGivesUpByItself) {
  start_job(3, false);
  world_.run_for(3s);
  world_.isolate(at(1).process);
  expect_all_told_but(1, 1, kLease, {full_name(1)});
  run_until([this] { return !at(1).broken.empty(); }, kSlack);
  EXPECT_EQ(at(1).broken[0].rank(), -1);
  EXPECT_THAT(at(1).broken[0].message(),
              AllOf(HasSubstr("the head at node0:7700 has not answered for 10.0 s (lease)")));
}

TEST_F(MemberTest, ALostHeadNamesTheWorkerThatHostsIt) {
  const std::string head = "the head at node0:7700, hosted by ";
  for (const char* fault : {"kill", "silent", "stop"}) {
    SCOPED_TRACE(fault);
    workers_.clear();
    head_.reset();
    start_job(3, true);
    world_.run_for(3s);
    const std::string name = head + full_name(0);
    if (fault == std::string("kill")) {
      world_.kill(at(0).process, Death::kReset);
      expect_all_told_but(0, 0, Duration(0), {name, "was lost"});
    } else if (fault == std::string("silent")) {
      world_.kill(at(0).process, Death::kSilent);
      expect_all_told_but(0, 0, kLease, {name, "has not answered for 10.0 s (lease)"});
    } else {
      world_.pause(at(0).process);
      expect_all_told_but(0, 0, kLease, {name, "has not answered for 10.0 s (lease)"});
    }
    if (world_.alive(at(0).process)) continue;
    workers_.front()->destroy();  // finishes the process that the head was in
  }
}

TEST_F(MemberTest, ALostHeadOfItsOwnProcessNamesNoRank) {
  start_job(2, false);
  world_.kill(head_->process, Death::kReset);
  run_until([this] { return all([](SimWorker& w) { return !w.broken.empty(); }); }, kSlack);
  for (auto& w : workers_) {
    EXPECT_EQ(w->broken[0].code(), Code::kWorkerLost);
    EXPECT_EQ(w->broken[0].rank(), -1);
    EXPECT_THAT(w->broken[0].message(), HasSubstr("the head at node0:7700 was lost"));
  }
  world_.finish_killed(head_->process);
}

TEST_F(MemberTest, AReportReachesEverybodyAndTheFirstOneWins) {
  start_job(3, true);
  at(1).report(Status(Code::kAborted, "rank 1 has had enough").with_rank(1, "node1"));
  world_.run_for(50ms);
  at(2).report(Status(Code::kTimeout, "step 4 timed out"));
  world_.run_for(1s);
  for (auto& w : workers_) {
    ASSERT_EQ(w->broken.size(), 1u);
    EXPECT_EQ(w->broken[0].code(), Code::kAborted);
    EXPECT_EQ(w->broken[0].rank(), 1);
    EXPECT_EQ(w->broken[0].message(), "rank 1 has had enough");
  }
}

TEST_F(MemberTest, LeavingBecauseOfACauseTellsTheOthers) {
  start_job(3, true);
  at(2).leave(Status(Code::kAborted, "the host program failed"));
  run_until([this] { return at(2).calls_of_done == 1; }, kSlack);
  EXPECT_TRUE(at(2).broken.empty());
  run_until([this] { return !at(0).broken.empty() && !at(1).broken.empty(); }, kSlack);
  EXPECT_EQ(at(0).broken[0].rank(), 2);
  EXPECT_THAT(at(0).broken[0].message(),
              AllOf(HasSubstr(full_name(2)), HasSubstr("the host program failed")));
}

// ---- leaving

TEST_F(MemberTest, WhoLeavesInGoodOrderIsNoLoss) {
  start_job(3, false);
  at(1).leave();
  run_until([this] { return at(1).calls_of_done == 1; }, kSlack);
  at(1).destroy();
  world_.run_for(3 * kLease);
  for (size_t i : {0u, 2u}) {
    EXPECT_TRUE(at(i).broken.empty());
    EXPECT_THAT(at(i).left, ElementsAre(1));
  }
  EXPECT_TRUE(head_->ends.empty());
  at(0).leave();
  at(2).leave();
  run_until([this] { return head_->ends.size() == 1; }, 1s);
  EXPECT_TRUE(head_->ends[0].ok());
}

// After a cut, TCP waits up to as long as the cut was before it sends again.
class CutTest : public MemberTest {
 protected:
  CutTest() : MemberTest({.retransmission = 200ms}) {}
};

TEST_F(CutTest, AWorkerThatLeavesInACutShorterThanTheLeaseIsNoLoss) {
  for (const Duration since_renewal : {0ms, 100ms, 200ms, 300ms, 400ms}) {
    for (const Duration into_cut : {0ms, 300ms, 1000ms, 3000ms, 6000ms, 8900ms}) {
      SCOPED_TRACE(std::to_string(since_renewal.count()) + " ns, left " + std::to_string(into_cut.count()) +
                   " ns after the cut began");
      start_job(3, false);
      world_.run_for(5s + since_renewal);
      const Time cut = world_.now();
      world_.isolate(at(1).process);
      world_.run_for(into_cut);
      const Time leaves = world_.now();
      at(1).leave();
      world_.run_for(cut + kLease - at(1).options.interval - world_.now());
      world_.rejoin(at(1).process);
      run_until([&] { return at(1).calls_of_done == 1; }, 2 * kLease);
      EXPECT_LT((at(1).left_at - leaves).count(), kLease.count()) << "the head has answered";
      at(1).destroy();
      world_.run_for(3 * kLease);
      for (const size_t i : {0u, 2u}) {
        EXPECT_TRUE(at(i).broken.empty()) << at(i).broken[0].message();
        EXPECT_THAT(at(i).left, ElementsAre(1));
      }
      workers_.clear();
      head_.reset();
      if (HasFailure()) return;
    }
  }
}

TEST_F(MemberTest, WhoeverHostsTheHeadMayLeaveFirst) {
  start_job(3, true);
  at(0).leave();
  run_until([this] { return at(0).calls_of_done == 1; }, kSlack);
  at(0).destroy();
  head_.reset();
  world_.run_for(3 * kLease);
  for (size_t i : {1u, 2u}) {
    EXPECT_TRUE(at(i).broken.empty()) << at(i).broken[0].message();
    EXPECT_THAT(at(i).left, ElementsAre(0));
    at(i).report(Status(Code::kWorkerLost, "nobody is there to hear it"));
    at(i).leave();
  }
  run_until([this] { return at(1).calls_of_done == 1 && at(2).calls_of_done == 1; }, kSlack);
  EXPECT_TRUE(at(1).broken.empty() && at(2).broken.empty());
}

// Whenever the last renewal came, also when it came just before.
TEST_F(MemberTest, TheHostOfTheHeadWaitsForWhoIsStoppedUntilTheOthersAreToldOfIt) {
  const Duration patience = Member::host_patience(kLease);
  for (int k = 0; k < 250; ++k) {  // over one heartbeat interval, in steps that the head would notice
    SCOPED_TRACE(k);
    workers_.clear();
    head_.reset();
    start_job(3, true);
    world_.run_for(3s + k * kLease / 1250);
    world_.pause(at(2).process);
    const Time start = world_.now();
    at(0).leave();
    run_until([this] { return at(0).calls_of_done == 1; }, patience + kSlack);
    EXPECT_LE((at(0).left_at - start).count(), (patience + kSlack).count());
    at(0).destroy();
    head_.reset();
    world_.run_for(kSlack);
    ASSERT_EQ(at(1).broken.size(), 1u);
    EXPECT_EQ(at(1).broken[0].rank(), 2);
    world_.resume(at(2).process);
  }
}

TEST_F(MemberTest, LeavingEndsWithinTheLeaseWhateverBecameOfTheHead) {
  start_job(2, false);
  world_.pause(head_->process);
  const Time start = world_.now();
  at(0).leave();
  run_until([this] { return at(0).calls_of_done == 1; }, kLease + kSlack);
  EXPECT_LE((at(0).left_at - start).count(), (kLease + kSlack).count());
  world_.kill(head_->process, Death::kReset);
  run_until([this] { return !at(1).broken.empty(); }, kSlack);
  at(1).leave(at(1).broken[0]);
  run_until([this] { return at(1).calls_of_done == 1; }, kSlack);
  world_.finish_killed(head_->process);
}

TEST_F(MemberTest, TheHostOfABrokenJobGoesWhenTheOthersKnowThoughNoneOfThemLeaves) {
  start_job(3, true);
  at(1).report(Status(Code::kAborted, "enough"));
  world_.run_for(1s);
  at(0).leave(at(0).broken[0]);
  run_until([this] { return at(0).calls_of_done == 1; }, kSlack);
  at(0).destroy();
  head_.reset();
  world_.run_for(2 * kLease);
  for (size_t i : {1u, 2u}) {
    ASSERT_EQ(at(i).broken.size(), 1u);
    EXPECT_EQ(at(i).broken[0].code(), Code::kAborted);
    at(i).leave(at(i).broken[0]);
  }
  run_until([this] { return at(1).calls_of_done == 1 && at(2).calls_of_done == 1; }, kSlack);
}

TEST_F(MemberTest, LeavingDoesNotWaitForAHeadThatDies) {
  start_job(2, false);
  world_.pause(head_->process);
  at(0).leave();
  world_.run_for(1s);
  EXPECT_EQ(at(0).calls_of_done, 0);
  world_.kill(head_->process, Death::kReset);
  run_until([this] { return at(0).calls_of_done == 1; }, kSlack);
  world_.finish_killed(head_->process);
}

TEST_F(MemberTest, TheNextJobBeginsAtTheSameAddress) {
  start_job(2, true);
  at(1).leave();
  run_until([this] { return at(1).calls_of_done == 1; }, kSlack);
  SimWorker& again = start_worker(1);  // comes while the first job's head still lives
  world_.run_for(2s);
  EXPECT_FALSE(again.joined.has_value());
  at(0).leave();
  run_until([this] { return at(0).calls_of_done == 1; }, kSlack);
  at(0).destroy();
  head_.reset();
  world_.run_for(1s);
  start_head(2, true);
  run_until([&] { return again.ok(); }, 2s);
}

}  // namespace
}  // namespace dsgd
