#include "core/mesh/peer_watch.h"

#include <utility>

#include "core/base/while_alive.h"

namespace dsgd {

namespace {

constexpr int kProbeAfter = 3, kMargin = 5;  // sixteenths of heartbeat_interval

}  // namespace

void PeerWatch::watch() {
  if (!probe_ || peers_.closed()) return;
  const transport::Time now = peers_.loop().now();
  const auto before = std::exchange(waited_for_, {});
  for (const int32_t rank : operations_.missing_ranks()) {
    const auto known = before.find(rank);
    waited_for_[rank] = known == before.end() ? now : known->second;
  }
  std::erase_if(silent_, [this](int32_t rank) { return !waited_for_.contains(rank); });
  for (const auto& [rank, since] : waited_for_) {
    if (now - since < kProbeAfter * interval_) continue;
    if (!peers_.is_leaving(rank) && probing_.insert(rank).second) probe(rank);
    // A later phase of an open operation may need data that was lost with the peer's connection.
    if (peers_.has_left(rank) && !peers_.said_goodbye(rank)) operations_.on_last_answer(rank);
  }
  peers_.loop().schedule(now + interval_, if_alive(alive_, [this] { watch(); }));
}

void PeerWatch::begin_view() {
  waited_for_.clear();
  probing_.clear();
  silent_.clear();
  ++views_;
}

void PeerWatch::probe(int32_t rank) {
  const auto answered = if_alive(alive_, [this, rank, views = views_](const Status& answer) {
    if (peers_.closed() || views != views_) return;
    if (const auto waited = waited_for_.find(rank); waited != waited_for_.end())
      waited->second = peers_.loop().now();
    probing_.erase(rank);
    silent_.erase(rank);
    if (answer.ok() || peers_.is_leaving(rank)) return;
    silent_.insert(rank);
    peers_.report_silent(rank, answer);
  });
  const transport::Time due = peers_.loop().now() + peers_.options().lease - kMargin * interval_;
  probe_(peers_.members().view().members[rank], due, answered);
}

}  // namespace dsgd
