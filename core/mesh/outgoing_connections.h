// The connections of this worker to its peers, and what waits until they are open. The first use of a
// connection dials it. Everything is on the session's loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/repeated_dial.h"
#include "core/mesh/members.h"
#include "core/mesh/peer_options.h"
#include "transport/network.h"

namespace dsgd {

class OutgoingConnections {
 public:
  using Answered = std::function<void(Result<transport::Message>)>;
  // A connection has ended, or the dial of a peer has failed: fail() follows. `error` names the peer;
  // `network_error` is what the network said.
  using Ended = std::function<void(int32_t rank, const Status& error, const Status& network_error)>;
  // A peer has rejected a small chunk.
  using Rejected = std::function<void(uint64_t operation, const Status& why)>;

  // The options and the members of the present view outlive this object, and may change.
  OutgoingConnections(transport::Network& network, const PeerOptions& options, const Members& members,
                      Ended ended, Rejected rejected)
      : network_(network),
        options_(options),
        members_(members),
        ended_(std::move(ended)),
        rejected_(std::move(rejected)) {}

  // `earlier`: Members::ranks_in() of the view before. Connections that have failed may be dialled again.
  // Returns the connections to workers that are not in the view; they close when they are destroyed. Elements
  // may be null.
  std::vector<std::unique_ptr<transport::ClientChannel>> begin_view(const std::vector<int32_t>& earlier);
  // Divides receive_memory between `peers` peers. Before the first use of a connection.
  Status set_windows(size_t peers);
  size_t chunk_bytes() const { return chunk_bytes_; }

  // Returns the rank of a peer, updated when the view changes. Expires when the peer leaves the view.
  std::weak_ptr<const int32_t> follow(int32_t rank) const {
    return std::shared_ptr<const int32_t>(peers_[rank], &peers_[rank]->rank);
  }
  bool is_open(int32_t rank) const { return peers_[rank]->channel && peers_[rank]->failure.ok(); }
  const Status& failure(int32_t rank) const { return peers_[rank]->failure; }  // as fail() has set it

  // As the functions of transport::ClientChannel; waits until the connection is open. The connection must not
  // have failed (failure()).
  void send(int32_t rank, const transport::BulkHeader& header, std::span<const std::byte> data,
            std::function<void(const Status&)> done);
  void send_small(int32_t rank, const transport::BulkHeader& header, std::span<const std::byte> data);
  void call(int32_t rank, transport::Message message, transport::Time deadline, Answered answered);
  // Drops the chunks of this operation that are not sent yet, without calling their `done`.
  void revoke(uint64_t operation);
  // The same for one peer, except chunks that still wait for the connection.
  void revoke(int32_t rank, uint64_t operation);
  void drop_unsent();     // chunks of all operations that wait for a connection
  bool all_sent() const;  // no message waits for a connection or for its turn

  // The connection to `rank` is not used any more in this view.
  void fail(int32_t rank, const Status& why);
  // Ends the dial of a peer, if one is under way, and with it what waits for the connection.
  void give_up_dial(int32_t rank, const Status& why) { give_up_dial(*peers_[rank], why); }
  // Says goodbye and closes all connections after flushing.
  void close(const transport::Goodbye& goodbye);
  // Before the network ends: nothing of it is used afterwards.
  void drop_channels();

 private:
  struct Unsent {        // waits for the connection
    uint64_t operation;  // 0: a control message
    std::function<void(transport::ClientChannel&)> send;
    Answered answered;  // of a call: gets the error
  };
  struct Peer {
    int32_t rank = -1;                                  // in the present view
    std::unique_ptr<transport::ClientChannel> channel;  // null: it is not open yet
    std::shared_ptr<RepeatedDial> dial;                 // null: it is not being dialled
    Status failure;
    std::deque<Unsent> unsent;
  };

  template <typename Send>
  void with_channel(int32_t rank, uint64_t operation, Send send, Answered answered = {});
  void dial(int32_t rank);
  void give_up_dial(Peer& peer, const Status& why);
  transport::Loop& loop() { return network_.loop(); }

  transport::Network& network_;
  const PeerOptions& options_;
  const Members& members_;
  const Ended ended_;
  const Rejected rejected_;
  size_t chunk_bytes_ = 0;
  size_t window_ = 0;                         // unanswered bytes of one operation to one peer
  size_t small_window_ = 0;                   // unanswered bytes of small chunks to one peer
  std::vector<std::shared_ptr<Peer>> peers_;  // by rank; callbacks find one that is still in the view
  bool closed_ = false;
};

}  // namespace dsgd
