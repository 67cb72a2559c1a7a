// The table of CUDA devices. An error names the CUDA call that failed and gives CUDA's message. The calling
// thread's device is the same after a call as before.
#include <cuda_runtime_api.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>

#include "core/device/cuda/communicator.h"
#include "core/device/cuda/driver_function.h"
#include "core/device/cuda/handles.h"
#include "core/device/cuda/launch.h"
#include "core/device/cuda/nccl.h"
#include "core/device/cuda/staging.h"

namespace dsgd::device {

namespace cuda {

int32_t fail(Message* message, Code code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message->text, sizeof message->text, format, arguments);
  va_end(arguments);
  return static_cast<int32_t>(code);
}

namespace {

// The oldest driver that dsgd supports, by the version of CUDA that the driver is of. The runtime of CUDA 13
// needs 580. That of CUDA 12 accepts older ones than 535, which do not take kernel parameters of 32 KiB.
constexpr int kOldestDriver = CUDART_VERSION >= 13000 ? 13000 : 12020;
constexpr const char* kOldestDriverName = CUDART_VERSION >= 13000 ? "580" : "535";

int32_t failed(Message* message, const Handle* device, const char* call, cudaError_t error) {
  const Code code = error == cudaErrorMemoryAllocation ? Code::kNoMemory : Code::kInternal;
  return fail(message, code, "cuda:%d: %.*s failed: %s (%s)", device->index,
              static_cast<int>(std::strcspn(call, "(")), call, cudaGetErrorString(error),
              cudaGetErrorName(error));
}

#define DSGD_CUDA(device, call)                                     \
  do {                                                              \
    if (const cudaError_t error_ = (call); error_ != cudaSuccess) { \
      (void)cudaGetLastError();                                     \
      return failed(message, device, #call, error_);                \
    }                                                               \
  } while (false)

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
// one machine, as slices of a GPU (MIG) are, whose UUIDs differ. Processes whose NCCL_HOSTID differ are on
// different machines for NCCL.
DeviceId identity_of(const cudaDeviceProp& properties) {
  char machine[256] = "";
  if (const char* host = std::getenv("NCCL_HOSTID")) {
    std::snprintf(machine, sizeof machine, "%s", host);
  } else if (std::FILE* boot = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    (void)!std::fgets(machine, sizeof machine, boot);
    std::fclose(boot);
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

struct FoundDriver {
  Driver driver;
  cudaError_t error = cudaSuccess;
};

FoundDriver look_for_driver() {
  FoundDriver found;
  const auto look = [&found](const char* name, auto* function) {
    void* address = nullptr;
    if (found.error == cudaSuccess) found.error = find_driver_function(name, &address);
    if (found.error == cudaSuccess && !address) found.error = cudaErrorSymbolNotFound;
    *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(address);
  };
  look("cuDevicePrimaryCtxRetain", &found.driver.retain);
  look("cuDevicePrimaryCtxRelease", &found.driver.release);
  look("cuDevicePrimaryCtxGetState", &found.driver.state);
  look("cuCtxPushCurrent", &found.driver.push);
  look("cuCtxPopCurrent", &found.driver.pop);
  return found;
}

// Looks the driver's functions up once per process.
const FoundDriver& found_driver() {
  static const FoundDriver found = look_for_driver();
  return found;
}

int32_t open(int32_t index, Handle** device, Message* message) {
  auto handle = std::unique_ptr<Handle>(new (std::nothrow) Handle{index, {}, {}, nullptr, nullptr});
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
  const FoundDriver& found = found_driver();
  if (found.error != cudaSuccess)
    return failed(message, handle.get(), "cudaGetDriverEntryPoint", found.error);
  // Never released: the runtime keeps what it makes in the context for the process's life, too.
  if (const CUresult retained = found.driver.retain(&handle->context, index); retained != CUDA_SUCCESS) {
    return fail(message, retained == CUDA_ERROR_OUT_OF_MEMORY ? Code::kNoMemory : Code::kInternal,
                "cuda:%d: cuDevicePrimaryCtxRetain failed with code %d; is the device in use by another "
                "process alone?",
                index, static_cast<int>(retained));
  }
  DSGD_CURRENT(handle.get());
  // Loaded here and not at first use: loading a kernel may wait for all work on the device, and that work may
  // wait for the step that loads it.
  DSGD_CUDA(handle.get(), load_kernels());
  DSGD_CUDA(handle.get(), cudaStreamCreateWithFlags(&handle->zeroing, cudaStreamNonBlocking));
  *device = handle.release();
  return 0;
}

void close(Handle* device) {
  if (const Current current(device); current.ok()) (void)cudaStreamDestroy(device->zeroing);
  delete device;
}
const char* describe(const Handle* device) { return device->description.c_str(); }
DeviceId identity(const Handle* device) { return device->id; }

}  // namespace

// Queues do not wait for this stream, so the zeros have to be there before anything is enqueued in one.
int32_t zero(Handle* device, void* data, uint64_t nbytes, Message* message) {
  DSGD_CURRENT(device);
  DSGD_CUDA(device, cudaMemsetAsync(data, 0, nbytes, device->zeroing));
  DSGD_CUDA(device, cudaStreamSynchronize(device->zeroing));
  return 0;
}

int32_t allocate(Handle* device, uint64_t nbytes, void** data, Message* message) {
  DSGD_CURRENT(device);
  void* memory = nullptr;
  DSGD_CUDA(device, cudaMalloc(&memory, std::max<uint64_t>(nbytes, 1)));
  if (const int32_t code = zero(device, memory, std::max<uint64_t>(nbytes, 1), message)) {
    (void)cudaFree(memory);
    return code;
  }
  *data = memory;
  return 0;
}
void release(Handle* device, void* data) {
  if (const Current current(device); current.ok()) (void)cudaFree(data);
}

namespace {

int32_t allocate_staging(Handle* device, uint64_t nbytes, void** data, Message* message) {
  DSGD_CURRENT(device);
  void* memory = nullptr;
  DSGD_CUDA(device, cudaHostAlloc(&memory, std::max<uint64_t>(nbytes, 1), cudaHostAllocPortable));
  std::memset(memory, 0, nbytes);  // touched once, here
  *data = memory;
  return 0;
}
void release_staging(Handle* device, void* data) {
  if (const Current current(device); current.ok()) (void)cudaFreeHost(data);
}

// First and last byte, which are looked at.
std::array<const void*, 2> ends_of(const void* data, uint64_t nbytes) {
  return {data, static_cast<const char*>(data) + nbytes - 1};
}

int32_t check_pointer(Handle* device, const void* data, uint64_t nbytes, Message* message) {
  if (nbytes == 0) return 0;
  DSGD_CURRENT(device);
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

// Makes a context that exists already, of any device, current on the calling thread while this object lives.
// Without a current context a query about memory would fail, or create a context on device 0, which takes
// memory there in each process.
class AnyContext {
 public:
  AnyContext() {
    int count = 0;
    if (found_driver().error != cudaSuccess || cudaGetDeviceCount(&count) != cudaSuccess) {
      (void)cudaGetLastError();
      return;
    }
    for (CUdevice device = 0; device < count && !pushed_; ++device) {
      unsigned int flags = 0;
      int active = 0;
      CUcontext context = nullptr;
      if (driver().state(device, &flags, &active) != CUDA_SUCCESS || !active) continue;
      if (driver().retain(&context, device) != CUDA_SUCCESS) continue;
      device_ = device;
      pushed_ = driver().push(context) == CUDA_SUCCESS;
      if (!pushed_) (void)driver().release(device);
    }
  }
  ~AnyContext() {
    if (!pushed_) return;
    CUcontext popped;
    (void)driver().pop(&popped);
    (void)driver().release(device_);
  }
  AnyContext(const AnyContext&) = delete;
  bool ok() const { return pushed_; }

 private:
  CUdevice device_ = 0;
  bool pushed_ = false;
};

int32_t locate(const void* data, uint64_t nbytes, int32_t* index, Message* message) {
  *index = -1;
  if (nbytes == 0) return 0;
  const AnyContext current;
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

const Driver& driver() { return found_driver().driver; }

void queue_close(Queue* queue) {
  if (const Current current(queue->device); current.ok()) {
    if (queue->stream) (void)cudaStreamDestroy(queue->stream);
    if (queue->notices) (void)cudaStreamDestroy(queue->notices);
    if (queue->reached) (void)cudaEventDestroy(queue->reached);
  }
  delete queue;
}

int32_t queue_open(Handle* device, Queue** queue, Message* message) {
  DSGD_CURRENT(device);
  auto made = std::unique_ptr<Queue, void (*)(Queue*)>(
      new (std::nothrow) Queue{device, nullptr, nullptr, nullptr}, queue_close);
  if (!made) return fail(message, Code::kNoMemory, "cuda:%d: no memory", device->index);
  int least = 0, greatest = 0;
  DSGD_CUDA(device, cudaDeviceGetStreamPriorityRange(&least, &greatest));
  // Other workers wait for sums and collectives, while the host's backward pass keeps the device busy.
  DSGD_CUDA(device, cudaStreamCreateWithPriority(&made->stream, cudaStreamNonBlocking, greatest));
  DSGD_CUDA(device, cudaStreamCreateWithFlags(&made->notices, cudaStreamNonBlocking));
  DSGD_CUDA(device, cudaEventCreateWithFlags(&made->reached, cudaEventDisableTiming));
  *queue = made.release();
  return 0;
}

int32_t queue_notify(Queue* queue, void (*function)(void*), void* context, Message* message) {
  DSGD_CURRENT(queue->device);
  DSGD_CUDA(queue->device, cudaEventRecord(queue->reached, queue->stream));
  DSGD_CUDA(queue->device, cudaStreamWaitEvent(queue->notices, queue->reached, 0));
  DSGD_CUDA(queue->device, cudaLaunchHostFunc(queue->notices, function, context));
  return 0;
}

int32_t copy(Queue* queue, void* to, const void* from, uint64_t nbytes, Message* message) {
  DSGD_CURRENT(queue->device);
  DSGD_CUDA(queue->device, cudaMemcpyAsync(to, from, nbytes, cudaMemcpyDefault, queue->stream));
  return 0;
}

// ---- kernels, a batch of pieces per launch

namespace {

// One with room for few, if that is enough.
template <typename Kernel>
int32_t launch_batch(const Queue& queue, const Kernel& kernel, Message* message) {
  if (typename Kernel::Few few; kernel.fits(&few)) {
    DSGD_CUDA(queue.device, launch(few, queue.stream));
  } else {
    DSGD_CUDA(queue.device, launch(kernel, queue.stream));
  }
  return 0;
}

template <typename Stored, bool kChecks>
class SumBatch {
 public:
  using T = Wide<Stored>;
  SumBatch(Queue* queue, NonFinite* found, Message* message) : queue_(queue), message_(message) {
    kernel_.found = found;
  }
  // `index`: of the piece's record.
  int32_t add(const SumPiece& piece, uint32_t index, const Term* terms, T* bucket) {
    if (piece.count == 0) return 0;
    uint32_t done = 0;
    do {
      if (kernel_.pieces == Kernel::kPieces || kernel_.terms == Kernel::kTerms) {
        if (const int32_t code = flush()) return code;
      }
      const uint32_t some = std::min(piece.terms - done, Kernel::kTerms - kernel_.terms);
      kernel_.piece[kernel_.pieces++] = {
          bucket + piece.position,     piece.count, kernel_.blocks, static_cast<uint16_t>(kernel_.terms),
          static_cast<uint16_t>(some), done > 0,    index};
      for (uint32_t t = done; t < done + some; ++t) {
        kernel_.term[kernel_.terms++] = {static_cast<const Stored*>(terms[piece.first_term + t].gradient),
                                         static_cast<T>(terms[piece.first_term + t].weight)};
      }
      kernel_.blocks += blocks_of(piece.count);
      done += some;
      // The rest adds to what this launch makes.
      if (done < piece.terms) {
        if (const int32_t code = flush()) return code;
      }
    } while (done < piece.terms);
    return 0;
  }
  int32_t flush() {
    if (kernel_.pieces == 0) return 0;
    const int32_t code = launch_batch(*queue_, kernel_, message_);
    kernel_.pieces = kernel_.terms = kernel_.blocks = 0;
    return code;
  }

 private:
  using Kernel = SumKernel<Stored, Room::kMany, kChecks>;
  Queue* const queue_;
  Message* const message_;
  Kernel kernel_;
};

// Is this a piece of the type that a batch is of?
template <typename Stored>
bool is_of(DType dtype) {
  if constexpr (std::is_same_v<Stored, Float16>) return dtype == DType::kFloat16;
  if constexpr (std::is_same_v<Stored, Bfloat16>) return dtype == DType::kBfloat16;
  return !is_half(dtype);
}

template <typename Stored, bool kChecks>
int32_t sum_as(Queue* queue, const SumPiece* pieces, uint32_t count, const Term* terms, void* bucket,
               NonFinite* found, Message* message) {
  SumBatch<Stored, kChecks> batch(queue, found, message);
  for (uint32_t p = 0; p < count; ++p) {
    if (!is_of<Stored>(pieces[p].source)) continue;
    if (const int32_t code = batch.add(pieces[p], p, terms, static_cast<Wide<Stored>*>(bucket))) return code;
  }
  return batch.flush();
}

template <bool kChecks>
int32_t sum_of(Queue* queue, DType dtype, const SumPiece* pieces, uint32_t count, const Term* terms,
               void* bucket, NonFinite* found, Message* message) {
  const auto sum = [&](auto sum_as) { return sum_as(queue, pieces, count, terms, bucket, found, message); };
  if (dtype == DType::kFloat64) return sum(sum_as<double, kChecks>);
  int32_t code = sum(sum_as<float, kChecks>);
  if (code == 0) code = sum(sum_as<Float16, kChecks>);
  if (code == 0) code = sum(sum_as<Bfloat16, kChecks>);
  return code;
}

int32_t sum(Queue* queue, DType dtype, const SumPiece* pieces, uint32_t count, const Term* terms,
            void* bucket, NonFinite* found, Message* message) {
  DSGD_CURRENT(queue->device);
  return (found ? sum_of<true> : sum_of<false>)(queue, dtype, pieces, count, terms, bucket, found, message);
}

template <typename T>
int32_t squares_as(Queue* queue, const SquarePiece* pieces, uint32_t count, const T* bucket, double* sums,
                   Message* message) {
  using Kernel = SquareKernel<T, Room::kMany>;
  for (uint32_t p = 0; p < count;) {
    Kernel kernel;
    kernel.sums = sums;
    for (; p < count && kernel.pieces < Kernel::kPieces; ++p) {
      if (pieces[p].count == 0) continue;
      kernel.piece[kernel.pieces++] = {bucket + pieces[p].position, pieces[p].count, kernel.blocks};
      kernel.blocks += blocks_of(pieces[p].count);
    }
    if (kernel.blocks == 0) continue;
    if (const int32_t code = launch_batch(*queue, kernel, message)) return code;
    sums += kernel.blocks;
  }
  return 0;
}

int32_t squares(Queue* queue, DType dtype, const SquarePiece* pieces, uint32_t count, const void* bucket,
                double* sums, Message* message) {
  DSGD_CURRENT(queue->device);
  if (dtype == DType::kFloat64)
    return squares_as(queue, pieces, count, static_cast<const double*>(bucket), sums, message);
  return squares_as(queue, pieces, count, static_cast<const float*>(bucket), sums, message);
}

template <typename Stored>
class UpdateBatch {
 public:
  using T = Wide<Stored>;
  UpdateBatch(Queue* queue, Message* message) : queue_(queue), message_(message) {}
  // The update, with as many replicas as a piece has room for.
  int32_t add(const UpdatePiece& given, void* const* targets, const T* bucket) {
    if (given.count == 0 || given.targets == 0) return 0;
    return push(given, given.action, bucket + given.position, targets + given.first_target,
                std::min(given.targets, Kernel::kTargets));
  }
  // Updates the replicas beyond that number, after the first ones: copies the first replica's result to them
  // (its master values, for half types). Where the action does not update master values, repeats the action.
  int32_t add_further(const UpdatePiece& given, void* const* targets, const T* bucket) {
    if (given.count == 0) return 0;
    const bool updated = given.action == Action::kUpdate || !Kernel::kMaster;
    const T* result = updated ? result_of(given, targets) : bucket + given.position;
    for (uint32_t done = Kernel::kTargets; done < given.targets; done += Kernel::kTargets) {
      const uint32_t some = std::min(given.targets - done, Kernel::kTargets);
      if (const int32_t code = push(given, updated ? Action::kCopy : given.action, result,
                                    targets + given.first_target + done, some))
        return code;
    }
    return 0;
  }
  int32_t flush() {
    if (kernel_.pieces == 0) return 0;
    const int32_t code = launch_batch(*queue_, kernel_, message_);
    kernel_.pieces = kernel_.rules = kernel_.blocks = 0;
    return code;
  }

 private:
  using Kernel = UpdateKernel<Stored, Room::kMany>;

  static const T* result_of(const UpdatePiece& given, void* const* targets) {
    return static_cast<const T*>(Kernel::kMaster ? given.master : targets[given.first_target]);
  }

  int32_t push(const UpdatePiece& given, Action action, const T* sum, void* const* targets, uint32_t count) {
    const bool known = kernel_.rules > 0 && given.rule == *last_;
    if (kernel_.pieces == Kernel::kPieces || (!known && kernel_.rules == Kernel::kRules)) {
      if (const int32_t code = flush()) return code;
    }
    if (!known || kernel_.rules == 0) add_rule(given.rule);
    typename Kernel::Piece& piece = kernel_.piece[kernel_.pieces++];
    piece = {};
    piece.sum = sum;
    piece.count = given.count;
    for (uint32_t t = 0; t < count; ++t) piece.target[t] = static_cast<Stored*>(targets[t]);
    for (int s = 0; s < 3; ++s) piece.state[s] = static_cast<T*>(given.state[s]);
    piece.master = static_cast<T*>(given.master);
    piece.divisor = static_cast<T>(given.divisor);
    piece.first_block = kernel_.blocks;
    piece.targets = static_cast<uint8_t>(count);
    piece.rule = static_cast<uint8_t>(kernel_.rules - 1);
    piece.action = action;
    kernel_.blocks += blocks_of(given.count);
    return 0;
  }

  // Following pieces share the rule as long as theirs is equal.
  void add_rule(const UpdateRule& given) {
    kernel_.rule[kernel_.rules++] = {given.kind,     given.momentum, given.adam_decay,  given.sgd_decay,
                                     given.nesterov, given.amsgrad,  given.as<T>().sgd, given.as<T>().adam};
    last_ = &given;
  }

  Queue* const queue_;
  Message* const message_;
  const UpdateRule* last_ = nullptr;  // the kernel's last rule
  Kernel kernel_;
};

template <typename Stored>
int32_t update_as(Queue* queue, const UpdatePiece* pieces, uint32_t count, void* const* targets,
                  const void* bucket, Message* message) {
  UpdateBatch<Stored> batch(queue, message);
  const auto add_all = [&](auto add) {
    for (uint32_t p = 0; p < count; ++p) {
      if (!is_of<Stored>(pieces[p].target)) continue;
      if (const int32_t code = (batch.*add)(pieces[p], targets, static_cast<const Wide<Stored>*>(bucket)))
        return code;
    }
    return batch.flush();
  };
  if (const int32_t code = add_all(&UpdateBatch<Stored>::add)) return code;
  return add_all(&UpdateBatch<Stored>::add_further);
}

int32_t update(Queue* queue, DType dtype, const UpdatePiece* pieces, uint32_t count, void* const* targets,
               const void* bucket, Message* message) {
  DSGD_CURRENT(queue->device);
  if (dtype == DType::kFloat64) return update_as<double>(queue, pieces, count, targets, bucket, message);
  int32_t code = update_as<float>(queue, pieces, count, targets, bucket, message);
  if (code == 0) code = update_as<Float16>(queue, pieces, count, targets, bucket, message);
  if (code == 0) code = update_as<Bfloat16>(queue, pieces, count, targets, bucket, message);
  return code;
}

}  // namespace

// ---- events

namespace {

int32_t event_open(Handle* device, Event** event, Message* message) {
  DSGD_CURRENT(device);
  cudaEvent_t made;
  DSGD_CUDA(device, cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  *event = new (std::nothrow) Event{device, made};
  if (*event) return 0;
  (void)cudaEventDestroy(made);
  return fail(message, Code::kNoMemory, "cuda:%d: no memory", device->index);
}
void event_close(Event* event) {
  if (const Current current(event->device); current.ok()) (void)cudaEventDestroy(event->event);
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
int32_t check_capture(const Handle* device, void* given, Message* message) {
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
  DSGD_CURRENT(event->device);
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
  DSGD_CURRENT(event->device);
  if (const int32_t code = check_capture(event->device, stream, message)) return code;
  DSGD_CUDA(event->device, cudaStreamWaitEvent(stream_of(stream), event->event, 0));
  return 0;
}
}  // namespace

int32_t event_record(Event* event, Queue* queue, Message* message) {
  DSGD_CURRENT(event->device);
  DSGD_CUDA(event->device, cudaEventRecord(event->event, queue->stream));
  return 0;
}
int32_t queue_wait(Queue* queue, Event* event, Message* message) {
  DSGD_CURRENT(queue->device);
  DSGD_CUDA(queue->device, cudaStreamWaitEvent(queue->stream, event->event, 0));
  return 0;
}
EventState event_query(Event* event, Message* message) {
  const Current current(event->device);
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
