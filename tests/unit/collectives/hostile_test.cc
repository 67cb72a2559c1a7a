// A peer that breaks the rules: it has the right hello, and sends chunks that no worker of dsgd would send.
// The operation fails with an error that names it, nothing outside the chunk's place is written (the
// sanitizers watch), and the next operation works.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/collectives/all_reduce.h"
#include "core/collectives/broadcast.h"
#include "core/collectives/direct.h"
#include "core/collectives/exchange.h"
#include "core/collectives/range_transfers.h"
#include "core/membership/probe.h"
#include "core/mesh/mesh.h"
#include "core/reduce/kernels.h"
#include "transport/schema/codec.h"
#include "transport/sim/world.h"

namespace dsgd {
namespace {

using namespace std::chrono_literals;
using transport::BulkHeader;
using transport::ClientChannel;

constexpr size_t kCount = 200'000;  // floats: slices larger than a small chunk
constexpr uint64_t kFirst = operation_number(1, 0);
const std::string kJobNonce = "nonce of the job";
constexpr uint64_t kFar = ~uint64_t{0} - 3;

// The victim, rank 0 of 2, with a mesh of its own.
class Victim final : public SessionEvents, public transport::AcceptHandler {
 public:
  Victim(transport::SimWorld& world, transport::ProcessId process)
      : environment_(world.environment(process)) {
    network_ = std::move(environment_->new_network("victim", 64 << 20)).value();
    MeshOptions options;
    options.receive_memory = 64 << 20;
    options.hello.worker_id = "w0";
    options.probe = [this](const transport::MemberInfo& peer, transport::Time deadline,
                           std::function<void(const Status&)> done) {
      probe(*network_, {}, {}, peer.addresses, deadline, std::move(done));
    };
    mesh = std::make_unique<Mesh>(*network_, options, *this, std::make_shared<Log>());
    listener_ = std::move(network_->listen("victim:7000", this)).value();
  }
  ~Victim() override {
    listener_.reset();
    mesh->drop_channels();
    network_.reset();
  }
  void open() {
    transport::JoinReply view;
    view.view = 1;
    view.rank = 0;
    view.job_nonce = kJobNonce;
    view.members = {{0, "w0", "victim", "m0", {"victim:7000"}, 1},
                    {1, "w1", "attacker", "m1", {"attacker:7000"}, 2}};
    loop().post([this, view] { opened = mesh->open(view).ok(); });
  }
  const std::string& token() const override { return token_; }
  Result<Decision> on_hello(const transport::Hello&, const std::string&) override {
    return Decision{network_.get(), &mesh->peers};
  }
  Status on_wrong_token(const transport::Hello&, const std::string&) override {
    return Status(Code::kUnauthorized, "no");
  }
  transport::Network& network() { return *network_; }
  void on_peer_failure(int32_t rank, const Status& why) override { failures.emplace_back(rank, why); }
  void on_peer_unreachable(int32_t rank, const Status& why, const Status&, bool) override {
    failures.emplace_back(rank, why);
  }
  void on_peer_departed(int32_t rank) override { left.push_back(rank); }
  void on_object(transport::Message message, transport::Responder respond) override {
    objects.push_back(std::get<transport::PutObject>(message).name);
    respond(transport::Message(transport::Empty{}));
  }
  transport::Loop& loop() { return network_->loop(); }

  std::unique_ptr<Mesh> mesh;
  bool opened = false;
  std::vector<std::pair<int32_t, Status>> failures;
  std::vector<std::string> objects;
  std::vector<int32_t> left;

 private:
  const std::string token_;
  std::unique_ptr<transport::Environment> environment_;
  std::unique_ptr<transport::Network> network_;
  std::unique_ptr<transport::Listener> listener_;
};

// Takes what the victim sends, and sends what it likes.
class Attacker final : public transport::ServerHandler, public transport::AcceptHandler {
 public:
  Attacker(transport::SimWorld& world, transport::ProcessId process)
      : environment_(world.environment(process)) {
    network_ = std::move(environment_->new_network("attacker", 64 << 20)).value();
    listener_ = std::move(network_->listen("attacker:7000", this)).value();
  }
  ~Attacker() override {
    listener_.reset();
    channel.reset();
    network_.reset();
  }
  void dial(const std::string& worker_id) {
    claim(worker_id, kJobNonce, [this](Result<std::unique_ptr<ClientChannel>> result) {
      if (result.ok()) channel = std::move(result).value();
    });
  }
  // To be rank 1.
  void claim(const std::string& worker_id, const std::string& job_nonce,
             std::function<void(Result<std::unique_ptr<ClientChannel>>)> done) {
    network_->loop().post([this, worker_id, job_nonce, done] {
      transport::DialOptions options;
      options.hello.role = transport::Role::kPeer;
      options.hello.worker_id = worker_id;
      options.hello.rank = 1;
      options.hello.view = 1;
      options.hello.job_nonce = job_nonce;
      options.closed = [this](const Status& why) { closed = why; };
      options.refused = [this](uint64_t, const Status& why) { answers.push_back(why); };
      network_->dial("victim:7000", options, done);
    });
  }
  void drop(std::vector<std::unique_ptr<ClientChannel>>& channels) {
    auto gone = std::make_shared<std::vector<std::unique_ptr<ClientChannel>>>(std::move(channels));
    network_->loop().post([gone] { gone->clear(); });
  }
  void send(BulkHeader header, std::vector<std::byte> data, bool as_span) {
    header.source = 1;
    header.view = 1;
    send_as_it_is(header, std::move(data), as_span);
  }
  void send_as_it_is(const BulkHeader& header, std::vector<std::byte> data, bool as_span) {
    auto held = std::make_shared<std::vector<std::byte>>(std::move(data));
    network_->loop().post([this, header, held, as_span] {
      auto done = [this, held](const Status& status) { answers.push_back(status); };
      as_span ? channel->send(header, *held, done) : channel->send_small(header, *held, nullptr);
    });
  }
  void call(transport::Message message, std::function<void(const Result<transport::Message>&)> done) {
    network_->loop().post([this, message, done] { channel->call(message, transport::kNever, done); });
  }
  const std::string& token() const override { return token_; }
  Result<Decision> on_hello(const transport::Hello&, const std::string&) override {
    return Decision{network_.get(), this};
  }
  Status on_wrong_token(const transport::Hello&, const std::string&) override {
    return Status(Code::kUnauthorized, "no");
  }
  void on_call(transport::ServerChannel&, transport::Message, transport::Responder respond) override {
    respond(transport::Message(transport::Empty{}));
  }
  void on_bulk_end(transport::ServerChannel&, const BulkHeader&,
                   std::unique_ptr<transport::BulkReceipt> receipt) override {
    receipt->finish({});
  }
  void on_close(transport::ServerChannel&, const Status&) override {}

  std::unique_ptr<ClientChannel> channel;
  std::optional<Status> closed;
  std::vector<Status> answers;

 private:
  const std::string token_;
  std::unique_ptr<transport::Environment> environment_;
  std::unique_ptr<transport::Network> network_;
  std::unique_ptr<transport::Listener> listener_;
};

class HostilePeer : public testing::Test {
 protected:
  HostilePeer()
      : world(3),
        victim(std::make_unique<Victim>(world, world.start_process("victim"))),
        attacker_process(world.start_process("attacker")),
        attacker(std::make_unique<Attacker>(world, attacker_process)),
        data(kCount, 1.0f) {}

  void run_until(const std::function<bool()>& predicate) {
    ASSERT_TRUE(world.run_until(predicate, world.now() + 60s));
  }
  void open() {
    victim->open();
    run_until([&] { return victim->opened; });
  }
  void connect() {
    attacker->dial("w1");
    run_until([&] { return attacker->channel != nullptr; });
  }
  static BulkHeader shape(uint64_t operation, Kind kind, Algorithm algorithm) {
    BulkHeader header;
    header.view = 1;
    header.operation = operation;
    header.kind = static_cast<uint8_t>(kind);
    header.algorithm = static_cast<uint8_t>(algorithm);
    header.dtype = static_cast<uint8_t>(DType::kFloat32);
    header.count = kCount;
    return header;
  }
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(data)); }
  std::unique_ptr<Task> make(const std::string& algorithm, uint64_t operation) {
    auto done = [this](const Status& status) { ended = status; };
    Operations& operations = victim->mesh->operations;
    if (algorithm == "broadcast") {
      BulkHeader header = shape(operation, Kind::kBroadcast, Algorithm::kChain);
      header.root = 1;
      return std::make_unique<Broadcast>(operations, header, bytes(), done);
    }
    if (algorithm == "exchange") {
      return std::make_unique<Exchange>(operations, shape(operation, Kind::kBarrier, Algorithm::kOneHop),
                                        std::vector<std::byte>(16),
                                        [this](const Status& s, const auto&) { ended = s; });
    }
    if (algorithm == "range transfers") {
      const std::vector<RangeTransfer> transfers = {{1, 0, bytes().data(), kCount * sizeof(float)},
                                                    {0, 1, bytes().data(), 64}};
      return std::make_unique<RangeTransfers>(operations, shape(operation, Kind::kView, Algorithm::kDirect),
                                              transfers, done);
    }
    auto write = [](int32_t rank, int32_t, uint64_t count, std::vector<Transfer>* transfers) {
      *transfers = {{TransferKind::kSend, 0, 1 - rank, 0, count},
                    {TransferKind::kReduce, 0, 1 - rank, 0, count}};
      return Status();
    };
    AlgorithmChoice choice = registered_all_reduce("registered", write);
    for (const AlgorithmChoice& row : built_in_all_reduces()) {
      if (row->name == algorithm) choice = row;
    }
    EXPECT_EQ(choice->name, algorithm);
    AllReducePlan plan;
    plan.count = kCount;
    plan.data = bytes().data();
    return make_all_reduce(operations, shape(operation, Kind::kAllReduce, Algorithm::kAuto), choice, plan,
                           done)
        .value();
  }
  void begin(const std::string& algorithm, uint64_t operation) {
    ended.reset();
    victim->loop().post([this, algorithm, operation] {
      auto task = make(algorithm, operation);
      header = task->shape();
      victim->mesh->operations.add(std::move(task), transport::kNever);
    });
    run_until([&] { return header.operation == operation; });
  }

  transport::SimWorld world;
  std::unique_ptr<Victim> victim;
  transport::ProcessId attacker_process;
  std::unique_ptr<Attacker> attacker;
  std::vector<float> data;
  BulkHeader header;
  std::optional<Status> ended;
};

using Dialled = Result<std::unique_ptr<ClientChannel>>;

TEST_F(HostilePeer, AClaimWithoutTheJobsNonceIsRefusedAndDoesNotHarmTheRealWorker) {
  open();
  connect();
  begin("exchange", kFirst);
  for (const auto& [worker_id, job_nonce] :
       {std::pair{"w1", ""}, {"w1", "of another job"}, {"w2", kJobNonce.c_str()}}) {
    std::optional<Status> refused;
    attacker->claim(worker_id, job_nonce, [&](const Dialled& result) { refused = result.status(); });
    run_until([&] { return refused.has_value(); });
    EXPECT_EQ(refused->code(), Code::kMismatch) << refused->message();
  }
  world.run_for(30s);
  EXPECT_TRUE(victim->failures.empty()) << victim->failures[0].second.message();
  attacker->send(header, std::vector<std::byte>(16), false);
  run_until([&] { return ended.has_value(); });
  EXPECT_TRUE(ended->ok()) << ended->message();
}

// The worker's attempts to connect overlap. It uses one, and closes the others, of which the victim may hear
// before or after the first message.
TEST_F(HostilePeer, AttemptsThatAWorkerGivesUpDoNotHarmTheConnectionThatItUses) {
  open();
  std::vector<std::unique_ptr<ClientChannel>> attempts;
  for (int i = 0; i < 4; ++i) {
    attacker->claim("w1", kJobNonce, [&](Dialled result) {
      ASSERT_TRUE(result.ok()) << result.status().message();
      attempts.push_back(std::move(result).value());
    });
  }
  run_until([&] { return attempts.size() == 4; });
  std::vector<std::unique_ptr<ClientChannel>> before, after;
  before.push_back(std::move(attempts[0]));
  attacker->channel = std::move(attempts[1]);
  after.push_back(std::move(attempts[2]));
  after.push_back(std::move(attempts[3]));
  attacker->drop(before);
  begin("exchange", kFirst);
  world.run_for(1s);
  EXPECT_TRUE(victim->failures.empty()) << victim->failures[0].second.message();
  attacker->send(header, std::vector<std::byte>(16), false);
  run_until([&] { return ended.has_value(); });
  EXPECT_TRUE(ended->ok()) << ended->message();
  attacker->drop(after);
  world.run_for(30s);
  EXPECT_TRUE(victim->failures.empty()) << victim->failures[0].second.message();
}

// As when the attempt was accepted and given up in a cut, in which the worker left.
TEST_F(HostilePeer, ADepartureWithAnUnusedConnectionIsNoLoss) {
  open();
  connect();
  victim->loop().post([this] { victim->mesh->peers.note_departure(1, 0); });
  world.run_for(1s);
  attacker->channel.reset();
  world.run_for(60s);
  EXPECT_TRUE(victim->failures.empty()) << victim->failures[0].second.message();
  EXPECT_EQ(victim->left, std::vector<int32_t>{1});
}

TEST_F(HostilePeer, ASecondConnectionOfAWorkerIsRefusedAndDoesNotHarmTheFirst) {
  open();
  connect();
  begin("exchange", kFirst);
  BulkHeader early = shape(operation_number(5, 0), Kind::kBarrier, Algorithm::kOneHop);
  attacker->send(early, std::vector<std::byte>(16), false);
  world.run_for(1s);
  std::optional<Status> refused;
  attacker->claim("w1", kJobNonce, [&](const Dialled& result) { refused = result.status(); });
  run_until([&] { return refused.has_value(); });
  EXPECT_EQ(refused->code(), Code::kExists) << refused->message();
  EXPECT_NE(refused->message().find("rank 1"), std::string::npos) << refused->message();
  world.run_for(30s);
  EXPECT_TRUE(victim->failures.empty()) << victim->failures[0].second.message();
  attacker->send(header, std::vector<std::byte>(16), false);
  run_until([&] { return ended.has_value(); });
  EXPECT_TRUE(ended->ok()) << ended->message();
}

// Before the view is known the claims cannot be told apart.
TEST_F(HostilePeer, AFalseClaimBeforeTheViewIsKnownDoesNotHarmTheRealWorker) {
  std::vector<std::unique_ptr<ClientChannel>> claims;
  for (const char* job_nonce : {"", "of another job"}) {
    attacker->claim("w1", job_nonce, [&](Dialled result) {
      ASSERT_TRUE(result.ok()) << result.status().message();
      claims.push_back(std::move(result).value());
    });
  }
  run_until([&] { return claims.size() == 2; });
  connect();
  open();
  begin("exchange", kFirst);
  world.run_for(30s);
  EXPECT_TRUE(victim->failures.empty()) << victim->failures[0].second.message();
  attacker->send(header, std::vector<std::byte>(16), false);
  run_until([&] { return ended.has_value(); });
  EXPECT_TRUE(ended->ok()) << ended->message();
}

// Its sender can no longer be checked.
TEST_F(HostilePeer, AChunkOfAFalseClaimIsNotTakenWhenItsConnectionEndsBeforeTheViewIsKnown) {
  std::unique_ptr<ClientChannel> claim;
  std::vector<std::byte> lie(16, std::byte{7});
  BulkHeader foreign = shape(kFirst, Kind::kBarrier, Algorithm::kOneHop);
  foreign.source = 1;
  attacker->claim("w1", "", [&](Dialled result) {
    ASSERT_TRUE(result.ok()) << result.status().message();
    claim = std::move(result).value();
    claim->send_small(foreign, lie, nullptr);
  });
  run_until([&] { return claim != nullptr; });
  world.run_for(1s);
  std::vector<std::unique_ptr<ClientChannel>> claims;
  claims.push_back(std::move(claim));
  attacker->drop(claims);
  world.run_for(1s);
  EXPECT_EQ(victim->network().counters().pooled_bytes, 0u);
  connect();
  open();
  begin("exchange", kFirst);
  world.run_for(1s);
  EXPECT_FALSE(ended.has_value()) << "the chunk was taken for one of rank 1";
  attacker->send(header, std::vector<std::byte>(16), false);
  run_until([&] { return ended.has_value(); });
  EXPECT_TRUE(ended->ok()) << ended->message();
}

// 40 connections that all claimed rank 1 held 2.3 GB.
TEST_F(HostilePeer, ManyConnectionsThatClaimOneRankStayWithinTheReceiveMemory) {
  constexpr size_t kClaims = 40, kChunk = 16 << 20, kReceiveMemory = 64 << 20;
  for (const bool opened : {false, true}) {
    SCOPED_TRACE(opened ? "after the view is known" : "before");
    if (opened) open();
    std::vector<std::unique_ptr<ClientChannel>> claims;
    const std::vector<std::byte> chunk(kChunk);
    size_t dialled = 0;
    for (size_t i = 0; i < kClaims; ++i) {
      attacker->claim("w1", opened ? kJobNonce : std::to_string(i), [&](Dialled result) {
        ++dialled;
        if (!result.ok()) return;
        claims.push_back(std::move(result).value());
        BulkHeader foreign = shape(kFirst + dialled, Kind::kBarrier, Algorithm::kOneHop);
        foreign.source = 1;
        claims.back()->send(foreign, chunk, [](const Status&) {});
      });
    }
    run_until([&] { return dialled == kClaims; });
    world.run_for(10s);
    EXPECT_GE(claims.size(), 1u);
    EXPECT_LE(claims.size(), opened ? size_t{RepeatedDial::kAttempts} : 4u);
    EXPECT_LE(victim->network().counters().pooled_peak, kReceiveMemory);
    attacker->drop(claims);
    world.run_for(1s);
  }
}

struct Chunk {
  const char* name;
  uint16_t phase;
  uint64_t offset;
  size_t nbytes;
  bool as_span;  // else small
};

TEST_F(HostilePeer, ChunksOutsideOfWhatWasAgreedFailTheOperationAndName) {
  open();
  connect();
  const std::vector<Chunk> chunks = {
      {"empty", 0, 0, 0, false},
      {"empty, as a span", 0, 0, 0, true},
      {"empty, far away", 0, kFar, 0, true},
      {"far away", 0, kFar, 1 << 17, true},
      {"far away and small", 0, kFar, 64, false},
      {"at an odd place", 0, 2, 1 << 17, true},
      {"longer than agreed", 0, 0, kCount * sizeof(float) + 64, true},
      {"shorter than agreed", 0, 0, (1 << 17) - 64, true},
      {"behind the end", 0, kCount * sizeof(float), 1 << 17, true},
      {"of a phase that does not exist", 65535, 0, 1 << 17, true},
      {"of a phase that does not exist, empty", 65535, kFar, 0, false},
      {"of the next phase, far away", 1, kFar, 1 << 17, true},
      {"of the next phase, empty", 1, 0, 0, false},
  };
  uint64_t call = 0;
  for (const char* algorithm :
       {"direct", "halving_doubling", "ring", "registered", "broadcast", "exchange", "range transfers"}) {
    for (const Chunk& chunk : chunks) {
      // Refused by the others but right here: an exchange takes an empty part, and a worker that is no root
      // an announcement.
      if (std::string(algorithm) == "exchange" && chunk.offset == 0 && chunk.nbytes == 0) continue;
      SCOPED_TRACE(std::string(algorithm) + ": a chunk " + chunk.name);
      begin(algorithm, operation_number(++call, 0));
      BulkHeader bad = header;
      bad.phase = chunk.phase;
      bad.offset = chunk.offset;
      attacker->send(bad, std::vector<std::byte>(chunk.nbytes), chunk.as_span);
      run_until([&] { return ended.has_value(); });
      ASSERT_FALSE(ended->ok());
      EXPECT_EQ(ended->rank(), 1) << ended->message();
      EXPECT_NE(ended->message().find("'w1'"), std::string::npos) << ended->message();
    }
  }
  // Nothing of it stays: an honest operation comes to its end.
  begin("exchange", operation_number(++call, 0));
  attacker->send(header, std::vector<std::byte>(16), false);
  run_until([&] { return ended.has_value(); });
  EXPECT_TRUE(ended->ok()) << ended->message();
  EXPECT_TRUE(victim->failures.empty());
}

TEST_F(HostilePeer, ChunksOfAnotherViewOrAnotherWorkerAreRefusedAndChangeNothing) {
  open();
  connect();
  uint64_t call = 0;
  for (const bool begun : {true, false}) {
    for (const bool as_span : {true, false}) {
      for (const auto& [view, source] : {std::pair{uint64_t{2}, 1},
                                         {uint64_t{0}, 1},
                                         {uint64_t{1}, 0},
                                         {uint64_t{1}, 2},
                                         {uint64_t{1}, -1}}) {
        SCOPED_TRACE("view " + std::to_string(view) + ", rank " + std::to_string(source) +
                     (begun ? ", begun" : "") + (as_span ? ", as a span" : ""));
        const uint64_t operation = operation_number(++call, 0);
        if (begun) begin("exchange", operation);
        BulkHeader foreign = shape(operation, Kind::kBarrier, Algorithm::kOneHop);
        foreign.view = view;
        foreign.source = source;
        attacker->answers.clear();
        attacker->send_as_it_is(foreign, std::vector<std::byte>(16), as_span);
        run_until([&] { return !attacker->answers.empty(); });
        EXPECT_EQ(attacker->answers[0].code(), Code::kMismatch) << attacker->answers[0].message();
        if (!begun) begin("exchange", operation);
        EXPECT_FALSE(ended.has_value());
        attacker->send(header, std::vector<std::byte>(16), false);
        run_until([&] { return ended.has_value(); });
        EXPECT_TRUE(ended->ok()) << ended->message();
      }
    }
  }
  EXPECT_TRUE(victim->failures.empty());
}

TEST_F(HostilePeer, WhatIsTooLongForAnExchangeFailsAtOnce) {
  open();
  connect();
  victim->loop().post([this] {
    victim->mesh->operations.add(
        std::make_unique<Exchange>(victim->mesh->operations,
                                   shape(kFirst, Kind::kBarrier, Algorithm::kOneHop),
                                   std::vector<std::byte>(transport::kSmallBytes + 1),
                                   [this](const Status& s, const auto&) { ended = s; }),
        transport::kNever);
  });
  run_until([&] { return ended.has_value(); });
  EXPECT_NE(ended->message().find("65537 bytes"), std::string::npos) << ended->message();
}

TEST_F(HostilePeer, AChunkThatComesTwiceFailsTheOperation) {
  open();
  connect();
  begin("ring", kFirst);
  BulkHeader twice = header;
  twice.offset = balanced_slices(kCount, 2)[1] * sizeof(float);
  const size_t nbytes = (kCount - balanced_slices(kCount, 2)[1]) * sizeof(float);
  ASSERT_LE(nbytes, victim->mesh->peers.chunk_bytes());
  for (int i = 0; i < 2; ++i) attacker->send(twice, std::vector<std::byte>(nbytes), true);
  run_until([&] { return ended.has_value(); });
  EXPECT_EQ(ended->rank(), 1) << ended->message();
}

TEST_F(HostilePeer, FailuresWithoutCauseOrFromNobodyAreIgnoredAndForeignObjectsRefused) {
  open();
  connect();
  begin("exchange", kFirst);
  const Status cause(Code::kAborted, "nonsense");
  std::vector<std::pair<transport::Message, bool>> messages = {
      {transport::OperationFailed{1, 1, kFirst, Status()}, true},
      {transport::SessionFailed{1, 1, Status()}, true},
      {transport::OperationFailed{1, 7, kFirst, cause}, true},
      {transport::SessionFailed{1, -1, cause}, true},
      {transport::SessionFailed{1, 0, cause}, true},
      {transport::OperationFailed{2, 1, kFirst, cause}, true},
      {transport::SessionFailed{2, 1, cause}, true},
      {transport::HasBegun{2, 1, kFirst}, true},
      {transport::HasBegun{1, 7, kFirst}, true},
      {transport::HasBegun{1, 1, operation_number(9, 0)}, false},
      {transport::PutObject{2, 1, "x", 0, 1, {1}}, false},
      {transport::DeleteObject{1, 7, "x", 0}, false},
      {transport::JoinRequest{}, false}};
  size_t answered = 0;
  for (const auto& [message, accepted] : messages) {
    attacker->call(message, [&answered, accepted = accepted](const Result<transport::Message>& answer) {
      EXPECT_EQ(answer.ok(), accepted);
      ++answered;
    });
  }
  run_until([&] { return answered == messages.size(); });
  EXPECT_FALSE(ended.has_value()) << ended->message();
  EXPECT_TRUE(victim->failures.empty());
  attacker->send(header, std::vector<std::byte>(16), false);
  run_until([&] { return ended.has_value(); });
  EXPECT_TRUE(ended->ok()) << ended->message();
}

// The answer depends on the rank of this worker: rank 0 deletes objects.
TEST_F(HostilePeer, ObjectsAreHandledOnceTheViewIsKnownAndForeignOnesRefused) {
  connect();
  size_t answered = 0;
  const auto call = [&](transport::Message message, bool accepted) {
    attacker->call(std::move(message), [&answered, accepted](const Result<transport::Message>& answer) {
      EXPECT_EQ(answer.ok(), accepted) << answer.status().message();
      ++answered;
    });
  };
  call(transport::PutObject{1, 1, "first", 0, 1, {1}}, true);
  call(transport::FetchObject{2, 1, "of another view", 0, 0}, false);
  call(transport::PutObject{1, 1, "second", 0, 1, {1}}, true);
  call(transport::JoinRequest{}, false);  // it is answered at once
  run_until([&] { return answered == 1; });
  EXPECT_TRUE(victim->objects.empty());
  open();
  run_until([&] { return answered == 4; });
  EXPECT_EQ(victim->objects, (std::vector<std::string>{"first", "second"}));
}

// The head has heard that it leaves; then its machine died, with what it had sent to us.
TEST_F(HostilePeer, ADepartedPeerIsAwaitedForTwoLeases) {
  open();
  connect();
  begin("exchange", kFirst);
  victim->loop().post([this] { victim->mesh->peers.note_departure(1, 0); });
  world.run_for(19s);
  EXPECT_TRUE(victim->left.empty());
  world.run_for(2s);
  EXPECT_TRUE(victim->failures.empty());
  EXPECT_EQ(victim->left, std::vector<int32_t>{1});
}

TEST_F(HostilePeer, AGoodbyeAfterTheHeadsNewsIsNoLoss) {
  open();
  connect();
  begin("exchange", kFirst);
  victim->loop().post([this] { victim->mesh->peers.note_departure(1, 0); });
  world.run_for(9s);
  attacker->send(header, std::vector<std::byte>(16), false);
  attacker->call(transport::Goodbye{1, 1, {}}, [](const auto&) {});
  world.run_for(100ms);
  attacker->channel.reset();
  world.run_for(60s);
  EXPECT_TRUE(ended && ended->ok());
  EXPECT_TRUE(victim->failures.empty());
}

TEST_F(HostilePeer, AWorkerThatIsWaitedForIsUnreachableWhenItDoesNotAnswerForALease) {
  open();
  connect();
  begin("exchange", kFirst);
  world.run_for(60s);
  EXPECT_TRUE(victim->failures.empty()) << "it answers, and only has not called yet";
  world.pause(attacker_process);
  world.run_for(15s);
  ASSERT_EQ(victim->failures.size(), 1u);
  EXPECT_EQ(victim->failures[0].first, 1);
  EXPECT_NE(victim->failures[0].second.message().find("cannot reach rank 1"), std::string::npos);
  world.resume(attacker_process);
}

TEST_F(HostilePeer, AStrangerWhoDialsBeforeTheViewIsKnownIsShownOutWithWhatItSent) {
  attacker->dial("somebody");
  run_until([&] { return attacker->channel != nullptr; });
  BulkHeader never = shape(operation_number(0, 1), Kind::kBarrier, Algorithm::kOneHop);
  attacker->send(never, std::vector<std::byte>(16, std::byte{66}), false);
  BulkHeader first = shape(kFirst, Kind::kBarrier, Algorithm::kOneHop);
  attacker->send(first, std::vector<std::byte>(16, std::byte{66}), false);
  world.run_for(1s);
  open();
  run_until([&] { return attacker->closed.has_value(); });
  attacker->channel.reset();
  connect();
  begin("exchange", kFirst);
  world.run_for(1s);
  EXPECT_FALSE(ended.has_value()) << "the stranger's chunk was taken for the worker's";
  attacker->send(header, std::vector<std::byte>(16), false);
  run_until([&] { return ended.has_value(); });
  EXPECT_TRUE(ended->ok()) << ended->message();
}

// Rank 0 waits for both sides' full signatures, to tell all workers the same sentence. A peer that sends none
// does not delay the failure beyond a lease.
TEST_F(HostilePeer, ADisagreementThatIsNeverExplainedFailsWithinALease) {
  open();
  connect();
  begin("direct", kFirst);
  BulkHeader other = header;
  other.dtype = static_cast<uint8_t>(DType::kInt32);
  attacker->send(other, std::vector<std::byte>(64), false);
  world.run_for(9s);
  EXPECT_FALSE(ended.has_value());
  world.run_for(2s);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->code(), Code::kMismatch);
  EXPECT_NE(ended->message().find("int32"), std::string::npos) << ended->message();
  EXPECT_EQ(ended->rank(), 1);
}

TEST_F(HostilePeer, MalformedSignaturesFailTheOperationAndName) {
  open();
  connect();
  uint64_t call = 0;
  for (const size_t nbytes : {size_t{1}, size_t{16}, size_t{32}, transport::kSmallBytes}) {
    for (const bool as_span : {false, true}) {
      SCOPED_TRACE(nbytes);
      begin("exchange", operation_number(++call, 0));
      BulkHeader bad = header;
      bad.phase = kSignaturePhase;
      attacker->send(bad, std::vector<std::byte>(nbytes), as_span);
      run_until([&] { return ended.has_value(); });
      ASSERT_FALSE(ended->ok());
      EXPECT_EQ(ended->rank(), 1) << ended->message();
    }
  }
}

// Signatures of operations that have not begun are kept for some operations only.
TEST_F(HostilePeer, SignaturesOfOperationsFarAheadAreForgotten) {
  open();
  connect();
  BulkHeader ahead = shape(kFirst, Kind::kBarrier, Algorithm::kOneHop);
  ahead.phase = kSignaturePhase;
  for (uint64_t call = 1000; call > 1; --call) {
    ahead.operation = operation_number(call, 0);
    attacker->send(ahead, transport::encode(transport::OperationCounts{4096, {1, 2}}), false);
  }
  world.run_for(1s);
  begin("exchange", kFirst);
  attacker->send(header, std::vector<std::byte>(16), false);
  run_until([&] { return ended.has_value(); });
  EXPECT_TRUE(ended->ok()) << ended->message();
  EXPECT_TRUE(victim->failures.empty());
}

}  // namespace
}  // namespace dsgd
