// The latest spans of a session: what it did, from when to when. One thread records them, the session's loop;
// any thread reads.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "transport/loop.h"

namespace dsgd::metrics {

// Kinds of rows of a timeline. Spans that overlap get further rows.
enum class Track : uint8_t { kSteps, kBucket, kCalls, kPeer };

struct Span {
  Track track = Track::kSteps;
  bool failed = false;
  uint16_t unused = 0;    // no padding: a slot keeps the bytes
  uint32_t index = 0;     // of the bucket; rank of the peer
  const char* name = "";  // a literal
  uint64_t number = 0;    // of the step; of the call's operation
  uint64_t nbytes = 0;
  transport::Time begin{}, end{};
};

class Trace {
 public:
  explicit Trace(size_t capacity);  // spans; 0: it records none
  void record(const Span& span);    // in place of the oldest one
  // In the order in which they were recorded. Spans that are replaced while this call reads are left out.
  std::vector<Span> spans() const;

 private:
  using Words = std::array<uint64_t, sizeof(Span) / sizeof(uint64_t)>;
  using Slot = std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>>;
  static_assert(sizeof(Span) == sizeof(Words) && std::has_unique_object_representations_v<Span>);

  const size_t capacity_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> begun_{0}, written_{0};  // spans whose writing has begun; has ended
};

// Spans in the Trace Event Format, which Perfetto and chrome://tracing read. Times are Unix times:
// `unix_origin` is that of the origin of transport::Time.
std::string trace_events(const std::vector<Span>& spans, int32_t rank, transport::Duration unix_origin);

}  // namespace dsgd::metrics
