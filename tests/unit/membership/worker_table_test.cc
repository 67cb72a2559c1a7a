#include "core/membership/worker_table.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/membership/job_table.h"

namespace dsgd {
namespace {

TEST(WorkerTable, AMessageComesFromTheWorkerOfItsConnectionWithItsNumberAndView) {
  JobTable job(2);
  WorkerTable::Worker* const sender = &job.workers[1];
  EXPECT_EQ(job.workers.check_sender(sender, 1, 1).value(), sender);
  EXPECT_EQ(job.workers.check_sender(nullptr, 1, 1).status().code(), Code::kState);
  EXPECT_EQ(job.workers.check_sender(sender, 0, 1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(job.workers.check_sender(sender, 1, 2).status().code(), Code::kState);
  sender->eviction = Status(Code::kEvicted, "evicted");
  EXPECT_EQ(job.workers.check_sender(sender, 1, 1).status().code(), Code::kEvicted);
}

TEST(WorkerTable, RanksOfAViewFollowTheNumbersOfTheWorkersThatAreLeft) {
  JobTable job(4, 1);
  job.workers.set_host(job.workers[3]);
  job.lose(1);
  const transport::WatchReply change = job.workers.members_in_view();
  job.workers.enter_view(change.members);
  EXPECT_EQ(job.workers.view(), 2u);
  EXPECT_EQ(change.head_rank, 2);
  std::vector<int32_t> ranks;
  for (const WorkerTable::Worker& worker : job.workers) ranks.push_back(worker.info.rank);
  EXPECT_EQ(ranks, (std::vector<int32_t>{0, 1, 1, 2})) << "a lost worker keeps its last rank";
  WorkerTable::Worker& learner = job.add();
  learner.learner = true;
  const transport::JoinReply late = job.workers.join_reply(learner),
                             first = job.workers.join_reply(job.workers[3]);
  EXPECT_EQ(late.view, 2u);
  EXPECT_EQ(late.rank, 3);
  EXPECT_EQ(late.members.size(), 4u);
  EXPECT_EQ(first.view, 1u);
  EXPECT_EQ(first.rank, 3);
  EXPECT_EQ(first.head_rank, 3);
  EXPECT_EQ(first.members.size(), 4u);
}

TEST(WorkerTable, AJobIsEndingOnceOneMoreWorkerWouldNotBeEnough) {
  struct Case {
    const char* name;
    uint32_t least;
    std::vector<size_t> left;
    int32_t host;
    bool waits, ending;
  };
  for (const Case& c : {
           Case{"none has left", 2, {}, -1, false, false},
           Case{"views do not change", 4, {0}, -1, false, true},
           Case{"enough", 2, {0}, -1, false, false},
           Case{"enough with one more", 2, {0, 1, 2}, -1, false, false},
           Case{"too few", 3, {0, 1, 2}, -1, false, true},
           Case{"a paused view has a member", 3, {0, 1, 2}, -1, true, false},
           Case{"all", 1, {0, 1, 2, 3}, -1, true, true},
           Case{"the host of the head", 1, {2}, 2, false, true},
       }) {
    SCOPED_TRACE(c.name);
    JobTable job(4, c.least);
    if (c.host >= 0) job.workers.set_host(job.workers[static_cast<size_t>(c.host)]);
    for (const size_t worker : c.left) job.workers[worker].left = true;
    EXPECT_EQ(job.workers.is_ending(c.waits), c.ending);
  }
}

TEST(WorkerTable, AnotherHeadKnowsTheWorkersOfTheRecordAndThatTheOthersWereLost) {
  JobTable job(2, 1, 100);
  for (int i = 0; i < 65; ++i) {
    job.add();
    job.lose(job.workers.size() - 1);
  }
  job.lose(1);
  transport::HeadRecord record;
  job.workers.write(&record);
  EXPECT_EQ(record.joined, 67u);
  ASSERT_EQ(record.workers.size(), 66u) << "without the oldest one that joined late and was lost";
  EXPECT_EQ(record.workers[2].info.number, 3);

  JobTable next(0, 1, 100);
  next.workers.read(record);
  ASSERT_EQ(next.workers.size(), 67u);
  EXPECT_TRUE(next.workers[0].connects());
  EXPECT_FALSE(next.workers[1].connects()) << "it was lost";
  EXPECT_TRUE(next.workers[2].is_forgotten());
  EXPECT_EQ(next.workers.check_sender(&next.workers[2], 2, 1).status().code(), Code::kEvicted);
}

}  // namespace
}  // namespace dsgd
