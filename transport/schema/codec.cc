#include "transport/schema/codec.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <cstring>
#include <string>
#include <type_traits>

#include "transport/schema/codec_capnp.h"

namespace dsgd::transport {
namespace {

template <typename Root, typename Fill>
std::vector<uint8_t> build(size_t words, Fill&& fill) {
  capnp::MallocMessageBuilder builder(static_cast<unsigned>(words));
  fill(builder.initRoot<Root>());
  auto flat = capnp::messageToFlatArray(builder);
  auto bytes = flat.asBytes();
  return {bytes.begin(), bytes.end()};
}

// Opens `bytes` and hands the root to `use`; returns why they cannot be opened.
template <typename Root, typename Use>
Status open(std::span<const uint8_t> bytes, size_t limit, Use&& use) {
  auto malformed = [](const std::string& what) { return Status(Code::kIo, "malformed message: " + what); };
  if (bytes.size() > limit) {
    return malformed(std::to_string(bytes.size()) + " bytes, more than the " + std::to_string(limit) +
                     " allowed");
  }
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0) {
    return malformed(std::to_string(bytes.size()) + " bytes are not a positive multiple of 8");
  }
  const size_t words = bytes.size() / sizeof(capnp::word);
  kj::Array<capnp::word> copy;  // when the caller's bytes are not aligned
  const auto* begin = reinterpret_cast<const capnp::word*>(bytes.data());
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(capnp::word) != 0) {
    copy = kj::heapArray<capnp::word>(words);
    std::memcpy(copy.begin(), bytes.data(), bytes.size());
    begin = copy.begin();
  }
  Status result;
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                 capnp::ReaderOptions options;
                 // Each word is visited at most twice (a pointer is looked at when it is checked and when it
                 // is read); what is visited more often overlaps, which no honest sender produces.
                 options.traversalLimitInWords = 2 * words + 64;
                 options.nestingLimit = 16;
                 capnp::FlatArrayMessageReader reader(kj::arrayPtr(begin, words), options);
                 if (reader.getEnd() != begin + words) {
                   result = malformed("bytes after the end");
                   return;
                 }
                 result = use(reader.getRoot<Root>());
               })) {
    return malformed(exception->getDescription().cStr());
  }
  return result;
}

template <typename T, typename Root>
Result<T> decode(std::span<const uint8_t> bytes, size_t limit) {
  T value;
  Status status = open<Root>(bytes, limit, [&](typename Root::Reader root) {
    Result<T> result = read(root);
    if (result.ok()) value = std::move(result).value();
    return result.status();
  });
  if (!status.ok()) return status;
  return value;
}

}  // namespace

std::vector<uint8_t> encode(const Message& message) {
  return build<schema::Message>(words_for(message), [&](auto root) { write(message, root); });
}
std::vector<uint8_t> encode(const Hello& hello) {
  return build<schema::Hello>(128, [&](auto root) { write(hello, root); });
}
std::vector<uint8_t> encode(const Challenge& challenge) {
  return build<schema::Challenge>(16 + words_for(challenge.refused),
                                  [&](auto root) { write(challenge, root); });
}
std::vector<uint8_t> encode(const Proof& proof) {
  return build<schema::Proof>(16, [&](auto root) { write(proof, root); });
}
std::vector<uint8_t> encode(const HelloReply& reply) {
  return build<schema::HelloReply>(16 + words_for(reply.status), [&](auto root) { write(reply, root); });
}
std::vector<uint8_t> encode(const BulkHeader& header) {
  return build<schema::BulkHeader>(16, [&](auto root) { write(header, root); });
}
std::vector<uint8_t> encode_status(const Status& status) { return encode(HelloReply{status, {}}); }
std::vector<uint8_t> encode_reply(const Result<Message>& reply) {
  const size_t words = reply.ok() ? words_for(reply.value()) : words_for(reply.status());
  return build<schema::Reply>(8 + words, [&](auto root) { write(reply, root); });
}

Result<Message> decode_message(std::span<const uint8_t> bytes) {
  return decode<Message, schema::Message>(bytes, kMaxMessageBytes);
}
Result<Hello> decode_hello(std::span<const uint8_t> bytes) {
  return decode<Hello, schema::Hello>(bytes, kMaxHelloBytes);
}
Result<Challenge> decode_challenge(std::span<const uint8_t> bytes) {
  return decode<Challenge, schema::Challenge>(bytes, kMaxHelloBytes);
}
Result<Proof> decode_proof(std::span<const uint8_t> bytes) {
  return decode<Proof, schema::Proof>(bytes, kMaxHelloBytes);
}
Result<HelloReply> decode_hello_reply(std::span<const uint8_t> bytes) {
  return decode<HelloReply, schema::HelloReply>(bytes, kMaxHelloBytes);
}
Result<BulkHeader> decode_bulk_header(std::span<const uint8_t> bytes) {
  return decode<BulkHeader, schema::BulkHeader>(bytes, kMaxHelloBytes);
}
Status decode_status(std::span<const uint8_t> bytes, Status* status) {
  auto reply = decode_hello_reply(bytes);
  if (reply.ok()) *status = std::move(reply).value().status;
  return reply.status();
}
Status decode_reply(std::span<const uint8_t> bytes, Result<Message>* reply) {
  return open<schema::Reply>(bytes, kMaxMessageBytes, [&](auto root) { return read(root, reply); });
}

const char* message_name(const Message& message) {
  static constexpr const char* kNames[] = {"Empty",           "JoinRequest", "JoinReply", "Watch",
                                           "WatchReply",      "Renew",       "Leave",     "Report",
                                           "OperationFailed", "ObjectPart",  "Goodbye"};
  static_assert(std::size(kNames) == std::variant_size_v<Message>);
  return kNames[message.index()];
}

}  // namespace dsgd::transport
