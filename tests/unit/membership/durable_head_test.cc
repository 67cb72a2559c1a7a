// A head with a store: what it tells is durable before, and another head goes on with its job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/membership/head.h"
#include "tests/unit/membership/fakes.h"

namespace dsgd {
namespace {

using testing::HasSubstr;
using transport::HeadRecord;
using transport::JoinReply;
using transport::Message;
using transport::Role;
using transport::WatchReply;

class FakeStore final : public ViewStore {
 public:
  bool holds() const override { return held; }
  void store(const HeadRecord& record, Done stored) override {
    EXPECT_FALSE(pending) << "one at a time";
    next = record;
    pending = std::move(stored);
  }
  void remove(Done done) override {
    removing = true;
    pending = std::move(done);
  }
  // Ends the call under way.
  void finish(const Status& status = {}) {
    ASSERT_TRUE(pending);
    if (status.ok()) record = removing ? HeadRecord() : next;
    std::exchange(pending, nullptr)(status);
  }
  void finish_all() {
    while (pending) finish();
  }

  HeadRecord next, record;
  bool removing = false, held = true;
  Done pending;
};

class DurableHeadTest : public testing::Test {
 protected:
  static constexpr transport::Duration kLeaseOfWorkers = 10s;

  struct Worker {
    explicit Worker(const std::string& id) : control(id), heartbeat(id, Role::kHeartbeat) {}
    FakeChannel control, heartbeat;
    Answer join, watch;
    JoinReply reply() const { return join.message<JoinReply>(); }
    int32_t number() const { return reply().members[static_cast<size_t>(reply().rank)].number; }
  };

  explicit DurableHeadTest(uint32_t least = 1, transport::Duration rejoin = {})
      : least_(least), rejoin_(rejoin) {
    make_head();
  }

  void make_head() {
    HeadOptions options{3, kLeaseOfWorkers};
    options.min_workers = least_;
    options.max_workers = 4;
    options.rejoin_timeout = rejoin_;
    options.head_timeout = 60s;
    options.job = "digits";
    store_ = std::make_unique<FakeStore>();
    head_ = std::make_unique<Head>(loop_, options, nullptr, store_.get());
    head_->on_end([this](const Status& status) { ends_.push_back(status); });
  }
  // The head is lost; another one has its record.
  void restart_head() {
    const HeadRecord record = store_->record;
    head_.reset();
    make_head();
    store_->record = record;
    head_->take_up(record);
  }

  Answer call(FakeChannel& channel, Message message) {
    Answer answer;
    head_->on_call(channel, std::move(message), answer.responder());
    return answer;
  }
  Worker& ask_to_join(const std::string& id, uint64_t incarnation) {
    workers_.push_back(std::make_unique<Worker>(id));
    Worker& worker = *workers_.back();
    EXPECT_TRUE(head_->on_open(worker.control).ok());
    transport::JoinRequest request;
    request.member.worker_id = id;
    request.member.host = request.member.machine = "node-" + id;
    request.num_workers = 3;
    request.min_workers = least_;
    request.max_workers = 4;
    request.rejoin_timeout = rejoin_;
    request.lease = kLeaseOfWorkers;
    request.incarnation = incarnation;
    worker.join = call(worker.control, request);
    return worker;
  }
  // w0, w1 and w2, which then watch.
  void begin() {
    for (int i = 0; i < 3; ++i) ask_to_join(name(i), incarnation(i));
    store_->finish();
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(at(i).join.ok());
      EXPECT_TRUE(at(i).reply().durable);
      EXPECT_TRUE(renew(i).ok());
      watch(i, 0);
    }
  }
  static std::string name(int i) { return std::string("w") + static_cast<char>('0' + i); }
  static uint64_t incarnation(int i) { return 100 + static_cast<uint64_t>(i); }
  Worker& at(int i) { return *workers_[static_cast<size_t>(i)]; }
  Answer renew(int i) { return call(at(i).heartbeat, transport::Renew{at(i).number(), at(i).reply().view}); }
  void watch(int i, uint64_t sequence) { at(i).watch = call(at(i).control, transport::Watch{sequence}); }
  WatchReply news(int i) { return at(i).watch.message<WatchReply>(); }

  // Over new connections, which the worker then uses.
  Answer come_back(int i) { return come_back(i, name(i)); }
  Answer come_back(int i, const std::string& id) {
    workers_.push_back(std::make_unique<Worker>(id));
    std::swap(workers_.back(), workers_[static_cast<size_t>(i)]);
    Worker& now = at(i);
    now.join = workers_.back()->join;
    for (FakeChannel* channel : {&now.control, &now.heartbeat}) {
      channel->claim(now.number(), now.reply().job_nonce);
      const Status opened = head_->on_open(*channel);
      EXPECT_TRUE(opened.ok()) << opened.message();
    }
    return call(now.control, transport::Return{now.number(), now.reply().view, incarnation(i)});
  }

  // In good order, in the first view.
  // w3 joins the running job, and asks for a view with it.
  void join_late() {
    ask_to_join(name(3), incarnation(3));
    store_->finish_all();
    call(at(3).control, transport::Enter{3, 1});
  }
  void leave(int i) {
    call(at(i).control, transport::Leave{i, 1, {}, 7});
    store_->finish_all();
    head_->on_close(at(i).heartbeat, {});
    head_->on_close(at(i).control, {});
    store_->finish_all();
  }
  // The first two workers come back, and for a while hear nothing after the first news.
  void expect_peace() {
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(come_back(i).ok());
      watch(i, 1);
    }
    for (int step = 0; step < 8; ++step) {
      for (int i = 0; i < 2; ++i) EXPECT_TRUE(renew(i).ok());
      loop_.advance(kLeaseOfWorkers / 2);
      store_->finish_all();
    }
    for (int i = 0; i < 2; ++i)
      EXPECT_FALSE(at(i).watch.given()) << (at(i).watch.ok() ? news(i).cause.message() : "");
    EXPECT_TRUE(ends_.empty());
  }

  const uint32_t least_;
  const transport::Duration rejoin_;
  FakeLoop loop_;
  std::unique_ptr<FakeStore> store_;
  std::unique_ptr<Head> head_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Status> ends_;
};

class FixedDurableHeadTest : public DurableHeadTest {
 protected:
  FixedDurableHeadTest() : DurableHeadTest(3) {}
};

class PausedDurableHeadTest : public DurableHeadTest {
 protected:
  PausedDurableHeadTest() : DurableHeadTest(3, 20s) {}
};

TEST_F(DurableHeadTest, NothingIsToldBeforeItIsStored) {
  for (int i = 0; i < 3; ++i) ask_to_join(name(i), incarnation(i));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(at(i).join.given());
  store_->finish();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(at(i).join.ok());
    watch(i, 0);
  }
  const Answer left = call(at(2).control, transport::Leave{2, 1, {}, 7});
  EXPECT_FALSE(left.given());
  EXPECT_FALSE(call(at(2).control, transport::Leave{2, 1, {}, 7}).given()) << "sent again";
  EXPECT_FALSE(at(0).watch.given());
  EXPECT_TRUE(renew(0).message<transport::RenewReply>().storing);
  store_->finish();
  EXPECT_FALSE(renew(0).message<transport::RenewReply>().storing);
  EXPECT_TRUE(left.ok());
  EXPECT_EQ(news(0).left, 2);
  watch(0, 1);
  head_->on_close(at(1).control, Status(Code::kWorkerLost, "reset"));
  EXPECT_FALSE(at(0).watch.given());
  store_->finish();
  EXPECT_EQ(news(0).view, 2u);
  EXPECT_EQ(news(0).members.size(), 1u);
}

TEST_F(DurableHeadTest, ASlowStoreLosesNoWorkerThatWaitsForItsAnswer) {
  for (int i = 0; i < 3; ++i) ask_to_join(name(i), incarnation(i));
  loop_.advance(3 * kLeaseOfWorkers);
  store_->finish();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(at(i).join.ok());
    EXPECT_TRUE(renew(i).ok());
  }
  ask_to_join(name(3), incarnation(3));
  for (int step = 0; step < 4; ++step) {
    loop_.advance(kLeaseOfWorkers / 2);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(renew(i).ok());
  }
  store_->finish();
  ASSERT_TRUE(at(3).join.ok());
  EXPECT_TRUE(renew(3).ok());
  EXPECT_FALSE(store_->pending);
}

TEST_F(DurableHeadTest, ChangesThatComeMeanwhileAreStoredTogetherAndToldInOrder) {
  begin();
  call(at(1).control, transport::Leave{1, 1, {}, 7});
  const HeadRecord first = store_->next;
  head_->on_close(at(2).control, Status(Code::kWorkerLost, "reset"));
  EXPECT_EQ(first.news.size(), 1u);
  store_->finish();
  EXPECT_EQ(news(0).left, 1);
  watch(0, 1);
  EXPECT_FALSE(at(0).watch.given());
  EXPECT_EQ(store_->next.view, 2u);
  store_->finish();
  EXPECT_EQ(news(0).members.size(), 1u);
  EXPECT_FALSE(store_->pending);
}

TEST_F(DurableHeadTest, AFailedStoreEndsTheJobWithItsCause) {
  begin();
  head_->on_close(at(2).control, Status(Code::kWorkerLost, "reset"));
  store_->finish(Status(Code::kIo, "cannot write '/state/head.new': No space left on device"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(news(i).cause.code(), Code::kIo);
    EXPECT_THAT(news(i).cause.message(), HasSubstr("`head_state`"));
    EXPECT_THAT(news(i).cause.message(), HasSubstr("'/state/head.new': No space left"));
    EXPECT_TRUE(news(i).members.empty()) << "the view was not stored";
  }
  loop_.advance(2 * kLeaseOfWorkers);
  EXPECT_TRUE(store_->removing);
  store_->finish();
  loop_.advance(1ms);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].code(), Code::kIo);
}

TEST_F(DurableHeadTest, AStoreThatTakesLongerThanTheEndStillTellsTheCause) {
  for (const bool fails : {false, true}) {
    make_head();
    workers_.clear();
    begin();
    call(at(2).control, transport::Leave{2, 1, {}, 7});  // is being stored
    const Status aborted = Status(Code::kAborted, "rank 1 aborted the job").with_rank(1);
    const Answer reported = call(at(1).control, transport::Report{1, 1, aborted});
    loop_.advance(kLeaseOfWorkers + 1ms);
    EXPECT_FALSE(store_->removing);
    EXPECT_FALSE(at(0).watch.given());
    store_->finish(fails ? Status(Code::kIo, "the disk failed") : Status());
    if (!fails) {
      EXPECT_EQ(news(0).left, 2);
      watch(0, 1);
      store_->finish();
    }
    ASSERT_TRUE(at(0).watch.given());
    EXPECT_EQ(news(0).cause.code(), Code::kAborted);
    EXPECT_TRUE(reported.ok());
    EXPECT_TRUE(store_->removing);
    store_->finish();
  }
}

// The workers that have trained have closed their sessions while it joined.
TEST_F(DurableHeadTest, AFailedStoreAtAGoodEndTellsAWorkerThatHasJoinedWhy) {
  begin();
  ask_to_join(name(3), incarnation(3));
  store_->finish_all();
  EXPECT_FALSE(call(at(3).control, transport::Enter{3, 1}).given());
  store_->finish_all();
  leave(0);
  leave(1);
  call(at(2).control, transport::Leave{2, 1, {}, 7});
  store_->finish(Status(Code::kIo, "the disk failed"));
  Status told;
  for (uint64_t heard = at(3).reply().sequence; told.ok(); ++heard) {
    watch(3, heard);
    ASSERT_TRUE(at(3).watch.given());
    if (news(3).members.empty()) told = news(3).cause;
  }
  EXPECT_EQ(told.code(), Code::kWorkerLost);
  EXPECT_THAT(told.message(), HasSubstr("have closed their sessions while this one joined"));
}

TEST_F(DurableHeadTest, AJobWhoseFirstViewCannotBeStoredDoesNotBegin) {
  for (int i = 0; i < 3; ++i) ask_to_join(name(i), incarnation(i));
  store_->finish(Status(Code::kIo, "the disk failed"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(at(i).join.status().code(), Code::kState) << "final: the worker does not try again";
    EXPECT_THAT(at(i).join.status().message(), HasSubstr("the disk failed"));
  }
}

TEST_F(DurableHeadTest, AWorkerWhoseConnectionBreaksBeforeItsAnswerAsksAgain) {
  for (int i = 0; i < 3; ++i) ask_to_join(name(i), incarnation(i));
  head_->on_close(at(1).control, Status(Code::kWorkerLost, "reset"));
  Worker& again = ask_to_join(name(1), incarnation(1));
  store_->finish_all();
  EXPECT_TRUE(again.join.ok()) << again.join.status().message();
  EXPECT_EQ(again.reply().rank, 1);
  loop_.advance(kLeaseOfWorkers / 2);
  head_->on_close(at(0).control, Status(Code::kWorkerLost, "reset"));  // and does not ask again
  watch(2, 0);
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(call(at(2).heartbeat, transport::Renew{2, 1}).ok());
    EXPECT_TRUE(call(again.heartbeat, transport::Renew{1, 1}).ok());
    loop_.advance(kLeaseOfWorkers / 3);
  }
  store_->finish_all();
  ASSERT_TRUE(at(2).watch.given());
  EXPECT_EQ(news(2).members.size(), 2u);
}

// w0, w1 and w2 have the job's state and close their sessions while w3 has entered the view without it.
TEST_F(DurableHeadTest, AnotherHeadKnowsThatTheJobHasEndedWell) {
  for (const bool ended : {false, true}) {
    make_head();
    workers_.clear();
    begin();
    join_late();
    leave(0);
    leave(1);
    if (!ended) {
      restart_head();  // the next one sees the last worker leave
      for (int i : {2, 3}) EXPECT_TRUE(come_back(i).ok());
    }
    leave(2);
    if (ended) restart_head();
    const transport::StatusReply status =
        call(at(3).control, transport::StatusRequest{}).message<transport::StatusReply>();
    EXPECT_EQ(status.state, transport::StatusReply::State::kEnding);
    loop_.advance(2 * kLeaseOfWorkers);
    store_->finish_all();
    loop_.advance(1ms);
    ASSERT_FALSE(ends_.empty());
    EXPECT_TRUE(ends_.back().ok()) << ends_.back().message();
    ends_.clear();
  }
}

TEST_F(DurableHeadTest, AGoodEndThatAllHaveConfirmedStaysInTheRecord) {
  begin();
  join_late();
  store_->finish_all();
  for (int i = 0; i < 3; ++i) {
    call(at(i).control, transport::Leave{i, 2, {}, 7});
    store_->finish_all();
  }
  call(at(3).control, transport::ReportCut{3, 1, Status(Code::kWorkerLost, "closed"), 2});
  store_->finish_all();
  for (uint64_t sequence = 0; sequence <= 5; ++sequence) watch(3, sequence);
  transport::Progress progress;
  progress.number = 3;
  progress.view = 1;
  progress.holds_state = true;  // stores the record
  call(at(3).control, progress);
  store_->finish_all();
  restart_head();
  EXPECT_EQ(call(at(3).control, transport::StatusRequest{}).message<transport::StatusReply>().state,
            transport::StatusReply::State::kEnding);
  loop_.advance(2 * kLeaseOfWorkers);
  store_->finish_all();
  loop_.advance(1ms);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(ends_[0].ok()) << ends_[0].message();
}

// It is lost after the workers with the state have left, and asks then.
TEST_F(DurableHeadTest, AWorkerWithoutTheStateHearsWhyTheJobHasEnded) {
  begin();
  join_late();
  store_->finish_all();
  watch(3, at(3).reply().sequence);
  for (int i = 0; i < 3; ++i) {
    call(at(i).control, transport::Leave{i, 2, {}, 7});
    store_->finish_all();
  }
  head_->on_close(at(3).control, Status(Code::kWorkerLost, "reset"));
  const Answer back = come_back(3);
  EXPECT_EQ(back.status().code(), Code::kWorkerLost);
  EXPECT_THAT(back.status().message(), HasSubstr("have closed their sessions while this one joined"));
}

TEST_F(DurableHeadTest, AnotherHeadTakesUpTheViewAndTellsWhatWasNotHeard) {
  begin();
  head_->on_close(at(2).control, Status(Code::kWorkerLost, "reset"));
  store_->finish_all();
  watch(0, 1);  // rank 1 has not heard it
  restart_head();
  EXPECT_TRUE(come_back(0).ok());
  EXPECT_TRUE(come_back(1).ok());
  EXPECT_TRUE(renew(0).ok());
  watch(0, 1);
  watch(1, 0);
  EXPECT_FALSE(at(0).watch.given()) << "told twice";
  EXPECT_EQ(news(1).view, 2u);
  EXPECT_EQ(news(1).sequence, 1u);
  const Answer evicted = come_back(2);
  EXPECT_EQ(evicted.status().code(), Code::kEvicted);
}

TEST_F(DurableHeadTest, AWorkerThatDoesNotComeBackWithinALeaseIsLost) {
  begin();
  restart_head();
  EXPECT_TRUE(come_back(0).ok());
  EXPECT_TRUE(come_back(1).ok());
  watch(0, 0);
  for (int i = 0; i < 4; ++i) {
    loop_.advance(kLeaseOfWorkers * 3 / 8);
    EXPECT_TRUE(renew(0).ok());
    EXPECT_TRUE(renew(1).ok());
    if (i < 2) {
      EXPECT_FALSE(at(0).watch.given());
    }
  }
  store_->finish_all();
  EXPECT_EQ(news(0).members.size(), 2u);
  EXPECT_EQ(come_back(2).status().code(), Code::kEvicted);
}

// Perhaps the workers cannot reach this head, and another one with its record can still serve them.
TEST_F(FixedDurableHeadTest, AHeadToWhichNoWorkerComesBackKeepsTheJobForHeadTimeout) {
  begin();
  restart_head();
  loop_.advance(60s);
  EXPECT_FALSE(store_->pending) << "neither stored nor removed";
  EXPECT_TRUE(ends_.empty());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(come_back(i).ok()) << i;
  restart_head();
  loop_.advance(60s + 3 * kLeaseOfWorkers);
  store_->finish_all();
  loop_.advance(2 * kLeaseOfWorkers);
  store_->finish_all();
  loop_.advance(1ms);
  EXPECT_TRUE(store_->removing);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].code(), Code::kWorkerLost);
  EXPECT_THAT(ends_[0].message(), HasSubstr("no worker has come back for 70.1 s (head_timeout = 60.0 s)"));
}

TEST_F(PausedDurableHeadTest, AHeadToWhichNoWorkerComesBackKeepsAPausedJobAsLong) {
  begin();
  head_->on_close(at(2).control, Status(Code::kWorkerLost, "reset"));
  store_->finish_all();
  restart_head();
  loop_.advance(50s);
  EXPECT_FALSE(store_->pending) << "neither stored nor removed";
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(come_back(i).ok()) << i;
  watch(0, 1);
  for (int step = 0; step < 5; ++step) {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(renew(i).ok());
    loop_.advance(kLeaseOfWorkers / 2);
    store_->finish_all();
  }
  ASSERT_TRUE(at(0).watch.given());
  EXPECT_THAT(news(0).cause.message(), HasSubstr("within 20.0 s (rejoin_timeout)"));
}

// Fewer than min_workers are in the view then, but nothing waits for others to join.
TEST_F(FixedDurableHeadTest, WorkersThatHaveLeftInGoodOrderAreNotMissedByAnotherHead) {
  begin();
  leave(2);
  restart_head();
  expect_peace();
}

TEST_F(PausedDurableHeadTest, WorkersThatHaveLeftInGoodOrderAreNotMissedByAnotherHead) {
  begin();
  leave(2);
  restart_head();
  expect_peace();
  const transport::StatusReply status =
      call(at(0).control, transport::StatusRequest{}).message<transport::StatusReply>();
  EXPECT_EQ(status.state, transport::StatusReply::State::kRunning);
}

TEST_F(DurableHeadTest, OnceAWorkerHasComeBackTheOthersHaveALease) {
  begin();
  restart_head();
  loop_.advance(55s);
  EXPECT_TRUE(come_back(0).ok());
  watch(0, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(renew(0).ok());
    loop_.advance(kLeaseOfWorkers / 2);
  }
  store_->finish_all();
  EXPECT_EQ(news(0).members.size(), 1u);
  EXPECT_EQ(come_back(1).status().code(), Code::kEvicted);
}

TEST_F(DurableHeadTest, TheRecordForgetsAllButTheNewestWorkersThatWereLost) {
  begin();
  for (int i = 3; i < 103; ++i) {
    ask_to_join("late" + std::to_string(i), incarnation(i));
    store_->finish();
    ASSERT_EQ(at(i).number(), i);
    watch(i, at(i).reply().sequence);
    head_->on_close(at(i).control, Status(Code::kWorkerLost, "reset"));
    store_->finish();
  }
  EXPECT_EQ(store_->record.joined, 103u);
  EXPECT_EQ(store_->record.workers.size(), 3u + 64u);
  restart_head();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(come_back(i, name(i)).ok());
  for (int i : {3, 102}) {
    const Answer back = come_back(i, "late" + std::to_string(i));
    EXPECT_EQ(back.status().code(), Code::kEvicted);
    EXPECT_THAT(back.status().message(), HasSubstr("was evicted from"));
    EXPECT_EQ(renew(i).status().code(), Code::kEvicted);
    const uint64_t joined = at(i).reply().view;
    const Status cut(Code::kUnreachable, "no answer");
    const std::vector<Message> messages = {transport::Watch{0}, transport::Enter{i, joined},
                                           transport::Report{i, joined, cut},
                                           transport::ReportCut{i, joined, cut, 1}};
    for (const Message& message : messages)
      EXPECT_FALSE(call(at(i).control, message).ok()) << message.index();
    transport::Leave leave;
    leave.number = i;
    leave.view = joined;
    EXPECT_EQ(call(at(i).heartbeat, leave).status().code(), Code::kEvicted);
  }
  const transport::StatusReply status =
      call(at(0).control, transport::StatusRequest{}).message<transport::StatusReply>();
  EXPECT_EQ(status.workers.size(), 3u + 64u);
  EXPECT_EQ(status.view, 1u) << "they have changed nothing";
  ask_to_join("late102", 999);
  EXPECT_EQ(workers_.back()->join.status().code(), Code::kExists);
  ask_to_join("late3", 1000);  // a new worker
  store_->finish();
  ASSERT_TRUE(workers_.back()->join.ok()) << workers_.back()->join.status().message();
  EXPECT_EQ(workers_.back()->number(), 103);
  EXPECT_EQ(store_->record.workers.size(), 3u + 64u + 1u);
}

TEST_F(DurableHeadTest, OnlyAWorkerOfTheJobComesBack) {
  begin();
  restart_head();
  FakeChannel other("w1");
  other.claim(1, "another job");
  EXPECT_EQ(head_->on_open(other).code(), Code::kState);
  FakeChannel stranger("w9");
  stranger.claim(1, at(1).reply().job_nonce);
  EXPECT_EQ(head_->on_open(stranger).code(), Code::kState);
  FakeChannel unproved("w1");  // as a worker that asks to join
  EXPECT_TRUE(head_->on_open(unproved).ok());
  EXPECT_EQ(call(unproved, transport::Return{1, 1, incarnation(1)}).status().code(), Code::kState);
  FakeChannel again("w1");
  again.claim(1, at(1).reply().job_nonce);
  EXPECT_TRUE(head_->on_open(again).ok());
  EXPECT_EQ(call(again, transport::Return{1, 1, 99}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(call(again, transport::Return{1, 2, incarnation(1)}).status().code(), Code::kState);
  EXPECT_TRUE(call(again, transport::Return{1, 1, incarnation(1)}).ok());
}

// A head that was stopped reads a Return, and then the end of its connection: the worker did not get the
// answer in time, and dials again.
TEST_F(DurableHeadTest, AWorkerThatGivesUpAReturnMakesAnotherOneAndIsNotLost) {
  begin();
  EXPECT_TRUE(come_back(1).ok());
  head_->on_close(at(1).control, Status(Code::kWorkerLost, "reset"));
  store_->finish_all();
  EXPECT_FALSE(at(0).watch.given()) << news(0).cause.message();
  EXPECT_TRUE(renew(1).ok());
  EXPECT_TRUE(come_back(1).ok());
  watch(1, 0);
  head_->on_close(at(1).control, Status(Code::kWorkerLost, "reset"));  // from now on it is a loss
  store_->finish_all();
  EXPECT_EQ(news(0).members.size(), 2u);
}

TEST_F(DurableHeadTest, AWorkerThatLostTheReplyToItsJoinAsksAgain) {
  for (int i = 0; i < 3; ++i) ask_to_join(name(i), incarnation(i));
  store_->finish();
  const JoinReply lost = at(1).reply();
  restart_head();
  Worker& again = ask_to_join("w1", incarnation(1));
  store_->finish_all();
  ASSERT_TRUE(again.join.ok()) << again.join.status().message();
  EXPECT_EQ(again.reply().rank, lost.rank);
  EXPECT_EQ(again.reply().view, lost.view);
  EXPECT_EQ(again.reply().job_nonce, lost.job_nonce);
  EXPECT_EQ(again.reply().members.size(), 3u);
  Worker& other = ask_to_join("w1", 555);
  EXPECT_EQ(other.join.status().code(), Code::kExists);
}

// Its connection breaks before it gets its answer.
TEST_F(DurableHeadTest, ALearnerThatAsksAgainAfterTheEndIsRefused) {
  for (const bool breaks : {false, true}) {
    for (const bool other_head : {false, true}) {
      SCOPED_TRACE(std::string(breaks ? "broken" : "all have left") + (other_head ? ", another head" : ""));
      make_head();
      workers_.clear();
      begin();
      ask_to_join(name(3), incarnation(3));
      head_->on_close(at(3).control, Status(Code::kWorkerLost, "reset"));
      if (breaks) {
        call(at(1).control, transport::Report{1, 1, Status(Code::kAborted, "test").with_rank(1, "node-w1")});
        store_->finish_all();
      } else {
        for (int i = 0; i < 3; ++i) leave(i);
      }
      if (other_head) restart_head();
      const Answer asked = ask_to_join(name(3), incarnation(3)).join;
      store_->finish_all();
      ASSERT_TRUE(asked.given());
      EXPECT_EQ(asked.status().code(), Code::kUnreachable) << "another job may begin at this address";
      EXPECT_THAT(asked.status().message(), HasSubstr(breaks ? "is ending (test)" : "is ending"));
    }
  }
}

TEST_F(DurableHeadTest, ABrokenJobIsBrokenThoughAllHaveHeardItAndALearnerAsksAgain) {
  begin();
  ask_to_join(name(3), incarnation(3));
  head_->on_close(at(3).control, Status(Code::kWorkerLost, "reset"));
  call(at(1).control, transport::Report{1, 1, Status(Code::kAborted, "test").with_rank(1, "node-w1")});
  store_->finish_all();
  for (int i = 0; i < 3; ++i) watch(i, 1);
  ask_to_join(name(3), incarnation(3));
  call(at(2).control, transport::Leave{2, 1, {}, 7});  // stores the record
  store_->finish_all();
  restart_head();
  const auto status = call(at(0).control, transport::StatusRequest{}).message<transport::StatusReply>();
  EXPECT_EQ(status.state, transport::StatusReply::State::kFailed);
  EXPECT_EQ(status.cause.code(), Code::kAborted);
}

TEST_F(DurableHeadTest, ALearnerComesBackAndEnters) {
  begin();
  ask_to_join(name(3), incarnation(3));
  EXPECT_FALSE(at(3).join.given());
  store_->finish();
  ASSERT_TRUE(at(3).reply().learner);
  restart_head();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(come_back(i).ok());
  watch(0, 0);
  Answer entered = call(at(3).control, transport::Enter{3, 1});
  EXPECT_FALSE(entered.given());
  store_->finish_all();
  EXPECT_TRUE(entered.ok());
  EXPECT_EQ(news(0).members.size(), 4u);
  restart_head();
  EXPECT_TRUE(come_back(3).ok());
  EXPECT_TRUE(call(at(3).control, transport::Enter{3, 1}).ok()) << "sent again, since the answer was lost";
  EXPECT_FALSE(store_->pending);
  watch(3, 0);
  EXPECT_EQ(news(3).view, 2u);
}

TEST_F(FixedDurableHeadTest, AJobThatHasEndedLeavesNoRecord) {
  begin();
  restart_head();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(come_back(i).ok());
    const Answer left = call(at(i).control, transport::Leave{i, 1, {}, 7});
    store_->finish_all();
    EXPECT_TRUE(left.ok());
    EXPECT_TRUE(call(at(i).control, transport::Leave{i, 1, {}, 7}).ok()) << "sent again";
    head_->on_close(at(i).control, {});
  }
  EXPECT_TRUE(store_->removing);
  loop_.advance(1ms);
  EXPECT_TRUE(ends_.empty()) << "the record is still there";
  store_->finish_all();
  loop_.advance(1ms);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(ends_[0].ok());
}

TEST_F(FixedDurableHeadTest, ABrokenJobIsBrokenForAnotherHead) {
  begin();
  head_->on_close(at(2).control, Status(Code::kWorkerLost, "reset"));
  store_->finish();
  restart_head();
  EXPECT_TRUE(come_back(0).ok());
  watch(0, 0);
  EXPECT_EQ(news(0).cause.code(), Code::kWorkerLost);
  EXPECT_EQ(news(0).cause.rank(), 2);
}

// Another head may have taken up the job, with all of its workers.
TEST_F(DurableHeadTest, AHeadThatMayHaveLostTheJobEvictsNoWorker) {
  begin();
  store_->held = false;
  head_->on_close(at(2).control, Status(Code::kWorkerLost, "reset"));
  loop_.advance(3 * kLeaseOfWorkers);
  EXPECT_FALSE(store_->pending);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(at(i).watch.given()) << i;
  EXPECT_TRUE(renew(2).ok());
}

TEST_F(DurableHeadTest, AHeadThatHasLostTheJobClosesAllConnectionsAndTellsNothing) {
  begin();
  Worker& late = ask_to_join("late", 7);
  EXPECT_TRUE(store_->pending);
  FakeChannel stranger("stranger");
  EXPECT_TRUE(head_->on_open(stranger).ok());
  head_->stand_down(Status(Code::kWorkerLost, "another head serves"));
  loop_.advance(1ms);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].code(), Code::kWorkerLost);
  EXPECT_EQ(ends_[0].message(), "another head serves");
  for (FakeChannel* channel : {&at(0).control, &at(0).heartbeat, &at(2).control, &late.control, &stranger}) {
    EXPECT_TRUE(channel->closed) << channel->hello().worker_id;
    head_->on_close(*channel, {});
  }
  EXPECT_FALSE(late.join.given());
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(at(i).watch.given()) << i;
  FakeChannel newer("w1", Role::kHeartbeat);
  EXPECT_FALSE(call(newer, transport::Renew{1, 1}).given());
  EXPECT_TRUE(newer.closed);
  loop_.advance(3 * kLeaseOfWorkers);
  EXPECT_EQ(ends_.size(), 1u);
  EXPECT_FALSE(store_->removing) << "the record is the other head's";
}

TEST_F(DurableHeadTest, AHeadThatHasLostAnAbortedJobLeavesClosedConnectionsAlone) {
  for (int i = 0; i < 2; ++i) ask_to_join(name(i), incarnation(i));
  call(at(0).control, transport::Leave{-1, 0, Status(Code::kAborted, "aborted by the program"), 0});
  EXPECT_EQ(at(1).join.status().code(), Code::kAborted);
  head_->on_close(at(0).control, {});
  head_->stand_down(Status(Code::kWorkerLost, "another head serves"));
  EXPECT_FALSE(at(0).control.closed);
  EXPECT_TRUE(at(1).control.closed);
}

TEST_F(FixedDurableHeadTest, AJobThatWasOverEndsAsItHasThoughTheLeaseIsLost) {
  begin();
  for (int i = 0; i < 3; ++i) {
    call(at(i).control, transport::Leave{i, 1, {}, 7});
    store_->finish_all();
    head_->on_close(at(i).control, {});
  }
  ASSERT_TRUE(store_->removing);
  head_->stand_down(Status(Code::kWorkerLost, "another head serves"));
  loop_.advance(1ms);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(ends_[0].ok());
}

TEST_F(DurableHeadTest, AHeadThatHearsNoWorkerWaitsForHeadTimeout) {
  begin();
  loop_.advance(59s);
  EXPECT_FALSE(at(0).watch.given());
  EXPECT_TRUE(renew(0).ok()) << "they hear each other again";
}

}  // namespace
}  // namespace dsgd
