// Every message survives the way to bytes and back with all its fields; any other bytes are an error, never a
// crash.
#include "transport/schema/codec.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <random>

#include "tests/unit/sanitizer.h"
#include "transport/schema/codec_capnp.h"

namespace dsgd::transport {
namespace {

Status detailed() {
  return Status(Code::kWorkerLost, "worker 3 on node7 was lost in step 17: \u20ac")
      .with_rank(3, "node7")
      .with_operation("step 17")
      .with_parameter("dense.weight");
}

MemberInfo member(int32_t rank) {
  return {rank,
          "worker-" + std::to_string(rank),
          "node" + std::to_string(rank),
          "0a1b2c3d",
          {"10.0.0.1:7701", "[fe80::1]:7701", "unix:/run/x"},
          std::numeric_limits<int64_t>::max(),
          rank + 5};
}

Progress progress() {
  return {3,
          1ull << 60,
          1ull << 59,
          1ull << 58,
          Progress::Activity::kWaits,
          1ull << 57,
          std::chrono::nanoseconds(123456789),
          "step 17",
          "rank 2 has not made this call",
          {0, 2, 7},
          true};
}

// One of each kind, every field different from its default.
std::vector<Message> samples() {
  constexpr uint64_t kBig = std::numeric_limits<uint64_t>::max() - 1;
  return {Empty{},
          JoinRequest{member(2), 4000000000u, true, std::chrono::nanoseconds(1234567890123), 3, 9,
                      std::chrono::nanoseconds(77), std::chrono::nanoseconds(987654321012), kBig - 12},
          JoinReply{kBig,
                    2,
                    1,
                    {member(0), member(1), member(2)},
                    std::string("\0n\xff", 3),
                    true,
                    kBig - 9,
                    true,
                    true},
          Watch{kBig},
          WatchReply{7, kBig, detailed(), 3, kBig - 6, {member(1), member(2)}, 1, true},
          Renew{5, kBig},
          Leave{5, kBig, detailed(), kBig - 7},
          Report{6, kBig, detailed()},
          OperationFailed{kBig, 7, kBig - 1, detailed()},
          PutObject{kBig, 8, "vocabulary", kBig - 5, kBig - 2, {0, 1, 255, 0, 7}, 6, {3, 0, -7}, true},
          Goodbye{kBig, 9, detailed(), 12, {kBig, 0, 3}, kBig - 4},
          SessionFailed{kBig, 10, detailed()},
          HasBegun{kBig, 11, kBig - 1},
          ReportCut{12, kBig, detailed(), 7},
          DeleteObject{kBig, 13, "vocabulary", kBig - 8},
          FetchObject{kBig, 14, "vocabulary", kBig - 9, kBig - 3},
          Enter{15, kBig - 11},
          HasCompleted{kBig, 16, kBig - 12},
          progress(),
          StatusRequest{},
          StatusReply{StatusReply::State::kFailed,
                      kBig,
                      5,
                      4,
                      6,
                      7,
                      8,
                      3,
                      detailed(),
                      {1, 2},
                      "its token is wrong",
                      {{member(1), WorkerStatus::State::kLost, std::chrono::nanoseconds(5), true,
                        std::chrono::nanoseconds(6), 2.5, progress()},
                       {member(2), WorkerStatus::State::kLeft}}},
          Return{16, kBig - 12, kBig - 13},
          ScaleRequest{1u << 31},
          FetchState{kBig, 17, kBig - 14, kBig - 15, kBig - 16, kBig - 17, true},
          StateParts{{{StateParts::Kind::kUpdate, 18, kBig, kBig - 1, kBig - 2, 1.5, 2.5, -1, 3, {1, 0, 2}},
                      {StateParts::Kind::kValues, 0, 0, 1, 0, 0, 0, 0, 0, {7}}},
                     true,
                     kBig - 18},
          GatheringRequest{},
          GatheringReply{"2 of 4", 3, true},
          RenewReply{true}};
}

bool same(const Status& a, const Status& b) {
  return a.code() == b.code() && a.rank() == b.rank() && a.host() == b.host() &&
         a.operation() == b.operation() && a.parameter() == b.parameter() && a.message() == b.message();
}
bool same(const MemberInfo& a, const MemberInfo& b) {
  return a.rank == b.rank && a.worker_id == b.worker_id && a.host == b.host && a.machine == b.machine &&
         a.addresses == b.addresses && a.pid == b.pid && a.number == b.number;
}
bool same(const Empty&, const Empty&) { return true; }
bool same(const JoinRequest& a, const JoinRequest& b) {
  return same(a.member, b.member) && a.num_workers == b.num_workers && a.hosts_head == b.hosts_head &&
         a.lease == b.lease && a.min_workers == b.min_workers && a.max_workers == b.max_workers &&
         a.rejoin_timeout == b.rejoin_timeout && a.straggler_timeout == b.straggler_timeout &&
         a.incarnation == b.incarnation;
}
bool same(const std::vector<MemberInfo>& a, const std::vector<MemberInfo>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const MemberInfo& x, const MemberInfo& y) { return same(x, y); });
}
bool same(const JoinReply& a, const JoinReply& b) {
  return same(a.members, b.members) && a.view == b.view && a.rank == b.rank && a.head_rank == b.head_rank &&
         a.job_nonce == b.job_nonce && a.learner == b.learner && a.sequence == b.sequence &&
         a.paused == b.paused && a.durable == b.durable;
}
bool same(const Watch& a, const Watch& b) { return a.sequence == b.sequence; }
bool same(const GatheringRequest&, const GatheringRequest&) { return true; }
bool same(const GatheringReply& a, const GatheringReply& b) {
  return a.progress == b.progress && a.missing == b.missing && a.storing == b.storing;
}
bool same(const RenewReply& a, const RenewReply& b) { return a.storing == b.storing; }
bool same(const WatchReply& a, const WatchReply& b) {
  return a.sequence == b.sequence && a.view == b.view && same(a.cause, b.cause) && a.left == b.left &&
         a.departure_call == b.departure_call && same(a.members, b.members) && a.head_rank == b.head_rank &&
         a.paused == b.paused;
}
bool same(const Renew& a, const Renew& b) { return a.number == b.number && a.view == b.view; }
bool same(const Return& a, const Return& b) {
  return a.number == b.number && a.view == b.view && a.incarnation == b.incarnation;
}
bool same(const Enter& a, const Enter& b) { return a.number == b.number && a.view == b.view; }
bool same(const Leave& a, const Leave& b) {
  return a.number == b.number && a.view == b.view && same(a.cause, b.cause) &&
         a.departure_call == b.departure_call;
}
bool same(const Report& a, const Report& b) {
  return a.number == b.number && a.view == b.view && same(a.cause, b.cause);
}
bool same(const ReportCut& a, const ReportCut& b) {
  return a.number == b.number && a.view == b.view && same(a.cause, b.cause) && a.peer_number == b.peer_number;
}
bool same(const Goodbye& a, const Goodbye& b) {
  return a.rank == b.rank && a.view == b.view && same(a.cause, b.cause) && a.steps == b.steps &&
         a.digests == b.digests && a.departure_call == b.departure_call;
}
bool same(const OperationFailed& a, const OperationFailed& b) {
  return a.view == b.view && a.rank == b.rank && a.operation == b.operation && same(a.cause, b.cause);
}
bool same(const SessionFailed& a, const SessionFailed& b) {
  return a.view == b.view && a.rank == b.rank && same(a.cause, b.cause);
}
bool same(const HasBegun& a, const HasBegun& b) {
  return a.view == b.view && a.rank == b.rank && a.operation == b.operation;
}
bool same(const HasCompleted& a, const HasCompleted& b) {
  return a.view == b.view && a.rank == b.rank && a.steps == b.steps;
}
bool same(const FetchState& a, const FetchState& b) {
  return a.view == b.view && a.rank == b.rank && a.begin == b.begin && a.end == b.end && a.next == b.next &&
         a.signature == b.signature && a.last == b.last;
}
bool same(const StateParts& a, const StateParts& b) {
  const auto same_part = [](const StateParts::Part& x, const StateParts::Part& y) {
    return x.kind == y.kind && x.parameter == y.parameter && x.begin == y.begin && x.count == y.count &&
           x.updates == y.updates && x.learning_rate == y.learning_rate && x.rate == y.rate &&
           x.decay == y.decay && x.divisor == y.divisor && x.data == y.data;
  };
  return a.whole == b.whole && a.digest == b.digest &&
         std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(), b.parts.end(), same_part);
}
bool same(const PutObject& a, const PutObject& b) {
  return a.view == b.view && a.rank == b.rank && a.name == b.name && a.put == b.put && a.total == b.total &&
         a.data == b.data && a.dtype == b.dtype && a.shape == b.shape && a.again == b.again;
}
bool same(const DeleteObject& a, const DeleteObject& b) {
  return a.view == b.view && a.rank == b.rank && a.name == b.name && a.put == b.put;
}
bool same(const FetchObject& a, const FetchObject& b) {
  return a.view == b.view && a.rank == b.rank && a.name == b.name && a.put == b.put && a.offset == b.offset;
}
bool same(const Progress& a, const Progress& b) {
  return a.number == b.number && a.view == b.view && a.present_view == b.present_view && a.steps == b.steps &&
         a.activity == b.activity && a.call == b.call && a.open == b.open && a.operation == b.operation &&
         a.waiting == b.waiting && a.waits_for == b.waits_for && a.holds_state == b.holds_state;
}
bool same(const StatusRequest&, const StatusRequest&) { return true; }
bool same(const ScaleRequest& a, const ScaleRequest& b) { return a.workers == b.workers; }
bool same(const WorkerStatus& a, const WorkerStatus& b) {
  return same(a.member, b.member) && a.state == b.state && a.silence == b.silence &&
         a.reported == b.reported && a.age == b.age && a.steps_per_second == b.steps_per_second &&
         same(a.progress, b.progress);
}
bool same(const StatusReply& a, const StatusReply& b) {
  return a.state == b.state && a.view == b.view && a.num_workers == b.num_workers &&
         a.min_workers == b.min_workers && a.max_workers == b.max_workers &&
         a.wanted_workers == b.wanted_workers && a.scale_requests == b.scale_requests &&
         a.head_rank == b.head_rank && same(a.cause, b.cause) && a.missing == b.missing &&
         a.refused == b.refused &&
         std::equal(a.workers.begin(), a.workers.end(), b.workers.begin(), b.workers.end(),
                    [](const WorkerStatus& x, const WorkerStatus& y) { return same(x, y); });
}
bool same_message(const Message& a, const Message& b) {
  return std::visit(
      [](const auto& x, const auto& y) {
        if constexpr (std::is_same_v<decltype(x), decltype(y)>) {
          return same(x, y);
        } else {
          return false;
        }
      },
      a, b);
}

Hello hello() {
  return {77,       Role::kPeer, "digits", "worker-3", 3, 1ull << 60, "1.0.0", true, std::string("\0job", 4),
          {9, 8, 7}};
}

BulkHeader header() { return {1ull << 61, 1ull << 62, 5, 251, 252, 253, 254, 6, 1ull << 63, 9, 65535, 10}; }

template <typename Numbers>
Numbers counting(size_t size) {
  Numbers numbers{};
  if constexpr (requires { numbers.resize(size); }) numbers.resize(size);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<typename Numbers::value_type>(i + 1);
  return numbers;
}

Status reason() { return Status(Code::kUnsupported, "no GPU"); }

// A payload by name: its bytes, and what its decoder says of any bytes.
struct Payload {
  const char* name;
  std::vector<std::byte> bytes;
  Status (*decode)(std::span<const std::byte> bytes);
};
ViewReport view_report() {
  return {true,
          1u << 30,
          5,
          3,
          0.5,
          7,
          {3, 4, true, true, true, 2.5, 1e-9, true, 1000, 2, 9},
          {1, 5, 1, 1u << 30},
          true,
          1u << 31,
          77,
          {1, 2, 255},
          {3, 128},
          0.25,
          3,
          Code::kNotFound};
}

SampleReport sample_report() {
  const SampleLedger ledger{1, 1000, 7,    false, 2, 3,
                            4, 9,    true, 100,   2, {{5, 1, 2, 3, 4, {{10, 3, 5}, {11, 1, 1}}}, {}}};
  return {true,    {3, {{0, 1, 2, 3, 4}, {2, 5, 6, 7, 8}}},  {2, {{0, 1, 2, 3, 4}}},
          {1, {}}, {{77, {1, {{0, 0, 0, 0, 9}}}}, {78, {}}}, {ledger, {}}};
}

// One of each kind, every field different from its default.
std::vector<Payload> payloads() {
  constexpr uint64_t kBig = std::numeric_limits<uint64_t>::max() - 1;
  const StepHeader step{kBig, kBig - 1, kBig - 2, kBig - 3,      kBig - 4,
                        0.1,  65536,    true,     {0, 0.5, 1e9}, {3, {{0, 1, kBig, 3, 4}}}};
  const WorkerGpus gpus{reason(), 22803, {counting<std::array<uint8_t, 16>>(16), {1}}};
  using Bytes = std::span<const std::byte>;
  return {
      {"StepHeader", encode(step), [](Bytes b) { return decode_step_header(b).status(); }},
      {"StartHeader", encode(StartHeader{kBig, 1 << 20, 3, 2}),
       [](Bytes b) { return decode_start_header(b).status(); }},
      {"WorkerGpus", encode(gpus), [](Bytes b) { return decode_worker_gpus(b).status(); }},
      {"TeamInvitation", encode(TeamInvitation{{}, counting<std::array<uint8_t, 128>>(128)}),
       [](Bytes b) { return decode_team_invitation(b).status(); }},
      {"ScheduleDigest", encode(ScheduleDigest{kBig, reason()}),
       [](Bytes b) { return decode_schedule_digest(b).status(); }},
      {"OperationCounts", encode(OperationCounts{kBig, {7, 0, kBig}}),
       [](Bytes b) { return decode_operation_counts(b).status(); }},
      {"ValueDigests", encode(ValueDigests{{kBig, 0, 3}}),
       [](Bytes b) { return decode_value_digests(b).status(); }},
      {"GradientReport", encode(GradientReport{kBig, 9, {{3, 1, kBig}, {7, kBig - 1, 2}}}),
       [](Bytes b) { return decode_gradient_report(b).status(); }},
      {"ViewReport", encode(view_report()), [](Bytes b) { return decode_view_report(b).status(); }},
      {"SampleReport", encode(sample_report()), [](Bytes b) { return decode_sample_report(b).status(); }},
      {"CheckpointReport", encode(CheckpointReport{reason(), kBig, 1, kBig - 1, {2, {{1, 2, 3, 4, kBig}}}}),
       [](Bytes b) { return decode_checkpoint_report(b).status(); }},
  };
}

// All decoders on the same bytes; what matters is that they return.
void decode_all(std::span<const uint8_t> bytes) {
  (void)decode_message(bytes);
  (void)decode_hello(bytes);
  (void)decode_challenge(bytes);
  (void)decode_proof(bytes);
  (void)decode_hello_reply(bytes);
  (void)decode_bulk_header(bytes);
  Status status;
  (void)decode_status(bytes, &status);
  Result<Message> reply = Message(Empty{});
  (void)decode_reply(bytes, &reply);
  static const auto kPayloads = payloads();
  for (const Payload& payload : kPayloads) (void)payload.decode(std::as_bytes(bytes));
}

TEST(Codec, EveryKindOfMessageHasASample) {
  const auto all = samples();
  ASSERT_EQ(all.size(), std::variant_size_v<Message>);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].index(), i);
}

TEST(Codec, MessagesKeepAllFields) {
  for (const auto& message : samples()) {
    const auto bytes = encode(message);
    auto back = decode_message(bytes);
    ASSERT_TRUE(back.ok()) << message_name(message) << ": " << back.status().message();
    EXPECT_TRUE(same_message(message, back.value())) << message_name(message);
    auto reply = Result<Message>(Status(Code::kInternal, "unset"));
    ASSERT_TRUE(decode_reply(encode_reply(message), &reply).ok());
    ASSERT_TRUE(reply.ok());
    EXPECT_TRUE(same_message(message, reply.value())) << message_name(message);
  }
}

TEST(Codec, DefaultsSurviveToo) {
  for (const Message& message : std::vector<Message>{
           JoinRequest{},      JoinReply{},       Watch{},     WatchReply{},   Renew{},        Leave{},
           Report{},           OperationFailed{}, PutObject{}, DeleteObject{}, FetchObject{},  Goodbye{},
           SessionFailed{},    HasBegun{},        ReportCut{}, Enter{},        HasCompleted{}, Progress{},
           StatusRequest{},    StatusReply{},     Return{},    ScaleRequest{}, FetchState{},   StateParts{},
           GatheringRequest{}, GatheringReply{},  RenewReply{}}) {
    auto back = decode_message(encode(message));
    ASSERT_TRUE(back.ok()) << message_name(message) << ": " << back.status().message();
    EXPECT_TRUE(same_message(message, back.value())) << message_name(message);
  }
}

TEST(Codec, HelloKeepsAllFields) {
  auto back = decode_hello(encode(hello()));
  ASSERT_TRUE(back.ok()) << back.status().message();
  const Hello want = hello();
  EXPECT_EQ(back->protocol, want.protocol);
  EXPECT_EQ(back->role, want.role);
  EXPECT_EQ(back->job, want.job);
  EXPECT_EQ(back->nonce, want.nonce);
  EXPECT_EQ(back->job_nonce, want.job_nonce);
  EXPECT_EQ(back->worker_id, want.worker_id);
  EXPECT_EQ(back->rank, want.rank);
  EXPECT_EQ(back->view, want.view);
  EXPECT_EQ(back->library_version, want.library_version);
  EXPECT_EQ(back->checksum, want.checksum);
}

TEST(Codec, BulkHeaderKeepsAllFields) {
  auto back = decode_bulk_header(encode(header()));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back.value(), header());
}

TEST(Codec, StatusKeepsAllFields) {
  Status back(Code::kInternal, "unset");
  ASSERT_TRUE(decode_status(encode_status(Status()), &back).ok());
  EXPECT_TRUE(back.ok());
  ASSERT_TRUE(decode_status(encode_status(detailed()), &back).ok());
  EXPECT_TRUE(same(back, detailed()));
  Result<Message> reply = Message(Empty{});
  ASSERT_TRUE(decode_reply(encode_reply(detailed()), &reply).ok());
  EXPECT_TRUE(same(reply.status(), detailed()));
}

TEST(Codec, TheHandshakeKeepsItsNoncesAndProofs) {
  Nonce nonce;
  for (size_t i = 0; i < nonce.size(); ++i) nonce[i] = static_cast<uint8_t>(255 - i);
  auto challenge = decode_challenge(encode(Challenge{{}, nonce}));
  ASSERT_TRUE(challenge.ok()) << challenge.status().message();
  EXPECT_TRUE(challenge.value().refused.ok());
  EXPECT_EQ(challenge.value().nonce, nonce);
  challenge = decode_challenge(encode(Challenge{detailed(), nonce}));
  ASSERT_TRUE(challenge.ok()) << challenge.status().message();
  EXPECT_TRUE(same(challenge.value().refused, detailed()));
  auto proof = decode_proof(encode(Proof{nonce}));
  ASSERT_TRUE(proof.ok()) << proof.status().message();
  EXPECT_EQ(proof.value(), Proof{nonce});
  auto reply = decode_hello_reply(encode(HelloReply{{}, Proof{nonce}}));
  ASSERT_TRUE(reply.ok()) << reply.status().message();
  EXPECT_TRUE(reply.value().status.ok());
  EXPECT_EQ(reply.value().proof, Proof{nonce});
  reply = decode_hello_reply(encode(HelloReply{detailed(), Proof{nonce}}));
  ASSERT_TRUE(reply.ok()) << reply.status().message();
  EXPECT_TRUE(same(reply.value().status, detailed()));
  EXPECT_EQ(reply.value().proof, Proof{}) << "a refusal proves nothing";
}

TEST(Codec, PayloadsKeepAllFields) {
  const StepHeader step{
      1, 2, 3, 4, 5, 0.1, 65536, true, {0, 0.5, 1e9}, {3, {{0, 1, 2, 3, 4}, {2, 5, 6, 7, 8}}}};
  auto step_back = decode_step_header(encode(step));
  ASSERT_TRUE(step_back.ok()) << step_back.status().message();
  EXPECT_EQ(step_back->step, 1u);
  EXPECT_EQ(step_back->strategy_version, 2u);
  EXPECT_EQ(step_back->settings, 3u);
  EXPECT_EQ(step_back->plan, 4u);
  EXPECT_EQ(step_back->values, 5u);
  EXPECT_EQ(step_back->learning_rate, 0.1);
  EXPECT_EQ(step_back->loss_scale, 65536);
  EXPECT_TRUE(step_back->stop);
  EXPECT_EQ(step_back->weights, step.weights);
  EXPECT_EQ(step_back->drawn, step.drawn);

  const StartHeader start{1, 2, 4, 3};
  auto start_back = decode_start_header(encode(start));
  ASSERT_TRUE(start_back.ok()) << start_back.status().message();
  EXPECT_EQ(start_back.value(), start);

  const WorkerGpus gpus{reason(), 22803, {counting<std::array<uint8_t, 16>>(16), {1}}};
  auto gpus_back = decode_worker_gpus(encode(gpus));
  ASSERT_TRUE(gpus_back.ok()) << gpus_back.status().message();
  EXPECT_TRUE(same(gpus_back->unusable, gpus.unusable));
  EXPECT_EQ(gpus_back->version, gpus.version);
  EXPECT_EQ(gpus_back->devices, gpus.devices);

  const TeamInvitation invitation{{}, counting<std::array<uint8_t, 128>>(128)};
  auto invitation_back = decode_team_invitation(encode(invitation));
  ASSERT_TRUE(invitation_back.ok()) << invitation_back.status().message();
  EXPECT_TRUE(invitation_back->failure.ok());
  EXPECT_EQ(invitation_back->communicator, invitation.communicator);
  invitation_back = decode_team_invitation(encode(TeamInvitation{reason(), {}}));
  ASSERT_TRUE(invitation_back.ok()) << invitation_back.status().message();
  EXPECT_TRUE(same(invitation_back->failure, reason()));

  auto schedule_back = decode_schedule_digest(encode(ScheduleDigest{9, reason()}));
  ASSERT_TRUE(schedule_back.ok()) << schedule_back.status().message();
  EXPECT_EQ(schedule_back->digest, 9u);
  EXPECT_TRUE(same(schedule_back->failure, reason()));

  auto counts_back = decode_operation_counts(encode(OperationCounts{8, {7, 0, 5}}));
  ASSERT_TRUE(counts_back.ok()) << counts_back.status().message();
  EXPECT_EQ(counts_back->chunk_bytes, 8u);
  EXPECT_EQ(counts_back->counts, (std::vector<uint64_t>{7, 0, 5}));

  auto digests_back = decode_value_digests(encode(ValueDigests{{7, 0, 5}}));
  ASSERT_TRUE(digests_back.ok()) << digests_back.status().message();
  EXPECT_EQ(digests_back->digests, (std::vector<uint64_t>{7, 0, 5}));

  const GradientReport report{1000, 9, {{3, 1, 8}, {7, 4, 2}}};
  auto report_back = decode_gradient_report(encode(report));
  ASSERT_TRUE(report_back.ok()) << report_back.status().message();
  EXPECT_EQ(report_back->count, report.count);
  EXPECT_EQ(report_back->parameters, report.parameters);
  EXPECT_EQ(report_back->named, report.named);

  auto view_back = decode_view_report(encode(view_report()));
  ASSERT_TRUE(view_back.ok()) << view_back.status().message();
  EXPECT_EQ(view_back.value(), view_report());

  auto samples_back = decode_sample_report(encode(sample_report()));
  ASSERT_TRUE(samples_back.ok()) << samples_back.status().message();
  EXPECT_EQ(samples_back.value(), sample_report());

  const CheckpointReport saved{reason(), 7, 100, 9, {9, {{1, 2, 3, 4, 5}, {5, 6, 7, 8, 9}}}};
  auto saved_back = decode_checkpoint_report(encode(saved));
  ASSERT_TRUE(saved_back.ok()) << saved_back.status().message();
  EXPECT_TRUE(same(saved_back->failure, saved.failure));
  EXPECT_EQ(saved_back->step, saved.step);
  EXPECT_EQ(saved_back->nbytes, saved.nbytes);
  EXPECT_EQ(saved_back->checksum, saved.checksum);
  EXPECT_EQ(saved_back->drawn, saved.drawn);
}

TEST(Codec, APayloadsReasonIsCut) {
  auto back = decode_schedule_digest(encode(ScheduleDigest{0, Status(Code::kIo, std::string(9999, 'x'))}));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->failure.message(), std::string(kMaxReasonBytes, 'x'));
  back =
      decode_schedule_digest(encode(ScheduleDigest{0, Status(Code::kIo, std::string(494, 'x') + "\u20ac")}));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->failure.message(), std::string(494, 'x')) << "no half character";
}

// The lists of a payload may fill it, but not exceed what one worker can have.
TEST(Codec, WhatExceedsTheLimitOfAPayloadIsNamed) {
  const auto expect = [](const Status& status, const char* what) {
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  StepHeader step;
  step.weights.resize(kMaxReplicas);
  EXPECT_TRUE(decode_step_header(encode(step)).ok());
  step.weights.resize(kMaxReplicas + 1);
  expect(decode_step_header(encode(step)).status(), "list of weights has 8193 entries");
  expect(decode_start_header(encode(StartHeader{1, 1, kMaxReplicas + 1, 0})).status(),
         "a worker has 8193 replicas");
  expect(decode_start_header(encode(StartHeader{1, 1, 2, 3})).status(), "a worker has 3 GPUs");
  expect(
      decode_worker_gpus(encode(WorkerGpus{{}, 1, {kMaxReplicas + 1, std::array<uint8_t, 16>{}}})).status(),
      "list of GPUs has 8193 entries");
  ValueDigests digests;
  digests.digests.resize(kMaxDigests + 1);
  expect(decode_value_digests(encode(digests)).status(), "list of digests has 8193 entries");
  GradientReport report;
  report.named.resize(kMaxNamedGradients);
  EXPECT_TRUE(decode_gradient_report(encode(report)).ok());
  report.named.resize(kMaxNamedGradients + 1);
  expect(decode_gradient_report(encode(report)).status(), "list of gradients has 5 entries");
  OperationCounts counts;
  counts.counts.resize(kMaxMembers);
  EXPECT_TRUE(decode_operation_counts(encode(counts)).ok());
  counts.counts.resize(kMaxMembers + 1);
  expect(decode_operation_counts(encode(counts)).status(), "list of counts has 65537 entries");
}

TEST(Codec, AnIdentityOfAnotherSizeIsAnError) {
  capnp::MallocMessageBuilder builder;
  builder.initRoot<schema::WorkerGpus>().initDevices(1).init(0, 15);
  auto flat = capnp::messageToFlatArray(builder);
  auto result = decode_worker_gpus(std::as_bytes(std::span(flat.asBytes().begin(), flat.asBytes().size())));
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("identity of a GPU has 15 bytes instead of 16"), std::string::npos)
      << result.status().message();
}

TEST(Codec, TruncatedAndExtendedPayloadsAreErrors) {
  for (const Payload& payload : payloads()) {
    ASSERT_TRUE(payload.decode(payload.bytes).ok()) << payload.name;
    for (size_t n = 0; n < payload.bytes.size(); ++n) {
      EXPECT_FALSE(payload.decode(std::span(payload.bytes).first(n)).ok())
          << payload.name << " cut to " << n << " bytes";
    }
    auto longer = payload.bytes;
    longer.resize(longer.size() + 8);
    EXPECT_FALSE(payload.decode(longer).ok()) << payload.name << " with bytes after its end";
  }
}

TEST(Codec, NoFlippedBitOfAPayloadDoesHarm) {
  for (Payload payload : payloads()) {
    for (size_t bit = 0; bit < payload.bytes.size() * 8; ++bit) {
      payload.bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
      (void)payload.decode(payload.bytes);
      payload.bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    }
  }
}

TEST(Codec, EveryCodeSurvives) {
  for (int32_t code = -1; code >= -24; --code) {
    Status back;
    ASSERT_TRUE(decode_status(encode_status(Status(static_cast<Code>(code), "x")), &back).ok());
    EXPECT_EQ(static_cast<int32_t>(back.code()), code);
  }
}

TEST(Codec, ACodeThatThisVersionDoesNotKnowIsAnInternalError) {
  EXPECT_EQ(code_of(0), Code::kOk);
  EXPECT_EQ(code_of(-9), Code::kMismatch);
  EXPECT_EQ(code_of(-22), Code::kCorrupted);
  EXPECT_EQ(code_of(-23), Code::kViewChanged);
  EXPECT_EQ(code_of(-24), Code::kNonFinite);
  EXPECT_EQ(code_of(-25), Code::kEvicted);
  for (int32_t unknown : {-26, 1, std::numeric_limits<int32_t>::min()})
    EXPECT_EQ(code_of(unknown), Code::kInternal);
}

// It goes into messages and logs.
TEST(Codec, AStatusThatIsReceivedHasCleanText) {
  Status back;
  const std::string bad = "a\x1b[31mb\xff\xfe \xc3\xa4\xed\xa0\x80\n\xf0\x9f\x98\x80\x7f\xc2\x9b\xe2\x82";
  const Status sent =
      Status(static_cast<Code>(-999), bad).with_rank(1, bad).with_operation(bad).with_parameter(bad);
  ASSERT_TRUE(decode_status(encode_status(sent), &back).ok());
  const std::string clean = "a?[31mb?? \xc3\xa4???\n\xf0\x9f\x98\x80????";
  for (const std::string& text : {back.message(), back.host(), back.operation(), back.parameter()})
    EXPECT_EQ(text, clean);
  EXPECT_EQ(back.code(), Code::kInternal);
}

TEST(Codec, ATooLongTextIsCutNotRefused) {
  Status back;
  const Status form = decode_status(encode_status(Status(Code::kIo, std::string(100000, 'x'))), &back);
  ASSERT_TRUE(form.ok()) << form.message();
  EXPECT_EQ(back.message().size(), kMaxTextBytes);
  EXPECT_TRUE(back.message().ends_with("(cut)"));
  const auto reply = decode_message(encode(Message(GatheringReply{std::string(100000, 'x'), 1})));
  ASSERT_TRUE(reply.ok()) << reply.status().message();
  EXPECT_TRUE(std::get<GatheringReply>(reply.value()).progress.ends_with("(cut)"));
}

TEST(Codec, WhatExceedsALimitIsNamed) {
  Hello long_job = hello();
  long_job.job.assign(kMaxNameBytes + 1, 'x');
  auto rejected = decode_hello(encode(long_job));
  ASSERT_FALSE(rejected.ok());
  EXPECT_NE(rejected.status().message().find("job has 4097 bytes"), std::string::npos)
      << rejected.status().message();
  Hello long_nonce = hello();
  long_nonce.job_nonce.assign(kMaxJobNonceBytes + 1, 'x');
  EXPECT_FALSE(decode_hello(encode(long_nonce)).ok());

  JoinRequest many;
  many.member.addresses.assign(kMaxAddresses + 1, "10.0.0.1:1");
  EXPECT_FALSE(decode_message(encode(many)).ok());

  PutObject large;
  large.data.resize(kMaxInlineObjectBytes + 1);
  EXPECT_FALSE(decode_message(encode(large)).ok());
  large.data.resize(kMaxInlineObjectBytes);
  EXPECT_TRUE(decode_message(encode(large)).ok());
  large.shape.resize(kMaxObjectDimensions);
  EXPECT_TRUE(decode_message(encode(large)).ok());
  large.shape.resize(kMaxObjectDimensions + 1);
  EXPECT_FALSE(decode_message(encode(large)).ok());

  Progress wait;
  wait.operation.assign(kMaxWaitBytes, 'x');
  wait.waiting.assign(kMaxWaitBytes, 'x');
  wait.waits_for.resize(kMaxWaitedRanks);
  EXPECT_TRUE(decode_message(encode(wait)).ok());
  for (const auto& exceed : std::vector<std::function<void(Progress&)>>{
           [](Progress& it) { it.operation += 'x'; }, [](Progress& it) { it.waiting += 'x'; },
           [](Progress& it) { it.waits_for.push_back(1); }}) {
    Progress longer = wait;
    exceed(longer);
    EXPECT_FALSE(decode_message(encode(longer)).ok());
  }
}

TEST(Codec, UnknownStatesOfAJobAreErrors) {
  const auto expect_unknown = [](const Message& message) {
    const auto back = decode_message(encode(message));
    ASSERT_FALSE(back.ok()) << message_name(message);
    EXPECT_NE(back.status().message().find("unknown "), std::string::npos) << back.status().message();
  };
  Progress progress;
  progress.activity = static_cast<Progress::Activity>(3);
  expect_unknown(progress);
  StatusReply reply;
  reply.state = static_cast<StatusReply::State>(5);
  expect_unknown(reply);
  reply.state = StatusReply::State::kRunning;
  reply.workers.resize(1);
  reply.workers[0].state = static_cast<WorkerStatus::State>(5);
  expect_unknown(reply);
}

TEST(Codec, UnalignedBytesAreRead) {
  const auto bytes = encode(samples()[2]);
  std::vector<uint8_t> shifted(bytes.size() + 1);
  std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
  auto back = decode_message(std::span(shifted).subspan(1));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_TRUE(same_message(back.value(), samples()[2]));
}

TEST(Codec, TruncatedAndExtendedMessagesAreErrors) {
  for (const auto& message : samples()) {
    auto bytes = encode(message);
    for (size_t n = 0; n < bytes.size(); ++n) {
      auto cut = decode_message(std::span(bytes).first(n));
      EXPECT_FALSE(cut.ok()) << message_name(message) << " cut to " << n << " bytes";
      decode_all(std::span(bytes).first(n));
    }
    bytes.resize(bytes.size() + 8);
    EXPECT_FALSE(decode_message(bytes).ok()) << message_name(message) << " with bytes after its end";
  }
}

void flip_each_bit(std::vector<uint8_t> bytes, const std::function<void(std::span<const uint8_t>)>& decode) {
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    decode(bytes);
    bytes[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
  }
}

// A message goes through the decoders of messages, or through all where TEST_ALL_CASES is set.
TEST(Codec, NoFlippedBitDoesHarm) {
  const bool all = dsgd_test::runs_all_cases();
  for (const auto& message : samples()) {
    flip_each_bit(encode(message), [all](std::span<const uint8_t> bytes) {
      if (all) return decode_all(bytes);
      (void)decode_message(bytes);
      Result<Message> reply = Message(Empty{});
      (void)decode_reply(bytes, &reply);
    });
  }
  const Nonce nonce{1, 2, 3};
  for (const auto& bytes : {encode(hello()), encode(Challenge{detailed(), nonce}), encode(Proof{nonce}),
                            encode(HelloReply{{}, Proof{nonce}}), encode(header()), encode_status(detailed()),
                            encode_reply(detailed())})
    flip_each_bit(bytes, decode_all);
}

TEST(Codec, NoRandomBytesDoHarm) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 5000; ++i) {
    std::vector<uint8_t> bytes(8 * (random() % 24));
    for (auto& byte : bytes) byte = random() % 3 == 0 ? static_cast<uint8_t>(random()) : 0;
    if (bytes.size() >= 8 && random() % 4 != 0) {  // a plausible segment table
      std::fill_n(bytes.begin(), 8, uint8_t{0});
      bytes[4] = static_cast<uint8_t>(bytes.size() / 8 - 1);
    }
    decode_all(bytes);
  }
}

// A list may claim many more elements than there are bytes, all of them the same bytes or none.
TEST(Codec, ListsThatClaimMoreThanTheyHaveAreErrors) {
  auto bytes = encode(Message(JoinReply{1, 0, 0, {member(0)}, {}}));
  bool refused_all = true;
  size_t tried = 0;
  for (size_t word = 8; word + 8 <= bytes.size(); word += 8) {
    if ((bytes[word] & 3) != 1) continue;  // a list pointer
    for (uint32_t claim : {0xfffffff8u | 7u, 0x7ffffff8u | 6u, 0xfffffff8u}) {
      auto forged = bytes;
      for (int i = 0; i < 4; ++i) forged[word + 4 + i] = static_cast<uint8_t>(claim >> (8 * i));
      ++tried;
      auto result = decode_message(forged);
      if (result.ok()) {
        size_t strings = 0;
        if (const auto* reply = std::get_if<JoinReply>(&result.value())) strings = reply->members.size();
        refused_all &= strings <= kMaxMembers;
      }
    }
  }
  EXPECT_GT(tried, 0u);
  EXPECT_TRUE(refused_all);
}

// Zero-sized structs cost no bytes each; the limits on lists bound what they can make us allocate.
TEST(Codec, AListOfNothingsIsBounded) {
  capnp::MallocMessageBuilder builder;
  auto reply = builder.initRoot<schema::Message>().initJoinReply();
  reply.initMembers(2);
  auto flat = capnp::messageToFlatArray(builder);
  auto raw = flat.asBytes();
  std::vector<uint8_t> bytes(raw.begin(), raw.end());
  // The tag of the composite list: so many elements of no words.
  bool found = false;
  for (size_t word = 8; word + 16 <= bytes.size() && !found; word += 8) {
    if ((bytes[word] & 3) != 1 || (bytes[word + 4] & 7) != 7) continue;
    const uint32_t count = 0x0fffffff;
    for (int i = 0; i < 4; ++i) bytes[word + 4 + i] = static_cast<uint8_t>((i == 0 ? 7u : 0u));
    const uint32_t tag = count << 2;
    for (int i = 0; i < 4; ++i) bytes[word + 8 + i] = static_cast<uint8_t>(tag >> (8 * i));
    for (int i = 4; i < 8; ++i) bytes[word + 8 + i] = 0;
    found = true;
  }
  ASSERT_TRUE(found);
  EXPECT_FALSE(decode_message(bytes).ok());
}

TEST(Codec, UnknownKindsAreErrors) {
  capnp::MallocMessageBuilder builder;
  builder.initRoot<schema::Message>().setEmpty();
  auto flat = capnp::messageToFlatArray(builder);
  auto raw = flat.asBytes();
  std::vector<uint8_t> bytes(raw.begin(), raw.end());
  bytes[16] = 200;  // the union's tag
  auto result = decode_message(bytes);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("unknown kind of message 200"), std::string::npos)
      << result.status().message();
}

TEST(Codec, APositiveStatusCodeIsAnError) {
  capnp::MallocMessageBuilder builder;
  builder.initRoot<schema::HelloReply>().initStatus().setCode(5);
  auto flat = capnp::messageToFlatArray(builder);
  auto raw = flat.asBytes();
  Status status;
  EXPECT_FALSE(decode_status(std::span(raw.begin(), raw.size()), &status).ok());
}

TEST(Codec, AnUnknownRoleIsAnError) {
  Hello strange = hello();
  strange.role = static_cast<Role>(17);
  auto result = decode_hello(encode(strange));
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("unknown role 17"), std::string::npos)
      << result.status().message();
}

}  // namespace
}  // namespace dsgd::transport
