// Definitions of the table's opaque handles, and functions of the table that others build on (backend.cc).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "core/device/backend.h"

namespace dsgd::device {

struct DeviceHandle {
  int32_t index;
  std::string description;
  DeviceId id;
  CUcontext context;  // the device's primary one, which the runtime and the host use, too
  // In which new memory is zeroed. The legacy default stream would wait for the host's blocking streams.
  cudaStream_t zeroing;
};
struct Queue {
  DeviceHandle* device;
  cudaStream_t stream;
  cudaStream_t notices;  // for host functions, so that kernels in `stream` do not wait for them
  cudaEvent_t notice_event;
};
struct Event {
  DeviceHandle* device;
  cudaEvent_t event;
};

namespace cuda {

int32_t allocate(DeviceHandle* device, uint64_t nbytes, void** data, Message* message);
void release(DeviceHandle* device, void* data);
int32_t zero(DeviceHandle* device, void* data, uint64_t nbytes, Message* message);  // returns when it is
int32_t queue_open(DeviceHandle* device, Queue** queue, Message* message);
void queue_close(Queue* queue);
int32_t copy(Queue* queue, void* to, const void* from, uint64_t nbytes, Message* message);
int32_t queue_notify(Queue* queue, void (*function)(void*), void* context, Message* message);
int32_t queue_wait(Queue* queue, Event* event, Message* message);
int32_t event_record(Event* event, Queue* queue, Message* message);
EventState event_query(Event* event, Message* message);

}  // namespace cuda
}  // namespace dsgd::device
