// The connections between this worker and its peers: who may connect, who can be reached, and who has left.
// Connections open on first use, one for each direction of a pair. Everything is on the session's loop.
#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/log.h"
#include "core/base/refusal_log.h"
#include "core/base/repeated_dial.h"
#include "core/mesh/channels.h"
#include "core/mesh/members.h"
#include "core/metrics/counters.h"
#include "core/metrics/trace.h"
#include "transport/network.h"

namespace dsgd {

struct PeerOptions {
  transport::Hello hello;  // job, worker id; role, rank, view and job nonce are filled in
  std::string token;
  int32_t num_workers = std::numeric_limits<int32_t>::max();  // of the job, before the view is known
  uint64_t receive_memory = 256 << 20;
  // Limit of every wait for a peer that does not answer.
  transport::Duration lease = std::chrono::seconds(10);
  metrics::Trace* trace = nullptr;
};

// Events of the peers that concern the session.
class SessionEvents {
 public:
  virtual ~SessionEvents() = default;
  // A peer says that its session is broken: the session here cannot go on.
  virtual void on_peer_failure(int32_t rank, const Status& why) = 0;
  // This worker cannot reach a peer, or a connection with it has ended without a goodbye. Which of the two is
  // cut off is unknown. `error` names the peer; `network_error` is what the network said.
  virtual void on_peer_unreachable(int32_t rank, const Status& error, const Status& network_error) = 0;
  // A peer closed its session in good order. If Peers::said_goodbye(rank), all its data has arrived;
  // otherwise the last of it may be lost.
  virtual void on_peer_departed(int32_t rank) = 0;
  // A peer gave up, at its deadline, an operation of this call that has succeeded here.
  virtual void on_given_up(int32_t /*rank*/, uint64_t /*call*/, const Status& /*cause*/) {}
  // PutObject, DeleteObject or FetchObject.
  virtual void on_object(transport::Message message, transport::Responder respond) = 0;
  // As transport::ServerHandler::on_bulk and on_bulk_end, for a chunk of an object.
  virtual std::unique_ptr<transport::BulkSink> on_object_data(uint64_t /*put*/, const transport::BulkHeader&,
                                                              size_t /*nbytes*/) {
    return nullptr;
  }
  virtual void on_object_data_end(uint64_t /*put*/, const transport::BulkHeader&,
                                  std::unique_ptr<transport::BulkReceipt> receipt) {
    receipt->finish(Status(Code::kNotFound, "this worker holds no objects"));
  }
  // A peer closes its session after `steps` steps. `digests`: of its values; empty if it has none to give.
  virtual void on_goodbye(int32_t /*rank*/, uint64_t /*steps*/, std::vector<uint64_t> /*digests*/) {}
};

// Events of the peers that concern operations. None comes before the view is known.
class OperationEvents {
 public:
  virtual ~OperationEvents() = default;
  // As transport::ServerHandler::on_bulk and on_bulk_end, from this peer.
  virtual std::unique_ptr<transport::BulkSink> on_bulk(int32_t source, const transport::BulkHeader& header,
                                                       size_t nbytes) = 0;
  virtual void on_bulk_end(int32_t source, const transport::BulkHeader& header,
                           std::unique_ptr<transport::BulkReceipt> receipt) = 0;
  virtual bool has_begun(uint64_t operation) const = 0;
  virtual void on_operation_failed(const transport::OperationFailed& message) = 0;
  virtual void on_deadline_passed(uint64_t operation) = 0;  // at a peer
  // A peer has refused a small chunk.
  virtual void on_refused(uint64_t operation, const Status& why) = 0;
  // A peer has left in good order. Its answers may still come, until on_last_answer().
  virtual void on_departed(int32_t rank) = 0;
  virtual void on_last_answer(int32_t rank) = 0;
};

class Peers final : public transport::ServerHandler {
 public:
  Peers(transport::Network& network, PeerOptions options, SessionEvents& session, std::shared_ptr<Log> log);
  ~Peers() override;
  void set_events(OperationEvents* operations) { operations_ = operations; }  // before any other call

  // The view is known: peers may be dialled. What has come early is reported.
  Status open(const transport::JoinReply& view);
  const Members& members() const { return members_; }
  int32_t rank() const { return members_.rank(); }
  int32_t size() const { return members_.size(); }
  transport::Loop& loop() { return network_.loop(); }
  const PeerOptions& options() const { return options_; }
  // The same on all workers: from receive_memory and size.
  size_t chunk_bytes() const { return chunk_bytes_; }

  // Chunks. The source and the view of the header are filled in.
  void send(int32_t rank, transport::BulkHeader header, std::span<const std::byte> data,
            std::function<void(const Status&)> done);
  void send_small(int32_t rank, transport::BulkHeader header, std::span<const std::byte> data);
  // Chunks of this operation that wait to be sent are not sent, and their `done` is destroyed.
  void revoke(uint64_t operation);
  void revoke(int32_t rank, uint64_t operation);  // those that the connection has already
  // Chunks of this operation that are arriving are not written any more, and are answered with `why`.
  void discard(uint64_t operation, const Status& why);
  void drop_unsent();  // chunks of all operations that wait for a connection
  // Control message to a peer; `done` may be empty.
  void call(int32_t rank, transport::Message message, transport::Time deadline,
            std::function<void(Result<transport::Message>)> done);
  // Tells all peers that an operation has failed, or (`session`) that this session is broken.
  void tell_failure(uint64_t operation, bool session, const Status& cause);
  bool sent() const;  // no message waits for a connection

  // Returns why a call to a peer failed: the peer's answer, or the loss of the worker if the connection
  // ended.
  Status blame(int32_t rank, const Status& status) const;
  // Returns whether the connection has ended without an answer, and it is not known yet whether the worker
  // has left in good order or is lost.
  bool undecided(int32_t rank, const Status& status) const;
  void report_unreachable(int32_t rank, const Status& network_error) {
    session_.on_peer_unreachable(rank, members_.unreachable(rank, network_error), network_error);
  }
  // Fails the session, from a task of the loop.
  void report_failure(int32_t rank, const Status& why);
  void report_given_up(int32_t rank, uint64_t call, const Status& cause) {
    session_.on_given_up(rank, call, cause);
  }

  bool alone() const;  // all others have left
  bool has_left(int32_t rank) const { return peers_[rank].presence == Presence::kLeft; }
  // Returns whether a goodbye or the head says that `rank` has left. False for ranks that are no peers.
  bool is_leaving(int32_t rank) const {
    return members_.is_peer(rank) && peers_[rank].presence != Presence::kPresent;
  }
  // Returns whether `rank` closed its session in good order before it made the call of this operation. All
  // workers agree: its goodbye to each and its Leave to the head name the same call. For operations of
  // channel 0, whose calls departure_call counts.
  bool left_before(int32_t rank, uint64_t operation) const {
    return has_left(rank) && peers_[rank].departure_call != 0 &&
           call_of(operation) >= peers_[rank].departure_call;
  }
  // Returns whether `rank` has left after it had made the call of this operation, of channel 0.
  bool left_after(int32_t rank, uint64_t operation) const {
    return has_left(rank) && call_of(operation) < peers_[rank].departure_call;
  }
  // Returns whether the goodbye of `rank` has come, and so all that it sent.
  bool said_goodbye(int32_t rank) const { return peers_[rank].goodbye; }
  // Takes the head's news that `rank` has left. If the rank is connected to this worker, waits at most two
  // leases for its goodbye, which comes behind its data.
  void note_departure(int32_t rank, uint64_t departure_call);
  // Says goodbye and closes all connections after flushing. `departure_call`: the first call that this worker
  // does not make, from which on steps may go on without it; 0: none may.
  void close(const Status& cause, uint64_t steps, const std::vector<uint64_t>& digests,
             uint64_t departure_call);
  bool closed() const { return closed_; }
  // Before the network ends: nothing of it is used afterwards.
  void drop_channels();

  // By rank; from open() on. Any thread.
  const metrics::PeerCounters& counters(int32_t rank) const { return peers_[rank].counters; }
  // Data that travelled in a message.
  void count_sent(int32_t rank, size_t nbytes) { peers_[rank].counters.sent.add(nbytes); }
  void count_received(int32_t rank, size_t nbytes) { peers_[rank].counters.received.add(nbytes); }
  // A wait for the first data of a peer has ended. Time in which several operations wait counts once.
  void count_wait(int32_t rank, transport::Time begun, bool failed);

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
  enum class Presence {
    kPresent,
    kAnnounced,  // the head says that it has left; its goodbye is awaited
    kLeft
  };
  struct Unsent {        // waits for the connection
    uint64_t operation;  // 0: a control message
    std::function<void(transport::ClientChannel&)> send;
    std::function<void(Result<transport::Message>)> answered;  // of a call: gets the error
  };
  struct Peer {
    std::unique_ptr<transport::ClientChannel> channel;  // to it
    std::shared_ptr<RepeatedDial> dial;                 // null: it is not being dialled
    Status broken;
    std::deque<Unsent> unsent;
    Presence presence = Presence::kPresent;
    bool goodbye = false;         // has come
    uint64_t departure_call = 0;  // as its goodbye or the head says; 0: no step goes on without it
    metrics::PeerCounters counters;
    transport::Time waited_until{};  // the end of the latest wait that is counted
  };
  struct Incoming {
    uint64_t number;  // in order of arrival
    int32_t rank = -1;
    bool used = false;  // a message has come over it
    bool goodbye = false;
    Status cause = {};  // why it said goodbye
    uint64_t departure_call = 0;
  };
  struct Early {  // a chunk or a message about an object that came before open()
    transport::ServerChannel* channel;
    transport::BulkHeader header;
    std::unique_ptr<transport::BulkReceipt> receipt;  // null: a message
    transport::Message message = transport::Empty{};
    transport::Responder respond = {};
  };

  bool is_reachable(int32_t rank) const;
  template <typename Send>
  void with_channel(int32_t rank, uint64_t operation, Send send,
                    std::function<void(Result<transport::Message>)> answered = {});
  void dial(int32_t rank);
  void give_up_dial(int32_t rank, const Status& why);
  void peer_gone(int32_t rank, const Status& error, const Status& network_error);
  void complete_departure(int32_t rank);
  bool is_in_view(const transport::Hello& hello) const;
  // Returns an error unless the connection belongs to this job and is the only one of its worker.
  Status check_claim(const transport::ServerChannel& channel) const;
  Status not_in_job(const transport::ServerChannel& channel) const;
  void note_use(transport::ServerChannel& channel);
  // Closes a connection that does not belong to this job.
  void disconnect_stranger(transport::ServerChannel& channel);
  void drop_early(const transport::ServerChannel& channel, const Status& why);
  bool is_from_peer(uint64_t view, int32_t rank) const {
    return opened_ && view == members_.view().view && members_.is_peer(rank);
  }
  bool is_connected(int32_t rank) const;  // has a connection to this worker
  // Incoming connections that `chosen` returns true for, in order of arrival: a simulated job is the same
  // each time.
  template <typename Chosen>
  std::vector<transport::ServerChannel*> connections(Chosen chosen) const;
  void await_goodbye(int32_t rank);
  void end_wait_for_goodbye(int32_t rank);

  transport::Network& network_;
  PeerOptions options_;
  SessionEvents& session_;
  OperationEvents* operations_ = nullptr;
  std::shared_ptr<Log> log_;
  RefusalLog refusals_;
  Members members_;
  bool opened_ = false, closed_ = false;
  size_t chunk_bytes_ = 0;
  size_t window_ = 0;        // unanswered bytes of one operation to one peer
  std::vector<Peer> peers_;  // by rank
  std::unordered_map<transport::ServerChannel*, Incoming> incoming_;
  uint64_t next_incoming_ = 0;
  std::vector<Early> early_;  // in order of arrival; handled by open()
  std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace dsgd
