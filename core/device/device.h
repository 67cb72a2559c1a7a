// A device of this process, which holds buffers of replicas and does the work of a step on them. Strategies
// use only this interface. Behind it are the host's memory and cores ("cpu"), or a backend's device
// ("cuda:0").
//
// Work is enqueued in a queue and happens in its order; the host never waits for it, but asks an event. On
// the host work is done when the call returns, and every event is done.
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
  virtual Status sum(DType dtype, std::span<const SumPiece> pieces, std::span<const Term> terms,
                     void* bucket) = 0;
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

// Devices of this process in a communicator, with those of other processes: sums in order, in queues of its
// own. All members enqueue the same. The destructor aborts all work in flight. Until then devices may still
// use the buffers of failed work. One thread at a time, but fail().
class Communicator {
 public:
  // Called once, from any thread; kWorkerLost: a member is lost, which one is not known.
  using Ended = std::function<void(const Status&)>;
  struct Work {
    Collective collective = Collective::kAllReduce;
    DType dtype = DType::kFloat32;
    size_t count = 0;                            // see Collective
    std::vector<void*> buffers;                  // by device
    std::vector<DeviceEvent*> after;             // by device: waited for before; may be empty
    std::vector<CollectiveCopy> before, behind;  // in the same queues, before and behind it
    std::vector<DeviceEvent*> reached;           // by device; recorded behind all of it
  };
  virtual ~Communicator() = default;
  virtual void enqueue(const Work& work, std::chrono::nanoseconds patience, Ended ended) = 0;
  virtual void fail(const Status& cause) = 0;  // everything fails, and what devices wait for is aborted
};

// Limits on allocations and releases. CUDA makes both wait for all work on the device, including the host's,
// which may never end. At the limit an allocation fails, and a release continues in the background. A session
// sets both, to its step_timeout and its lease.
struct Patience {
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
  static Result<std::shared_ptr<Device>> open(const Backend& backend, int32_t index, Patience patience = {});

  // How many devices of a backend this process can use.
  static Result<int32_t> count(const Backend& backend);

  // An error that says so if the buffer is memory of one of a backend's devices, which the host cannot use.
  static Status check_host_memory(const Backend& backend, const void* data, size_t nbytes);

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
                                                    std::chrono::nanoseconds patience,
                                                    Communicator::Ended joined);

  virtual ~Device() = default;
  virtual const std::string& name() const = 0;      // "cpu", "cuda:0"
  virtual const std::string& describe() const = 0;  // for logs
  virtual int32_t index() const = 0;                // 0 on the host
  virtual bool is_host() const = 0;                 // the host reads and writes its memory by itself
  virtual DeviceId identity() const = 0;

  // Zeroed memory, aligned to 256 bytes; freed with its last reference, which holds the device.
  virtual Result<std::shared_ptr<void>> allocate(size_t nbytes) = 0;
  // Memory of the host's that queues of this device copy from and to; on the host, plain memory.
  virtual Result<std::shared_ptr<void>> allocate_staging(size_t nbytes) = 0;
  // An error that says so if the buffer is not this device's memory.
  virtual Status check(const void* data, size_t nbytes) const = 0;

  // Releases memory of the host's: calls `release` behind all frees of this device that are in progress. That
  // is at once, or later in a thread if a free is late because the device hangs.
  virtual void release_after_work(std::function<void()> release) = 0;

  virtual Result<std::unique_ptr<WorkQueue>> new_queue() = 0;
  virtual Result<std::unique_ptr<DeviceEvent>> new_event() = 0;
  // A stream of the host's; on the host there are none, and NULL is right.
  virtual Status record_stream(DeviceEvent& event, void* stream) = 0;
  virtual Status stream_wait(void* stream, DeviceEvent& event) = 0;
};

}  // namespace dsgd::device
