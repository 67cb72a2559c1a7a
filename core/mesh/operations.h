// The operations of this worker: which one an arriving chunk belongs to, and when each ends. Everything is on
// the session's loop.
//
// Each operation has one record, from the first message about it until it ends here. A chunk for an operation
// that has not begun here is parked in pooled memory. The sender's windows (per operation, see
// ClientChannel::send) and the number of tasks open at once bound how much is parked. So a worker that is
// ahead has to wait, and its data is already here when this worker begins the operation.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/mesh/history.h"
#include "core/mesh/peers.h"
#include "core/mesh/signature.h"
#include "core/mesh/task.h"

namespace dsgd {

class Operations {
 public:
  explicit Operations(Peers& peers) : peers_(peers) {}
  Peers& peers() const { return peers_; }

  // Takes the task and starts it; null if it ended at once. No number is used twice.
  Task* add(std::unique_ptr<Task> task, transport::Time deadline);
  // Ends the operations [first, last) of one call with `cause` on this worker only, including those not yet
  // begun. Each peer ends them on its own; no message is sent. Their chunks are discarded.
  void drop(uint64_t first, uint64_t last, const Status& cause);
  // Fails a task here and on all peers, with `cause`.
  void fail(Task& task, const Status& cause);
  // Tells all peers that an operation has failed, because this worker does not begin or complete it. Once
  // this session has failed, it does nothing: the peers hear of the session's failure.
  void announce_failure(uint64_t operation, const Status& cause) {
    if (session_error_.ok()) peers_.tell_operation_failed(operation, cause);
  }
  // Ends a call, once, when its last operation here has ended. Chunks for other operations of the call are
  // rejected from then on. With a cause, its open operations end here. Each peer ends its own, without a
  // message.
  void end_call(uint64_t call, const Status& cause);
  // Fails all open operations and rejects parked chunks; tells no peer. Before a new view all peers do the
  // same by themselves.
  void fail_all(const Status& cause);
  // The same, because this session has failed; the owner begins no later operation. Where views change, the
  // peers' operations may go on without this worker. So the answers to their chunks do not have the cause:
  // the head or SessionFailed tells them.
  void fail_session(const Status& cause);
  // All workers of the view begin with this call; earlier calls of its channel have ended.
  void skip_to(uint64_t call) { history_.skip_to(call); }
  void drop_chunks();  // before the network ends

  // Peers that the open operations of a call wait for.
  struct WaitedPeers {
    std::string name;  // of the first of these operations
    std::vector<uint64_t> operations;
    // Of each operation the peers that have sent nothing for it; if all have, those whose data is missing.
    std::vector<int32_t> ranks;
    bool first = false;  // it is the first operation of the call: these peers have not made the call
  };
  WaitedPeers waited_peers(uint64_t call) const;
  std::vector<int32_t> missing_ranks() const;  // that open operations wait for, ascending

  // Returns whether a peer has begun or failed this operation before this worker has begun it. With `kind`,
  // returns false if the operation is known to be of another kind. The kind of an operation that has only
  // failed is unknown.
  bool only_peers_have_begun(uint64_t operation, std::optional<Kind> kind = {}) const;
  // Calls `call` when a peer begins or fails an operation that has not begun here.
  void on_early_operation(std::function<void()> call) { on_early_ = std::move(call); }

  // For tasks.
  void send(int32_t rank, const transport::BulkHeader& header, std::span<const std::byte> data,
            std::function<void(const Status&)> done);
  void send_small(int32_t rank, const transport::BulkHeader& header, std::span<const std::byte> data);

  // Events of the peers. None comes before the view is known.
  //
  // As transport::ServerHandler::on_bulk and on_bulk_end, from this peer.
  std::unique_ptr<transport::BulkSink> on_bulk(int32_t source, const transport::BulkHeader& header,
                                               size_t nbytes);
  void on_bulk_end(int32_t source, const transport::BulkHeader& header,
                   std::unique_ptr<transport::BulkReceipt> receipt);
  bool has_begun(uint64_t operation);
  void on_operation_failed(const transport::OperationFailed& message);
  void on_deadline_passed(uint64_t number);                       // at a peer
  void on_chunk_rejected(uint64_t operation, const Status& why);  // a small chunk, by a peer
  // A peer has left in good order. Its answers may still come, until on_last_answer().
  void on_departed(int32_t rank);
  void on_last_answer(int32_t rank);

 private:
  friend class Task;
  class Sink;
  static constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();  // above any operation's number
  struct Parked {
    int32_t source;
    transport::BulkHeader header;
    std::unique_ptr<transport::BulkReceipt> receipt;
  };
  struct Operation {
    // Before it begins here.
    std::vector<Parked> parked;                // chunks that no task has taken
    Status failed_early;                       // by a peer
    std::map<int32_t, Signature> differing{};  // at rank 0, by rank: signatures of workers that disagree

    // From add() on.
    std::unique_ptr<Task> task;
    transport::TimerId timer = 0;
    transport::Time begun{};
    std::vector<char> peer_has_begun;  // by rank: a chunk or an answer has shown it
    bool deadline_passed = false;      // here or at a peer
    std::vector<int32_t> not_begun;    // peers that have answered "not begun"
    int32_t unanswered = 0;
    struct Send {
      int32_t rank;
      std::function<void(const Status&)> done;
    };
    std::map<uint64_t, Send> sends;  // not yet answered, by number

    // Comparison of a call's first operation (operations_compare.cc). The root of a broadcast waits for its
    // peers in the same way. Empty for other operations.
    std::vector<char> agreed;   // by rank: a chunk from it has shown the same signature
    int32_t to_agree = 0;       // peers that have not
    std::vector<char> sent_to;  // by rank: it has been sent a chunk, which carries the signature
    bool finished = false;      // the task has succeeded, and waits for the comparison
    Status disagreement;        // with a peer, from the header of its chunk
    // Fires if the error that rank 0 sends to all workers has not come within a lease.
    transport::TimerId mismatch_timer = 0;
  };
  using Table = std::map<uint64_t, Operation>;

  const Members& members() const { return peers_.members(); }
  transport::Loop& loop() const { return peers_.loop(); }
  Operation* find_open(uint64_t number);  // null if it has not begun, or has ended
  std::vector<uint64_t> open_numbers(uint64_t first, uint64_t last) const;
  void take(Operation& operation, int32_t source, const transport::BulkHeader& header,
            std::unique_ptr<transport::BulkReceipt> receipt);
  void landed(uint64_t number, int32_t source, const Landing& landing);
  void ended(Task& task, const Status& status);  // called by Task::end
  void destroy_later();
  // Ends an operation here that all workers know to have failed, whether it has begun or not.
  void end_with(uint64_t number, const Status& cause);
  void end_open(uint64_t first, uint64_t last, const Status& cause);  // the operations [first, last)
  void forget_excess();
  static void reject_parked(Operation& operation, const Status& cause);
  // The answer to chunks of an operation that ends because of `cause`.
  const Status& chunk_error(const Status& cause) const {
    return session_error_.ok() ? cause : session_error_;
  }
  // The answer to a chunk of an operation that has ended.
  Status late_chunk_error(int32_t source, const transport::BulkHeader& header) const;

  // operations_waits.cc
  void note_begun(Operation& operation, int32_t rank);
  void end_wait(const Operation& operation, int32_t rank, bool failed);
  std::vector<int32_t> missing_ranks(const Operation& operation) const;
  void time_out(uint64_t number);

  // operations_departures.cc
  bool has_completed(int32_t rank, const Task& task) const;
  void fail_for_lost_data(int32_t rank, const Task& task);
  void leave_out(int32_t rank);
  void answer_for(int32_t rank);

  // operations_compare.cc
  //
  // Returns the open operation that a chunk belongs to. On a mismatch null; the task fails, now or when rank
  // 0 has told the reason.
  Operation* match(int32_t source, const transport::BulkHeader& header);
  void mismatch(Operation& operation, int32_t source, const transport::BulkHeader& header);
  // Sends the signature to the peers to which start() has sent no chunk. Returns false if the operation has
  // ended.
  bool send_signature(Operation& operation);
  void has_agreed(Operation& operation, int32_t rank);
  bool finish(Task& task);  // notes that the task has succeeded here; true if all peers have agreed
  Signature signature_of(const Task& task) const;
  std::unique_ptr<transport::BulkReceipt> take_signature(int32_t source, const transport::BulkHeader& header,
                                                         std::unique_ptr<transport::BulkReceipt> receipt);
  bool report_mismatch(uint64_t number);  // at rank 0; returns whether the operation ended

  Peers& peers_;
  Table table_;  // by number: operations that have not ended
  // Ended operations. A posted task destroys them, since callers may still use them.
  std::multimap<uint64_t, Operation> done_;
  bool destruction_posted_ = false;
  History history_;
  std::function<void()> on_early_;
  Status session_error_;  // the answer to all chunks, since this session has failed; OK: it has not
  uint64_t next_send_ = 0;
  std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace dsgd
