// The messages as plain structs. transport/schema turns them into Cap'n Proto and back; both networks carry
// the same serialised bytes. A message names its view where a stale one could do harm.
#pragma once

#include <array>
#include <cstdint>
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
  kControl = 0,    // worker -> head: join, watch, leave, abort
  kHeartbeat = 1,  // worker -> head: renew, from a thread of its own
  kPeer = 2,       // worker -> worker: bulk data, operation failures, objects
  kProbe = 3,      // worker -> worker: can you be reached? Nothing follows the hello
};

using Nonce = std::array<uint8_t, 32>;  // random, used once
struct Proof {                          // of the token (authentication.h)
  std::array<uint8_t, 32> mac{};
  bool operator==(const Proof&) const = default;
};

// ---- the handshake: the first bytes of every connection, before any RPC is possible
struct Hello {
  uint32_t protocol = kProtocolVersion;
  Role role = Role::kControl;
  std::string job;
  std::string worker_id;
  int32_t rank = -1;  // -1: not yet known
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
};

// ---- worker -> head
struct JoinRequest {
  MemberInfo member;  // member.rank: the rank asked for, or -1
  uint32_t num_workers = 0;
  bool hosts_head = false;  // the head runs inside this worker
  Duration lease{};         // what the worker takes it to be; the head's must be the same
};
struct JoinReply {  // comes when num_workers have joined
  uint64_t view = 0;
  int32_t rank = -1;
  int32_t head_rank = -1;           // worker that hosts the head, -1: a process of its own
  std::vector<MemberInfo> members;  // by rank
  // random; workers name it in each later hello, which shows that they are of this job.
  std::string job_nonce;
};
struct Watch {  // parked by the head until it has news after `sequence`
  uint64_t sequence = 0;
};
struct WatchReply {
  uint64_t sequence = 0;  // to be given with the next Watch
  uint64_t view = 0;
  Status news;        // why the job cannot go on, naming the rank; OK: `left` has closed its session
  int32_t left = -1;  // rank that closed its session in good order
  uint64_t departure_call = 0;  // copied from the Leave of `left`
};
struct Renew {  // a heartbeat; the answer is Empty
  int32_t rank = -1;
  uint64_t view = 0;
};
struct Leave {  // a worker closes its session in good order (cause is OK) or because of `cause`
  int32_t rank = -1;
  uint64_t view = 0;
  Status cause;
  uint64_t departure_call = 0;  // first call that it does not make; 0: no step can go on without it
};
struct Report {  // a worker saw the job break (peer lost, dsgd_abort): the head tells everybody
  int32_t rank = -1;
  uint64_t view = 0;
  Status cause;
};
struct ReportCut {  // `rank` cannot reach `peer`: the head decides which of the two is cut off
  int32_t rank = -1;
  uint64_t view = 0;
  Status cause;  // why not; does not name the two
  int32_t peer = -1;
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
                 PutObject, Goodbye, SessionFailed, HasBegun, ReportCut, DeleteObject, FetchObject>;

// ---- bulk: one chunk of an operation. The meaning of kind, dtype, reduction, phase is core's.
struct BulkHeader {
  uint64_t view = 0;
  uint64_t operation = 0;  // number of the operation: channel, call, and index in the call; made by core
  uint32_t group = 0;      // 0: the world
  int32_t source = -1;     // rank of the sender
  uint8_t kind = 0, dtype = 0, reduction = 0, algorithm = 0;  // what the sender believes the operation is
  int32_t root = -1;
  uint64_t count = 0;  // elements of the whole operation, as the sender believes
  uint64_t tag = 0;    // digest of what else must agree (uneven counts, bucket layout)
  uint16_t phase = 0;
  uint64_t offset = 0;  // bytes, in the phase's address space
  bool operator==(const BulkHeader&) const = default;
};

}  // namespace dsgd::transport
