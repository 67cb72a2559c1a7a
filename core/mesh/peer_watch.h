// Probes the peers that operations wait for. The head notices a lost worker, unless the head itself has left
// in good order. But only the two ends notice that the way between two workers is cut.
//
// A peer is probed when operations have waited for it for 3/16 of heartbeat_interval, and again 3/16 after
// each answer. The limit of a probe is the lease minus 5/16, so a probe ends at most a lease after the wait
// began or the last probe was answered. It outlasts a cut that is shorter than `lease` minus
// `heartbeat_interval`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "core/mesh/operations.h"
#include "core/mesh/peers.h"

namespace dsgd {

class PeerWatch {
 public:
  // Finds out whether a peer can be reached, by a new connection (core/membership/probe.h); `done` comes on
  // the session's loop.
  using Probe = std::function<void(const transport::MemberInfo& peer, transport::Time deadline,
                                   std::function<void(const Status&)> done)>;

  // `probe` null: peers are not probed.
  PeerWatch(Peers& peers, Operations& operations, transport::Duration heartbeat_interval, Probe probe)
      : peers_(peers),
        operations_(operations),
        interval_(heartbeat_interval / 16),
        probe_(std::move(probe)) {}
  // Looks at the waits of the operations now, and every 1/16 of heartbeat_interval.
  void watch();
  void begin_view();  // answers of probes under way are ignored
  // Returns whether the last probe of the peer has failed, and operations have waited for it since.
  bool is_silent(int32_t rank) const { return silent_.contains(rank); }

 private:
  void probe(int32_t rank);

  Peers& peers_;
  Operations& operations_;
  const transport::Duration interval_;
  const Probe probe_;
  // Ranks that operations waited for at the last look, and the time at which the wait began or the last probe
  // was answered.
  std::map<int32_t, transport::Time> waited_for_;
  std::set<int32_t> probing_;
  std::set<int32_t> silent_;
  uint64_t views_ = 0;  // that have begun
  std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace dsgd
