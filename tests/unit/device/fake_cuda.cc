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
  int device;  // whose context it belongs to
  enum Kind { kDevice, kPinned, kRegistered, kManaged } kind;
  bool is_on_device() const { return kind == kDevice || kind == kManaged; }
};
// Default streams of a device. All threads have the same one in place of one each.
struct DefaultStreams {
  std::shared_ptr<CUstream_st> legacy, per_thread;
};
constexpr size_t kMemory = size_t{2} << 30;  // that a device has
constexpr size_t kPage = 4096;

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int devices = 2, driver = 13000;
  cudaError_t count_error = cudaSuccess;
  std::map<std::string, Fault> faults;
  int paused = 0, held[2] = {0, 0};  // by direction
  std::shared_ptr<CUstream_st> captured;
  bool spoiled = false;
  bool immediate = false, pageable = false, one_bus = false;
  // Allocations wait for all that their device does, as CUDA may let them.
  const bool allocations_wait = std::getenv("DSGD_FAKE_ALLOCATIONS_WAIT") != nullptr;
  std::map<int, std::chrono::microseconds> delays;
  std::map<uintptr_t, Range> memory;
  // One thread may wait for a stream that another destroys.
  std::map<void*, std::shared_ptr<CUstream_st>> streams;
  std::set<std::shared_ptr<CUstream_st>> destroyed;  // that still have work
  std::map<int, DefaultStreams> default_streams;
  std::set<cudaEvent_t> events;
  size_t launches = 0;
  fake_cuda::Copies copies[2];           // by direction
  std::set<int> priorities;              // of streams in use, since a test has asked
  std::set<int> devices_used, contexts;  // since a test has asked; that have a context
  std::set<int> kernels_loaded, reset;   // devices
  std::map<int, cudaError_t> broken;     // by device: what every call returns
  // Arguments of host functions that are not called yet. A device that breaks never calls them, as with CUDA;
  // the memory that they would free stays here, where a leak checker finds it.
  std::multiset<void*> to_call;
};
World& world() {
  static World* const made = new World;  // streams' threads may outlive statics
  return *made;
}
thread_local int chosen = 0;           // cudaSetDevice
thread_local std::vector<int> pushed;  // contexts of the driver's, which come first
int current() { return pushed.empty() ? chosen : pushed.back(); }
thread_local bool in_host_function = false;
[[noreturn]] void misuse(const std::string& what) {
  std::fprintf(stderr, "fake CUDA: %s\n", what.c_str());
  std::abort();
}
// The runtime makes a context on the current device when that is used first.
void use(int device) {
  World& w = world();
  if (in_host_function) misuse("a function of CUDA is called in a host function");
  std::lock_guard lock(w.mutex);
  w.devices_used.insert(device);
  w.contexts.insert(device);
}
thread_local cudaError_t last = cudaSuccess;

// A fault that a test asked for; `error` is also what cudaGetLastError gives.
cudaError_t outcome(const char* function) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  std::string name = function;
  if (name == "cudaGetDeviceProperties_v2") name.resize(name.size() - 3);  // a macro of CUDA 12 renames it
  const auto fault = w.faults.find(name);
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
// A failed kernel's error, which every later call of its device returns; or none.
cudaError_t broken(int device) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  const auto error = w.broken.find(device);
  return error == w.broken.end() ? cudaSuccess : last = error->second;
}
// Work of this device is dropped.
bool is_lost(int device) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return w.broken.count(device) > 0 || w.reset.count(device) > 0;
}
// Of a function that has something to do on the current device.
#define FAKE_CALL() \
  FAKE_OUTCOME();   \
  use(current());   \
  if (const cudaError_t error_ = broken(current()); error_ != cudaSuccess) return error_

}  // namespace

// ---- streams and events

namespace {

// Runs host functions, one after another, as the driver does.
class HostThread {
 public:
  // Returns when the function has.
  void run(cudaHostFn_t function, void* context) {
    std::unique_lock lock(mutex_);
    const uint64_t number = ++given_;
    queue_.push_back({function, context});
    changed_.notify_all();
    changed_.wait(lock, [&] { return ended_ >= number; });
  }

 private:
  void main() {
    in_host_function = true;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !queue_.empty(); });
      const auto [function, context] = queue_.front();
      queue_.pop_front();
      lock.unlock();
      function(context);
      lock.lock();
      ++ended_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<cudaHostFn_t, void*>> queue_;
  uint64_t given_ = 0, ended_ = 0;
  std::thread thread_{[this] { main(); }};
};
HostThread& host_thread() {
  static auto* const made = new HostThread;
  return *made;
}

}  // namespace

struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  uint64_t enqueued = 0, done = 0;
  bool ends = false;
  const int device;
  // The legacy default stream and blocking streams of a device wait for each other.
  enum Kind { kLegacy, kBlocking, kNonBlocking };
  const Kind kind;
  const int priority;
  std::thread thread;

  CUstream_st(int device, Kind kind, int priority = 0) : device(device), kind(kind), priority(priority) {
    if (!world().immediate) thread = std::thread([this] { run(); });
  }
  void enqueue(std::function<void()> item) {
    if (!thread.joinable()) return item();
    std::lock_guard lock(mutex);
    work.push_back(std::move(item));
    ++enqueued;
    changed.notify_all();
  }
  // Waits for work up to this number, or for all that there is now.
  void await(uint64_t number) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done >= number; });
  }
  void drain() { await(last()); }
  uint64_t last() {
    std::lock_guard lock(mutex);
    return enqueued;
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ends || !work.empty(); });
      if (work.empty()) return;
      auto item = std::move(work.front());
      work.pop_front();
      lock.unlock();
      std::chrono::microseconds delay;
      {
        World& w = world();
        std::unique_lock pause(w.mutex);
        w.changed.wait(pause, [&w] { return w.paused == 0; });
        delay = w.delays[device];
      }
      if (delay.count() > 0) std::this_thread::sleep_for(delay);
      if (!is_lost(device)) item();
      item = nullptr;
      lock.lock();
      ++done;
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
  const int device = current();
  const std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

namespace {

using Stream = std::shared_ptr<CUstream_st>;

bool is_legacy(cudaStream_t stream) { return !stream || stream == cudaStreamLegacy; }

// The default ones are those of the current device.
Stream stream_of(cudaStream_t stream) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  if (is_legacy(stream) || stream == cudaStreamPerThread) {
    DefaultStreams& defaults = w.default_streams[current()];
    Stream& found = is_legacy(stream) ? defaults.legacy : defaults.per_thread;
    if (!found)
      found = std::make_shared<CUstream_st>(
          current(), is_legacy(stream) ? CUstream_st::kLegacy : CUstream_st::kBlocking);
    return found;
  }
  const auto found = w.streams.find(stream);
  if (found == w.streams.end()) misuse("a stream that is none, or is destroyed");
  return found->second;
}

template <typename Fits>
std::vector<Stream> streams_that(const Fits& fit) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  std::vector<Stream> found;
  const auto look = [&](const Stream& stream) {
    if (stream && fit(*stream)) found.push_back(stream);
  };
  for (const auto& [device, defaults] : w.default_streams) look(defaults.legacy), look(defaults.per_thread);
  for (const auto& [handle, stream] : w.streams) look(stream);
  for (const Stream& stream : w.destroyed) look(stream);
  return found;
}

// Other streams, whose work so far comes before what is enqueued in this one: of a legacy default stream the
// blocking ones of its device, and of these that one.
std::vector<Stream> streams_before(const CUstream_st& stream) {
  if (stream.kind == CUstream_st::kNonBlocking) return {};
  return streams_that([&](const CUstream_st& other) {
    return other.device == stream.device && other.kind != stream.kind &&
           other.kind != CUstream_st::kNonBlocking;
  });
}

void enqueue(const Stream& stream, std::function<void()> item) {
  std::vector<std::pair<Stream, uint64_t>> before;
  for (const Stream& other : streams_before(*stream)) before.emplace_back(other, other->last());
  stream->enqueue([before = std::move(before), item = std::move(item)] {
    for (const auto& [other, number] : before) other->await(number);
    item();
  });
}

void drain(const Stream& stream) {
  for (const Stream& other : streams_before(*stream)) other->drain();
  stream->drain();
}

void drain_device(int device) {
  for (const Stream& stream : streams_that([&](const CUstream_st& one) { return one.device == device; }))
    stream->drain();
}

// While a blocking stream is captured, the legacy default stream of its device cannot be used.
bool is_in_capture(cudaStream_t stream) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return is_legacy(stream) && w.captured && w.captured->kind == CUstream_st::kBlocking &&
         w.captured->device == current();
}

// Of a function that puts work into a stream.
cudaError_t refusal(cudaStream_t stream) {
  if (is_in_capture(stream)) {
    World& w = world();
    std::lock_guard lock(w.mutex);
    w.spoiled = true;
    return last = cudaErrorStreamCaptureImplicit;
  }
  return stream_of(stream)->device == current() ? cudaSuccess : last = cudaErrorInvalidResourceHandle;
}
#define FAKE_STREAM(stream) \
  if (const cudaError_t error_ = refusal(stream); error_ != cudaSuccess) return error_

std::shared_ptr<EventState> event_of(cudaEvent_t event) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  if (!w.events.count(event)) misuse("an event that is none, or is destroyed");
  return event->state;
}

// The allocation that [data, data + nbytes) lies in.
const Range* range_of(const void* data, size_t nbytes) {
  return fake_cuda::find_range(world().memory, data, nbytes);
}
// Fits work on this device.
void must_be_on(int device, const void* data, size_t nbytes, const char* what) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  const Range* range = range_of(data, nbytes);
  if (!range || !range->is_on_device()) misuse(std::string(what) + " that is no device memory");
  if (range->kind == Range::kDevice && range->device != device)
    misuse(std::string(what) + " that is memory of another device");
}

void note_priority(cudaStream_t stream) {
  const int priority = stream_of(stream)->priority;
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.priorities.insert(priority);
}

cudaError_t allocate(size_t nbytes, Range::Kind kind, void** data) {
  if (nbytes > kMemory) return last = cudaErrorMemoryAllocation;
  World& w = world();
  if (w.allocations_wait) drain_device(current());
  void* memory = ::operator new(nbytes, std::align_val_t{256});
  std::memset(memory, 0xcd, nbytes);
  std::lock_guard lock(w.mutex);
  w.memory[reinterpret_cast<uintptr_t>(memory)] = {nbytes, current(), kind};
  *data = memory;
  return cudaSuccess;
}
// Waits for the device, as the real one does.
cudaError_t release(void* data, std::set<Range::Kind> kinds) {
  if (!data) return cudaSuccess;
  World& w = world();
  int device;
  bool registered;
  {
    std::lock_guard lock(w.mutex);
    const auto found = w.memory.find(reinterpret_cast<uintptr_t>(data));
    if (found == w.memory.end() || !kinds.count(found->second.kind))
      misuse("a free of what was not allocated so");
    device = found->second.device;
    registered = found->second.kind == Range::kRegistered;
  }
  drain_device(device);
  {
    std::lock_guard lock(w.mutex);
    w.memory.erase(reinterpret_cast<uintptr_t>(data));
  }
  if (!registered) ::operator delete(data, std::align_val_t{256});
  return broken(device);  // the memory of a broken device goes all the same, as with its context
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
void share_bus(bool share) { world().one_bus = share; }
int bus_of(int device) { return world().one_bus ? 1 : device + 1; }
void break_device(int device, cudaError_t error) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.broken[device] = error;
}
void repair_device(int device) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.broken.erase(device);
}
void fail(const char* function, cudaError_t error, int n) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.faults[function] = {error, n};
}
static void change(int& counter, int by) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  counter += by;
  w.changed.notify_all();
}
Pause::Pause() { change(world().paused, 1); }
Pause::~Pause() { change(world().paused, -1); }
HoldCopies::HoldCopies(Direction direction) : direction_(direction) { change(world().held[direction_], 1); }
HoldCopies::~HoldCopies() { change(world().held[direction_], -1); }
Copies copies(HoldCopies::Direction direction) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return w.copies[direction];
}
Capture::Capture(cudaStream_t stream) {
  World& w = world();
  const Stream captured = stream_of(stream);
  std::lock_guard lock(w.mutex);
  w.captured = captured, w.spoiled = false;
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
void enqueue(cudaStream_t stream, std::function<void()> work) {
  note_priority(stream);
  ::enqueue(stream_of(stream), std::move(work));
}
int device_of(cudaStream_t stream) { return stream_of(stream)->device; }
void must_be_on(int device, const void* data, size_t nbytes, const char* what) {
  ::must_be_on(device, data, nbytes, what);
}
void unmap(void* data) {
  World& w = world();
  {
    std::lock_guard lock(w.mutex);
    w.memory.erase(reinterpret_cast<uintptr_t>(data));
  }
  ::operator delete(data, std::align_val_t{256});
}
Alive alive() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return {static_cast<int>(w.streams.size()), static_cast<int>(w.events.size()),
          static_cast<int>(w.memory.size())};
}
size_t pinned() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  size_t nbytes = 0;
  for (const auto& [address, range] : w.memory) nbytes += range.is_on_device() ? 0 : range.nbytes;
  return nbytes;
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
std::set<int> take_priorities() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return std::exchange(w.priorities, {});
}
size_t launches() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return w.launches;
}
size_t copies() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return w.copies[0].count + w.copies[1].count;
}

}  // namespace fake_cuda

// ---- kernels as loops

namespace dsgd::device::cuda {

namespace {

template <typename Stored, ParameterSize kSize, bool kChecks>
void check(const SumKernel<Stored, kSize, kChecks>& kernel, int device) {
  for (uint32_t p = 0; p < kernel.pieces; ++p) {
    const auto& piece = kernel.piece[p];
    if (kChecks)
      must_be_on(device, kernel.found + piece.index, sizeof(NonFinite), "a record of what is not finite");
    must_be_on(device, piece.sum, piece.count * sizeof(Wide<Stored>), "a bucket");
    for (uint32_t t = 0; t < piece.terms; ++t) {
      must_be_on(device, kernel.term[piece.first_term + t].gradient, piece.count * sizeof(Stored),
                 "a gradient");
    }
  }
}
template <typename T, ParameterSize kSize>
void check(const SquareKernel<T, kSize>& kernel, int device) {
  for (uint32_t p = 0; p < kernel.pieces; ++p)
    must_be_on(device, kernel.piece[p].data, kernel.piece[p].count * sizeof(T), "a bucket");
  must_be_on(device, kernel.sums, kernel.blocks * sizeof(double), "sums of squares");
}
template <typename Stored, ParameterSize kSize>
void check(const UpdateKernel<Stored, kSize>& kernel, int device) {
  for (uint32_t p = 0; p < kernel.pieces; ++p) {
    const auto& piece = kernel.piece[p];
    must_be_on(device, piece.sum, piece.count * sizeof(Wide<Stored>), "a bucket");
    for (uint32_t t = 0; t < piece.targets; ++t)
      must_be_on(device, piece.target[t], piece.count * sizeof(Stored), "a target");
    for (Wide<Stored>* state : {piece.state[0], piece.state[1], piece.state[2], piece.master}) {
      if (state) must_be_on(device, state, piece.count * sizeof(Wide<Stored>), "optimizer state");
    }
  }
}

}  // namespace

cudaError_t load_kernels() {
  if (const cudaError_t error = outcome("load_kernels"); error != cudaSuccess) return error;
  use(current());
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.kernels_loaded.insert(current());
  return cudaSuccess;
}

template <typename Kernel>
cudaError_t launch(const Kernel& kernel, cudaStream_t stream) {
  if (const cudaError_t error = outcome("launch"); error != cudaSuccess) return error;
  use(current());
  if (const cudaError_t error = broken(current()); error != cudaSuccess) return error;
  FAKE_STREAM(stream);
  if (kernel.blocks == 0 || kernel.blocks > INT32_MAX) return last = cudaErrorInvalidConfiguration;
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    if (!w.kernels_loaded.count(current())) misuse("a kernel that is loaded only when it is launched");
    ++w.launches;
  }
  note_priority(stream);
  // The last block of each kernel, for tests of what checks results.
  static const bool omits = std::getenv("DSGD_FAKE_OMIT_LAST_BLOCK");
  enqueue(stream_of(stream), [kernel, device = current()] {
    check(kernel, device);
    // Backwards, since nothing may depend on the order.
    for (uint32_t block = kernel.blocks - omits; block-- > 0;) {
      double shared[kThreads];
      for (uint32_t phase = 0; phase < Kernel::kPhases; ++phase) {
        for (uint32_t thread = kThreads; thread-- > 0;) kernel(ThreadIndex{block, thread, phase, shared});
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
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    w.reset.erase(device);  // a new context takes the place of the old one
  }
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
  if (in_host_function) misuse("a function of CUDA is called in a host function");
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    if (w.reset.count(static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1))
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  pushed.push_back(static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1);
  return CUDA_SUCCESS;
}
CUresult pop_context(CUcontext* context) {
  if (pushed.empty()) misuse("a context is popped that nobody has pushed");
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(pushed.back()) + 1);
  pushed.pop_back();
  return CUDA_SUCCESS;
}

// Holds the stream back until the number at `address` has reached `value`.
CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int) {
  enqueue(stream_of(stream), [number = reinterpret_cast<std::atomic<uint32_t>*>(address), value] {
    while (number->load() < value) std::this_thread::yield();
  });
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
  properties->pciBusID = fake_cuda::bus_of(device);
  properties->totalGlobalMem = kMemory;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t nbytes) {
  FAKE_UNSAFE();
  FAKE_CALL();
  return allocate(nbytes, Range::kDevice, data);
}
cudaError_t cudaMallocManaged(void** data, size_t nbytes, unsigned int) {
  FAKE_CALL();
  return allocate(nbytes, Range::kManaged, data);
}
cudaError_t cudaFree(void* data) {
  FAKE_UNSAFE();
  use(current());
  return release(data, {Range::kDevice, Range::kManaged});
}
cudaError_t cudaHostAlloc(void** data, size_t nbytes, unsigned int) {
  FAKE_UNSAFE();
  FAKE_CALL();
  return allocate(nbytes, Range::kPinned, data);
}
cudaError_t cudaFreeHost(void* data) {
  FAKE_UNSAFE();
  use(current());
  return release(data, {Range::kPinned});
}
cudaError_t cudaHostRegister(void* data, size_t nbytes, unsigned int) {
  FAKE_UNSAFE();
  FAKE_CALL();
  if (reinterpret_cast<uintptr_t>(data) % kPage != 0 || nbytes == 0 || nbytes % kPage != 0)
    misuse("memory is registered that is not whole pages");
  World& w = world();
  if (w.allocations_wait) drain_device(current());
  std::lock_guard lock(w.mutex);
  const auto next = w.memory.lower_bound(reinterpret_cast<uintptr_t>(data));
  const bool behind = next != w.memory.end() && next->first < reinterpret_cast<uintptr_t>(data) + nbytes;
  if (behind || range_of(data, 1)) return last = cudaErrorHostMemoryAlreadyRegistered;
  w.memory[reinterpret_cast<uintptr_t>(data)] = {nbytes, current(), Range::kRegistered};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* data) {
  FAKE_UNSAFE();
  use(current());
  return release(data, {Range::kRegistered});
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t nbytes, cudaMemcpyKind, cudaStream_t stream) {
  FAKE_CALL();
  FAKE_STREAM(stream);
  bool to_known, from_known;
  std::shared_ptr<void> pending;  // until the work has gone
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    const Range *there = range_of(to, nbytes), *here = range_of(from, nbytes);
    to_known = there, from_known = here;
    if (!w.pageable && !(to_known && from_known))
      misuse("a copy of memory that is neither the device's nor pinned");
    for (const Range* range : {there, here}) {
      if (range && range->kind == Range::kDevice && range->device != current())
        misuse("a copy of memory of another device");
    }
    const bool to_device = there && there->is_on_device(), from_device = here && here->is_on_device();
    if (to_device != from_device) {
      fake_cuda::Copies& copies =
          w.copies[to_device ? fake_cuda::HoldCopies::kToDevice : fake_cuda::HoldCopies::kToHost];
      ++copies.count, ++copies.pending;
      copies.nbytes += nbytes;
      pending = std::shared_ptr<void>(nullptr, [&copies](void*) { fake_cuda::change(copies.pending, -1); });
    }
  }
  if (!from_known) {  // read before the call returns
    const auto* bytes = static_cast<const char*>(from);
    enqueue(stream_of(stream), [to, pending, staged = std::vector<char>(bytes, bytes + nbytes)] {
      std::memcpy(to, staged.data(), staged.size());
    });
    return cudaSuccess;
  }
  enqueue(stream_of(stream), [to, from, nbytes, to_known, pending] {
    {
      World& w = world();
      std::unique_lock lock(w.mutex);
      const auto on_device = [nbytes](const void* data) {
        const Range* range = range_of(data, nbytes);
        return range && range->is_on_device();
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
  if (!to_known) drain(stream_of(stream));  // written when the call returns
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t nbytes, cudaStream_t stream) {
  FAKE_CALL();
  FAKE_STREAM(stream);
  must_be_on(current(), data, nbytes, "a memset");
  enqueue(stream_of(stream), [=] { std::memset(data, value, nbytes); });
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  FAKE_OUTCOME();
  World& w = world();
  std::lock_guard lock(w.mutex);
  if (!w.contexts.count(current()))
    misuse("memory is asked about without a context, which some releases then make, and others refuse");
  const Range* range = range_of(data, 1);
  attributes->type = !range                           ? cudaMemoryTypeUnregistered
                     : range->kind == Range::kManaged ? cudaMemoryTypeManaged
                     : range->is_on_device()          ? cudaMemoryTypeDevice
                                                      : cudaMemoryTypeHost;
  attributes->device = range ? range->device : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_CALL();
  *least = 0, *greatest = fake_cuda::kGreatestPriority;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  FAKE_CALL();
  if (priority > 0 || priority < fake_cuda::kGreatestPriority) misuse("a priority that is out of range");
  auto made = std::make_shared<CUstream_st>(
      current(), flags & cudaStreamNonBlocking ? CUstream_st::kNonBlocking : CUstream_st::kBlocking,
      priority);
  *stream = made.get();
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.streams[*stream] = std::move(made);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  FAKE_OUTCOME();
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FAKE_UNSAFE();
  FAKE_CALL();
  if (is_in_capture(stream)) return refusal(stream);
  drain(stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaDeviceReset(void) {
  use(current());
  const int device = current();
  std::vector<cudaStream_t> streams;
  World& w = world();
  {
    std::lock_guard lock(w.mutex);
    w.reset.insert(device);
    for (const auto& [handle, stream] : w.streams) {
      if (stream->device == device) streams.push_back(stream.get());
    }
  }
  for (cudaStream_t stream : streams) (void)cudaStreamDestroy(stream);
  drain_device(device);  // of its default streams, too, which drop what they have
  std::lock_guard lock(w.mutex);
  for (auto event = w.events.begin(); event != w.events.end();) {
    const auto at = event++;
    if ((*at)->device == device) delete *at, w.events.erase(at);
  }
  for (auto range = w.memory.begin(); range != w.memory.end();) {
    const auto at = range++;
    if (at->second.device != device) continue;
    if (at->second.kind != Range::kRegistered)
      ::operator delete(reinterpret_cast<void*>(at->first), std::align_val_t{256});
    w.memory.erase(at);
  }
  w.kernels_loaded.erase(device);
  w.contexts.erase(device);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  use(current());
  const std::shared_ptr<CUstream_st> ended = stream_of(stream);
  World& w = world();
  {
    std::lock_guard lock(w.mutex);
    w.streams.erase(stream);
    w.destroyed.insert(ended);
  }
  {
    std::lock_guard lock(ended->mutex);
    ended->ends = true;
    ended->changed.notify_all();
  }
  // The real one returns at once and ends when its work is done.
  if (ended->thread.joinable()) ended->thread.join();
  std::lock_guard lock(w.mutex);
  w.destroyed.erase(ended);
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
  if (is_in_capture(stream)) return last = cudaErrorStreamCaptureImplicit;  // which spoils nothing
  const Stream asked = stream_of(stream);
  World& w = world();
  std::lock_guard lock(w.mutex);
  *status = w.captured == asked ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t given, cudaStream_t stream) {
  FAKE_CALL();
  FAKE_STREAM(stream);
  const std::shared_ptr<EventState> event = event_of(given);
  if (given->device != current()) return last = cudaErrorInvalidResourceHandle;
  uint64_t number;
  {
    std::lock_guard lock(event->mutex);
    number = ++event->recorded;
  }
  enqueue(stream_of(stream), [event, number] {
    std::lock_guard lock(event->mutex);
    event->reached = std::max(event->reached, number);
    event->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t given, unsigned int) {
  FAKE_CALL();
  if (is_in_capture(stream)) return refusal(stream);
  const std::shared_ptr<EventState> event = event_of(given);
  uint64_t number;
  {
    std::lock_guard lock(event->mutex);
    number = event->recorded;
  }
  enqueue(stream_of(stream), [event, number, device = stream_of(stream)->device] {
    std::unique_lock lock(event->mutex);
    while (event->reached < number && !is_lost(device))
      event->changed.wait_for(lock, std::chrono::milliseconds(1));
  });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* context) {
  FAKE_CALL();
  FAKE_STREAM(stream);
  World& w = world();
  {
    std::lock_guard lock(w.mutex);
    w.to_call.insert(context);
  }
  enqueue(stream_of(stream), [function, context, &w] {
    {
      std::lock_guard lock(w.mutex);
      w.to_call.erase(w.to_call.find(context));
    }
    host_thread().run(function, context);
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t given) {
  FAKE_UNSAFE();
  FAKE_CALL();
  const std::shared_ptr<EventState> event = event_of(given);
  std::lock_guard lock(event->mutex);
  return event->reached == event->recorded ? cudaSuccess : cudaErrorNotReady;
}
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                             unsigned long long, cudaDriverEntryPointQueryResult* how) {
#else
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* how) {
#endif
  FAKE_OUTCOME();
  static const std::map<std::string, void*> functions = {
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(retain_context)},
      {"cuDevicePrimaryCtxRelease", reinterpret_cast<void*>(release_context)},
      {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(context_state)},
      {"cuStreamWaitValue32", reinterpret_cast<void*>(wait_value)},
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
    case cudaErrorStreamCaptureImplicit:
      return "cudaErrorStreamCaptureImplicit";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "another error";
  }
}

}  // extern "C"
