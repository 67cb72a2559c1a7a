// The messages as plain structs. transport/schema turns them into Cap'n Proto and back; both networks carry
// the same serialised bytes. A message names its view where a stale one could do harm.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "transport/base/status.h"
#include "transport/loop.h"

namespace dsgd::transport {

inline constexpr uint32_t kProtocolVersion = 1;

// Purpose of a connection. Each connection carries calls from the side that dialled to the side that
// accepted.
enum class Role : uint8_t {
  // Worker -> head: join, return, enter, watch, progress, reports, leave. Any process: status, scale.
  kControl = 0,
  kHeartbeat = 1,  // worker -> head: renew and leave, from a thread of its own
  kPeer = 2,       // worker -> worker: bulk data, operation failures, objects
  kProbe = 3,      // worker -> worker: checks that the worker is reachable; closed after the hello
};

using Nonce = std::array<uint8_t, 32>;  // random, used once
using TokenDigest = std::array<uint8_t, 32>;
struct Proof {  // of the token (authentication.h)
  std::array<uint8_t, 32> mac{};
  bool operator==(const Proof&) const = default;
};

// ---- the handshake: the first bytes of every connection, before any RPC is possible
struct Hello {
  uint32_t protocol = kProtocolVersion;
  Role role = Role::kControl;
  std::string job;
  std::string worker_id;
  int32_t rank = -1;  // to the head: the worker's number; -1: not yet known
  // Of a learner, to its peers: it is in no view yet. Above the number of every view.
  static constexpr uint64_t kLaterView = std::numeric_limits<uint64_t>::max();
  uint64_t view = 0;
  std::string library_version;
  bool checksum = false;  // the dialling side wants checksums; filled in by the network
  std::string job_nonce;  // of the running job, from the JoinReply; empty before
  Nonce nonce{};          // of this connection; the transport sets it
};
struct Challenge {
  Status refused;  // not OK: the accepting side cannot read the hello
  Nonce nonce{};
};
struct HelloReply {
  Status status;
  Proof proof{};          // of the accepting side; none with an error
  bool checksum = false;  // frames have checksums from here on, both ways
};

struct MemberInfo {
  int32_t rank = -1;
  std::string worker_id;
  std::string host;                    // name for messages
  std::string machine;                 // identity of the machine (boot id): equal means same node
  std::vector<std::string> addresses;  // where it listens: "10.0.0.1:7701", "[fe80::1]:7701", "unix:/run/x"
  int64_t pid = 0;
  // Assigned by the head: the rank in the first view; workers that join later get the next numbers.
  int32_t number = -1;
};

// ---- worker -> head. Each message names its sender by the number that the head gave it (MemberInfo::number)
// and by the view of its JoinReply. Both stay the same in later views.
struct JoinRequest {
  MemberInfo member;  // member.rank: the rank asked for, or -1
  uint32_t num_workers = 0;
  bool hosts_head = false;  // the head runs inside this worker
  // Settings of the worker; each must equal the head's.
  Duration lease{};
  uint32_t min_workers = 0;  // 0: num_workers
  uint32_t max_workers = 0;  // 0: num_workers
  Duration rejoin_timeout{};
  Duration straggler_timeout = {};  // 0: off
  uint64_t incarnation = 0;         // random, of this join, however often the worker asks; 0: none
};
struct JoinReply {  // comes when num_workers have joined, or at once from a job that runs
  uint64_t view = 0;
  int32_t rank = -1;
  int32_t head_rank = -1;           // worker that hosts the head, -1: a process of its own
  std::vector<MemberInfo> members;  // by rank
  // random; workers name it in each later hello, which shows that they are of this job.
  std::string job_nonce;
  // The job runs already. `members` are those of its present view and, last, this worker, which takes part
  // only in a later view, after its Enter.
  bool learner = false;
  uint64_t sequence = 0;  // for the first Watch
  bool paused = false;    // as in WatchReply
  bool durable = false;   // the head's record outlives the head, so its workers wait for another one
};
// A worker that has joined dials the head again: the head was lost, or does not answer. From then on this is
// the worker's control connection. The answer is Empty.
struct Return {
  int32_t number = -1;
  uint64_t view = 0;
  uint64_t incarnation = 0;  // of its JoinRequest
};
struct Enter {  // a learner is ready to take part in the next view
  int32_t number = -1;
  uint64_t view = 0;
};
struct GatheringRequest {};  // of a worker that waits for the job to begin; answered at once
struct GatheringReply {
  std::string progress;  // "2 of 4 workers have joined: ..."
  int32_t missing = -1;  // rank of the first that has not come; -1: not known
  // No worker is awaited any more, but the head has yet to store its record. The other fields are not set.
  bool storing = false;
};
struct Watch {  // parked by the head until it has news after `sequence`
  uint64_t sequence = 0;
};
struct WatchReply {
  uint64_t sequence = 0;  // to be given with the next Watch
  uint64_t view = 0;
  // Why the job cannot go on, naming the rank; or, with `members`, why it goes on in a new view; OK: `left`
  // has closed its session.
  Status cause;
  int32_t left = -1;                // number of the worker that closed its session in good order
  uint64_t departure_call = 0;      // copied from the Leave of `left`
  std::vector<MemberInfo> members;  // of the new view, by rank; empty: the view stays
  int32_t head_rank = -1;           // in the new view
  bool paused = false;              // it has too few workers for steps, which wait for another view
};
struct Renew {  // a heartbeat
  int32_t number = -1;
  uint64_t view = 0;
};
struct RenewReply {
  // The head has changed the job's record, and tells the workers nothing new until the record is stored.
  bool storing = false;
};
// How far a worker is, once per heartbeat interval; the answer is Empty.
struct Progress {
  // Describes the open call with the highest Activity; of several, the oldest.
  enum class Activity : uint8_t {
    kComputes = 0,  // no call is open, or only the worker's own host and devices delay the open ones
    kBusy = 1,      // a call is open and waits for no worker: it writes or sends
    kWaits = 2,     // a call waits for other workers
  };
  int32_t number = -1;
  uint64_t view = 0;
  uint64_t present_view = 0;  // that the worker is in; `waits_for` has ranks of it
  uint64_t steps = 0;         // that have succeeded
  Activity activity = Activity::kComputes;
  uint64_t call = 0;           // the open call that the rest is about, unique in the session; 0: none
  Duration open{};             // how long the call has been open
  std::string operation = {};  // "step 17"; empty: not known
  std::string waiting = {};    // what the call waits for, as a sentence; may be cut; empty: not known
  std::vector<int32_t> waits_for = {};  // ranks, ascending; the lowest kMaxWaitedRanks
  bool holds_state = false;             // dsgd_start has ended, so it has the job's state
};
struct Leave {  // a worker closes its session in good order (cause is OK) or because of `cause`
  int32_t number = -1;
  uint64_t view = 0;  // that the worker is in
  Status cause;
  // First call that it does not make; 0: no step can go on without it, or its session has failed. With a
  // cause: it closes its session while the others wait for it.
  uint64_t departure_call = 0;
};
struct Report {  // a worker saw the job break (peer lost, dsgd_abort): the head informs all workers
  int32_t number = -1;
  uint64_t view = 0;
  Status cause;
};
struct ReportCut {  // the sender cannot reach the worker with `peer_number`: the head decides which of
                    // the two is cut off
  int32_t number = -1;
  uint64_t view = 0;
  Status cause;  // why not; does not name the two
  int32_t peer_number = -1;
};

// ---- any process that knows the token -> head. The sender needs no place in the job.
struct StatusRequest {};
struct ScaleRequest {  // asks for another number of workers; `dsgd run` reads it in the StatusReply
  uint32_t workers = 0;
};
struct WorkerStatus {
  enum class State : uint8_t {
    kWaiting = 0,  // the job has not begun
    kRunning = 1,
    kJoining = 2,  // joined the running job, and is in no view yet
    kLeft = 3,     // closed its session in good order
    kLost = 4,     // was lost or evicted, or left because of a failure
  };
  MemberInfo member;  // without machine and addresses; its rank is that of its last view; -1: none yet
  State state = State::kWaiting;
  Duration silence = {};        // since the last sign of life; of one that has neither left nor was lost
  bool reported = false;        // the rest is known
  Duration age = {};            // since `progress` arrived
  double steps_per_second = 0;  // of the latest reports
  Progress progress = {};
};
struct StatusReply {
  enum class State : uint8_t {
    kGathering = 0,  // workers are still to come
    kRunning = 1,
    kPaused = 2,  // too few workers are left; others may join
    kEnding = 3,  // all workers have left
    kFailed = 4,  // `cause` ended the job
  };
  State state = State::kGathering;
  uint64_t view = 0;  // 0: the job has not begun
  uint32_t num_workers = 0, min_workers = 0, max_workers = 0;
  uint32_t wanted_workers = 0;  // of the last ScaleRequest; 0: none has come
  uint32_t scale_requests = 0;  // that the head has taken
  int32_t head_rank = -1;       // worker that hosts the head
  Status cause = {};
  std::vector<int32_t> missing;  // ranks that have not come; none if that is not known
  std::string refused;           // the last refusal, while workers are still to come
  std::vector<WorkerStatus> workers;
};

// ---- worker -> worker
struct OperationFailed {  // the operation failed at the sender
  uint64_t view = 0;
  int32_t rank = -1;  // the sender
  uint64_t operation = 0;
  Status cause;
};
struct SessionFailed {  // the sender's session failed, and no operation of it goes on
  uint64_t view = 0;
  int32_t rank = -1;  // the sender
  Status cause;
};
// The sender's deadline for the operation has passed, and it asks whether the receiver has begun the
// operation. The answer is Empty if it has. The receiver's operation times out, too.
struct HasBegun {
  uint64_t view = 0;
  int32_t rank = -1;  // the sender
  uint64_t operation = 0;
};
// The sender is closing. The answer, Empty, comes when the receiver has completed this number of steps, too.
struct HasCompleted {
  uint64_t view = 0;
  int32_t rank = -1;  // the sender
  uint64_t steps = 0;
};
// Asks the receiver for the next part of its values and optimizer state, as a stream (StateParts). The sender
// joins the running job: it may be in no view yet, and then names the one that it knows.
struct FetchState {
  uint64_t view = 0;
  int32_t rank = -1;            // the sender
  uint64_t begin = 0, end = 0;  // elements of all trained parameters, one after the other
  uint64_t next = 0;            // number of the answer in the stream; 0 begins it
  uint64_t signature = 0;       // digest of the settings that must be equal
  // The sender is in the view, and the receiver makes no step: the answer comes at once. The one with which
  // the stream is whole has a digest.
  bool last = false;
};
struct StateParts {
  enum class Kind : uint8_t {
    kState,   // data: values, then each tensor of state
    kUpdate,  // data: sums of gradients, from which the receiver updates its elements as the sender has
    kValues,  // data: new values, in the type of the sums
  };
  struct Part {
    Kind kind = Kind::kState;
    uint32_t parameter = 0;
    uint64_t begin = 0, count = 0;  // elements
    // Of an update: number of updates before; the settings then; the divisor of the sums.
    uint64_t updates = 0;
    double learning_rate = 0, rate = 0, decay = 0, divisor = 0;
    std::vector<uint8_t> data = {};
  };
  std::vector<Part> parts;
  bool whole = false;   // there is nothing more now
  uint64_t digest = 0;  // of the values; see FetchState::last
};
// Announces an object; the answer comes when the receiver has it.
struct PutObject {
  uint64_t view = 0;
  int32_t rank = -1;  // the sender
  std::string name;
  uint64_t put = 0;  // number of the put, unique in the job
  uint64_t total = 0;
  std::vector<uint8_t> data;  // of a small object; the receiver fetches that of others
  int32_t dtype = -1;         // of the array; -1: bytes without a type
  std::vector<int64_t> shape = {};
  bool again = false;  // the job has the object already; the receiver has joined later
};
struct DeleteObject {
  uint64_t view = 0;
  int32_t rank = -1;  // the sender
  std::string name;
  uint64_t put = 0;  // 0 in a request to rank 0: the put that holds the name
};
struct FetchObject {  // asks the receiver for the object's data from `offset` on
  uint64_t view = 0;
  int32_t rank = -1;  // the sender
  std::string name;
  uint64_t put = 0;
  uint64_t offset = 0;
};
struct Goodbye {  // last message on a connection that is closed on purpose
  uint64_t view = 0;
  int32_t rank = -1;
  Status cause;
  uint64_t steps = 0;                  // that the sender has made
  std::vector<uint64_t> digests = {};  // of its values then; empty: not compared
  uint64_t departure_call = 0;         // as in Leave
};

struct Empty {};

using Message =
    std::variant<Empty, JoinRequest, JoinReply, Watch, WatchReply, Renew, Leave, Report, OperationFailed,
                 PutObject, Goodbye, SessionFailed, HasBegun, ReportCut, DeleteObject, FetchObject, Enter,
                 HasCompleted, Progress, StatusRequest, StatusReply, Return, ScaleRequest, FetchState,
                 StateParts, GatheringRequest, GatheringReply, RenewReply>;

// ---- not sent, but kept on disk: all that a head knows of its running job
struct HeadRecord {
  struct Worker {
    MemberInfo info;           // with its rank in the present view, or in the last one that it was in
    uint64_t joined = 0;       // view of its JoinReply, which its messages name, too
    uint64_t incarnation = 0;  // of its JoinRequest
    bool learner = false;      // joined the running job, and is in no view yet
    bool left = false;         // sent Leave
    bool closed = false;       // has left in good order, even if it is lost, since the others waited for it
    bool holds_state = false;  // has the job's state: began with the job, or has ended dsgd_start
    bool lost = false;
    Status eviction;  // the answer to its calls, once it is lost and the job goes on without it
  };
  std::string job, address;  // the address at which the head listens
  Duration lease{}, rejoin_timeout{}, straggler_timeout{};
  uint32_t num_workers = 0, min_workers = 0, max_workers = 0;
  std::string job_nonce;
  TokenDigest token_digest{};  // of the job's token and this nonce
  uint64_t view = 0;
  bool paused = false;          // as in the WatchReply of this view
  bool last_closed = false;     // the last worker with the state that has gone was `closed`
  bool ended_well = false;      // the job, though its last news is an error for the workers that are left
  uint32_t joined = 0;          // workers that ever joined; their numbers are 0, 1, ...
  std::vector<Worker> workers;  // by number; without most of those that were lost
  uint64_t confirmed = 0;       // news that all workers have confirmed; `news` are the later ones
  std::vector<WatchReply> news;
};

// ---- bulk: one chunk of an operation. The meaning of kind, dtype, reduction, phase is core's.
struct BulkHeader {
  uint64_t view = 0;
  uint64_t operation = 0;  // number of the operation: channel, call, and index in the call; made by core
  int32_t source = -1;     // rank of the sender
  uint8_t kind = 0, dtype = 0, reduction = 0, algorithm = 0;  // the sender's view of the operation
  int32_t root = -1;
  uint64_t count = 0;  // elements of the whole operation, in the sender's view
  uint64_t tag = 0;    // digest of what else must agree (uneven counts, bucket layout)
  uint16_t phase = 0;
  uint64_t offset = 0;  // bytes, in the phase's address space
  bool operator==(const BulkHeader&) const = default;
};

}  // namespace dsgd::transport
