#include "core/membership/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/membership/fakes.h"

namespace dsgd {
namespace {

using testing::HasSubstr;

transport::JoinRequest request_of(const std::string& id, int32_t rank, uint32_t num_workers, int64_t pid) {
  transport::JoinRequest request;
  request.member.worker_id = id;
  request.member.rank = rank;
  request.member.host = "node" + id;
  request.member.machine = "boot-" + id;
  request.member.pid = pid;
  request.num_workers = num_workers;
  return request;
}

class RendezvousTest : public testing::Test {
 protected:
  Status admit(Rendezvous& rendezvous, transport::JoinRequest request) {
    channels_.push_back(std::make_unique<FakeChannel>(request.member.worker_id));
    Rendezvous::Candidate candidate{std::move(request), channels_.back().get(), {}};
    replaced_ = {};
    return rendezvous.admit(candidate, &replaced_);
  }
  std::vector<std::unique_ptr<FakeChannel>> channels_;
  Rendezvous::Candidate replaced_;
};

TEST_F(RendezvousTest, RanksFollowWishesThenIdsAndNotTheOrderOfComing) {
  struct Case {
    const char* name;
    std::vector<std::pair<std::string, int32_t>> comers;  // id, rank asked for
    std::vector<std::string> by_rank;
  };
  const std::vector<Case> cases = {
      {"one", {{"a", -1}}, {"a"}},
      {"ids", {{"c", -1}, {"a", -1}, {"b", -1}}, {"a", "b", "c"}},
      {"ids, another order", {{"b", -1}, {"c", -1}, {"a", -1}}, {"a", "b", "c"}},
      {"all ask", {{"a", 2}, {"b", 0}, {"c", 1}}, {"b", "c", "a"}},
      {"some ask", {{"d", -1}, {"c", 0}, {"b", -1}, {"a", 2}}, {"c", "b", "a", "d"}},
      {"the last rank", {{"a", 1}, {"b", -1}}, {"b", "a"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto size = static_cast<uint32_t>(c.comers.size());
    Rendezvous rendezvous(size);
    for (const auto& [id, rank] : c.comers) {
      EXPECT_FALSE(rendezvous.complete());
      ASSERT_TRUE(admit(rendezvous, request_of(id, rank, size, 1)).ok());
    }
    ASSERT_TRUE(rendezvous.complete());
    auto by_rank = rendezvous.take_by_rank();
    ASSERT_EQ(by_rank.size(), c.by_rank.size());
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      EXPECT_EQ(by_rank[rank].request.member.worker_id, c.by_rank[rank]);
      EXPECT_EQ(by_rank[rank].request.member.rank, static_cast<int32_t>(rank));
    }
  }
}

TEST_F(RendezvousTest, RefusesWithAMessageThatNamesThingValueAndRemedy) {
  struct Case {
    const char* name;
    transport::JoinRequest request;
    Code code;
    std::vector<std::string> says;
  };
  transport::JoinRequest no_id = request_of("", -1, 3, 7);
  transport::JoinRequest second_head = request_of("x", -1, 3, 7);
  second_head.hosts_head = true;
  const std::vector<Case> cases = {
      {"no id", no_id, Code::kInvalidArgument, {"pid 7", "`worker_id`"}},
      {"other size",
       request_of("x", -1, 5, 7),
       Code::kMismatch,
       {"'x'", "num_workers = 5", "num_workers = 3"}},
      {"rank too large",
       request_of("x", 3, 3, 7),
       Code::kInvalidArgument,
       {"'x'", "rank 3", "0..2", "`rank`"}},
      {"rank too small", request_of("x", -2, 3, 7), Code::kInvalidArgument, {"rank -2", "0..2"}},
      {"rank taken", request_of("x", 1, 3, 7), Code::kExists, {"rank 1", "'x'", "'a' (host nodea, pid 42)"}},
      {"id taken, other pid",
       request_of("a", -1, 3, 7),
       Code::kExists,
       {"'a'", "host nodea", "pid 42", "`worker_id`"}},
      {"second head", second_head, Code::kExists, {"'x'", "'a'", "head"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Rendezvous rendezvous(3);
    transport::JoinRequest holder = request_of("a", 1, 3, 42);
    holder.hosts_head = true;
    ASSERT_TRUE(admit(rendezvous, holder).ok());
    const std::string before = rendezvous.progress();
    const Status status = admit(rendezvous, c.request);
    EXPECT_EQ(status.code(), c.code);
    for (const std::string& text : c.says) EXPECT_THAT(status.message(), HasSubstr(text));
    EXPECT_EQ(rendezvous.progress(), before);
    EXPECT_EQ(replaced_.channel, nullptr);
  }
}

TEST_F(RendezvousTest, TheSameWorkerTakesItsOwnPlaceAgain) {
  Rendezvous rendezvous(2);
  ASSERT_TRUE(admit(rendezvous, request_of("a", 0, 2, 42)).ok());
  const auto* first = channels_[0].get();
  ASSERT_TRUE(admit(rendezvous, request_of("a", 1, 2, 42)).ok());
  EXPECT_EQ(replaced_.channel, first);
  EXPECT_FALSE(rendezvous.complete());
  EXPECT_FALSE(rendezvous.holds(*first));
  transport::MemberInfo gone;
  EXPECT_FALSE(rendezvous.remove(*first, &gone));  // the old connection's end frees nothing
  EXPECT_TRUE(rendezvous.holds(*channels_[1]));
  ASSERT_TRUE(admit(rendezvous, request_of("b", 0, 2, 1)).ok());
  EXPECT_TRUE(rendezvous.complete());
}

TEST_F(RendezvousTest, AWorkerThatVanishesFreesItsPlaceItsIdAndItsRank) {
  Rendezvous rendezvous(2);
  ASSERT_TRUE(admit(rendezvous, request_of("a", 1, 2, 42)).ok());
  transport::MemberInfo gone;
  ASSERT_TRUE(rendezvous.remove(*channels_[0], &gone));
  EXPECT_EQ(gone.worker_id, "a");
  EXPECT_TRUE(admit(rendezvous, request_of("a", 1, 2, 43)).ok());
}

TEST_F(RendezvousTest, ProgressSaysWhoHasComeAndWhichRanksAreMissing) {
  Rendezvous rendezvous(4);
  EXPECT_EQ(rendezvous.progress(), "0 of 4 workers have joined");
  ASSERT_TRUE(admit(rendezvous, request_of("a", 2, 4, 42)).ok());
  EXPECT_EQ(rendezvous.progress(),
            "1 of 4 workers have joined: 'a' (host nodea, pid 42); missing: rank 0, 1, 3");
  ASSERT_TRUE(admit(rendezvous, request_of("b", -1, 4, 43)).ok());
  EXPECT_EQ(rendezvous.progress(),
            "2 of 4 workers have joined: 'a' (host nodea, pid 42), 'b' (host nodeb, pid 43)");
}

TEST_F(RendezvousTest, ProgressSaysWhoWasTurnedAway) {
  Rendezvous rendezvous(2);
  rendezvous.note_refused("worker 'x' has a wrong token");
  EXPECT_EQ(rendezvous.progress(), "0 of 2 workers have joined; refused: 1 (worker 'x' has a wrong token)");
  rendezvous.note_refused(std::string(398, 'a') + "\u00e4\u00e4");
  EXPECT_EQ(rendezvous.progress(),
            "0 of 2 workers have joined; refused: 2 (last: " + std::string(398, 'a') + "\u00e4)");
}

TEST_F(RendezvousTest, ProgressOfALargeJobStaysReadable) {
  Rendezvous rendezvous(1000);
  ASSERT_TRUE(admit(rendezvous, request_of("a", 0, 1000, 42)).ok());
  EXPECT_THAT(rendezvous.progress(), HasSubstr("missing: rank 1, 2, 3"));
  EXPECT_THAT(rendezvous.progress(), HasSubstr("15, 16 and 983 more"));
}

}  // namespace
}  // namespace dsgd
