// The workers' connections to each other, and which task an arriving chunk belongs to. Connections open on
// first use, one for each direction of a pair. Everything is on the session's loop.
//
// Order and memory: the calls of each channel are numbered in issue order, and the operations of a call
// within it, so that workers whose calls differ continue with the same call number, however many operations
// each of the calls would have had. A chunk for an operation that has not begun here is parked in pooled
// memory; the sender's windows (per operation, see ClientChannel::send) and the number of tasks open at once
// bound how much is parked. So a worker that is ahead waits, and the data of one that is behind is already
// there.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/log.h"
#include "core/base/refusal_log.h"
#include "core/base/repeated_dial.h"
#include "core/mesh/signature.h"
#include "core/mesh/task.h"
#include "core/metrics/counters.h"
#include "core/metrics/trace.h"
#include "transport/network.h"

namespace dsgd {

struct MeshOptions {
  transport::Hello hello;  // job, worker id; role, rank, view and job nonce are filled in
  std::string token;
  int32_t num_workers = std::numeric_limits<int32_t>::max();  // of the job, before the view is known
  uint64_t receive_memory = 256 << 20;
  // Limit of every wait for a peer that does not answer.
  transport::Duration lease = std::chrono::seconds(10);
  // A peer is probed when an operation has waited for it for 3/16 of this time.
  transport::Duration heartbeat_interval = std::chrono::seconds(2);
  // Finds out whether a peer can be reached, by a new connection (core/membership/probe.h); `done` comes on
  // the session's loop. Null: peers are not probed.
  std::function<void(const transport::MemberInfo& peer, transport::Time deadline,
                     std::function<void(const Status&)> done)>
      probe = {};
  metrics::Trace* trace = nullptr;
};

// Events that the mesh reports to its owner.
class MeshEvents {
 public:
  virtual ~MeshEvents() = default;
  // A peer says that its session is broken: the session here cannot go on.
  virtual void on_peer_failure(int32_t rank, const Status& why) = 0;
  // This worker cannot reach a peer, or a connection with it has ended without a goodbye. Which of the two is
  // cut off is unknown.
  virtual void on_peer_unreachable(int32_t rank, const Status& why) = 0;
  // A peer closed its session in good order; all that it sent has arrived.
  virtual void on_peer_left(int32_t rank) = 0;
  virtual void on_object(transport::ObjectPart part, transport::Responder respond) = 0;
  // A chunk of an object: its payload comes next, or is in. As transport::ServerHandler::on_bulk and
  // on_bulk_end.
  virtual transport::BulkSink* on_object_data(uint64_t /*put*/, const transport::BulkHeader&,
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

class Mesh final : public transport::ServerHandler {
 public:
  // A channel is a sequence of calls. Workers make the calls of one channel in the same order; those of
  // different channels in any order. Steps, and calls that name no channel, use channel 0.
  static constexpr uint32_t kChannels = 4;
  // Tasks that may be open at once on a worker: buckets of a step, collectives of channel 0, and collectives
  // of any other channel. The channels' limits are separate, so that a channel whose peers are late holds up
  // no other.
  static constexpr size_t kOpenTasks = 4;
  static constexpr size_t kOpenTasksOfAChannel = 1;

  Mesh(transport::Network& network, MeshOptions options, MeshEvents& events, std::shared_ptr<Log> log);
  ~Mesh() override;

  // The view is known: peers may be dialled and operations begun.
  Status open(const transport::JoinReply& view);
  int32_t rank() const { return view_.rank; }
  int32_t size() const { return static_cast<int32_t>(view_.members.size()); }
  const std::shared_ptr<const Group>& world() const { return world_; }  // all workers of the view
  const transport::JoinReply& view() const { return view_; }
  transport::Loop& loop() { return network_.loop(); }
  // The same on all workers: from receive_memory and size.
  size_t chunk_bytes() const { return chunk_bytes_; }
  // "rank 2 (worker 'w2' on host nodeb)"
  std::string member_name(int32_t rank) const;
  std::string member_names(std::span<const int32_t> ranks) const;  // separated by commas
  std::string host_of(int32_t rank) const;                         // empty for a rank that is not in the view

  // The number of an operation, from the highest bit: 2 bits for the channel, 38 for the call in it (1, 2,
  // ...), and 24 for the operation in the call. A call's number includes its channel.
  static constexpr uint64_t kOperationsOfACall = uint64_t{1} << 24, kCallsOfAChannel = uint64_t{1} << 38;
  static constexpr uint64_t call_number(uint32_t channel, uint64_t index) {
    return channel * kCallsOfAChannel + index;
  }
  static constexpr uint64_t operation(uint64_t call, uint64_t index) {
    return call * kOperationsOfACall + index;
  }
  static constexpr uint64_t call_of(uint64_t operation) { return operation / kOperationsOfACall; }
  static constexpr uint32_t channel_of(uint64_t call) {
    return static_cast<uint32_t>(call / kCallsOfAChannel);
  }
  // The highest numbers, which no call reaches, are those of objects. The transport sends lower numbers
  // first, so objects do not get in the way of a step.
  static constexpr uint64_t object_operation(uint64_t put) { return ~uint64_t{0} - kObjects + 1 + put; }
  static constexpr bool is_object(uint64_t operation) { return operation >= object_operation(0); }
  // "call 3 of the session", "call 3 of channel 1"
  static std::string call_name(uint64_t call);
  // The first operation of a call is compared between each pair of workers, whether they exchange data or
  // not. It does not succeed anywhere unless all workers make the same call.
  static constexpr bool is_first(uint64_t operation) { return operation % kOperationsOfACall == 0; }

  // Returns the timeout error "WHAT within LIMIT; still waiting for ...", which names the missing peers.
  // `limit` begins with the name of the setting that the deadline comes from ("step_timeout = 300.0 s").
  Status too_late(const std::string& what, const std::string& limit, std::span<const int32_t> missing,
                  std::span<const int32_t> silent = {}) const;
  // Returns why a call to a peer failed: the peer's answer, or the loss of the worker if the connection
  // ended.
  Status blame(int32_t rank, const Status& status) const;
  // Returns whether the connection has ended without an answer, and it is not known yet whether the worker
  // has left in good order or is lost.
  bool undecided(int32_t rank, const Status& status) const;
  Status has_closed(int32_t rank) const;

  // Takes the task and starts it; null if it ended at once. No number is used twice.
  Task* add(std::unique_ptr<Task> task, transport::Time deadline);
  // Ends the operations [first, last) of one call on this worker only, including those not yet begun. Peers
  // do the same by themselves; their chunks are discarded.
  void drop(uint64_t first, uint64_t last);
  // Fails a task here and on all peers, with `cause`.
  void fail(Task& task, const Status& cause);
  // Fails an operation on all peers that will not begin here.
  void refuse(uint64_t operation, const Status& cause) { tell_peers(operation, false, cause); }
  // Ends a call, once, when its last operation here has ended. Chunks for other operations of the call are
  // refused from then on. With a cause, its open operations end here; the peers end theirs by themselves and
  // get no message.
  void end_call(uint64_t call, const Status& cause);
  // Fails all tasks; tells the peers that this session is broken. Later operations are refused by the owner.
  void fail_session(const Status& cause);
  void tell_failure(const Status& cause);
  // By rank; from open() on. Any thread.
  const metrics::PeerCounters& counters(int32_t rank) const { return counters_[rank]; }
  // Data that travelled in a message.
  void count_sent(int32_t rank, size_t nbytes) { counters_[rank].sent.add(nbytes); }
  void count_received(int32_t rank, size_t nbytes) { counters_[rank].received.add(nbytes); }
  // Returns whether no message waits for a connection.
  bool sent() const;

  // Peers that the open operations of a call wait for.
  struct Missing {
    std::string name;  // of the first of these operations
    std::vector<uint64_t> operations;
    // Peers that have sent nothing for it; if there are none, those whose data is missing.
    std::vector<int32_t> ranks;
    bool first = false;  // it is the first operation of the call: these peers have not made the call
  };
  Missing waiting(uint64_t call) const;

  // For tasks.
  void send(int32_t rank, transport::BulkHeader header, std::span<const std::byte> data,
            std::function<void(const Status&)> done);
  void send_small(int32_t rank, transport::BulkHeader header, std::span<const std::byte> data);
  // Control message to a peer; `done` may be empty.
  void call(int32_t rank, transport::Message message, transport::Time deadline,
            std::function<void(Result<transport::Message>)> done);

  // Objects. `put`: number of the put, less than kObjects. A chunk of data, which the transport reads until
  // it calls `done` or destroys it.
  static constexpr uint64_t kObjects = uint64_t{1} << 59;
  void send_object(int32_t rank, uint64_t put, uint64_t offset, std::span<const std::byte> data,
                   std::function<void(const Status&)> done);
  void revoke_object(uint64_t put);   // data that wait to be sent are not sent, and their `done` is destroyed
  void discard_object(uint64_t put);  // data that are arriving are not written any more

  bool alone() const;  // all others have left
  bool has_left(int32_t rank) const { return left_[rank]; }
  // Returns whether `rank` closed its session in good order before it made the call of this operation. All
  // workers that have its goodbye agree; a worker without it loses the connection instead.
  bool left_before(int32_t rank, uint64_t operation) const {
    return left_[rank] && first_call_not_made_[rank] != 0 && call_of(operation) >= first_call_not_made_[rank];
  }
  // A rank has left in good order: tasks that need it fail.
  void peer_left(int32_t rank);
  // The head says that a rank has left. If the rank is connected to this worker, waits at most two leases for
  // its goodbye, which comes behind its data.
  void told_left(int32_t rank);
  // Says goodbye and closes all connections after flushing. `first_call_not_made`: steps of this and later
  // calls may go on without this worker; 0: none may.
  void close(const Status& cause, uint64_t steps, const std::vector<uint64_t>& digests,
             uint64_t first_call_not_made);
  // Before the network ends: nothing of it is used afterwards.
  void drop_channels();

  // transport::ServerHandler
  Status on_open(transport::ServerChannel& channel) override;
  void on_call(transport::ServerChannel& channel, transport::Message request,
               transport::Responder respond) override;
  transport::BulkSink* on_bulk(transport::ServerChannel& channel, const transport::BulkHeader& header,
                               size_t nbytes) override;
  void on_bulk_end(transport::ServerChannel& channel, const transport::BulkHeader& header,
                   std::unique_ptr<transport::BulkReceipt> receipt) override;
  void on_close(transport::ServerChannel& channel, const Status& why) override;

 private:
  friend class Task;
  static constexpr size_t kRememberedFailures = 64;
  struct Waiting {
    uint64_t operation;
    std::function<void(transport::ClientChannel&)> use;
    std::function<void(Result<transport::Message>)> answered = {};  // of a call: gets the error
  };
  struct Outgoing {
    std::unique_ptr<transport::ClientChannel> channel;
    std::shared_ptr<RepeatedDial> dial;  // null: it is not being dialled
    Status broken;
    std::deque<Waiting> waiting;  // for the connection
  };
  struct Incoming {
    uint64_t number;  // in order of arrival
    int32_t rank = -1;
    bool used = false;  // a message has come over it
    bool goodbye = false;
    Status cause = {};  // why it said goodbye
    uint64_t first_call_not_made = 0;
  };
  struct Parked {
    int32_t source;
    const transport::ServerChannel* channel;  // only for comparison; it may have been destroyed
    transport::BulkHeader header;
    std::unique_ptr<transport::BulkReceipt> receipt;
  };
  struct EarlyObject {  // an ObjectPart that arrived before open()
    transport::ServerChannel* channel;
    transport::ObjectPart part;
    transport::Responder respond;
  };
  struct Entry {
    std::unique_ptr<Task> task;
    transport::TimerId timer = 0;
    transport::Time begun{};
    std::vector<char> heard;         // by rank: a chunk or an answer shows that it has begun there
    bool asked = false;              // its deadline has passed, here or at a peer
    std::vector<int32_t> not_begun;  // peers that have answered "not begun"
    int32_t unanswered = 0;
    struct Send {
      int32_t rank;
      std::function<void(const Status&)> done;
    };
    std::map<uint64_t, Send> sends;  // not yet answered, by number
    bool unsound = false;            // out of memory in the task: it can only be ended
    // Comparison of a call's first operation (mesh_compare.cc).
    std::vector<char> agreed;        // by rank: a chunk from it has shown the same signature
    int32_t to_agree = 0;            // peers that have not
    std::vector<char> sent_to;       // by rank: it has been sent a chunk, which carries the signature
    bool finished = false;           // the task has succeeded, and waits for the comparison
    Status disagreement;             // with a peer, from the header of its chunk
    transport::TimerId verdict = 0;  // limit of the wait for rank 0, which sends all workers the same error
  };

  void with_channel(int32_t rank, Waiting waiting);
  void dial(int32_t rank);
  void give_up_dial(int32_t rank, const Status& why);
  void ended(Task& task, const Status& status);  // called by Task::end
  void give(Task& task, int32_t source, const transport::BulkHeader& header,
            std::unique_ptr<transport::BulkReceipt> receipt);
  void deadline_passed(uint64_t operation);
  void time_out(uint64_t operation);
  Task* find(uint64_t operation);
  Task* begin(Task* task, transport::Time deadline);
  template <typename Work>
  auto in_task(const Task& task, Work work) -> decltype(work());
  void remember_failure(uint64_t operation, const Status& cause);
  bool has_ended(uint64_t operation) const;
  // Why the call of this operation, which has ended, did; null if all went well.
  const Status* failure_of(uint64_t operation) const;
  // The refusal of a chunk of a call that has ended.
  Status refusal(int32_t source, const transport::BulkHeader& header) const;
  // Checks the signature. On a mismatch null; the task fails, now or when rank 0 has told the reason.
  Task* match(int32_t source, const transport::BulkHeader& header);
  void mismatch(Task& task, int32_t source, const transport::BulkHeader& header);
  // mesh_compare.cc
  void note_sent(int32_t rank, uint64_t operation);
  bool send_signature(Task& task);  // to the peers that start() has sent nothing; false if the task has ended
  void has_agreed(uint64_t operation, int32_t rank);
  bool finish(Task& task);  // notes that the task has succeeded here; true if all peers have agreed
  std::vector<int32_t> missing(const Entry& entry) const;
  void end_wait(const Entry& entry, int32_t rank, bool failed);
  void end_waits(const Entry& entry);  // of an operation that has failed
  Signature signature_of(const Task& task) const;
  void hear(Entry& entry, int32_t rank);
  void take(int32_t source, const transport::ServerChannel* channel, const transport::BulkHeader& header,
            std::unique_ptr<transport::BulkReceipt> receipt);
  std::unique_ptr<transport::BulkReceipt> take_dispute(int32_t source, const transport::BulkHeader& header,
                                                       std::unique_ptr<transport::BulkReceipt> receipt);
  bool settle(uint64_t operation);  // at rank 0; returns whether the operation ended
  void end_with(uint64_t operation, const Status& cause);
  void drop_parked(uint64_t operation, const Status& cause);
  void drop_early(const transport::ServerChannel& channel, const Status& cause);
  void failure_from_peer(const transport::OperationFailed& message);
  void tell_peers(uint64_t operation, bool session, const Status& cause);
  Status lost(int32_t rank, const Status& why) const;
  void peer_gone(int32_t rank, const Status& status);
  bool is_in_view(const transport::Hello& hello) const;
  // Returns an error unless the connection belongs to this job and is the only one of its worker.
  Status check_claim(const transport::ServerChannel& channel) const;
  Status not_in_job(const transport::ServerChannel& channel) const;
  void note_use(transport::ServerChannel& channel);
  // Closes a connection that does not belong to this job.
  void disconnect_stranger(transport::ServerChannel& channel);
  bool is_peer(int32_t rank) const { return rank >= 0 && rank < size() && rank != view_.rank; }
  void fail_tasks_that_need(int32_t rank);
  void leave_out(int32_t rank);
  bool has_made(int32_t rank, const Task& task) const;
  void answer_for(int32_t rank);
  bool is_connected(int32_t rank) const;  // has a connection to this worker
  // Incoming connections that `chosen` returns true for, in order of arrival: a simulated job is the same
  // each time.
  template <typename Chosen>
  std::vector<transport::ServerChannel*> connections(Chosen chosen) const;
  void await_goodbye(int32_t rank);
  void watch_peers();
  void probe(int32_t rank, transport::Duration limit);
  Status unreachable(int32_t rank, const std::string& why) const;

  transport::Network& network_;
  MeshOptions options_;
  MeshEvents& events_;
  std::shared_ptr<Log> log_;
  RefusalLog refusals_;
  transport::JoinReply view_;
  std::shared_ptr<const Group> world_;
  bool opened_ = false, closed_ = false;
  size_t chunk_bytes_ = 0;
  size_t window_ = 0;
  std::vector<Outgoing> outgoing_;
  std::unique_ptr<metrics::PeerCounters[]> counters_;  // by rank
  // By rank: the end of the latest wait that is counted in counters_.
  std::vector<transport::Time> waited_until_;
  std::vector<char> left_;                     // by rank
  std::vector<char> departed_;                 // by rank: the head says that it has left
  std::vector<uint64_t> first_call_not_made_;  // by rank, as its goodbye says; 0: unknown
  std::vector<char> probed_;                   // by rank: a probe is under way
  // Ranks that operations waited for when watch_peers() last ran, and the time at which the wait began or the
  // last probe was answered.
  std::map<int32_t, transport::Time> waited_for_;
  std::unordered_map<transport::ServerChannel*, Incoming> incoming_;
  uint64_t next_incoming_ = 0;
  std::map<uint64_t, Entry> tasks_;
  std::multimap<uint64_t, Entry> ended_tasks_;  // ended tasks that may be on the call stack
  uint64_t next_send_ = 0;
  bool destruction_posted_ = false;  // a posted task will destroy them
  std::map<uint64_t, std::vector<Parked>> parked_;
  std::vector<EarlyObject> early_objects_;  // in order of arrival; handled by open()
  // Causes of the newest failed operations, for chunks that come late.
  std::map<uint64_t, Status> failed_;
  std::map<uint64_t, Status> failed_early_;                    // failed by a peer before they began here
  std::map<uint64_t, std::map<int32_t, Signature>> disputes_;  // at rank 0: operation -> rank -> signature
  Entry* starting_ = nullptr;                                  // the entry whose task is in start()
  // By channel: the lowest number of a call that has not ended here.
  std::array<uint64_t, kChannels> calls_ended_below_;
  std::set<uint64_t> calls_ended_;  // calls with higher numbers that have ended
  // Ended operations of calls that have not ended.
  std::set<uint64_t> ended_;
  std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace dsgd
