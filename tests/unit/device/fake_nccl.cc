#include "tests/unit/device/fake_nccl.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/device/backend.h"
#include "core/device/cuda/nccl_functions.h"
#include "tests/unit/device/fake_cuda.h"

namespace nccl = dsgd::device::cuda::nccl;

namespace {

using dsgd::device::Collective;
using nccl::kRemoteError;
constexpr auto kInternalError = static_cast<nccl::Result>(3);
constexpr auto kInvalidUsage = static_cast<nccl::Result>(5);

[[noreturn]] void misuse(const std::string& what) {
  std::fprintf(stderr, "fake NCCL: %s\n", what.c_str());
  std::abort();
}

struct Part {
  const void* send;
  void* receive;
  bool registered;
};
struct Memory {
  size_t nbytes;
  int device;
  int registrations = 0;
};
struct Operation {
  Collective kind;
  size_t count, element;
  std::map<int, Part> parts;  // by rank
  bool done = false;
};
// All members of one communicator.
struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, joined = 0;
  std::set<int> buses;  // of the members' GPUs
  std::map<uint64_t, Operation> operations;
};

struct World {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  std::map<std::string, int> faults;
  int version = 22809, ids = 0;
  std::map<uintptr_t, Memory> memory;
  std::atomic<int> alive = 0, ended = 0, ended_registered = 0, waiting = 0;
  std::atomic<bool> peer_lost = false;
};
World& world() {
  static World* const made = new World;
  return *made;
}
// The memory of ncclMemAlloc that [data, data + nbytes) lies in; null: it is other memory. Under the mutex.
Memory* memory_of(const void* data, size_t nbytes) {
  return fake_cuda::find_range(world().memory, data, nbytes);
}
bool fails(const char* function) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  const auto fault = w.faults.find(function);
  if (fault == w.faults.end() || --fault->second > 0) return false;
  w.faults.erase(fault);
  return true;
}

}  // namespace

// A rank.
struct dsgd::device::cuda::nccl::Opaque {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  uint64_t next = 0;
  std::atomic<int> ending = -1;  // how often it still says that it has not ended; negative: it is not to end
  std::thread launcher;
  std::atomic<bool> launching = false, aborted = false;
  std::atomic<int> in_streams = 0;
  std::set<uintptr_t> registered;  // memory, by its address
};

namespace {

template <typename T>
void add_up(const Clique& clique, Operation& operation) {
  const size_t size = static_cast<size_t>(clique.size), count = operation.count;
  const size_t parts = operation.kind == Collective::kAllReduce ? 1 : size;
  std::vector<T> result(count * parts);
  for (size_t p = 0; p < parts; ++p) {
    for (size_t i = 0; i < count; ++i) {
      // As in a ring: each part is begun by another rank. No caller may count on an order.
      const auto at = [&](size_t k) {
        return static_cast<const T*>(
            operation.parts[static_cast<int>((p + i / 16 + k) % size)].send)[p * count + i];
      };
      if (operation.kind == Collective::kAllGather) {
        result[p * count + i] = static_cast<const T*>(operation.parts[static_cast<int>(p)].send)[i];
        continue;
      }
      T sum = at(0);
      for (size_t k = 1; k < size; ++k) sum += at(k);
      result[p * count + i] = sum;
    }
  }
  for (auto& [rank, part] : operation.parts) {
    const bool scattered = operation.kind == Collective::kReduceScatter;
    const T* from = result.data() + (scattered ? static_cast<size_t>(rank) * count : 0);
    std::memcpy(part.receive, from, (scattered ? count : result.size()) * sizeof(T));
  }
}

// In a stream, on its thread.
void take_part(nccl::Comm comm, uint64_t number, Collective kind, size_t count, size_t element, Part part) {
  Clique& clique = *comm->clique;
  {
    std::unique_lock lock(clique.mutex);
    Operation& operation = clique.operations[number];
    if (operation.parts.empty()) {
      operation.kind = kind, operation.count = count, operation.element = element;
    } else if (operation.kind != kind || operation.count != count || operation.element != element) {
      misuse("ranks have enqueued different collectives as number " + std::to_string(number));
    } else if (operation.parts.begin()->second.registered != part.registered) {
      misuse("some ranks' buffers are registered and others' are not");
    }
    operation.parts[comm->rank] = part;
    if (operation.parts.size() == static_cast<size_t>(clique.size)) {
      element == 4 ? add_up<float>(clique, operation) : add_up<double>(clique, operation);
      operation.done = true;
      ++world().ended;
      if (part.registered) ++world().ended_registered;
      clique.changed.notify_all();
    }
    ++world().waiting;
    clique.changed.wait(lock, [&] { return operation.done || comm->aborted; });
    --world().waiting;
    if (!operation.done) {
      operation.parts.erase(comm->rank);
      const size_t nbytes =
          count * element * (kind == Collective::kAllGather ? static_cast<size_t>(clique.size) : 1);
      std::memset(part.receive, 0xa5, nbytes);
    }
  }
  --comm->in_streams;
}

struct Call {
  nccl::Comm comm;
  Collective kind;
  Part part;
  size_t count, element;
  cudaStream_t stream;
};
thread_local int depth = 0;
thread_local std::vector<Call> calls;
thread_local Clique* began_alone = nullptr;  // by this thread outside of a group

bool is_in_progress(nccl::Comm comm) {
  std::lock_guard lock(comm->clique->mutex);
  return comm->clique->joined < comm->clique->size || comm->launching;
}

nccl::Result collective(const char* function, Collective kind, const void* send, void* receive, size_t count,
                        nccl::DataType type, nccl::Comm comm, cudaStream_t stream) {
  if (fails(function)) return kInternalError;
  if (depth == 0) misuse("a collective outside of a group");
  if (is_in_progress(comm)) misuse("a collective while the last call is in progress");
  if (comm->ending >= 0) misuse("a collective after the communicator's end has begun");
  if (fake_cuda::device_of(stream) != comm->device) misuse("a collective in a stream of another device");
  const size_t element = type == nccl::kFloat32 ? 4 : 8,
               all = count * static_cast<size_t>(comm->clique->size);
  fake_cuda::must_be_on(comm->device, send, (kind == Collective::kReduceScatter ? all : count) * element,
                        "what is sent");
  fake_cuda::must_be_on(comm->device, receive, (kind == Collective::kAllGather ? all : count) * element,
                        "what is received");
  bool registered;
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    const Memory* memory = memory_of(send, 1);
    if (memory != memory_of(receive, 1)) misuse("a collective from one piece of memory into another");
    registered = memory && memory->registrations > 0;
  }
  calls.push_back({comm, kind, {send, receive, registered}, count, element, stream});
  return nccl::kSuccess;
}

}  // namespace

namespace fake_nccl {

void set_version(int version) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.version = version;
}
LostPeer::LostPeer() { world().peer_lost = true; }
LostPeer::~LostPeer() { world().peer_lost = false; }
void fail(const char* function, int n) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.faults[function] = n;
}
int alive() { return world().alive; }
int ended() { return world().ended; }
int waiting() { return world().waiting; }
int ended_registered() { return world().ended_registered; }
int registrations() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  int all = 0;
  for (const auto& [address, memory] : w.memory) all += memory.registrations;
  return all;
}

}  // namespace fake_nccl

extern "C" {

#define FAKE_NCCL __attribute__((visibility("default"))) nccl::Result

FAKE_NCCL ncclGetVersion(int* version) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  *version = w.version;
  return nccl::kSuccess;
}
FAKE_NCCL ncclGetUniqueId(nccl::UniqueId* id) {
  if (fails("ncclGetUniqueId")) return kInternalError;
  World& w = world();
  std::lock_guard lock(w.mutex);
  std::snprintf(id->internal, sizeof id->internal, "clique %d", ++w.ids);
  return nccl::kSuccess;
}
FAKE_NCCL ncclCommInitRankConfig(nccl::Comm* comm, int size, nccl::UniqueId id, int rank,
                                 nccl::Config* config) {
  if (fails("ncclCommInitRankConfig")) return kInternalError;
  if (config->blocking != 0 || config->magic != 0xcafebeef) misuse("a communicator that blocks");
  World& w = world();
  auto made = std::make_unique<nccl::Opaque>();
  {
    std::lock_guard lock(w.mutex);
    auto& clique = w.cliques[id.internal];
    if (!clique) clique = std::make_shared<Clique>();
    made->clique = clique;
  }
  if (depth == 0 && std::exchange(began_alone, made->clique.get()) == made->clique.get())
    misuse("a thread begins several ranks one by one, and the first one waits for the next");
  made->rank = rank;
  made->device = fake_cuda::current_device();
  std::lock_guard lock(made->clique->mutex);
  if (!made->clique->buses.insert(fake_cuda::bus_of(made->device)).second)
    return kInvalidUsage;  // "Duplicate GPU"
  made->clique->size = size;
  ++made->clique->joined;
  ++w.alive;
  *comm = made.release();
  return nccl::kInProgress;
}
FAKE_NCCL ncclCommGetAsyncError(nccl::Comm comm, nccl::Result* state) {
  if (fails("ncclCommGetAsyncError")) return kInternalError;
  std::lock_guard lock(comm->clique->mutex);
  const bool complete = comm->clique->joined >= comm->clique->size;
  const bool ending = comm->ending > 0 && comm->ending-- > 0;
  *state = world().peer_lost                         ? kRemoteError
           : complete && !comm->launching && !ending ? nccl::kSuccess
                                                     : nccl::kInProgress;
  return nccl::kSuccess;
}
FAKE_NCCL ncclCommFinalize(nccl::Comm comm) {
  if (fails("ncclCommFinalize")) return kInternalError;
  if (is_in_progress(comm)) misuse("a communicator's end begins while a call is in progress");
  comm->ending = 3;
  return nccl::kInProgress;
}

static nccl::Result end(nccl::Comm comm) {
  if (comm->launcher.joinable()) comm->launcher.join();
  {
    std::lock_guard lock(comm->clique->mutex);
    comm->clique->changed.notify_all();
  }
  while (comm->in_streams > 0) std::this_thread::yield();
  --world().alive;
  delete comm;
  return nccl::kSuccess;
}
FAKE_NCCL ncclCommDestroy(nccl::Comm comm) {
  if (!comm->registered.empty()) misuse("a communicator is destroyed while memory is registered with it");
  if (comm->in_streams > 0) misuse("a communicator is destroyed in use");
  if (comm->ending != 0) misuse("a communicator is destroyed before its end has been reported");
  return end(comm);
}
FAKE_NCCL ncclCommAbort(nccl::Comm comm) {
  {
    std::lock_guard lock(comm->clique->mutex);
    comm->aborted = true;
  }
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    for (uintptr_t address : comm->registered) --w.memory.at(address).registrations;
  }
  return end(comm);
}
FAKE_NCCL ncclMemAlloc(void** data, size_t nbytes) {
  if (fails("ncclMemAlloc") || cudaMalloc(data, nbytes) != cudaSuccess) return nccl::kCudaError;
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.memory[reinterpret_cast<uintptr_t>(*data)] = {nbytes, fake_cuda::current_device()};
  return nccl::kSuccess;
}
FAKE_NCCL ncclMemFree(void* data) {
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    const auto found = w.memory.find(reinterpret_cast<uintptr_t>(data));
    if (found == w.memory.end()) misuse("a free of memory that is not of ncclMemAlloc");
    if (found->second.registrations > 0) misuse("a free of memory that is registered");
    w.memory.erase(found);
  }
  fake_cuda::unmap(data);
  return nccl::kSuccess;
}
FAKE_NCCL ncclCommRegister(nccl::Comm comm, void* data, size_t nbytes, void** handle) {
  if (fails("ncclCommRegister")) return kInternalError;
  if (is_in_progress(comm) || comm->ending >= 0 || comm->aborted) return kInvalidUsage;
  World& w = world();
  std::lock_guard lock(w.mutex);
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  const auto found = w.memory.find(address);
  if (found == w.memory.end() || found->second.nbytes != nbytes || found->second.device != comm->device)
    misuse("a registration of memory that is not of ncclMemAlloc on the communicator's device");
  if (!comm->registered.insert(address).second) return kInvalidUsage;
  ++found->second.registrations;
  *handle = data;
  return nccl::kSuccess;
}
FAKE_NCCL ncclCommDeregister(nccl::Comm comm, void* handle) {
  if (is_in_progress(comm) || comm->in_streams > 0) misuse("a registration ends in use");
  World& w = world();
  std::lock_guard lock(w.mutex);
  if (!comm->registered.erase(reinterpret_cast<uintptr_t>(handle))) misuse("a registration that is none");
  --w.memory.at(reinterpret_cast<uintptr_t>(handle)).registrations;
  return nccl::kSuccess;
}
FAKE_NCCL ncclGroupStart(void) {
  ++depth;
  return nccl::kSuccess;
}
FAKE_NCCL ncclGroupEnd(void) {
  if (--depth > 0) return nccl::kSuccess;
  std::vector<Call> enqueued;
  enqueued.swap(calls);
  if (fails("ncclGroupEnd")) return kInternalError;
  for (const Call& call : enqueued) {
    nccl::Comm comm = call.comm;
    if (comm->launcher.joinable()) comm->launcher.join();
    comm->launching = true;
    ++comm->in_streams;
    comm->launcher = std::thread([call, comm, number = comm->next++] {
      fake_cuda::enqueue(call.stream, [call, number] {
        take_part(call.comm, number, call.kind, call.count, call.element, call.part);
      });
      comm->launching = false;
    });
  }
  return enqueued.empty() ? nccl::kSuccess : nccl::kInProgress;
}
FAKE_NCCL ncclAllReduce(const void* send, void* receive, size_t count, nccl::DataType type, nccl::Operation,
                        nccl::Comm comm, cudaStream_t stream) {
  return collective("ncclAllReduce", Collective::kAllReduce, send, receive, count, type, comm, stream);
}
FAKE_NCCL ncclReduceScatter(const void* send, void* receive, size_t count, nccl::DataType type,
                            nccl::Operation, nccl::Comm comm, cudaStream_t stream) {
  return collective("ncclReduceScatter", Collective::kReduceScatter, send, receive, count, type, comm,
                    stream);
}
FAKE_NCCL ncclAllGather(const void* send, void* receive, size_t count, nccl::DataType type, nccl::Comm comm,
                        cudaStream_t stream) {
  return collective("ncclAllGather", Collective::kAllGather, send, receive, count, type, comm, stream);
}
__attribute__((visibility("default"))) const char* ncclGetErrorString(nccl::Result result) {
  return result == kRemoteError ? "remote process exited or there was a network error"
                                : "a fault that the test asked for";
}
__attribute__((visibility("default"))) const char* ncclGetLastError(nccl::Comm) { return ""; }

}  // extern "C"
