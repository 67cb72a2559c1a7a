// Counters of a session, since it was opened. One thread writes a counter, the session's loop; any thread
// reads it.
#pragma once

#include <atomic>
#include <cstdint>

#include "transport/loop.h"

namespace dsgd::metrics {

class Counter {
 public:
  void add(uint64_t n) { value_.store(value() + n, std::memory_order_relaxed); }
  void add(transport::Duration time) { add(static_cast<uint64_t>(time.count())); }  // nanoseconds
  void set(uint64_t n) { value_.store(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }
  double seconds() const { return static_cast<double>(value()) / 1e9; }

 private:
  std::atomic<uint64_t> value_{0};
};

// Calls of the host of one kind.
struct CallCounters {
  Counter ended, failed;  // failed ones have ended, too
  Counter bytes;          // of this worker's buffers
  Counter time;           // from the call to its end
};

struct PeerCounters {
  Counter sent, received;  // bytes of collectives, steps and objects
  // Time that operations of this worker waited for the peer's first data. Time in which several operations
  // wait counts once. High if the peer is late.
  Counter wait;
};

struct StepCounters {
  Counter ended, failed, applied;
  Counter gradients;  // time from the step's beginning until all gradients are marked
  Counter reduction;  // from then until all buckets are reduced
  Counter update;     // from then to the step's end
  Counter travel;     // time that buckets travelled; several travel at once
  Counter buckets;    // that have travelled
  Counter buffers;    // bytes of the step's buffers
  Counter state;      // bytes of optimizer state and master values, on all devices
};

}  // namespace dsgd::metrics
