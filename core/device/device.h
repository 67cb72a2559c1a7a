// A device of this process. It holds buffers of replicas and does the work of a step on them. A device is the
// host's memory and cores ("cpu") or a backend's device ("cuda:0").
//
// The work of a queue runs in the order in which it is enqueued. The host never waits for it; it queries
// events. On the cpu, work is done when the call returns, and every event is done.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device/backend.h"
#include "transport/base/status.h"

namespace dsgd::device {

class Device;

// A point in a queue, or in a stream of the host's.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // True: all work enqueued before has ended. An error: it has failed.
  virtual Result<bool> done() = 0;
};

// One thread at a time.
class WorkQueue {
 public:
  virtual ~WorkQueue() = default;
  virtual Status copy(void* to, const void* from, size_t nbytes) = 0;
  // `found`: null, or a record for each piece, in memory of the device. With it, elements of a piece's terms
  // that are not finite count as zero and are added to its record, their index counted from the piece's
  // begin.
  virtual Status sum(DType dtype, std::span<const SumPiece> pieces, std::span<const Term> terms, void* bucket,
                     NonFinite* found = nullptr) = 0;
  virtual Status update(DType dtype, std::span<const UpdatePiece> pieces, std::span<void* const> targets,
                        const void* bucket) = 0;
  virtual Status squares(DType dtype, std::span<const SquarePiece> pieces, const void* bucket,
                         double* sums) = 0;
  virtual Status record(DeviceEvent& event) = 0;
  virtual Status wait(DeviceEvent& event) = 0;  // what is enqueued from now on happens after the event
  // `done` is called once, from any thread or from within this call, when what was enqueued before is done;
  // never if the device fails.
  virtual Status notify(std::function<void()> done) = 0;
};

// The devices of this process in a communicator with those of other processes. Work runs in the order in
// which it is enqueued, in queues of the communicator. All members enqueue the same work. The destructor
// aborts work in flight; until then devices may use the buffers of failed work. One thread at a time, except
// fail().
class Communicator {
 public:
  // Called once, from any thread; kWorkerLost: a member is lost, which one is not known.
  using Ended = std::function<void(const Status&)>;
  struct Work {
    Collective collective = Collective::kAllReduce;
    DType dtype = DType::kFloat32;
    size_t count = 0;                                         // see Collective
    std::vector<void*> buffers;                               // by device
    std::vector<DeviceEvent*> wait_for;                       // by device, before it begins; may be empty
    std::vector<CollectiveCopy> copies_before, copies_after;  // in the same queues
    std::vector<DeviceEvent*> done_events;                    // by device; recorded after all of it
  };
  virtual ~Communicator() = default;
  // Zeroed memory of one size on each device, for buffers of work: the library may reduce there without
  // copies of its own, so all members allocate the same. Freed with the last reference, which may outlive the
  // communicator.
  virtual Result<std::vector<std::shared_ptr<void>>> allocate(size_t nbytes) = 0;
  // `enqueued`, unless it is empty, is called before `ended`, when the `done_events` are recorded; not if
  // that fails.
  virtual void enqueue(const Work& work, std::chrono::nanoseconds timeout, Ended ended,
                       std::function<void()> enqueued = {}) = 0;
  virtual void fail(const Status& cause) = 0;  // everything fails, and what devices wait for is aborted
};

// Limits on allocations and releases. CUDA makes both wait for all work on the device, including the host's,
// which may never end. At the limit an allocation fails, and a release continues in the background. A session
// sets both, to its step_timeout and its lease.
struct TimeLimits {
  std::chrono::nanoseconds allocation = std::chrono::minutes(1), release = std::chrono::seconds(5);
  std::function<void(const std::string&)> warn = {};  // once, when a release is given up
  // Shared by devices: after one of them has hung, releases wait only briefly for the others.
  std::shared_ptr<std::atomic<bool>> hangs = std::make_shared<std::atomic<bool>>(false);
};

// Streams of the host's are numbered as in DLPack. NULL, 1 and 2 are default streams. The legacy default
// stream and the per-thread default streams wait for each other, as in CUDA.
inline bool is_default_stream(const void* stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

class Device {
 public:
  // The host. Always there.
  static std::shared_ptr<Device> host();
  // Device `index` of a backend; its table must outlive it.
  static Result<std::shared_ptr<Device>> open(const Backend& backend, int32_t index, TimeLimits limits = {});

  // How many devices of a backend this process can use.
  static Result<int32_t> count(const Backend& backend);

  // Returns the name of the device of a backend whose memory the buffer is; "": memory that the host can use,
  // for all that is known.
  static Result<std::string> locate(const Backend& backend, const void* data, size_t nbytes);

  // The library behind communicators of this device and its like; see Backend::communicator_load.
  struct CommunicatorLibrary {
    int32_t version;
    std::string description;
  };
  virtual Result<CommunicatorLibrary> load_communicators(const std::string& path) = 0;
  virtual Result<CommunicatorId> new_communicator_id() = 0;
  // `devices`: of this process and of one backend, in the order of their ranks. `joined`: all members have
  // come.
  static Result<std::unique_ptr<Communicator>> join(const std::vector<std::shared_ptr<Device>>& devices,
                                                    const CommunicatorId& id, int32_t first, int32_t size,
                                                    std::chrono::nanoseconds timeout,
                                                    Communicator::Ended joined);

  virtual ~Device() = default;
  virtual const std::string& name() const = 0;      // "cpu", "cuda:0"
  virtual const std::string& describe() const = 0;  // for logs
  virtual int32_t index() const = 0;                // 0 on the host
  virtual bool is_host() const = 0;                 // the host reads and writes its memory by itself
  virtual DeviceId identity() const = 0;

  // Zeroed memory, aligned to 256 bytes; freed with its last reference, which holds the device.
  virtual Result<std::shared_ptr<void>> allocate(size_t nbytes) = 0;
  // Pinned host memory for copies of this device's queues; on the cpu, plain memory.
  virtual Result<std::shared_ptr<void>> allocate_staging(size_t nbytes) = 0;
  // As allocate_staging, zeroed, with only `parts` pinned, which ascend. Each copy lies within one part. The
  // pages outside of them take no memory until they are touched.
  virtual Result<std::shared_ptr<void>> allocate_staging_parts(size_t nbytes,
                                                               std::vector<ByteRange> parts) = 0;
  // Returns an error if the buffer is not this device's memory.
  virtual Status check(const void* data, size_t nbytes) const = 0;

  // Calls `release`, which frees memory of the host program: now, or on a thread behind a release that the
  // device still blocks.
  virtual void release_in_order(std::function<void()> release) = 0;

  virtual Result<std::unique_ptr<WorkQueue>> new_queue() = 0;
  virtual Result<std::unique_ptr<DeviceEvent>> new_event() = 0;
  // `stream`: of the host program; NULL on the cpu, which has no streams.
  virtual Status record_stream(DeviceEvent& event, void* stream) = 0;
  virtual Status stream_wait(void* stream, DeviceEvent& event) = 0;
};

}  // namespace dsgd::device
