// A communicator: the thread that begins its work, in order, and looks for its end and for failures. NCCL's
// calls do not block, and only this thread makes them.
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

// Joining, or a collective.
struct CommWork {
  CollectiveWork work;
  std::vector<void*> buffers;
  std::vector<Event*> wait_for, done_events;
  std::vector<CollectiveCopy> copies_before, copies_after;
  std::chrono::steady_clock::time_point until;
  CollectiveEnded ended;
  void* context;
  uint64_t number = 0;
};

// State that the communicator's thread, the devices' callbacks and CommMemory share; outlives the
// communicator.
struct CommWakeup {
  std::mutex mutex;
  std::condition_variable changed;
  bool notified = false;
  std::vector<uint64_t> passed;  // by device: number of the last work that it has ended
  bool over = false;             // the communicator's thread has ended, and no memory is registered any more
};

}  // namespace cuda

// The communicator's thread registers the memory with NCCL before the first work enqueued after its
// allocation. So all members register at the same point: work is enqueued only after the headers of a step
// have agreed, and then all members have made the same plan.
struct CommMemory {
  CommMemory(std::vector<Handle*> of, uint64_t size, std::shared_ptr<cuda::CommWakeup> of_communicator)
      : devices(std::move(of)),
        registrations(devices.size()),
        nbytes(size),
        wakeup(std::move(of_communicator)) {}
  ~CommMemory() {
    // cudaFree of a guard waits for the device, so that no kernel still reads what ncclMemFree unmaps.
    for (size_t d = 0; d < guards.size(); ++d) cuda::release(devices[d], guards[d]);
    for (size_t d = 0; d < data.size(); ++d) cuda::release_for_collectives(devices[d], data[d]);
  }

  const std::vector<Handle*> devices;
  std::vector<void*> data, guards, registrations;  // by device
  const uint64_t nbytes;
  const std::shared_ptr<cuda::CommWakeup> wakeup;
  // under its mutex
  enum class State { kNew, kRegistered, kUnused, kDeregistered } state = State::kNew;
};

struct Comm {
  using Clock = std::chrono::steady_clock;

  Comm(Handle* const* of, uint32_t count, const CommunicatorId& id, int32_t first, int32_t size)
      : devices(of, of + count), id(id), first(first), size(size) {}
  ~Comm();
  void start(cuda::CommWork joined) {
    wakeup->passed.resize(devices.size());
    waiting.push_back(std::move(joined));
    thread = std::thread([this] { run(); });
  }
  size_t count() const { return devices.size(); }
  int32_t allocate(uint64_t nbytes, CommMemory** memory, Message* message);
  void enqueue(cuda::CommWork item);
  void fail(cuda::CommFailure why);

 private:
  void run();
  void break_off(std::unique_lock<std::mutex>& lock);
  void begin(cuda::CommWork item);
  int32_t join(Clock::time_point until, Message* message);
  int32_t enqueue_now(const cuda::CommWork& item, Message* message);
  int32_t register_new(Clock::time_point until, Message* message);
  bool has_unused() const;
  void deregister(std::unique_lock<std::mutex>& lock, bool all);
  bool look();
  int32_t wait_until_over(Clock::time_point until, bool closing, const char* what, Message* message);
  int32_t too_late(const char* what, Message* message) const;

  const std::vector<Handle*> devices;
  const CommunicatorId id;
  const int32_t first, size;

  // of the thread
  std::vector<Queue*> queues;
  std::unique_ptr<cuda::Ranks> ranks;
  std::deque<cuda::CommWork> enqueued;
  uint64_t last = 0;       // number of the last work
  bool launching = false;  // NCCL has not said that the last collective is in the queues

  const std::shared_ptr<cuda::CommWakeup> wakeup = std::make_shared<cuda::CommWakeup>();
  // under its mutex
  std::deque<cuda::CommWork> waiting;
  std::vector<CommMemory*> memories;  // not deregistered yet
  cuda::CommFailure failure;
  bool ending = false;

  std::thread thread;
};

}  // namespace dsgd::device
