// The bytes of messages and payloads: standard Cap'n Proto framing, without any Cap'n Proto type. Used where
// a message travels alone (the hello of a connection, the simulated network, fuzzing) and for payloads, which
// are the data of a chunk; RPC uses codec_capnp.h.
//
// decode_* accept any bytes: they never throw, allocate at most a small multiple of bytes.size(), and name
// what is wrong. Those of payloads may throw std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/base/status.h"
#include "transport/messages.h"
#include "transport/payloads.h"

namespace dsgd::transport {

// Limits on received messages. The receiver rejects a larger message with a Status.
inline constexpr size_t kMaxHelloBytes = 32 * 1024;  // of a whole hello, and of its reply
inline constexpr size_t kMaxNameBytes = 4 * 1024;    // job, worker id, host, object name, address, ...
inline constexpr size_t kMaxJobNonceBytes = 64;
// Message of a Status, or progress; the sender cuts longer ones.
inline constexpr size_t kMaxTextBytes = 16 * 1024;
inline constexpr size_t kMaxMembers = 64 * 1024;
inline constexpr size_t kMaxDigests = 8 * 1024;            // of a Goodbye
inline constexpr size_t kMaxAddresses = 256;               // of one member
inline constexpr size_t kMaxInlineObjectBytes = 16 << 20;  // PutObject::data
inline constexpr size_t kMaxObjectDimensions = 64;
inline constexpr size_t kMaxStateParts = 4096;         // of a StateParts
inline constexpr size_t kMaxStatePartBytes = 1 << 20;  // of one part
inline constexpr size_t kMaxWaitBytes = 1024;          // texts of a Progress, which its sender cuts
inline constexpr size_t kMaxWaitedRanks = 64;          // of a Progress
inline constexpr size_t kMaxReplicas = 8 * 1024;       // of one worker
inline constexpr size_t kMaxChannels = 64;             // of a ViewReport
inline constexpr size_t kMaxHeldRanges = 262144;       // of a ViewReport: 32 KiB
inline constexpr size_t kMaxNamedGradients = 4;        // of a GradientReport
inline constexpr size_t kMaxShards = 1024;             // data shards of a session
inline constexpr size_t kMaxLedgers = 2 * kMaxShards;
inline constexpr size_t kMaxReasonBytes = 495;  // message of a Status in a payload
// Of a payload: large enough for a count of each member.
inline constexpr size_t kMaxPayloadBytes = kMaxMembers * sizeof(uint64_t) + 1024;
inline constexpr size_t kMaxMessageBytes = kMaxInlineObjectBytes + (64 << 10);  // any call or answer
inline constexpr size_t kMaxRecordBytes = 256 << 20;                            // of a head

std::vector<uint8_t> encode(const Message& message);
std::vector<uint8_t> encode(const Hello& hello);
std::vector<uint8_t> encode(const Challenge& challenge);
std::vector<uint8_t> encode(const Proof& proof);
std::vector<uint8_t> encode(const HelloReply& reply);
std::vector<uint8_t> encode(const BulkHeader& header);
std::vector<uint8_t> encode(const HeadRecord& record);
std::vector<uint8_t> encode_status(const Status& status);         // as HelloReply
std::vector<uint8_t> encode_reply(const Result<Message>& reply);  // answer to a call

Result<Message> decode_message(std::span<const uint8_t> bytes);
Result<Hello> decode_hello(std::span<const uint8_t> bytes);
Result<Challenge> decode_challenge(std::span<const uint8_t> bytes);
Result<Proof> decode_proof(std::span<const uint8_t> bytes);
Result<HelloReply> decode_hello_reply(std::span<const uint8_t> bytes);
Result<BulkHeader> decode_bulk_header(std::span<const uint8_t> bytes);
Result<HeadRecord> decode_head_record(std::span<const uint8_t> bytes);
// A Status cannot be the value of a Result: the return value says whether `bytes` were well formed.
Status decode_status(std::span<const uint8_t> bytes, Status* status);
Status decode_reply(std::span<const uint8_t> bytes, Result<Message>* reply);

std::vector<std::byte> encode(const StepHeader& header);
std::vector<std::byte> encode(const StartHeader& header);
std::vector<std::byte> encode(const WorkerGpus& gpus);
std::vector<std::byte> encode(const TeamInvitation& invitation);
std::vector<std::byte> encode(const ScheduleDigest& digest);
std::vector<std::byte> encode(const OperationCounts& counts);
std::vector<std::byte> encode(const ValueDigests& digests);
std::vector<std::byte> encode(const GradientReport& report);
std::vector<std::byte> encode(const ViewReport& report);
std::vector<std::byte> encode(const SampleReport& report);
std::vector<std::byte> encode(const CheckpointReport& report);

Result<StepHeader> decode_step_header(std::span<const std::byte> bytes);
Result<StartHeader> decode_start_header(std::span<const std::byte> bytes);
Result<WorkerGpus> decode_worker_gpus(std::span<const std::byte> bytes);
Result<TeamInvitation> decode_team_invitation(std::span<const std::byte> bytes);
Result<ScheduleDigest> decode_schedule_digest(std::span<const std::byte> bytes);
Result<OperationCounts> decode_operation_counts(std::span<const std::byte> bytes);
Result<ValueDigests> decode_value_digests(std::span<const std::byte> bytes);
Result<GradientReport> decode_gradient_report(std::span<const std::byte> bytes);
Result<ViewReport> decode_view_report(std::span<const std::byte> bytes);
Result<SampleReport> decode_sample_report(std::span<const std::byte> bytes);
Result<CheckpointReport> decode_checkpoint_report(std::span<const std::byte> bytes);

const char* message_name(const Message& message);  // "JoinRequest", for logs and errors

}  // namespace dsgd::transport
