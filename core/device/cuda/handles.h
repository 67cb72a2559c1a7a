// What the table's opaque handles are, and how its functions say what has failed.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "core/device/backend.h"
#include "transport/base/status.h"

namespace dsgd::device {

struct Handle {
  int32_t index;
  std::string description;
  DeviceId id;
};
struct Queue {
  Handle* device;
  cudaStream_t stream;
  cudaStream_t notices;  // functions of the host's, so that the next kernel need not wait for one
  cudaEvent_t reached;
};
struct Event {
  Handle* device;
  cudaEvent_t event;
};

namespace cuda {

// Functions of the table that others build on (backend.cc).
int32_t queue_open(Handle* device, Queue** queue, Message* message);
void queue_close(Queue* queue);
int32_t copy(Queue* queue, void* to, const void* from, uint64_t nbytes, Message* message);
int32_t queue_notify(Queue* queue, void (*function)(void*), void* context, Message* message);
int32_t queue_wait(Queue* queue, Event* event, Message* message);
int32_t event_record(Event* event, Queue* queue, Message* message);
EventState event_query(Event* event, Message* message);

__attribute__((format(printf, 3, 4))) int32_t fail(Message* message, Code code, const char* format, ...);

// The calling thread's current device, while this one is in use.
class Current {
 public:
  explicit Current(const Handle* device) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = device->index;
    if (before_ != device->index) cudaSetDevice(device->index);
    changed_ = before_ != device->index;
  }
  ~Current() {
    if (changed_) cudaSetDevice(before_);
  }
  Current(const Current&) = delete;

 private:
  int before_ = 0;
  bool changed_;
};

}  // namespace cuda
}  // namespace dsgd::device
