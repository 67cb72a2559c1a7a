#include "tests/unit/device/fake_cuda.h"

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/device/cuda/launch.h"

namespace {

struct Fault {
  cudaError_t error;
  int n;
};
struct Range {
  size_t nbytes;
  int device;            // -1: pinned host memory
  bool managed = false;  // the host's and all devices'
};
constexpr size_t kMemory = size_t{2} << 30;  // that a device has

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int devices = 2, driver = 13000;
  cudaError_t count_error = cudaSuccess;
  std::map<std::string, Fault> faults;
  int paused = 0, held[2] = {0, 0};  // by direction
  void* captured = nullptr;
  bool spoiled = false;
  bool immediate = false, pageable = false;
  std::map<int, std::chrono::microseconds> delays;
  std::map<uintptr_t, Range> memory;
  // One thread may wait for a stream that another destroys.
  std::map<void*, std::shared_ptr<CUstream_st>> streams;
  std::set<void*> events;
  size_t launches = 0;
  std::set<int> devices_used, contexts;  // since a test has asked; that have a context
  bool kernels_loaded = false;
};
World& world() {
  static World* const made = new World;  // streams' threads may outlive statics
  return *made;
}
thread_local int chosen = 0;           // cudaSetDevice
thread_local std::vector<int> pushed;  // contexts of the driver's, which come first
int current() { return pushed.empty() ? chosen : pushed.back(); }
// The runtime makes a context on the current device when that is used first.
void use(int device) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.devices_used.insert(device);
  w.contexts.insert(device);
}
thread_local cudaError_t last = cudaSuccess;

[[noreturn]] void misuse(const std::string& what) {
  std::fprintf(stderr, "fake CUDA: %s\n", what.c_str());
  std::abort();
}

// A fault that a test asked for; `error` is also what cudaGetLastError gives.
cudaError_t outcome(const char* function) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  const auto fault = w.faults.find(function);
  if (fault == w.faults.end() || --fault->second.n > 0) return cudaSuccess;
  const cudaError_t error = fault->second.error;
  w.faults.erase(fault);
  return last = error;
}
#define FAKE_OUTCOME() \
  if (const cudaError_t error_ = outcome(__func__); error_ != cudaSuccess) return error_
// Of a function that a thread in the default mode may not call while a stream is captured.
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
bool spoils_capture() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  if (!w.captured || capture_mode == cudaStreamCaptureModeRelaxed) return false;
  return w.spoiled = true;
}
#define FAKE_UNSAFE() \
  if (spoils_capture()) return last = cudaErrorStreamCaptureUnsupported
// Of a function that has something to do on the current device.
#define FAKE_CALL() \
  FAKE_OUTCOME();   \
  use(current())

}  // namespace

// ---- streams and events

struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool ends = false, busy = false;
  const int device = current();
  std::thread thread;

  CUstream_st() {
    if (!world().immediate) thread = std::thread([this] { run(); });
  }
  void enqueue(std::function<void()> item) {
    if (!thread.joinable()) return item();
    std::lock_guard lock(mutex);
    work.push_back(std::move(item));
    changed.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return work.empty() && !busy; });
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ends || !work.empty(); });
      if (work.empty()) return;
      auto item = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      std::chrono::microseconds delay;
      {
        World& w = world();
        std::unique_lock pause(w.mutex);
        w.changed.wait(pause, [&w] { return w.paused == 0; });
        delay = w.delays[device];
      }
      if (delay.count() > 0) std::this_thread::sleep_for(delay);
      item();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

// A stream that is to wait for an event goes on to do so when the event is destroyed.
struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
};
struct CUevent_st {
  const std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

namespace {

std::shared_ptr<CUstream_st> stream_of(cudaStream_t stream) {
  // Their threads may outlive statics, so these two stay.
  static const auto* const legacy = new std::shared_ptr<CUstream_st>(std::make_shared<CUstream_st>());
  static const auto* const per_thread = new std::shared_ptr<CUstream_st>(std::make_shared<CUstream_st>());
  if (!stream || stream == cudaStreamLegacy) return *legacy;
  if (stream == cudaStreamPerThread) return *per_thread;
  World& w = world();
  std::lock_guard lock(w.mutex);
  const auto found = w.streams.find(stream);
  if (found == w.streams.end()) misuse("a stream that is none, or is destroyed");
  return found->second;
}
std::shared_ptr<EventState> event_of(cudaEvent_t event) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  if (!w.events.count(event)) misuse("an event that is none, or is destroyed");
  return event->state;
}

// The allocation that [data, data + nbytes) lies in.
const Range* range_of(const void* data, size_t nbytes) {
  World& w = world();
  const uintptr_t at = reinterpret_cast<uintptr_t>(data);
  auto next = w.memory.upper_bound(at);
  if (next == w.memory.begin()) return nullptr;
  --next;
  return at + nbytes <= next->first + next->second.nbytes ? &next->second : nullptr;
}
void must_be_device(const void* data, size_t nbytes, const char* what) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  const Range* range = range_of(data, nbytes);
  if (!range || range->device < 0) misuse(std::string(what) + " that is no device memory");
}

cudaError_t allocate(size_t nbytes, int device, void** data, bool managed = false) {
  if (nbytes > kMemory) return last = cudaErrorMemoryAllocation;
  void* memory = ::operator new(nbytes, std::align_val_t{256});
  std::memset(memory, 0xcd, nbytes);
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.memory[reinterpret_cast<uintptr_t>(memory)] = {nbytes, device, managed};
  *data = memory;
  return cudaSuccess;
}
cudaError_t release(void* data, bool device) {
  if (!data) return cudaSuccess;
  World& w = world();
  std::vector<std::shared_ptr<CUstream_st>> streams = {stream_of(nullptr), stream_of(cudaStreamPerThread)};
  {
    std::lock_guard lock(w.mutex);
    for (const auto& [handle, stream] : w.streams) streams.push_back(stream);
  }
  for (const auto& stream : streams) stream->drain();  // the real one waits for the device, too
  {
    std::lock_guard lock(w.mutex);
    const auto found = w.memory.find(reinterpret_cast<uintptr_t>(data));
    if (found == w.memory.end() || (found->second.device >= 0) != device)
      misuse("a free of what was not allocated so");
    w.memory.erase(found);
  }
  ::operator delete(data, std::align_val_t{256});
  return cudaSuccess;
}

}  // namespace

namespace fake_cuda {

void set_devices(int count, cudaError_t error, int driver) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.devices = count, w.count_error = error, w.driver = driver;
}
void set_delay(int device, std::chrono::microseconds delay) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.delays[device] = delay;
}
void set_immediate() { world().immediate = true; }
void allow_pageable() { world().pageable = true; }
void fail(const char* function, cudaError_t error, int n) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.faults[function] = {error, n};
}
Pause::Pause() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  ++w.paused;
}
Pause::~Pause() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  --w.paused;
  w.changed.notify_all();
}
HoldCopies::HoldCopies(Direction direction) : direction_(direction) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  ++w.held[direction_];
}
HoldCopies::~HoldCopies() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  --w.held[direction_];
  w.changed.notify_all();
}
Capture::Capture(cudaStream_t stream) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.captured = stream, w.spoiled = false;
}
Capture::~Capture() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.captured = nullptr;
}
bool Capture::spoiled() const {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return w.spoiled;
}
void enqueue(cudaStream_t stream, std::function<void()> work) { stream_of(stream)->enqueue(std::move(work)); }
Alive alive() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return {static_cast<int>(w.streams.size()), static_cast<int>(w.events.size()),
          static_cast<int>(w.memory.size())};
}
bool wait_for(const Alive& then) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (Alive now = alive();
       now.streams > then.streams || now.events > then.events || now.allocations > then.allocations;
       now = alive()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::yield();
  }
  return true;
}
int current_device() { return current(); }
void forget_contexts() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.contexts.clear();
}
std::set<int> take_devices_used() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return std::exchange(w.devices_used, {});
}
size_t launches() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return w.launches;
}

}  // namespace fake_cuda

// ---- kernels as loops

namespace dsgd::device::cuda {

namespace {

template <typename Stored, Room kRoom>
void check(const SumKernel<Stored, kRoom>& kernel) {
  for (uint32_t p = 0; p < kernel.pieces; ++p) {
    const auto& piece = kernel.piece[p];
    must_be_device(piece.sum, piece.count * sizeof(Wide<Stored>), "a bucket");
    for (uint32_t t = 0; t < piece.terms; ++t) {
      must_be_device(kernel.term[piece.first_term + t].gradient, piece.count * sizeof(Stored), "a gradient");
    }
  }
}
template <typename T, Room kRoom>
void check(const SquareKernel<T, kRoom>& kernel) {
  for (uint32_t p = 0; p < kernel.pieces; ++p)
    must_be_device(kernel.piece[p].data, kernel.piece[p].count * sizeof(T), "a bucket");
  must_be_device(kernel.sums, kernel.blocks * sizeof(double), "sums of squares");
}
template <typename Stored, Room kRoom>
void check(const UpdateKernel<Stored, kRoom>& kernel) {
  for (uint32_t p = 0; p < kernel.pieces; ++p) {
    const auto& piece = kernel.piece[p];
    must_be_device(piece.sum, piece.count * sizeof(Wide<Stored>), "a bucket");
    for (uint32_t t = 0; t < piece.targets; ++t)
      must_be_device(piece.target[t], piece.count * sizeof(Stored), "a target");
    for (Wide<Stored>* state : {piece.state[0], piece.state[1], piece.state[2], piece.master}) {
      if (state) must_be_device(state, piece.count * sizeof(Wide<Stored>), "optimizer state");
    }
  }
}

}  // namespace

cudaError_t load_kernels() {
  if (const cudaError_t error = outcome("load_kernels"); error != cudaSuccess) return error;
  use(current());
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.kernels_loaded = true;
  return cudaSuccess;
}

template <typename Kernel>
cudaError_t launch(const Kernel& kernel, cudaStream_t stream) {
  if (const cudaError_t error = outcome("launch"); error != cudaSuccess) return error;
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    if (!w.kernels_loaded) misuse("a kernel that is loaded only when it is launched");
    ++w.launches;
  }
  // The last block of each kernel, for tests of what checks results.
  static const bool omits = std::getenv("FAKE_CUDA_OMITS");
  stream_of(stream)->enqueue([kernel] {
    check(kernel);
    // Backwards, since nothing may depend on the order.
    for (uint32_t block = kernel.blocks - omits; block-- > 0;) {
      double shared[kThreads];
      for (uint32_t phase = 0; phase < Kernel::kPhases; ++phase) {
        for (uint32_t thread = kThreads; thread-- > 0;) kernel(Block{block, thread, phase, shared});
      }
    }
  });
  return cudaSuccess;
}
#define FAKE_INSTANTIATE(...) template cudaError_t launch(const __VA_ARGS__&, cudaStream_t);
DSGD_KERNELS(FAKE_INSTANTIATE)

}  // namespace dsgd::device::cuda

// ---- the driver's: a context is its device's number, and one

namespace {

CUresult retain_context(CUcontext* context, CUdevice device) {
  if (outcome("cuDevicePrimaryCtxRetain") != cudaSuccess) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  use(device);
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}
CUresult release_context(CUdevice) { return CUDA_SUCCESS; }  // the runtime has it, too
CUresult context_state(CUdevice device, unsigned int* flags, int* active) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  *flags = 0;
  *active = w.contexts.count(device) > 0;
  return CUDA_SUCCESS;
}
CUresult push_context(CUcontext context) {
  if (outcome("cuCtxPushCurrent") != cudaSuccess) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  pushed.push_back(static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1);
  return CUDA_SUCCESS;
}
CUresult pop_context(CUcontext* context) {
  if (pushed.empty()) misuse("a context is popped that nobody has pushed");
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(pushed.back()) + 1);
  pushed.pop_back();
  return CUDA_SUCCESS;
}

}  // namespace

// ---- the runtime's functions, as far as the plug-in and the sample trainer call them

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  // `count` stays as it was, as with the real one.
  if (w.count_error != cudaSuccess) return last = w.count_error;
  *count = w.devices;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  *version = w.driver;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  FAKE_OUTCOME();
  use(device);
  (pushed.empty() ? chosen : pushed.back()) = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  FAKE_OUTCOME();
  std::memset(properties, 0, sizeof *properties);
  std::snprintf(properties->name, sizeof properties->name, "Fake GPU");
  properties->major = 9;
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  properties->totalGlobalMem = kMemory;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t nbytes) {
  FAKE_UNSAFE();
  FAKE_CALL();
  return allocate(nbytes, current(), data);
}
cudaError_t cudaMallocManaged(void** data, size_t nbytes, unsigned int) {
  FAKE_CALL();
  return allocate(nbytes, current(), data, true);
}
cudaError_t cudaFree(void* data) {
  FAKE_UNSAFE();
  use(current());
  return release(data, true);
}
cudaError_t cudaHostAlloc(void** data, size_t nbytes, unsigned int) {
  FAKE_UNSAFE();
  FAKE_CALL();
  return allocate(nbytes, -1, data);
}
cudaError_t cudaFreeHost(void* data) {
  FAKE_UNSAFE();
  use(current());
  return release(data, false);
}
cudaError_t cudaMemset(void* data, int value, size_t nbytes) {
  FAKE_CALL();
  must_be_device(data, nbytes, "a memset");
  stream_of(nullptr)->enqueue([=] { std::memset(data, value, nbytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t nbytes, cudaMemcpyKind, cudaStream_t stream) {
  FAKE_CALL();
  bool to_known, from_known;
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    to_known = range_of(to, nbytes), from_known = range_of(from, nbytes);
    if (!w.pageable && !(to_known && from_known))
      misuse("a copy of memory that is neither the device's nor pinned");
  }
  if (!from_known) {  // read before the call returns
    const auto* bytes = static_cast<const char*>(from);
    stream_of(stream)->enqueue([to, staged = std::vector<char>(bytes, bytes + nbytes)] {
      std::memcpy(to, staged.data(), staged.size());
    });
    return cudaSuccess;
  }
  stream_of(stream)->enqueue([=] {
    {
      World& w = world();
      std::unique_lock lock(w.mutex);
      const auto on_device = [nbytes](const void* data) {
        const Range* range = range_of(data, nbytes);
        return range && range->device >= 0;
      };
      if (on_device(to) != on_device(from)) {
        const int& held =
            w.held[on_device(to) ? fake_cuda::HoldCopies::kToDevice : fake_cuda::HoldCopies::kToHost];
        w.changed.wait(lock, [&held] { return held == 0; });
      }
      if ((to_known && !range_of(to, nbytes)) || !range_of(from, nbytes))
        misuse("a copy of memory that is freed");
    }
    std::memcpy(to, from, nbytes);
  });
  if (!to_known) stream_of(stream)->drain();  // written when the call returns
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t nbytes, cudaStream_t stream) {
  FAKE_CALL();
  must_be_device(data, nbytes, "a memset");
  stream_of(stream)->enqueue([=] { std::memset(data, value, nbytes); });
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  FAKE_OUTCOME();
  World& w = world();
  std::lock_guard lock(w.mutex);
  if (!w.contexts.count(current()))
    misuse("memory is asked about without a context, which some releases then make, and others refuse");
  const Range* range = range_of(data, 1);
  attributes->type = !range              ? cudaMemoryTypeUnregistered
                     : range->managed    ? cudaMemoryTypeManaged
                     : range->device < 0 ? cudaMemoryTypeHost
                                         : cudaMemoryTypeDevice;
  attributes->device = range ? range->device : 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  FAKE_CALL();
  auto made = std::make_shared<CUstream_st>();
  *stream = made.get();
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.streams[*stream] = std::move(made);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FAKE_UNSAFE();
  FAKE_CALL();
  stream_of(stream)->drain();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  use(current());
  const std::shared_ptr<CUstream_st> ended = stream_of(stream);
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    w.streams.erase(stream);
  }
  {
    std::lock_guard lock(ended->mutex);
    ended->ends = true;
    ended->changed.notify_all();
  }
  // The real one returns at once and ends when its work is done.
  if (ended->thread.joinable()) ended->thread.join();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  FAKE_CALL();
  *event = new CUevent_st;
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.events.insert(*event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  use(current());
  event_of(event);
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.events.erase(event);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(capture_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  (void)stream_of(stream);
  World& w = world();
  std::lock_guard lock(w.mutex);
  *status = w.captured == stream ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t given, cudaStream_t stream) {
  FAKE_CALL();
  const bool is_default = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  if (!is_default && stream_of(stream)->device != current()) return last = cudaErrorInvalidResourceHandle;
  const std::shared_ptr<EventState> event = event_of(given);
  uint64_t number;
  {
    std::lock_guard lock(event->mutex);
    number = ++event->recorded;
  }
  stream_of(stream)->enqueue([event, number] {
    std::lock_guard lock(event->mutex);
    event->reached = std::max(event->reached, number);
    event->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t given, unsigned int) {
  FAKE_CALL();
  const std::shared_ptr<EventState> event = event_of(given);
  uint64_t number;
  {
    std::lock_guard lock(event->mutex);
    number = event->recorded;
  }
  stream_of(stream)->enqueue([event, number] {
    std::unique_lock lock(event->mutex);
    event->changed.wait(lock, [&] { return event->reached >= number; });
  });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* context) {
  FAKE_CALL();
  stream_of(stream)->enqueue([function, context] { function(context); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t given) {
  FAKE_UNSAFE();
  FAKE_CALL();
  const std::shared_ptr<EventState> event = event_of(given);
  std::lock_guard lock(event->mutex);
  return event->reached == event->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                             unsigned long long, cudaDriverEntryPointQueryResult* how) {
  FAKE_OUTCOME();
  static const std::map<std::string, void*> functions = {
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(retain_context)},
      {"cuDevicePrimaryCtxRelease", reinterpret_cast<void*>(release_context)},
      {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(context_state)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(push_context)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(pop_context)}};
  const auto found = functions.find(symbol);
  *function = found == functions.end() ? nullptr : found->second;
  *how = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetLastError(void) { return std::exchange(last, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t) { return "a fault that the test asked for"; }
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "another error";
  }
}

}  // extern "C"
