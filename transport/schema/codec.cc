#include "transport/schema/codec.h"

#include "transport/schema/codec_capnp.h"
#include "transport/schema/framing.h"

namespace dsgd::transport {

std::vector<uint8_t> encode(const Message& message) {
  return build<schema::Message>(words_for(message), message);
}
std::vector<uint8_t> encode(const Hello& hello) { return build<schema::Hello>(128, hello); }
std::vector<uint8_t> encode(const Challenge& challenge) {
  return build<schema::Challenge>(16 + words_for(challenge.refused), challenge);
}
std::vector<uint8_t> encode(const Proof& proof) { return build<schema::Proof>(16, proof); }
std::vector<uint8_t> encode(const HelloReply& reply) {
  return build<schema::HelloReply>(16 + words_for(reply.status), reply);
}
std::vector<uint8_t> encode(const BulkHeader& header) { return build<schema::BulkHeader>(16, header); }
std::vector<uint8_t> encode(const HeadRecord& record) { return build<schema::HeadRecord>(1024, record); }
std::vector<uint8_t> encode_status(const Status& status) { return encode(HelloReply{status, {}}); }
std::vector<uint8_t> encode_reply(const Result<Message>& reply) {
  const size_t words = reply.ok() ? words_for(reply.value()) : words_for(reply.status());
  return build<schema::Reply>(8 + words, reply);
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
Result<HeadRecord> decode_head_record(std::span<const uint8_t> bytes) {
  return decode<HeadRecord, schema::HeadRecord>(bytes, kMaxRecordBytes);
}
Status decode_status(std::span<const uint8_t> bytes, Status* status) {
  auto reply = decode_hello_reply(bytes);
  if (reply.ok()) *status = std::move(reply).value().status;
  return reply.status();
}
Status decode_reply(std::span<const uint8_t> bytes, Result<Message>* reply) {
  return open<schema::Reply>(bytes, kMaxMessageBytes, [&](auto root) { return read(root, reply); });
}

}  // namespace dsgd::transport
