// The boundary to a device plug-in such as libdsgd_cuda.so: a table of C functions. The plug-in is loaded
// when its first device is needed. Only plain data crosses the boundary. A call returns as soon as its work
// is enqueued, and the work of a queue happens in order. Only open, close, allocate and release may wait for
// the device, so they are called with a time limit (transport/bounded_calls.h).
//
// Codes are those of dsgd.h (0 or negative); on failure `message` is filled. Any thread, but one at a time
// per queue.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/optimizer/rule.h"

namespace dsgd::device {

inline constexpr uint32_t kBackendVersion = 4;

struct Message {
  char text[512];
};

struct DeviceId {  // equal for two processes that use the same hardware, as far as communicators mind
  uint8_t bytes[16];
};

// ---- what a step does with a bucket

struct Term {
  const void* gradient;  // on the device
  double weight;
};
// bucket[position + i] = sum of weight * gradient[i] over the terms, in their order; every weight is rounded
// to the bucket's type and every product before it is added. Without terms: zeros.
struct SumPiece {
  uint64_t position, count;  // elements
  uint32_t first_term, terms;
  // Of the gradients: a half type in a bucket of float32; any other: the bucket's type.
  DType source = DType::kFloat32;
};

enum class Action : uint8_t {
  // The first target is a value: rule applied to the mean bucket / divisor; the others become its copies.
  kUpdate,
  kMean,  // all targets become the mean bucket / divisor
  kCopy,  // all targets become copies of the bucket
};
// Targets of a half type are rounded from float32. Their rule is applied to master values in float32, which
// are reset from a target that the host has changed (`followed` in core/base/half.h).
struct UpdatePiece {
  uint64_t position, count;  // elements
  double divisor;
  uint32_t first_target, targets;
  Action action;
  UpdateRule rule;
  void* state[3];                  // of the rule, at the piece's first element; of the bucket's type
  DType target = DType::kFloat32;  // as SumPiece::source
  void* master = nullptr;          // at the piece's first element; where a half type is updated
};

// Sums of squares of a bucket's elements, one for each kSquareRange of a piece (its last one may be shorter),
// in the order of the pieces. In float64; NaN or infinity if an element is.
struct SquarePiece {
  uint64_t position, count;  // elements
};
inline constexpr uint32_t kSquareRange = 8192;
inline constexpr uint32_t square_ranges(uint64_t count) {
  return static_cast<uint32_t>((count + kSquareRange - 1) / kSquareRange);
}

// ---- sums over devices, of this process and of others

// Names a communicator to all who join it: one makes it, the others are told.
struct CommunicatorId {
  uint8_t bytes[128];
};
// In place. `count` elements are a whole buffer in kAllReduce. Else they are one device's part: a buffer has
// size * count, of which kReduceScatter leaves each device the sum of its part, and kAllGather gives all
// devices all parts.
enum class Collective : uint8_t { kAllReduce, kReduceScatter, kAllGather };

struct Event;
struct CollectiveCopy {
  uint32_t device;  // whose queue
  void* to;
  const void* from;
  uint64_t nbytes;
};
struct CollectiveWork {
  Collective collective;
  DType dtype;
  uint64_t count;
  void* const* buffers;          // by device, as all that follows
  Event* const* after;           // waited for before; null: nothing
  const CollectiveCopy* before;  // in the same queues, before and behind it
  const CollectiveCopy* behind;
  uint32_t befores, behinds;
  Event* const* reached;  // recorded behind all of it
  int64_t patience;       // nanoseconds
};
// Called once, from a thread of the backend's or from within the call that it was given to. Code 0: it has
// ended well; kWorkerLost: a member is lost, which one is not known.
using CollectiveEnded = void (*)(void* context, int32_t code, const char* message);

// ---- the table

struct Handle;  // a device
struct Queue;
struct Event;  // a point in a queue or in a stream of the host's
struct Comm;   // devices of this process in a communicator

enum class EventState : int32_t { kDone = 0, kPending = 1, kFailed = -1 };

struct Backend {
  uint32_t version;
  const char* name;  // "cuda"

  int32_t (*device_count)(int32_t* count, Message* message);
  int32_t (*open)(int32_t index, Handle** device, Message* message);
  void (*close)(Handle* device);                  // all of its queues and events are closed before
  const char* (*describe)(const Handle* device);  // "NVIDIA H200, compute capability 9.0, 139.8 GiB"
  DeviceId (*identity)(const Handle* device);

  // Zeroed; aligned to 256 bytes.
  int32_t (*allocate)(Handle* device, uint64_t nbytes, void** data, Message* message);
  void (*release)(Handle* device, void* data);
  // Host memory that copies to and from the device may go on using while the host does something else.
  int32_t (*allocate_staging)(Handle* device, uint64_t nbytes, void** data, Message* message);
  void (*release_staging)(Handle* device, void* data);
  // Is [data, data + nbytes) memory of this device?
  int32_t (*check_pointer)(Handle* device, const void* data, uint64_t nbytes, Message* message);

  // Is it memory that the host can use, for all that is known? Needs no device to be open.
  int32_t (*check_host_pointer)(const void* data, uint64_t nbytes, Message* message);

  int32_t (*queue_open)(Handle* device, Queue** queue, Message* message);
  void (*queue_close)(Queue* queue);
  // Device or staging memory.
  int32_t (*copy)(Queue* queue, void* to, const void* from, uint64_t nbytes, Message* message);
  int32_t (*sum)(Queue* queue, DType dtype, const SumPiece* pieces, uint32_t count, const Term* terms,
                 void* bucket, Message* message);
  int32_t (*update)(Queue* queue, DType dtype, const UpdatePiece* pieces, uint32_t count,
                    void* const* targets, const void* bucket, Message* message);

  // `sums`: on the device.
  int32_t (*squares)(Queue* queue, DType dtype, const SquarePiece* pieces, uint32_t count, const void* bucket,
                     double* sums, Message* message);

  // function(context) is called once, from a thread of the backend's, when what was enqueued before is done;
  // never if the device fails. It may come after queue_close.
  int32_t (*queue_notify)(Queue* queue, void (*function)(void*), void* context, Message* message);

  int32_t (*event_open)(Handle* device, Event** event, Message* message);
  void (*event_close)(Event* event);
  int32_t (*event_record)(Event* event, Queue* queue, Message* message);
  int32_t (*event_record_stream)(Event* event, void* stream, Message* message);  // a stream as in DLPack
  int32_t (*queue_wait)(Queue* queue, Event* event, Message* message);
  int32_t (*stream_wait)(void* stream, Event* event, Message* message);
  EventState (*event_query)(Event* event, Message* message);  // of the last record

  // The library that adds up over devices (NCCL), looked for once: `path`, unless it is "", after what the
  // host has loaded. The message says which one it is, or why there is none.
  int32_t (*communicator_load)(const char* path, int32_t* version, Message* message);
  int32_t (*communicator_id)(CommunicatorId* id, Message* message);
  // Joins with `count` devices, as ranks first .. first + count - 1 of `size`. It has a thread and queues of
  // its own, in which work is done in the order in which it is enqueued; all members enqueue the same.
  // `ended`: all members have joined.
  int32_t (*communicator_open)(Handle* const* devices, uint32_t count, const CommunicatorId* id,
                               int32_t first, int32_t size, int64_t patience, CollectiveEnded ended,
                               void* context, Comm** communicator, Message* message);
  // `work` is copied. After a failure everything fails, and what the devices wait for is aborted; `ended`
  // does not wait for that.
  void (*communicator_enqueue)(Comm* communicator, const CollectiveWork* work, CollectiveEnded ended,
                               void* context);
  void (*communicator_fail)(Comm* communicator, int32_t code, const char* why);  // any thread
  // Aborts all work in flight, and waits until the devices no longer use it.
  void (*communicator_close)(Comm* communicator);
};

}  // namespace dsgd::device
