// Memory of a communicator: allocated by any thread, registered and deregistered by the communicator's.
#include <algorithm>
#include <memory>
#include <vector>

#include "core/device/cuda/communicator.h"
#include "core/device/cuda/communicator_thread.h"

namespace dsgd::device {

int32_t Comm::allocate(uint64_t nbytes, CommMemory** memory, Message* message) {
  auto made = std::make_unique<CommMemory>(devices, nbytes, shared);
  for (DeviceHandle* device : devices) {
    void* data = nullptr;
    if (const int32_t code = cuda::allocate(device, 1, &data, message)) return code;
    made->guards.push_back(data);
    if (const int32_t code = cuda::allocate_for_collectives(device, nbytes, &data, message)) return code;
    made->data.push_back(data);
  }
  std::lock_guard lock(shared->mutex);
  memories.push_back(made.get());
  *memory = made.release();
  return 0;
}

int32_t Comm::register_new(Clock::time_point until, Message* message) {
  std::vector<CommMemory*> found;
  {
    std::lock_guard lock(shared->mutex);
    for (CommMemory* memory : memories) {
      if (memory->state != CommMemory::State::kNew) continue;
      memory->state = CommMemory::State::kRegistered;
      found.push_back(memory);
    }
  }
  for (CommMemory* memory : found) {
    int32_t code =
        ranks->register_memory(memory->data.data(), memory->nbytes, memory->registrations.data(), message);
    if (code == 0) code = wait_for_nccl(until, {"memory", "was not registered"}, message);
    if (code != 0) return code;
  }
  return 0;
}

bool Comm::has_unused() const {
  return std::any_of(memories.begin(), memories.end(),
                     [](const CommMemory* memory) { return memory->state == CommMemory::State::kUnused; });
}

// Deregisters memory that is no longer used, or all. Ignores errors, since the end of the communicator
// deregisters the rest.
void Comm::deregister(std::unique_lock<std::mutex>& lock, bool all) {
  std::vector<CommMemory*> kept, left;
  for (CommMemory* memory : memories)
    (all || memory->state == CommMemory::State::kUnused ? left : kept).push_back(memory);
  memories = std::move(kept);
  lock.unlock();
  Message ignored;
  for (CommMemory* memory : left) {
    if (ranks) (void)ranks->deregister_memory(memory->registrations.data(), &ignored);
  }
  lock.lock();
  for (CommMemory* memory : left) memory->state = CommMemory::State::kDeregistered;
  shared->changed.notify_all();
}

namespace cuda {

int32_t communicator_allocate(Comm* communicator, uint64_t nbytes, void** data, CommMemory** memory,
                              Message* message) {
  if (const int32_t code = communicator->allocate(nbytes, memory, message)) return code;
  std::copy((*memory)->data.begin(), (*memory)->data.end(), data);
  return 0;
}

void communicator_release(CommMemory* memory) {
  {
    const std::shared_ptr<CommShared> shared = memory->shared;
    std::unique_lock lock(shared->mutex);
    if (memory->state != CommMemory::State::kDeregistered) memory->state = CommMemory::State::kUnused;
    shared->changed.notify_all();
    shared->changed.wait(
        lock, [&] { return shared->thread_ended || memory->state == CommMemory::State::kDeregistered; });
  }
  delete memory;
}

}  // namespace cuda
}  // namespace dsgd::device
