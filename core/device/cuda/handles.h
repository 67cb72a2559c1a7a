// Definitions of the table's opaque handles, and the error reports of its functions.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "core/device/backend.h"
#include "transport/base/status.h"

namespace dsgd::device {

struct Handle {
  int32_t index;
  std::string description;
  DeviceId id;
  CUcontext context;  // the device's primary one, which the runtime and the host use, too
  // In which new memory is zeroed. The legacy default stream would wait for the host's blocking streams.
  cudaStream_t zeroing;
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
int32_t allocate(Handle* device, uint64_t nbytes, void** data, Message* message);
void release(Handle* device, void* data);
int32_t zero(Handle* device, void* data, uint64_t nbytes, Message* message);  // returns when it is
int32_t queue_open(Handle* device, Queue** queue, Message* message);
void queue_close(Queue* queue);
int32_t copy(Queue* queue, void* to, const void* from, uint64_t nbytes, Message* message);
int32_t queue_notify(Queue* queue, void (*function)(void*), void* context, Message* message);
int32_t queue_wait(Queue* queue, Event* event, Message* message);
int32_t event_record(Event* event, Queue* queue, Message* message);
EventState event_query(Event* event, Message* message);

__attribute__((format(printf, 3, 4))) int32_t fail(Message* message, Code code, const char* format, ...);

// The few functions of the driver that are used; the runtime knows where they are.
struct Driver {
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&cuDevicePrimaryCtxRelease) release = nullptr;
  decltype(&cuDevicePrimaryCtxGetState) state = nullptr;
  decltype(&cuCtxPushCurrent) push = nullptr;
  decltype(&cuCtxPopCurrent) pop = nullptr;
};
const Driver& driver();

// Makes the device's context current on the calling thread while this object lives. It pushes the context
// instead of calling cudaSetDevice(), which cannot be undone: for a thread that has not chosen a device,
// cudaGetDevice() returns device 0, and setting that again would create a context there, which takes memory
// in each process. Calls while it lives do not invalidate a graph that another thread of the host captures.
class Current {
 public:
  explicit Current(const Handle* device) : pushed_(driver().push(device->context) == CUDA_SUCCESS) {
    if (pushed_) (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  }
  ~Current() {
    if (!pushed_) return;
    (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
    CUcontext popped;
    (void)driver().pop(&popped);
  }
  Current(const Current&) = delete;
  // False: the context is gone, with all that was made in it, since the host has reset the device.
  bool ok() const { return pushed_; }

 private:
  const bool pushed_;
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;  // then the mode to go back to
};

// The device's context is the thread's from here on to the end of the function.
#define DSGD_CURRENT(device)                                                                   \
  const Current current(device);                                                               \
  if (!current.ok())                                                                           \
  return fail(message, Code::kInternal, "cuda:%d: its context is gone; was the device reset?", \
              (device)->index)

}  // namespace cuda
}  // namespace dsgd::device
