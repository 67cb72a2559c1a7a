// Bytes that a peer sends in one piece: a hello, its reply, a message, an answer, a chunk's header, a
// payload. The first byte chooses the decoder. Accepted input must survive being written and read again.
#include <cstdlib>
#include <span>
#include <vector>

#include "transport/schema/codec.h"

using namespace dsgd::transport;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// An accepted input has one encoding from then on.
template <typename Decode>
void read_payload(const std::vector<uint8_t>& bytes, Decode decode) {
  const auto payload = decode(std::as_bytes(std::span(bytes)));
  if (!payload.ok()) return;
  const auto written = encode(payload.value());
  const auto again = decode(written);
  require(again.ok() && encode(again.value()) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::vector<uint8_t> bytes(data + 1, data + size);  // exact, so that an over-read is seen
  switch (data[0] % 20) {
    case 0:
      if (auto message = decode_message(bytes); message.ok()) {
        auto again = decode_message(encode(message.value()));
        require(again.ok() && again.value().index() == message.value().index());
        require(encode(again.value()) == encode(message.value()));
      }
      break;
    case 1:
      if (auto hello = decode_hello(bytes); hello.ok()) require(decode_hello(encode(hello.value())).ok());
      break;
    case 2:
      if (auto header = decode_bulk_header(bytes); header.ok()) {
        require(decode_bulk_header(encode(header.value())).value() == header.value());
      }
      break;
    case 3: {
      dsgd::Status status, again;
      if (decode_status(bytes, &status).ok()) {
        require(decode_status(encode_status(status), &again).ok());
        require(again.code() == status.code() && again.message() == status.message());
      }
      break;
    }
    case 4: {
      dsgd::Result<Message> reply = Message(Empty{}), again = Message(Empty{});
      if (decode_reply(bytes, &reply).ok()) {
        require(decode_reply(encode_reply(reply), &again).ok());
        require(again.ok() == reply.ok());
      }
      break;
    }
    case 5:
      if (auto challenge = decode_challenge(bytes); challenge.ok()) {
        require(decode_challenge(encode(challenge.value())).value().nonce == challenge.value().nonce);
      }
      break;
    case 6:
      if (auto proof = decode_proof(bytes); proof.ok())
        require(decode_proof(encode(proof.value())).value() == proof.value());
      break;
    case 7:
      if (auto verdict = decode_hello_reply(bytes); verdict.ok()) {
        require(decode_hello_reply(encode(verdict.value())).value().proof == verdict.value().proof);
      }
      break;
    case 8:
      read_payload(bytes, decode_step_header);
      break;
    case 9:
      read_payload(bytes, decode_start_header);
      break;
    case 10:
      read_payload(bytes, decode_worker_gpus);
      break;
    case 11:
      read_payload(bytes, decode_team_invitation);
      break;
    case 12:
      read_payload(bytes, decode_schedule_digest);
      break;
    case 13:
      read_payload(bytes, decode_operation_counts);
      break;
    case 14:
      read_payload(bytes, decode_value_digests);
      break;
    case 15:
      read_payload(bytes, decode_gradient_report);
      break;
    case 16:
      read_payload(bytes, decode_view_report);
      break;
    case 17:
      read_payload(bytes, decode_checkpoint_report);
      break;
    case 18:
      read_payload(bytes, decode_sample_report);
      break;
    case 19:
      if (auto record = decode_head_record(bytes); record.ok()) {
        auto again = decode_head_record(encode(record.value()));
        require(again.ok() && encode(again.value()) == encode(record.value()));
      }
      break;
  }
  return 0;
}
