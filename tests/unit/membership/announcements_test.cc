#include "core/membership/announcements.h"

#include <gtest/gtest.h>

#include "tests/unit/membership/fakes.h"
#include "tests/unit/membership/job_table.h"

namespace dsgd {
namespace {

class AnnouncementsTest : public testing::Test {
 protected:
  AnnouncementsTest() {
    for (WorkerTable::Worker& worker : job_.workers) worker.control = &channel_;
  }
  uint64_t add(int32_t left) {
    transport::WatchReply reply;
    reply.left = left;
    return announcements_.add(reply);
  }
  Answer watch(size_t worker, uint64_t sequence) {
    Answer answer;
    EXPECT_TRUE(announcements_.watch(worker, sequence, answer.responder()).ok());
    return answer;
  }
  size_t kept() {
    transport::HeadRecord record;
    announcements_.write(&record);
    EXPECT_EQ(record.confirmed + record.news.size(), announcements_.last());
    return record.news.size();
  }

  JobTable job_{2};
  FakeChannel channel_{"w"};
  Announcements announcements_{job_.workers};
};

TEST_F(AnnouncementsTest, IsSentInOrderOnceItIsReleased) {
  Answer first = watch(0, 0);
  EXPECT_EQ(add(7), 1u);
  EXPECT_EQ(add(8), 2u);
  EXPECT_FALSE(first.given());
  announcements_.release(1);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first.message<transport::WatchReply>().left, 7);
  Answer second = watch(0, 1);
  EXPECT_FALSE(second.given());
  announcements_.release(2);
  EXPECT_EQ(second.message<transport::WatchReply>().left, 8);
  EXPECT_EQ(watch(1, 0).message<transport::WatchReply>().sequence, 1u) << "it asks late";
}

TEST_F(AnnouncementsTest, ThatIsNotDurableIsDropped) {
  add(7);
  announcements_.release(1);
  add(8);
  announcements_.drop_unreleased();
  EXPECT_EQ(announcements_.last(), 1u);
  EXPECT_EQ(add(9), 2u);
  announcements_.release(2);
  EXPECT_EQ(watch(0, 1).message<transport::WatchReply>().left, 9);
}

TEST_F(AnnouncementsTest, IsForgottenWhenAllWorkersHaveConfirmedIt) {
  add(7);
  add(8);
  announcements_.release(2);
  watch(0, 2);
  EXPECT_FALSE(announcements_.has_confirmed_all(1));
  EXPECT_EQ(kept(), 2u);
  watch(1, 1);
  EXPECT_EQ(kept(), 1u);
  Answer answer;
  EXPECT_EQ(announcements_.watch(1, 0, answer.responder()).code(), Code::kInvalidArgument) << "it is gone";
  EXPECT_EQ(announcements_.watch(1, 3, answer.responder()).code(), Code::kInvalidArgument)
      << "it is not there yet";
  job_.workers[1].control = nullptr;
  EXPECT_EQ(kept(), 0u) << "a worker that is gone confirms nothing";
}

TEST_F(AnnouncementsTest, IsForgottenWithoutARecord) {
  add(7);
  announcements_.release(1);
  watch(0, 1);
  EXPECT_TRUE(watch(1, 0).ok()) << "it has not heard it";
  watch(1, 1);
  Answer answer;
  EXPECT_EQ(announcements_.watch(1, 0, answer.responder()).code(), Code::kInvalidArgument) << "it is gone";
}

TEST_F(AnnouncementsTest, AnEvictedWorkerConfirmsNothing) {
  add(7);
  announcements_.release(1);
  watch(0, 1);
  EXPECT_EQ(kept(), 1u);
  job_.lose(1);
  EXPECT_EQ(kept(), 1u) << "it may ask for the cause that ends the job";
  job_.workers[1].eviction = Status(Code::kEvicted, "it was silent");
  EXPECT_EQ(kept(), 0u);
}

TEST_F(AnnouncementsTest, AWorkerThatHasLeftIsNotSentMore) {
  Answer parked = watch(0, 0), other = watch(1, 0);
  job_.workers[0].left = true;
  add(7);
  announcements_.release(1);
  EXPECT_FALSE(parked.given());
  EXPECT_TRUE(other.ok());
}

TEST_F(AnnouncementsTest, OnlyNewsWithoutMembersIsTheEndOfTheJob) {
  EXPECT_TRUE(announcements_.cause().ok());
  transport::WatchReply change;
  change.cause = Status(Code::kWorkerLost, "rank 1 was lost");
  change.members.resize(1);
  announcements_.add(change);
  EXPECT_TRUE(announcements_.cause().ok());
  change.members.clear();
  announcements_.add(change);
  EXPECT_EQ(announcements_.cause().code(), Code::kWorkerLost);
}

TEST_F(AnnouncementsTest, TheEndOfTheJobIsNotForgotten) {
  add(7);
  transport::WatchReply end;
  end.cause = Status(Code::kAborted, "test");
  announcements_.add(end);
  announcements_.release(2);
  for (size_t worker : {0, 1}) watch(worker, 2);
  EXPECT_EQ(kept(), 1u);
  EXPECT_EQ(announcements_.cause().code(), Code::kAborted);
  EXPECT_EQ(watch(0, 1).message<transport::WatchReply>().cause.code(), Code::kAborted);
}

}  // namespace
}  // namespace dsgd
