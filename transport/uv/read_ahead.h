// Reads the bytes of a connection for its frame reader. Reads up to 1 KiB ahead, so that a small frame takes
// one system call. Limits what one connection reads in a turn of the loop.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/base/status.h"
#include "transport/uv/stream.h"

namespace dsgd::transport::uv {

enum class ReadOutcome {
  kDone,
  kBlocked,  // nothing more to read until the socket is readable again
  // No receive memory is free, and frames of this connection hold some. Call again when memory is freed.
  kStarved,
  kEnd,    // the peer has ended the stream
  kError,  // broken or malformed; *error says why
};

class ReadAhead {
 public:
  explicit ReadAhead(std::atomic<uint64_t>& received) : received_(received) {}

  void begin_turn();  // call when the socket has become readable: begins a new turn

  size_t size() const { return end_ - begin_; }  // of what has been read ahead
  const std::byte* data() const { return bytes_.data() + begin_; }
  void skip(size_t n) { begin_ += n; }
  size_t take(void* to, size_t n);  // at most n bytes of it; returns how many

  ReadOutcome read_more(Stream stream, Status* error);  // ahead
  // Reads past the bytes that have been read ahead, of which there must be none.
  ReadOutcome read_directly(Stream stream, void* to, size_t n, size_t* got, Status* error);

 private:
  std::atomic<uint64_t>& received_;
  alignas(8) std::array<std::byte, 1024> bytes_;
  size_t begin_ = 0, end_ = 0;
  bool drained_ = false;   // the last read came back short
  size_t turn_bytes_ = 0;  // read in this turn
};

}  // namespace dsgd::transport::uv
