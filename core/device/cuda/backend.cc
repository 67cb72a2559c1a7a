// The table of CUDA devices. An error names the CUDA call that failed and gives CUDA's message. The calling
// thread's device is the same after a call as before.
#include <cuda_runtime_api.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "core/device/cuda/batches.h"
#include "core/device/cuda/communicator.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/launch.h"
#include "core/device/cuda/nccl.h"
#include "core/device/cuda/staging.h"

namespace dsgd::device {
namespace cuda {
namespace {

// The oldest driver that dsgd supports, by the version of CUDA that the driver is of. The runtime of CUDA 13
// needs 580. That of CUDA 12 also accepts older ones than 535, which NVIDIA no longer maintains.
constexpr int kOldestDriver = CUDART_VERSION >= 13000 ? 13000 : 12020;
constexpr const char* kOldestDriverName = CUDART_VERSION >= 13000 ? "580" : "535";

int32_t device_count(int32_t* count, Message* message) {
  int found = 0, driver = 0;
  const cudaError_t error = cudaGetDeviceCount(&found);
  (void)cudaDriverGetVersion(&driver);
  if (error == cudaSuccess && driver >= kOldestDriver) {
    *count = found;
    return 0;
  }
  (void)cudaGetLastError();
  if (error == cudaErrorNoDevice) {
    *count = 0;
    return 0;
  }
  if (driver == 0) {
    return fail(message, Code::kUnsupported,
                "no CUDA device can be used: there is no NVIDIA driver on this machine, or this process may "
                "not use it; install the NVIDIA driver %s or later",
                kOldestDriverName);
  }
  if (driver < kOldestDriver) {
    return fail(message, Code::kUnsupported,
                "no CUDA device can be used: the NVIDIA driver is too old; CUDA %d.%d needs the NVIDIA "
                "driver %s or later, and the installed driver supports CUDA %d.%d",
                kOldestDriver / 1000, kOldestDriver % 1000 / 10, kOldestDriverName, driver / 1000,
                driver % 1000 / 10);
  }
  return fail(message, Code::kUnsupported, "no CUDA device can be used: %s (%s)", cudaGetErrorString(error),
              cudaGetErrorName(error));
}

// Equal for devices that NCCL refuses in one communicator ("Duplicate GPU"): those with one PCI address on
// one machine, as slices of a GPU (MIG) are, whose UUIDs differ. To NCCL a machine is its host name and boot
// id, or NCCL_HOSTID. So two containers with different host names are two machines.
DeviceId identity_of(const cudaDeviceProp& properties) {
  char machine[256] = "";
  if (const char* host = std::getenv("NCCL_HOSTID")) {
    std::snprintf(machine, sizeof machine, "%s", host);
  } else {
    (void)!gethostname(machine, sizeof machine / 2);
    const size_t length = std::strlen(machine);
    if (std::FILE* boot = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
      (void)!std::fgets(machine + length, static_cast<int>(sizeof machine - length), boot);
      std::fclose(boot);
    }
  }
  const uint64_t parts[] = {XXH3_64bits(machine, std::strlen(machine)),
                            static_cast<uint64_t>(properties.pciDomainID) << 32 |
                                static_cast<uint64_t>(properties.pciBusID) << 16 |
                                static_cast<uint64_t>(properties.pciDeviceID)};
  DeviceId id;
  static_assert(sizeof parts == sizeof id.bytes);
  std::memcpy(id.bytes, parts, sizeof parts);
  return id;
}

int32_t open(int32_t index, DeviceHandle** device, Message* message) {
  auto handle =
      std::unique_ptr<DeviceHandle>(new (std::nothrow) DeviceHandle{index, {}, {}, nullptr, nullptr});
  if (!handle) return fail(message, Code::kNoMemory, "cuda:%d: no memory", index);
  cudaDeviceProp properties;
  DSGD_CUDA(handle.get(), cudaGetDeviceProperties(&properties, index));
  char text[384];
  std::snprintf(text, sizeof text, "%s, compute capability %d.%d, %.1f GiB", properties.name,
                properties.major, properties.minor,
                static_cast<double>(properties.totalGlobalMem) / (1 << 30));
  handle->description = text;
  handle->id = identity_of(properties);
  if (properties.major < 8) {
    return fail(message, Code::kUnsupported,
                "cuda:%d (%s) is too old; compute capability 8.0 or later is needed", index, text);
  }
  if (const cudaError_t error = driver_error(); error != cudaSuccess)
    return failed(message, handle.get(), "cudaGetDriverEntryPoint", error);
  // Never released: the runtime keeps what it makes in the context for the process's life, too.
  if (const CUresult retained = driver().retain(&handle->context, index); retained != CUDA_SUCCESS) {
    return fail(message, retained == CUDA_ERROR_OUT_OF_MEMORY ? Code::kNoMemory : Code::kInternal,
                "cuda:%d: cuDevicePrimaryCtxRetain failed with code %d; is the GPU in exclusive-process "
                "mode, and used by another process?",
                index, static_cast<int>(retained));
  }
  DSGD_ENTER_CONTEXT(handle.get());
  // Loaded here and not at first use: loading a kernel may wait for all work on the device, and that work may
  // wait for the step that loads it.
  DSGD_CUDA(handle.get(), load_kernels());
  DSGD_CUDA(handle.get(), cudaStreamCreateWithFlags(&handle->zeroing, cudaStreamNonBlocking));
  *device = handle.release();
  return 0;
}

void close(DeviceHandle* device) {
  if (const ContextGuard current(device); current.ok()) (void)cudaStreamDestroy(device->zeroing);
  delete device;
}
const char* describe(const DeviceHandle* device) { return device->description.c_str(); }
DeviceId identity(const DeviceHandle* device) { return device->id; }

}  // namespace

// Queues do not wait for this stream, so the zeros have to be there before anything is enqueued in one.
int32_t zero(DeviceHandle* device, void* data, uint64_t nbytes, Message* message) {
  DSGD_ENTER_CONTEXT(device);
  DSGD_CUDA(device, cudaMemsetAsync(data, 0, nbytes, device->zeroing));
  DSGD_CUDA(device, cudaStreamSynchronize(device->zeroing));
  return 0;
}

int32_t allocate(DeviceHandle* device, uint64_t nbytes, void** data, Message* message) {
  DSGD_ENTER_CONTEXT(device);
  void* memory = nullptr;
  DSGD_CUDA(device, cudaMalloc(&memory, std::max<uint64_t>(nbytes, 1)));
  if (const int32_t code = zero(device, memory, std::max<uint64_t>(nbytes, 1), message)) {
    (void)cudaFree(memory);
    return code;
  }
  *data = memory;
  return 0;
}
void release(DeviceHandle* device, void* data) {
  if (const ContextGuard current(device); current.ok()) (void)cudaFree(data);
}

namespace {

int32_t allocate_staging(DeviceHandle* device, uint64_t nbytes, void** data, Message* message) {
  DSGD_ENTER_CONTEXT(device);
  void* memory = nullptr;
  DSGD_CUDA(device, cudaHostAlloc(&memory, std::max<uint64_t>(nbytes, 1), cudaHostAllocPortable));
  std::memset(memory, 0, nbytes);  // touched once, here
  *data = memory;
  return 0;
}
void release_staging(DeviceHandle* device, void* data) {
  if (const ContextGuard current(device); current.ok()) (void)cudaFreeHost(data);
}

// First and last byte, which are looked at.
std::array<const void*, 2> ends_of(const void* data, uint64_t nbytes) {
  return {data, static_cast<const char*>(data) + nbytes - 1};
}

int32_t check_pointer(DeviceHandle* device, const void* data, uint64_t nbytes, Message* message) {
  if (nbytes == 0) return 0;
  DSGD_ENTER_CONTEXT(device);
  for (const void* end : ends_of(data, nbytes)) {
    cudaPointerAttributes attributes{};
    DSGD_CUDA(device, cudaPointerGetAttributes(&attributes, end));
    if (attributes.type == cudaMemoryTypeUnregistered || attributes.type == cudaMemoryTypeHost) {
      return fail(message, Code::kInvalidArgument,
                  "the buffer is host memory, but its replica is on cuda:%d; give memory of that device, "
                  "or add the replica on \"cpu\"",
                  device->index);
    }
    if (attributes.type == cudaMemoryTypeDevice && attributes.device != device->index) {
      return fail(message, Code::kInvalidArgument,
                  "the buffer is memory of cuda:%d, but its replica is on cuda:%d", attributes.device,
                  device->index);
    }
  }
  return 0;
}

int32_t locate(const void* data, uint64_t nbytes, int32_t* index, Message* message) {
  *index = -1;
  if (nbytes == 0) return 0;
  const AnyContextGuard current;
  if (!current.ok()) return 0;  // no device is in use here, and so there is none of its memory
  int32_t at[2] = {-1, -1};
  for (size_t i = 0; i < 2; ++i) {
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, ends_of(data, nbytes)[i]) != cudaSuccess) {
      (void)cudaGetLastError();
      return 0;
    }
    if (attributes.type == cudaMemoryTypeDevice) at[i] = attributes.device;
  }
  *index = at[0];
  if (at[0] == at[1]) return 0;
  return fail(message, Code::kInvalidArgument,
              "memory of cuda:%d at one end only, so its size of %llu bytes is wrong, or it was freed",
              std::max(at[0], at[1]), static_cast<unsigned long long>(nbytes));
}

}  // namespace

void queue_close(Queue* queue) {
  if (const ContextGuard current(queue->device); current.ok()) {
    if (queue->stream) (void)cudaStreamDestroy(queue->stream);
    if (queue->notices) (void)cudaStreamDestroy(queue->notices);
    if (queue->notice_event) (void)cudaEventDestroy(queue->notice_event);
  }
  delete queue;
}

int32_t queue_open(DeviceHandle* device, Queue** queue, Message* message) {
  DSGD_ENTER_CONTEXT(device);
  auto made = std::unique_ptr<Queue, void (*)(Queue*)>(
      new (std::nothrow) Queue{device, nullptr, nullptr, nullptr}, queue_close);
  if (!made) return fail(message, Code::kNoMemory, "cuda:%d: no memory", device->index);
  int least = 0, greatest = 0;
  DSGD_CUDA(device, cudaDeviceGetStreamPriorityRange(&least, &greatest));
  // Other workers wait for sums and collectives, while the host's backward pass keeps the device busy.
  DSGD_CUDA(device, cudaStreamCreateWithPriority(&made->stream, cudaStreamNonBlocking, greatest));
  DSGD_CUDA(device, cudaStreamCreateWithFlags(&made->notices, cudaStreamNonBlocking));
  DSGD_CUDA(device, cudaEventCreateWithFlags(&made->notice_event, cudaEventDisableTiming));
  *queue = made.release();
  return 0;
}

int32_t queue_notify(Queue* queue, void (*function)(void*), void* context, Message* message) {
  DSGD_ENTER_CONTEXT(queue->device);
  DSGD_CUDA(queue->device, cudaEventRecord(queue->notice_event, queue->stream));
  DSGD_CUDA(queue->device, cudaStreamWaitEvent(queue->notices, queue->notice_event, 0));
  DSGD_CUDA(queue->device, cudaLaunchHostFunc(queue->notices, function, context));
  return 0;
}

int32_t copy(Queue* queue, void* to, const void* from, uint64_t nbytes, Message* message) {
  DSGD_ENTER_CONTEXT(queue->device);
  DSGD_CUDA(queue->device, cudaMemcpyAsync(to, from, nbytes, cudaMemcpyDefault, queue->stream));
  return 0;
}

// ---- events

namespace {

int32_t event_open(DeviceHandle* device, Event** event, Message* message) {
  DSGD_ENTER_CONTEXT(device);
  cudaEvent_t made;
  DSGD_CUDA(device, cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  *event = new (std::nothrow) Event{device, made};
  if (*event) return 0;
  (void)cudaEventDestroy(made);
  return fail(message, Code::kNoMemory, "cuda:%d: no memory", device->index);
}
void event_close(Event* event) {
  if (const ContextGuard current(event->device); current.ok()) (void)cudaEventDestroy(event->event);
  delete event;
}

// DLPack's numbers: 1 is the legacy default stream, 2 the default stream of each thread, others are handles.
cudaStream_t stream_of(void* stream) {
  switch (reinterpret_cast<uintptr_t>(stream)) {
    case 0:
    case 1:
      return cudaStreamLegacy;
    case 2:
      return cudaStreamPerThread;
    default:
      return static_cast<cudaStream_t>(stream);
  }
}

// Work that dsgd enqueues in a stream of the host's would become part of the graph that is being captured
// there, or invalidate the capture. To ask does neither.
int32_t check_capture(const DeviceHandle* device, void* given, Message* message) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = cudaStreamIsCapturing(stream_of(given), &capture); error != cudaSuccess) {
    (void)cudaGetLastError();
    // Of the legacy default stream. The capture will end, so the call may be made again.
    if (error == cudaErrorStreamCaptureImplicit) {
      return fail(message, Code::kState,
                  "cuda:%d: the default stream cannot be used while a blocking stream of the device is being "
                  "captured into a graph; capture in a stream with the flag cudaStreamNonBlocking, or call "
                  "again after the capture",
                  device->index);
    }
    return 0;  // the calls that follow report other errors
  }
  if (capture == cudaStreamCaptureStatusNone) return 0;
  return fail(message, Code::kInvalidArgument,
              "cuda:%d: the stream is being captured into a graph; use it before or after that",
              device->index);
}

int32_t event_record_stream(Event* event, void* stream, Message* message) {
  DSGD_ENTER_CONTEXT(event->device);
  if (const int32_t code = check_capture(event->device, stream, message)) return code;
  const cudaError_t error = cudaEventRecord(event->event, stream_of(stream));
  if (error == cudaSuccess) return 0;
  (void)cudaGetLastError();
  if (error == cudaErrorInvalidResourceHandle || error == cudaErrorContextIsDestroyed) {
    return fail(message, Code::kInvalidArgument,
                "cuda:%d: the stream does not belong to this device (%s); pass a stream of the device",
                event->device->index, cudaGetErrorName(error));
  }
  return failed(message, event->device, "cudaEventRecord", error);
}
int32_t stream_wait(void* stream, Event* event, Message* message) {
  DSGD_ENTER_CONTEXT(event->device);
  if (const int32_t code = check_capture(event->device, stream, message)) return code;
  DSGD_CUDA(event->device, cudaStreamWaitEvent(stream_of(stream), event->event, 0));
  return 0;
}
}  // namespace

int32_t event_record(Event* event, Queue* queue, Message* message) {
  DSGD_ENTER_CONTEXT(event->device);
  DSGD_CUDA(event->device, cudaEventRecord(event->event, queue->stream));
  return 0;
}
int32_t queue_wait(Queue* queue, Event* event, Message* message) {
  DSGD_ENTER_CONTEXT(queue->device);
  DSGD_CUDA(queue->device, cudaStreamWaitEvent(queue->stream, event->event, 0));
  return 0;
}
EventState event_query(Event* event, Message* message) {
  const ContextGuard current(event->device);
  if (!current.ok()) {
    (void)failed(message, event->device, "work enqueued earlier", cudaErrorContextIsDestroyed);
    return EventState::kFailed;
  }
  const cudaError_t error = cudaEventQuery(event->event);
  if (error == cudaSuccess) return EventState::kDone;
  (void)cudaGetLastError();
  if (error == cudaErrorNotReady) return EventState::kPending;
  (void)failed(message, event->device, "work enqueued earlier", error);
  return EventState::kFailed;
}

namespace {

constexpr Backend kBackend = {
    .version = kBackendVersion,
    .name = "cuda",
    .device_count = device_count,
    .open = open,
    .close = close,
    .describe = describe,
    .identity = identity,
    .allocate = allocate,
    .release = release,
    .allocate_staging = allocate_staging,
    .release_staging = release_staging,
    .allocate_staging_parts = allocate_staging_parts,
    .release_staging_parts = release_staging_parts,
    .check_pointer = check_pointer,
    .locate = locate,
    .queue_open = queue_open,
    .queue_close = queue_close,
    .copy = copy,
    .sum = sum,
    .update = update,
    .squares = squares,
    .queue_notify = queue_notify,
    .event_open = event_open,
    .event_close = event_close,
    .event_record = event_record,
    .event_record_stream = event_record_stream,
    .queue_wait = queue_wait,
    .stream_wait = stream_wait,
    .event_query = event_query,
    .communicator_load = communicator_load,
    .communicator_id = communicator_id,
    .communicator_open = communicator_open,
    .communicator_allocate = communicator_allocate,
    .communicator_release = communicator_release,
    .communicator_enqueue = communicator_enqueue,
    .communicator_fail = communicator_fail,
    .communicator_close = communicator_close,
};

}  // namespace
}  // namespace cuda
}  // namespace dsgd::device

// The entry point that libdsgd looks up in libdsgd_cuda.so.
extern "C" __attribute__((visibility("default"))) const dsgd::device::Backend* dsgd_cuda_backend(void) {
  return &dsgd::device::cuda::kBackend;
}
