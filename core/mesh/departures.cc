#include "core/mesh/departures.h"

#include <algorithm>

#include "core/base/stopped.h"

namespace dsgd {

void Departures::begin_view() {
  peers_.clear();
  for (int32_t rank = 0; rank < members_.size(); ++rank) peers_.push_back(std::make_shared<Peer>());
}

bool Departures::all_have_left() const {
  return std::count_if(peers_.begin(), peers_.end(), [](const auto& peer) {
           return peer->presence == Presence::kLeft;
         }) == members_.size() - 1;
}

void Departures::note_departure(int32_t rank, uint64_t departure_call) {
  if (!members_.is_peer(rank) || has_left(rank)) return;
  peers_[rank]->presence = Presence::kAnnounced;
  peers_[rank]->departure_call = departure_call;
  if (incoming_.is_connected(rank)) return await_goodbye(rank);
  complete(rank);
}

// The head says that this peer has left, but its goodbye has not arrived. Waits two leases: a cut lasts less
// than one lease, and TCP may wait as long again before it resends. If the goodbye never comes, the session
// fails if an operation needs the peer's data, and goes on otherwise.
void Departures::await_goodbye(int32_t rank) {
  const transport::Time due = loop_.now() + 2 * lease_;
  loop_.schedule(due, [this, rank, weak = std::weak_ptr(peers_[rank]), due] {
    if (weak.expired() || closed_ || has_left(rank) || !incoming_.is_connected(rank)) return;
    if (was_stopped(due, loop_.now(), lease_)) return await_goodbye(rank);
    complete(rank);
  });
}

void Departures::note_goodbye(int32_t rank, uint64_t departure_call) {
  peers_[rank]->departure_call = departure_call;
  peers_[rank]->goodbye = true;
  complete(rank);
}

// If no connection can bring the goodbye any more, the wait for it ends.
void Departures::note_end_of_connection(int32_t rank) {
  if (peers_[rank]->presence == Presence::kAnnounced && !incoming_.is_connected(rank)) complete(rank);
}

void Departures::complete(int32_t rank) {
  if (!members_.is_peer(rank) || has_left(rank)) return;
  peers_[rank]->presence = Presence::kLeft;
  left_(rank);
}

}  // namespace dsgd
