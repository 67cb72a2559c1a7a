// NCCL, loaded when the first communicator is created.
#pragma once

#include <vector>

#include "core/device/backend.h"
#include "core/device/cuda/nccl_functions.h"

namespace dsgd::device::cuda {

int32_t communicator_load(const char* path, int32_t* version, Message* message);
int32_t communicator_id(CommunicatorId* id, Message* message);

// Memory that NCCL can map into other processes, where it has functions for that (2.19); else any.
int32_t allocate_for_collectives(DeviceHandle* device, uint64_t nbytes, void** data, Message* message);
void release_for_collectives(DeviceHandle* device, void* data);

// The ranks of this process in a communicator. Calls do not block: after a call, call poll() until it sets
// `done`, and make no other call before. One thread makes all calls, since they change its current device.
// The destructor aborts the communicator, unless finalize() is done.
class NcclRanks {
 public:
  NcclRanks(std::vector<DeviceHandle*> devices, int32_t first, int32_t size)
      : devices_(std::move(devices)), comms_(devices_.size(), nullptr), first_(first), size_(size) {}
  ~NcclRanks();
  NcclRanks(const NcclRanks&) = delete;

  int32_t init(const CommunicatorId& id, Message* message);
  int32_t enqueue(Collective collective, DType dtype, void* const* buffers, uint64_t count,
                  Queue* const* queues, Message* message);
  // Lets collectives read and write memory of allocate_for_collectives() without copies of NCCL's own. All
  // members do so, or none. By device; a registration may be null.
  int32_t register_memory(void* const* data, uint64_t nbytes, void** registrations, Message* message);
  int32_t deregister_memory(void* const* registrations, Message* message);
  int32_t finalize(Message* message);
  // Sets `done` if the last call has ended on all ranks of this process. Fails if a rank has failed:
  // kWorkerLost if a member has left or died.
  int32_t poll(bool* done, Message* message);

 private:
  int32_t failed(Message* message, size_t k, const char* call, nccl::Result result) const;
  // `begun`: ranks for which it was called; none if the group did not begin.
  int32_t failed_in_group(Message* message, size_t begun, const char* call, nccl::Result result) const;

  const std::vector<DeviceHandle*> devices_;
  std::vector<nccl::Comm> comms_;  // by device
  const int32_t first_, size_;
  bool finalize_begun_ = false;
};

}  // namespace dsgd::device::cuda
