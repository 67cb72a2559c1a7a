#include "core/mesh/peer_metrics.h"

#include <algorithm>
#include <utility>

namespace dsgd {

namespace {
// Shorter waits for a peer are not worth a span of the trace.
constexpr transport::Duration kTracedWait = std::chrono::milliseconds(1);
}  // namespace

void PeerMetrics::begin_view(const std::vector<int32_t>& earlier) {
  const std::vector<Peer> known = std::exchange(peers_, {});
  for (const int32_t before : earlier)
    peers_.push_back(before < 0 ? Peer{std::make_shared<metrics::PeerCounters>()} : known[before]);
  std::lock_guard lock(mutex_);
  shared_.clear();
  for (const Peer& peer : peers_) shared_.push_back(peer.counters);
}

void PeerMetrics::count_wait(int32_t rank, transport::Time begun, transport::Time ended, bool failed) {
  Peer& peer = peers_[rank];
  begun = std::max(begun, peer.waited_until);
  peer.waited_until = ended;
  peer.counters->wait.add(ended - begun);
  if (trace_ && ended - begun >= kTracedWait) {
    trace_->record(
        {metrics::Track::kPeer, failed, 0, static_cast<uint32_t>(rank), "wait", 0, 0, begun, ended});
  }
}

std::vector<std::shared_ptr<const metrics::PeerCounters>> PeerMetrics::counters() const {
  std::lock_guard lock(mutex_);
  return shared_;
}

}  // namespace dsgd
