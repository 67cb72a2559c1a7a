#include "transport/uv/read_ahead.h"

#include <errno.h>

#include <algorithm>
#include <cstring>

namespace dsgd::transport::uv {

namespace {

constexpr size_t kTurnBytes = 8 << 20;  // then other connections, timers and tasks have their turn

}  // namespace

void ReadAhead::begin_turn() {
  drained_ = false;
  turn_bytes_ = 0;
}

size_t ReadAhead::take(void* to, size_t n) {
  n = std::min(n, size());
  std::memcpy(to, data(), n);
  skip(n);
  return n;
}

ReadOutcome ReadAhead::read_more(Stream stream, Status* error) {
  if (begin_ > 0) {
    end_ = size();
    std::memmove(bytes_.data(), data(), end_);
    begin_ = 0;
  }
  size_t got;
  const ReadOutcome outcome = read_directly(stream, bytes_.data() + end_, bytes_.size() - end_, &got, error);
  end_ += got;
  return outcome;
}

ReadOutcome ReadAhead::read_directly(Stream stream, void* to, size_t n, size_t* got, Status* error) {
  *got = 0;
  if (drained_) return ReadOutcome::kBlocked;
  // Once the turn is over, TLS still gives the bytes that it has read: the socket would not announce them.
  const bool turn_over = turn_bytes_ >= kTurnBytes;
  for (;;) {
    const ssize_t k = stream.receive(to, n, turn_over);
    if (k > 0) {
      *got = static_cast<size_t>(k);
      drained_ = *got < n && !stream.tls;
      turn_bytes_ += *got;
      received_.fetch_add(*got, std::memory_order_relaxed);
      return ReadOutcome::kDone;
    }
    if (k == 0) return ReadOutcome::kEnd;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      drained_ = true;
      return ReadOutcome::kBlocked;
    }
    *error = stream.failure(Code::kWorkerLost, "receiving", errno);
    return ReadOutcome::kError;
  }
}

}  // namespace dsgd::transport::uv
