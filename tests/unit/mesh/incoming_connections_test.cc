#include "core/mesh/incoming_connections.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/mesh/peers.h"
#include "tests/unit/membership/fakes.h"

namespace dsgd {
namespace {

constexpr uint64_t kOfLearner = std::numeric_limits<uint64_t>::max();  // the view in a learner's Hello

transport::JoinReply view_of(uint64_t number, std::initializer_list<const char*> workers) {
  transport::JoinReply view;
  view.view = number;
  view.rank = 0;
  view.job_nonce = "nonce";
  for (const char* worker : workers) view.members.emplace_back().worker_id = worker;
  return view;
}

// Connections to worker a.
struct Worker {
  explicit Worker(bool views_change = true) { options.views_change = views_change; }
  void enter(uint64_t number, std::initializer_list<const char*> workers) {
    members = Members(view_of(number, workers));
    connections.change_view();
  }

  FakeLoop loop;
  PeerOptions options;
  Members members{view_of(1, {"a", "b"})};
  IncomingConnections connections{loop, options, members, std::make_shared<Log>()};
};

struct Connection : FakeChannel {
  Connection(const char* worker, uint64_t view) : FakeChannel(worker, transport::Role::kPeer) {
    claim(1, "nonce");
    in_view(view);
  }
};

TEST(IncomingConnections, AWorkerThatJoinsKeepsItsConnectionUntilItIsTakenOut) {
  Worker worker;
  worker.connections.open();
  Connection learner("c", kOfLearner);
  ASSERT_TRUE(worker.connections.admit(learner).ok());
  EXPECT_EQ(worker.connections.find(learner)->rank, -1);
  worker.enter(2, {"a"});
  EXPECT_FALSE(learner.closed) << "it may join any later view";
  worker.enter(3, {"a", "c"});
  ASSERT_TRUE(worker.connections.find(learner));
  EXPECT_EQ(worker.connections.find(learner)->rank, 1);
  worker.enter(4, {"a"});
  EXPECT_TRUE(learner.closed);
  EXPECT_FALSE(worker.connections.find(learner));
}

TEST(IncomingConnections, OnlyWorkersOfThisAndOfLaterViewsAreAdmitted) {
  Worker worker;
  worker.connections.open();
  Connection peer("b", 1), later("d", 2), earlier("e", 1), other_job("b", 1);
  other_job.claim(1, "another");
  EXPECT_TRUE(worker.connections.admit(peer).ok());
  EXPECT_TRUE(worker.connections.admit(later).ok());
  EXPECT_EQ(worker.connections.admit(earlier).code(), Code::kMismatch);
  EXPECT_EQ(worker.connections.admit(other_job).code(), Code::kMismatch);
  worker.enter(2, {"a", "d"});
  EXPECT_TRUE(peer.closed);
  EXPECT_FALSE(later.closed);
}

TEST(IncomingConnections, NewcomersAreRefusedWhereViewsDoNotChange) {
  Worker worker(false);
  worker.connections.open();
  Connection learner("c", kOfLearner);
  EXPECT_EQ(worker.connections.admit(learner).code(), Code::kMismatch);
}

TEST(IncomingConnections, TheOneThatItsWorkerUsesClosesItsOtherAttempts) {
  Worker worker;
  worker.connections.open();
  Connection first("b", 1), second("b", 1), third("b", 1);
  EXPECT_TRUE(worker.connections.admit(first).ok());
  EXPECT_TRUE(worker.connections.admit(second).ok());
  worker.connections.note_use(second);
  EXPECT_TRUE(first.closed);
  EXPECT_FALSE(second.closed);
  EXPECT_EQ(worker.connections.admit(third).code(), Code::kExists);
}

// Fills receive_memory with what came early. Returns the number of messages that were kept.
size_t fill(Worker& worker, Connection& peer) {
  size_t kept = 0;
  for (bool refused = false; !refused; kept += refused ? 0 : 1) {
    Answer answer;
    worker.connections.keep(peer, transport::HasBegun{.view = 9}, answer.responder());
    refused = answer.given();
    EXPECT_TRUE(!refused || answer.status().code() == Code::kLimit) << answer.status().message();
  }
  return kept;
}

TEST(IncomingConnections, EarlyMessagesTakeNoMoreThanReceiveMemory) {
  Worker worker;
  worker.options.receive_memory = 1 << 20;
  worker.connections.open();
  Connection peer("b", 1), again("b", 1);
  ASSERT_TRUE(worker.connections.admit(peer).ok());
  const size_t kept = fill(worker, peer);
  EXPECT_GT(kept, 100u);
  EXPECT_LE(kept * sizeof(IncomingConnections::Early), worker.options.receive_memory);
  EXPECT_EQ(fill(worker, peer), 0u);
  EXPECT_EQ(worker.connections.take_early().size(), kept);
  EXPECT_EQ(fill(worker, peer), kept) << "what was taken takes no more memory";
  worker.connections.remove(peer);
  ASSERT_TRUE(worker.connections.admit(again).ok());
  EXPECT_EQ(fill(worker, again), kept) << "nor does what was dropped";
}

struct Chunk final : transport::BulkReceipt {
  explicit Chunk(size_t nbytes) : bytes(nbytes) {}
  std::span<const std::byte> data() const override { return bytes; }
  void finish(const Status&) override {}
  std::vector<std::byte> bytes;
};

// The windows of all peers together are no larger, so chunks of a correct worker are never refused.
TEST(IncomingConnections, EarlyChunksMayFillReceiveMemory) {
  Worker worker;
  worker.options.receive_memory = 1 << 20;
  worker.connections.open();
  Connection peer("b", 1);
  ASSERT_TRUE(worker.connections.admit(peer).ok());
  for (size_t kept = 0; kept < worker.options.receive_memory; kept += 2048)
    worker.connections.keep(peer, {}, std::make_unique<Chunk>(2048));
  EXPECT_EQ(worker.connections.take_early().size(), worker.options.receive_memory / 2048);
  const size_t least = worker.options.receive_memory / sizeof(IncomingConnections::Early);
  for (size_t i = 0; i < 2 * least; ++i) worker.connections.keep(peer, {}, std::make_unique<Chunk>(1));
  EXPECT_LE(worker.connections.take_early().size(), least) << "small ones take memory, too";
}

TEST(IncomingConnections, EarlyMessagesEndWithTheirConnection) {
  Worker worker;
  Connection first("b", 1), second("b", 1);
  for (Connection* each : {&first, &second}) ASSERT_TRUE(worker.connections.admit(*each).ok());
  worker.connections.note_use(first);
  worker.connections.open();
  Answer of_first, of_second;
  worker.connections.keep(first, transport::HasBegun{.view = 9}, of_first.responder());
  worker.connections.note_use(second);
  EXPECT_TRUE(first.closed);
  EXPECT_TRUE(of_first.given());
  worker.connections.keep(second, transport::HasBegun{.view = 9}, of_second.responder());
  worker.connections.remove(second);
  EXPECT_TRUE(of_second.given());
  EXPECT_TRUE(worker.connections.take_early().empty());
}

TEST(IncomingConnections, StrangersThatCameBeforeTheViewWasKnownAreClosed) {
  Worker worker;
  Connection peer("b", 1), stranger("x", 1);
  EXPECT_TRUE(worker.connections.admit(peer).ok());
  EXPECT_TRUE(worker.connections.admit(stranger).ok());
  worker.connections.open();
  EXPECT_FALSE(peer.closed);
  EXPECT_TRUE(stranger.closed);
}

}  // namespace
}  // namespace dsgd
