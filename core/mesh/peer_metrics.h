// Counts the data and the waits of each peer, and traces the waits. A worker keeps its counters in later
// views. On the session's loop, except counters().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/metrics/counters.h"
#include "core/metrics/trace.h"
#include "transport/loop.h"

namespace dsgd {

class PeerMetrics {
 public:
  explicit PeerMetrics(metrics::Trace* trace) : trace_(trace) {}  // null: waits are not traced
  void begin_view(const std::vector<int32_t>& earlier);           // Members::ranks_in() of the view before

  void count_sent(int32_t rank, size_t nbytes) { peers_[rank].counters->sent.add(nbytes); }
  void count_received(int32_t rank, size_t nbytes) { peers_[rank].counters->received.add(nbytes); }
  // A wait for the first data of a peer has ended. Time in which several operations wait counts once.
  void count_wait(int32_t rank, transport::Time begun, transport::Time ended, bool failed);
  // By rank. Any thread.
  std::vector<std::shared_ptr<const metrics::PeerCounters>> counters() const;

 private:
  struct Peer {
    std::shared_ptr<metrics::PeerCounters> counters;
    transport::Time waited_until{};  // the end of the latest wait that is counted
  };

  metrics::Trace* const trace_;
  std::vector<Peer> peers_;  // by rank
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const metrics::PeerCounters>> shared_;  // by rank, for other threads
};

}  // namespace dsgd
