// The functions of the table for communicators. Each communicator has a thread (communicator_thread.h).
#pragma once

#include "core/device/backend.h"

namespace dsgd::device::cuda {

int32_t communicator_open(DeviceHandle* const* devices, uint32_t count, const CommunicatorId* id,
                          int32_t first, int32_t size, int64_t timeout, CollectiveEnded ended, void* context,
                          Comm** communicator, Message* message);
int32_t communicator_allocate(Comm* communicator, uint64_t nbytes, void** data, CommMemory** memory,
                              Message* message);
void communicator_release(CommMemory* memory);
void communicator_enqueue(Comm* communicator, const CollectiveWork* work, CollectiveEnded ended,
                          void* context);
void communicator_fail(Comm* communicator, int32_t code, const char* why);
void communicator_close(Comm* communicator);

}  // namespace dsgd::device::cuda
