// The boundary to a device plug-in such as libdsgd_cuda.so: a table of C functions. The plug-in is loaded
// when its first device is needed. Only plain data crosses the boundary. A call returns as soon as its work
// is enqueued, and the work of a queue happens in order. Only the functions that open, close, allocate and
// release may wait for the device. The caller limits their time (transport/bounded_calls.h), except that of
// opening a device.
//
// Codes are those of dsgd.h (0 or negative); on failure `message` is filled. Where memory is short, functions
// may throw std::bad_alloc, as the rest of core does. Any thread, but one at a time per queue.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/non_finite.h"
#include "core/optimizer/rule.h"

namespace dsgd::device {

inline constexpr uint32_t kBackendVersion = 5;

struct Message {
  char text[512];
};

// Host and PCI address of a GPU, as NCCL compares them. Devices with equal ids cannot be in one communicator.
struct DeviceId {
  uint8_t bytes[16];
};

struct ByteRange {
  uint64_t begin, end;
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
// are reset from a target that the host has changed (`current_master` in core/base/half.h).
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

// Identifies a communicator. One process creates it and sends it to the other processes that join.
struct CommunicatorId {
  uint8_t bytes[128];
};
// In place. `count` elements are a whole buffer in kAllReduce. Else they are one device's part: a buffer has
// size * count, of which kReduceScatter leaves each device the sum of its part, and kAllGather gives all
// devices all parts.
enum class Collective : uint8_t { kAllReduce, kReduceScatter, kAllGather };

struct Event;  // a point in a queue or in a stream of the host's
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
  void* const* buffers;                 // by device, as all that follows
  Event* const* wait_for;               // before it begins; null: nothing
  const CollectiveCopy* copies_before;  // in the same queues
  const CollectiveCopy* copies_after;
  uint32_t copies_before_count, copies_after_count;
  Event* const* done_events;  // recorded after all of it
  int64_t timeout;            // nanoseconds
  // Null, or called when all of it is in the queues, before it ends; not if that fails.
  void (*enqueued)(void* context);
};
// Called once, from a thread of the backend's or from within the call that it was given to. Code 0: it has
// ended well; kWorkerLost: a member is lost, which one is not known.
using CollectiveEnded = void (*)(void* context, int32_t code, const char* message);

// ---- the table

struct DeviceHandle;
struct Queue;
struct Comm;  // devices of this process in a communicator
struct CommMemory;

enum class EventState : int32_t { kDone = 0, kPending = 1, kFailed = -1 };

struct Backend {
  uint32_t version;
  const char* name;  // "cuda"

  int32_t (*device_count)(int32_t* count, Message* message);
  int32_t (*open)(int32_t index, DeviceHandle** device, Message* message);
  void (*close)(DeviceHandle* device);                  // all of its queues and events are closed before
  const char* (*describe)(const DeviceHandle* device);  // "NVIDIA H200, compute capability 9.0, 139.8 GiB"
  DeviceId (*identity)(const DeviceHandle* device);

  // Zeroed; aligned to 256 bytes.
  int32_t (*allocate)(DeviceHandle* device, uint64_t nbytes, void** data, Message* message);
  void (*release)(DeviceHandle* device, void* data);
  // Pinned host memory: copies from and to it run while the host does other work.
  int32_t (*allocate_staging)(DeviceHandle* device, uint64_t nbytes, void** data, Message* message);
  void (*release_staging)(DeviceHandle* device, void* data);
  // As allocate_staging, zeroed, with only `parts` pinned. Each copy lies within one part. The parts ascend.
  int32_t (*allocate_staging_parts)(DeviceHandle* device, uint64_t nbytes, const ByteRange* parts,
                                    uint32_t count, void** data, Message* message);
  void (*release_staging_parts)(DeviceHandle* device, void* data);
  // Is [data, data + nbytes) memory of this device?
  int32_t (*check_pointer)(DeviceHandle* device, const void* data, uint64_t nbytes, Message* message);

  // Sets `index` to the device that the memory belongs to; to -1 if it is not known to be a device's. Fails
  // if only its first or only its last byte is a device's. No device has to be open.
  int32_t (*locate)(const void* data, uint64_t nbytes, int32_t* index, Message* message);

  int32_t (*queue_open)(DeviceHandle* device, Queue** queue, Message* message);
  void (*queue_close)(Queue* queue);
  // Device or staging memory.
  int32_t (*copy)(Queue* queue, void* to, const void* from, uint64_t nbytes, Message* message);
  // `found`: as in WorkQueue::sum.
  int32_t (*sum)(Queue* queue, DType dtype, const SumPiece* pieces, uint32_t count, const Term* terms,
                 void* bucket, NonFinite* found, Message* message);
  int32_t (*update)(Queue* queue, DType dtype, const UpdatePiece* pieces, uint32_t count,
                    void* const* targets, const void* bucket, Message* message);

  // `sums`: on the device.
  int32_t (*squares)(Queue* queue, DType dtype, const SquarePiece* pieces, uint32_t count, const void* bucket,
                     double* sums, Message* message);

  // function(context) is called once, from a thread of the backend's, when what was enqueued before is done;
  // never if the device fails. It may come after queue_close.
  int32_t (*queue_notify)(Queue* queue, void (*function)(void*), void* context, Message* message);

  int32_t (*event_open)(DeviceHandle* device, Event** event, Message* message);
  void (*event_close)(Event* event);
  int32_t (*event_record)(Event* event, Queue* queue, Message* message);
  int32_t (*event_record_stream)(Event* event, void* stream, Message* message);  // a stream as in DLPack
  int32_t (*queue_wait)(Queue* queue, Event* event, Message* message);
  int32_t (*stream_wait)(void* stream, Event* event, Message* message);
  EventState (*event_query)(Event* event, Message* message);  // of the last record

  // Loads the library that reduces over devices (NCCL), once: the one that the host has loaded, else `path`
  // unless it is "", else the one that the loader finds. The message names it, also on success, or says why
  // there is none.
  int32_t (*communicator_load)(const char* path, int32_t* version, Message* message);
  int32_t (*communicator_id)(CommunicatorId* id, Message* message);
  // Joins with `count` devices, as ranks first .. first + count - 1 of `size`. It has a thread and queues of
  // its own, in which work is done in the order in which it is enqueued; all members enqueue the same.
  // `ended`: all members have joined.
  int32_t (*communicator_open)(DeviceHandle* const* devices, uint32_t count, const CommunicatorId* id,
                               int32_t first, int32_t size, int64_t timeout, CollectiveEnded ended,
                               void* context, Comm** communicator, Message* message);
  // Allocates zeroed memory of nbytes on each device of the communicator. Collectives use it without the
  // library's own copies where the library can. All members allocate the same sizes in the same order. Other
  // queues may use it, too.
  int32_t (*communicator_allocate)(Comm* communicator, uint64_t nbytes, void** data, CommMemory** memory,
                                   Message* message);
  // Waits until no work uses it. May come after communicator_close.
  void (*communicator_release)(CommMemory* memory);
  // Copies `work`. After a failure all work fails, and what the devices wait for is aborted; `ended` may come
  // before that.
  void (*communicator_enqueue)(Comm* communicator, const CollectiveWork* work, CollectiveEnded ended,
                               void* context);
  void (*communicator_fail)(Comm* communicator, int32_t code, const char* why);  // any thread
  // Aborts all work in flight, and waits until the devices no longer use it.
  void (*communicator_close)(Comm* communicator);
};

}  // namespace dsgd::device
