// The peers of this worker: sends and receives their chunks and messages. Connections open on first use, one
// for each direction of a pair. Everything is on the session's loop.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/log.h"
#include "core/mesh/channels.h"
#include "core/mesh/departures.h"
#include "core/mesh/events.h"
#include "core/mesh/incoming_connections.h"
#include "core/mesh/members.h"
#include "core/mesh/outgoing_connections.h"
#include "core/mesh/peer_metrics.h"
#include "core/mesh/peer_options.h"
#include "core/metrics/counters.h"
#include "transport/network.h"

namespace dsgd {

class Operations;

class Peers final : public transport::ServerHandler {
 public:
  Peers(transport::Network& network, PeerOptions options, SessionEvents& session, std::shared_ptr<Log> log);
  ~Peers() override;
  void use_operations(Operations* operations) { operations_ = operations; }  // before any other call

  // Opens the mesh for `view`: peers may be dialled from now on. Handles the chunks and messages that arrived
  // early. A learner that fetches state opens the mesh for the present view, which it is not in.
  Status open(const transport::JoinReply& view);
  // Changes to `view`, whose ranks hold from now on. No operation may be open. Ends the connections to
  // workers that are not in it, and handles what arrived early for it.
  void change_view(const transport::JoinReply& view);
  const Members& members() const { return members_; }
  int32_t rank() const { return members_.rank(); }
  int32_t size() const { return members_.size(); }
  transport::Loop& loop() { return network_.loop(); }
  const PeerOptions& options() const { return options_; }
  // The same on all workers: from receive_memory and size.
  size_t chunk_bytes() const { return outgoing_.chunk_bytes(); }

  // Chunks. The source and the view of the header are filled in.
  void send(int32_t rank, transport::BulkHeader header, std::span<const std::byte> data,
            std::function<void(const Status&)> done);
  void send_small(int32_t rank, transport::BulkHeader header, std::span<const std::byte> data);
  // See OutgoingConnections.
  void revoke(uint64_t operation) { outgoing_.revoke(operation); }
  void revoke(int32_t rank, uint64_t operation) { outgoing_.revoke(rank, operation); }
  void drop_unsent() { outgoing_.drop_unsent(); }
  // The session has failed. Drops data that waits for a connection. See Operations::fail_session() for the
  // answers to peers.
  void fail_session();
  // Stops writing chunks of this operation that arrive, and answers them with `why`.
  void discard(uint64_t operation, const Status& why) { incoming_.discard(operation, why); }
  // Control message to a peer; `done` may be empty.
  void call(int32_t rank, transport::Message message, transport::Time deadline,
            std::function<void(Result<transport::Message>)> done);
  // Tell all peers that an operation has failed, or that this session has.
  void tell_operation_failed(uint64_t operation, const Status& cause);
  void tell_session_failed(const Status& cause);
  bool all_sent() const { return outgoing_.all_sent(); }

  // Returns why a call to a peer failed: the peer's answer, or the loss of the worker if the connection
  // ended.
  Status failure_of_call(int32_t rank, const Status& status) const;
  // Returns whether the connection has ended without an answer, and it is not known yet whether the worker
  // has left in good order or is lost.
  bool is_loss_undecided(int32_t rank, const Status& status) const;
  void report_silent(int32_t rank, const Status& network_error) {
    session_.on_peer_unreachable(rank, members_.unreachable_error(rank, network_error), network_error, true);
  }
  // Fails the session, from a task of the loop.
  void report_failure(int32_t rank, const Status& why);
  void report_given_up(int32_t rank, uint64_t call, const Status& cause) {
    session_.on_given_up(rank, call, cause);
  }

  bool alone() const { return opened_ && departures_.all_have_left(); }  // all others have left
  // See Departures.
  bool has_left(int32_t rank) const { return departures_.has_left(rank); }
  bool is_leaving(int32_t rank) const { return departures_.is_leaving(rank); }
  bool left_before(int32_t rank, uint64_t operation) const {
    return departures_.left_before(rank, operation);
  }
  bool left_after(int32_t rank, uint64_t operation) const { return departures_.left_after(rank, operation); }
  bool said_goodbye(int32_t rank) const { return departures_.said_goodbye(rank); }
  void note_departure(int32_t rank, uint64_t departure_call) {
    departures_.note_departure(rank, departure_call);
  }
  // Says goodbye and closes all connections after flushing. `departure_call`: the first call that this worker
  // does not make, from which on steps may go on without it; 0: none may.
  void close(const Status& cause, uint64_t steps, const std::vector<uint64_t>& digests,
             uint64_t departure_call);
  bool closed() const { return closed_; }
  // Before the network ends: nothing of it is used afterwards.
  void drop_channels();

  // See PeerMetrics. From open() on.
  std::vector<std::shared_ptr<const metrics::PeerCounters>> counters() const { return metrics_.counters(); }
  // Data that travelled in a message.
  void count_sent(int32_t rank, size_t nbytes) { metrics_.count_sent(rank, nbytes); }
  void count_received(int32_t rank, size_t nbytes) { metrics_.count_received(rank, nbytes); }
  void count_wait(int32_t rank, transport::Time begun, bool failed) {
    metrics_.count_wait(rank, begun, loop().now(), failed);
  }

  // transport::ServerHandler
  Status on_open(transport::ServerChannel& channel) override;
  void on_call(transport::ServerChannel& channel, transport::Message request,
               transport::Responder respond) override;
  std::unique_ptr<transport::BulkSink> on_bulk(transport::ServerChannel& channel,
                                               const transport::BulkHeader& header, size_t nbytes) override;
  void on_bulk_end(transport::ServerChannel& channel, const transport::BulkHeader& header,
                   std::unique_ptr<transport::BulkReceipt> receipt) override;
  void on_close(transport::ServerChannel& channel, const Status& why) override;

 private:
  bool is_reachable(int32_t rank) const;
  // Returns a task that calls `then` with the rank that the peer has when the task runs, unless the peer is
  // not in the view then, or this session has been closed.
  std::function<void()> task_for(int32_t rank, std::function<void(int32_t rank)> then);
  transport::Responder without_cause(transport::Responder respond) const;
  void tell_failure(const transport::Message& message, const Status& cause);
  void peer_gone(int32_t rank, const Status& error, const Status& network_error);
  void on_left(int32_t rank);
  void handle_early();
  void on_early_chunk(transport::ServerChannel& channel, int32_t source, const transport::BulkHeader& header,
                      std::unique_ptr<transport::BulkReceipt> receipt);
  Status wrong_source(int32_t source, const transport::BulkHeader& header) const;
  // Returns whether `rank` of `view` is the peer of this connection. A learner has no rank in this view; its
  // claimed rank is ignored.
  bool is_peer_of(const IncomingConnections::Connection* connection, uint64_t view, int32_t rank) const {
    return opened_ && connection && connection->rank == rank && view == members_.view().view &&
           members_.is_peer(rank);
  }

  transport::Network& network_;
  PeerOptions options_;
  SessionEvents& session_;
  Operations* operations_ = nullptr;
  Members members_;
  bool opened_ = false, closed_ = false;
  const std::shared_ptr<bool> failed_ = std::make_shared<bool>(false);  // the session
  PeerMetrics metrics_;
  OutgoingConnections outgoing_;
  IncomingConnections incoming_;
  Departures departures_;
};

}  // namespace dsgd
