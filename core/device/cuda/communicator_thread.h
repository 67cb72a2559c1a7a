// A communicator. Its thread makes all calls of NCCL's, which do not block: it begins the work in order,
// polls until it has completed, watches for failures, and aborts.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/device/cuda/handles.h"
#include "core/device/cuda/nccl.h"

namespace dsgd::device {
namespace cuda {

// An error, or none.
struct CommFailure {
  int32_t code = 0;
  std::string text;
};

// The words for a timeout: {"the communicator", "was not created"}.
struct CommDelay {
  const char *subject, *predicate;
};

// A collective; the first work of a communicator is to join, and has only the last three.
struct CommWork {
  CollectiveWork work;
  std::vector<void*> buffers;
  std::vector<Event*> wait_for, done_events;
  std::vector<CollectiveCopy> copies_before, copies_after;
  uint64_t number = 0;
  std::chrono::steady_clock::time_point until;
  CollectiveEnded ended;
  void* context;
};

// State that the communicator's thread, the devices' callbacks and CommMemory share; outlives the
// communicator.
struct CommShared {
  std::mutex mutex;
  std::condition_variable changed;
  bool notified = false;
  std::vector<uint64_t> completed;  // by device: number of the last work that it has ended
  bool thread_ended = false;        // no memory is registered any more
};

}  // namespace cuda

// The communicator's thread registers the memory with NCCL before the first work enqueued after its
// allocation. So all members register at the same point: work is enqueued only after the headers of a step
// have agreed, and then all members have made the same plan.
struct CommMemory {
  CommMemory(std::vector<DeviceHandle*> of, uint64_t size, std::shared_ptr<cuda::CommShared> of_communicator)
      : devices(std::move(of)),
        registrations(devices.size()),
        nbytes(size),
        shared(std::move(of_communicator)) {}
  ~CommMemory() {
    // cudaFree of a guard waits for the device, so that no kernel still reads what ncclMemFree unmaps.
    for (size_t d = 0; d < guards.size(); ++d) cuda::release(devices[d], guards[d]);
    for (size_t d = 0; d < data.size(); ++d) cuda::release_for_collectives(devices[d], data[d]);
  }

  const std::vector<DeviceHandle*> devices;
  std::vector<void*> data, guards, registrations;  // by device
  const uint64_t nbytes;
  const std::shared_ptr<cuda::CommShared> shared;
  // under its mutex
  enum class State { kNew, kRegistered, kUnused, kDeregistered } state = State::kNew;
};

struct Comm {
  using Clock = std::chrono::steady_clock;

  Comm(DeviceHandle* const* of, uint32_t count, const CommunicatorId& id, int32_t first, int32_t size)
      : devices(of, of + count), id(id), first(first), size(size) {}
  ~Comm();
  void start(cuda::CommWork joined) {
    shared->completed.resize(devices.size());
    waiting.push_back(std::move(joined));
    thread = std::thread([this] { run(); });
  }
  size_t count() const { return devices.size(); }
  int32_t allocate(uint64_t nbytes, CommMemory** memory, Message* message);
  void enqueue(cuda::CommWork item);
  void fail(cuda::CommFailure why);

 private:
  void run();
  void fail_all(std::unique_lock<std::mutex>& lock);
  void begin(cuda::CommWork item);
  int32_t join(Clock::time_point until, Message* message);
  int32_t enqueue_now(const cuda::CommWork& item, Message* message);
  int32_t register_new(Clock::time_point until, Message* message);
  bool has_unused() const;
  void deregister(std::unique_lock<std::mutex>& lock, bool all);
  bool poll_oldest();
  int32_t notify_when_completed(size_t device, uint64_t number, Message* message);
  // Waits until NCCL has done its last call.
  int32_t wait_for_nccl(Clock::time_point until, const cuda::CommDelay& what, Message* message);
  int32_t time_out(const cuda::CommDelay& what, Message* message) const;

  const std::vector<DeviceHandle*> devices;
  const CommunicatorId id;
  const int32_t first, size;

  // of the thread
  std::vector<Queue*> queues;
  std::unique_ptr<cuda::NcclRanks> ranks;
  std::deque<cuda::CommWork> enqueued;
  uint64_t last = 0;               // number of the last work
  bool launch_unfinished = false;  // NCCL has not said that the last collective is in the queues
  bool finalizing = false;

  const std::shared_ptr<cuda::CommShared> shared = std::make_shared<cuda::CommShared>();
  // under its mutex
  std::deque<cuda::CommWork> waiting;
  std::vector<CommMemory*> memories;  // not deregistered yet
  cuda::CommFailure failure;
  bool ending = false;

  std::thread thread;
};

}  // namespace dsgd::device
