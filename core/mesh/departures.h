// The peers that have left in good order. The head reports them, and each peer sends a goodbye. The goodbye
// is the last message of its sender. Everything is on the session's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/mesh/channels.h"
#include "core/mesh/incoming_connections.h"
#include "core/mesh/members.h"

namespace dsgd {

class Departures {
 public:
  using Left = std::function<void(int32_t rank)>;
  // `members` and `incoming` outlive this object. `left` is called when a peer has left, once.
  Departures(transport::Loop& loop, transport::Duration lease, const Members& members,
             const IncomingConnections& incoming, Left left)
      : loop_(loop), lease_(lease), members_(members), incoming_(incoming), left_(std::move(left)) {}

  void begin_view();  // all peers are present in a new view
  // Takes the head's news that `rank` has left. If the rank is connected to this worker, waits at most two
  // leases for its goodbye.
  void note_departure(int32_t rank, uint64_t departure_call);
  // The goodbye of `rank` has come, and its connection has ended.
  void note_goodbye(int32_t rank, uint64_t departure_call);
  // A connection from or to `rank` has ended without a goodbye.
  void note_end_of_connection(int32_t rank);
  void close() { closed_ = true; }  // ends all waits

  bool has_left(int32_t rank) const { return peers_[rank]->presence == Presence::kLeft; }
  bool all_have_left() const;
  // Returns whether a goodbye or the head says that `rank` has left. False for ranks that are no peers.
  bool is_leaving(int32_t rank) const {
    return members_.is_peer(rank) && peers_[rank]->presence != Presence::kPresent;
  }
  // Returns whether `rank` closed its session in good order before it made the call of this operation. All
  // workers agree: its goodbye to each and its Leave to the head name the same call. For operations of
  // channel 0, whose calls departure_call counts.
  bool left_before(int32_t rank, uint64_t operation) const {
    return has_left(rank) && peers_[rank]->departure_call != 0 &&
           call_of(operation) >= peers_[rank]->departure_call;
  }
  // Returns whether `rank` has left after it had made the call of this operation, of channel 0.
  bool left_after(int32_t rank, uint64_t operation) const {
    return has_left(rank) && call_of(operation) < peers_[rank]->departure_call;
  }
  // Returns whether the goodbye of `rank`, and thus all of its data, has arrived.
  bool said_goodbye(int32_t rank) const { return peers_[rank]->goodbye; }

 private:
  enum class Presence {
    kPresent,
    kAnnounced,  // the head says that it has left; its goodbye is awaited
    kLeft
  };
  struct Peer {
    Presence presence = Presence::kPresent;
    bool goodbye = false;         // has come
    uint64_t departure_call = 0;  // as its goodbye or the head says; 0: no step goes on without it
  };

  void await_goodbye(int32_t rank);
  void complete(int32_t rank);

  transport::Loop& loop_;
  const transport::Duration lease_;
  const Members& members_;
  const IncomingConnections& incoming_;
  const Left left_;
  // By rank. Shared so that timers of an earlier view can tell that theirs is gone.
  std::vector<std::shared_ptr<Peer>> peers_;
  bool closed_ = false;
};

}  // namespace dsgd
