#include "core/device/cuda/nccl.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "core/device/cuda/context.h"
#include "core/device/nccl_version.h"

namespace dsgd::device::cuda {
namespace {

using nccl::Functions;

constexpr const char* kLibrary = "libnccl.so.2";
// Communicators that do not block and take a configuration, as nccl_functions.h has it.
constexpr int kOldest = 21800;

struct Loaded {
  Functions functions;
  std::string description, why_not;
  int version = 0;
};

// Where a function's library lies; "" where the loader does not say.
std::string file_of(const void* function) {
  Dl_info info{};
  return dladdr(function, &info) && info.dli_fname ? info.dli_fname : "";
}

// Functions of a library, or of the process (RTLD_DEFAULT). False: some are missing, and `missing` is the
// first.
bool look_up(void* library, Functions* functions, const char** missing) {
#define DSGD_NCCL_LOOK_UP(name, symbol, result, arguments)                                   \
  if (functions->name = reinterpret_cast<decltype(functions->name)>(dlsym(library, symbol)); \
      !functions->name) {                                                                    \
    *missing = symbol;                                                                       \
    return false;                                                                            \
  }
  DSGD_NCCL_FUNCTIONS(DSGD_NCCL_LOOK_UP)
#undef DSGD_NCCL_LOOK_UP
  functions->has_memory = true;
#define DSGD_NCCL_LOOK_UP(name, symbol, result, arguments)                               \
  functions->name = reinterpret_cast<decltype(functions->name)>(dlsym(library, symbol)); \
  functions->has_memory = functions->has_memory && functions->name;
  DSGD_NCCL_MEMORY_FUNCTIONS(DSGD_NCCL_LOOK_UP)
#undef DSGD_NCCL_LOOK_UP
  return true;
}

// Prefers the NCCL that the process has loaded, because two copies compete for memory and threads; then
// `path`, then the one that the loader finds.
void load(const std::string& path, Loaded* loaded) {
  // Unloads a library that is of no use, so that the next search does not find it in the process.
  struct Own {
    void* library = nullptr;
    ~Own() {
      if (library) dlclose(library);
    }
  } own;
  const char* missing = nullptr;
  std::string how = "which the process had loaded";
  void* library = RTLD_DEFAULT;
  if (!dlsym(RTLD_DEFAULT, "ncclGetVersion")) {
    library = own.library = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL);
    if (!library && !path.empty()) {
      how = "which `nccl_library` = " + path + " names";
      library = own.library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (!library) {
        loaded->why_not = "`nccl_library` = " + path + " cannot be loaded: " + dlerror() +
                          "; give the path of NCCL's " + kLibrary;
        return;
      }
    }
    if (!library) {
      how = "where the dynamic loader looks";
      library = own.library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    }
    if (!library) {
      loaded->why_not = std::string("NCCL is not there: ") + dlerror() +
                        "; install it (on Python: pip install nvidia-nccl-cu13), or set `nccl_library` to "
                        "the path of its " +
                        kLibrary;
      return;
    }
  }
  if (!look_up(library, &loaded->functions, &missing)) {
    loaded->why_not = "the NCCL " + how + " has no " + missing + "; NCCL " + nccl_version_text(kOldest) +
                      " or later is needed";
    return;
  }
  int version = 0;
  const nccl::Result result = loaded->functions.get_version(&version);
  const std::string file = file_of(reinterpret_cast<const void*>(loaded->functions.get_version));
  if (result != nccl::kSuccess || version < kOldest) {
    loaded->why_not = "NCCL " + nccl_version_text(version) + " (" + file + ", " + how +
                      ") is too old; NCCL " + nccl_version_text(kOldest) + " or later is needed";
    return;
  }
  own.library = nullptr;
  loaded->version = version;
  loaded->description = "NCCL " + nccl_version_text(version) + " (" + file + ", " + how + ")";
}

std::mutex load_mutex;
// Kept once it is there, beyond the process's exit, when a thread may still be aborting something; a search
// that failed may be repeated with another path.
const Loaded* loaded_library = nullptr;

// Only after communicator_load, which says why there is none.
const Functions& functions() { return loaded_library->functions; }

bool is_bad(nccl::Result result) { return result != nccl::kSuccess && result != nccl::kInProgress; }

nccl::DataType type_of(DType dtype) { return dtype == DType::kFloat32 ? nccl::kFloat32 : nccl::kFloat64; }

}  // namespace

int32_t communicator_load(const char* path, int32_t* version, Message* message) {
  // It has precedence over the configuration of a communicator (nccl_functions.h).
  if (const char* blocking = std::getenv("NCCL_COMM_BLOCKING");
      blocking && std::strtol(blocking, nullptr, 0) == 1)
    return fail(message, Code::kUnsupported,
                "NCCL_COMM_BLOCKING = %s lets NCCL's calls block without a time limit; remove it from the "
                "environment",
                blocking);
  std::lock_guard lock(load_mutex);
  if (!loaded_library) {
    auto loaded = std::make_unique<Loaded>();
    load(path, loaded.get());
    if (!loaded->why_not.empty()) return fail(message, Code::kUnsupported, "%s", loaded->why_not.c_str());
    loaded_library = loaded.release();
  }
  *version = loaded_library->version;
  std::snprintf(message->text, sizeof message->text, "%s", loaded_library->description.c_str());
  return 0;
}

int32_t communicator_id(CommunicatorId* id, Message* message) {
  static_assert(sizeof(nccl::UniqueId) == sizeof(CommunicatorId));
  nccl::UniqueId made{};
  const nccl::Result result = functions().get_unique_id(&made);
  if (result != nccl::kSuccess) {
    return fail(message, Code::kInternal, "ncclGetUniqueId failed: %s: %s", functions().error_string(result),
                functions().last_error(nullptr));
  }
  std::memcpy(id, &made, sizeof made);
  return 0;
}

// Zeroed as all memory is, in the device's own stream.
int32_t allocate_for_collectives(DeviceHandle* device, uint64_t nbytes, void** data, Message* message) {
  if (!functions().has_memory) return allocate(device, nbytes, data, message);
  DSGD_ENTER_CONTEXT(device);
  void* memory = nullptr;
  const nccl::Result result = functions().mem_alloc(&memory, nbytes);
  if (result != nccl::kSuccess) {
    (void)cudaGetLastError();
    return fail(message, result == nccl::kCudaError ? Code::kNoMemory : Code::kInternal,
                "cuda:%d: ncclMemAlloc of %llu bytes failed: %s: %s; if the GPU has this memory, set "
                "NCCL_CUMEM_ENABLE=0 on all workers",
                device->index, static_cast<unsigned long long>(nbytes), functions().error_string(result),
                functions().last_error(nullptr));
  }
  if (const int32_t code = zero(device, memory, nbytes, message)) {
    (void)functions().mem_free(memory);
    return code;
  }
  *data = memory;
  return 0;
}

void release_for_collectives(DeviceHandle* device, void* data) {
  if (!functions().has_memory) return release(device, data);
  if (const ContextGuard current(device); current.ok()) (void)functions().mem_free(data);
}

int32_t NcclRanks::register_memory(void* const* data, uint64_t nbytes, void** registrations,
                                   Message* message) {
  if (!functions().has_memory) return 0;
  for (size_t k = 0; k < comms_.size(); ++k) {
    (void)cudaSetDevice(devices_[k]->index);
    const nccl::Result result = functions().comm_register(comms_[k], data[k], nbytes, &registrations[k]);
    if (is_bad(result)) return failed(message, k, "ncclCommRegister", result);
  }
  return 0;
}

// NCCL gives none where its own settings forbid registrations.
int32_t NcclRanks::deregister_memory(void* const* registrations, Message* message) {
  for (size_t k = 0; k < comms_.size(); ++k) {
    if (!registrations[k]) continue;
    (void)cudaSetDevice(devices_[k]->index);
    const nccl::Result result = functions().comm_deregister(comms_[k], registrations[k]);
    if (is_bad(result)) return failed(message, k, "ncclCommDeregister", result);
  }
  return 0;
}

int32_t NcclRanks::failed(Message* message, size_t k, const char* call, nccl::Result result) const {
  const char* more = functions().last_error(comms_[k]);
  return fail(message, result == nccl::kRemoteError ? Code::kWorkerLost : Code::kInternal,
              "cuda:%d: %s failed: %s%s%s", devices_[k]->index, call, functions().error_string(result),
              more && *more ? ": " : "", more ? more : "");
}

int32_t NcclRanks::failed_in_group(Message* message, size_t begun, const char* call,
                                   nccl::Result result) const {
  return begun == 0 ? failed(message, 0, "ncclGroupStart", result) : failed(message, begun - 1, call, result);
}

int32_t NcclRanks::init(const CommunicatorId& id, Message* message) {
  nccl::UniqueId unique{};
  std::memcpy(&unique, &id, sizeof unique);
  // In a group, since no rank of this process ends before the others have begun.
  nccl::Result result = functions().group_start();
  size_t k = 0;
  for (; k < comms_.size() && !is_bad(result); ++k) {
    (void)cudaSetDevice(devices_[k]->index);
    nccl::Config config;
    result = functions().comm_init(&comms_[k], size_, unique, first_ + static_cast<int32_t>(k), &config);
  }
  const nccl::Result ended = functions().group_end();
  if (is_bad(result)) return failed_in_group(message, k, "ncclCommInitRankConfig", result);
  return is_bad(ended) ? failed(message, 0, "ncclGroupEnd", ended) : 0;
}

int32_t NcclRanks::enqueue(Collective collective, DType dtype, void* const* buffers, uint64_t count,
                           Queue* const* queues, Message* message) {
  const size_t part = count * dtype_size(dtype);
  const nccl::DataType type = type_of(dtype);
  nccl::Result result = functions().group_start();
  size_t k = 0;
  for (; k < comms_.size() && !is_bad(result); ++k) {
    char* const buffer = static_cast<char*>(buffers[k]);
    char* const own = buffer + (static_cast<size_t>(first_) + k) * part;
    const cudaStream_t stream = queues[k]->stream;
    switch (collective) {
      case Collective::kAllReduce:
        result = functions().all_reduce(buffer, buffer, count, type, nccl::kSum, comms_[k], stream);
        break;
      case Collective::kReduceScatter:
        result = functions().reduce_scatter(buffer, own, count, type, nccl::kSum, comms_[k], stream);
        break;
      case Collective::kAllGather:
        result = functions().all_gather(own, buffer, count, type, comms_[k], stream);
        break;
    }
  }
  const nccl::Result ended = functions().group_end();
  if (is_bad(result)) return failed_in_group(message, k, "an NCCL collective", result);
  return is_bad(ended) ? failed(message, 0, "ncclGroupEnd", ended) : 0;
}

int32_t NcclRanks::finalize(Message* message) {
  finalize_begun_ = true;
  for (size_t k = 0; k < comms_.size(); ++k) {
    const nccl::Result result = functions().comm_finalize(comms_[k]);
    if (is_bad(result)) return failed(message, k, "ncclCommFinalize", result);
  }
  return 0;
}

int32_t NcclRanks::poll(bool* done, Message* message) {
  *done = true;
  for (size_t k = 0; k < comms_.size(); ++k) {
    nccl::Result state = nccl::kSuccess;
    const nccl::Result result = functions().comm_state(comms_[k], &state);
    const nccl::Result worse = is_bad(result) ? result : state;
    if (is_bad(worse)) return failed(message, k, "NCCL", worse);
    if (worse == nccl::kInProgress) *done = false;
  }
  return 0;
}

NcclRanks::~NcclRanks() {
  Message ignored;
  bool finalized = false;
  const bool clean = finalize_begun_ && poll(&finalized, &ignored) == 0 && finalized;
  for (nccl::Comm comm : comms_) {
    if (comm) (void)(clean ? functions().comm_destroy(comm) : functions().comm_abort(comm));
  }
}

}  // namespace dsgd::device::cuda
