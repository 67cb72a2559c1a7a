// The bytes before RPC: Cap'n Proto framed messages, two each way, read without taking a byte of what
// follows.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "transport/base/status.h"
#include "transport/uv/stream.h"

namespace dsgd::transport::uv {

class Handshake {
 public:
  enum class Outcome { kDone, kBlocked, kFailed };
  void to_send(std::vector<uint8_t> bytes) { out_ = std::move(bytes), sent_ = 0; }
  // `message`: its name in errors: "hello", "challenge", "proof" or "hello reply".
  Outcome write(Stream stream, const char* message, Status* error);
  Outcome read(Stream stream, const char* message, Status* error);  // of at most kMaxHelloBytes
  bool has_received() const { return got_ > 0; }
  std::vector<uint8_t> take_received() {  // what comes next is another message
    got_ = 0;
    return std::exchange(in_, {});
  }
  std::span<const uint8_t> received() const { return in_; }

 private:
  std::vector<uint8_t> out_, in_;
  size_t sent_ = 0, got_ = 0;
};

}  // namespace dsgd::transport::uv
