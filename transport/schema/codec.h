// The bytes of messages: standard Cap'n Proto framing, without any Cap'n Proto type. Used where a
// message travels alone (the hello of a connection, the simulated network, fuzzing); RPC uses codec_capnp.h.
//
// decode_* accept any bytes: they never throw, allocate at most a small multiple of bytes.size(), and name
// what is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/base/status.h"
#include "transport/messages.h"

namespace dsgd::transport {

// Limits on received messages. The receiver rejects a larger message with a Status.
inline constexpr size_t kMaxHelloBytes = 32 * 1024;  // of a whole hello, and of its reply
inline constexpr size_t kMaxNameBytes = 4 * 1024;    // job, worker id, host, object name, address, ...
inline constexpr size_t kMaxJobNonceBytes = 64;
inline constexpr size_t kMaxTextBytes = 16 * 1024;  // message of a Status; a longer one is cut by the sender
inline constexpr size_t kMaxMembers = 64 * 1024;
inline constexpr size_t kMaxDigests = 8 * 1024;          // of a Goodbye
inline constexpr size_t kMaxAddresses = 256;             // of one member
inline constexpr size_t kMaxObjectPartBytes = 16 << 20;  // ObjectPart::data
inline constexpr size_t kMaxObjectDimensions = 64;
inline constexpr size_t kMaxMessageBytes = kMaxObjectPartBytes + (64 << 10);  // any call or answer

std::vector<uint8_t> encode(const Message& message);
std::vector<uint8_t> encode(const Hello& hello);
std::vector<uint8_t> encode(const Challenge& challenge);
std::vector<uint8_t> encode(const Proof& proof);
std::vector<uint8_t> encode(const HelloReply& reply);
std::vector<uint8_t> encode(const BulkHeader& header);
std::vector<uint8_t> encode_status(const Status& status);         // as HelloReply
std::vector<uint8_t> encode_reply(const Result<Message>& reply);  // answer to a call

Result<Message> decode_message(std::span<const uint8_t> bytes);
Result<Hello> decode_hello(std::span<const uint8_t> bytes);
Result<Challenge> decode_challenge(std::span<const uint8_t> bytes);
Result<Proof> decode_proof(std::span<const uint8_t> bytes);
Result<HelloReply> decode_hello_reply(std::span<const uint8_t> bytes);
Result<BulkHeader> decode_bulk_header(std::span<const uint8_t> bytes);
// A Status cannot be the value of a Result: the return value says whether `bytes` were well formed.
Status decode_status(std::span<const uint8_t> bytes, Status* status);
Status decode_reply(std::span<const uint8_t> bytes, Result<Message>* reply);

const char* message_name(const Message& message);  // "JoinRequest", for logs and errors

}  // namespace dsgd::transport
