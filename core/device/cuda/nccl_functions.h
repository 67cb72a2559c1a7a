// The few functions of NCCL that are used here, as its documentation describes them, so that dsgd builds
// without its headers and takes whichever NCCL the process has. Numbers and layouts are part of NCCL's ABI
// since version 2.18.
#pragma once

#include <cuda_runtime_api.h>

#include <climits>
#include <cstddef>

namespace dsgd::device::cuda::nccl {

struct Opaque;
using Comm = Opaque*;

enum Result : int { kSuccess = 0, kCudaError = 1, kSystemError = 2, kRemoteError = 6, kInProgress = 7 };
enum DataType : int { kFloat32 = 7, kFloat64 = 8 };
enum Operation : int { kSum = 0 };

struct UniqueId {
  char internal[128];
};

// The first fields of NCCL's configuration; `size` says how many there are, and the rest is NCCL's default.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

// X(name here, NCCL's name, result, arguments)
#define DSGD_NCCL_FUNCTIONS(X)                                                                       \
  X(get_version, "ncclGetVersion", Result, (int*))                                                   \
  X(get_unique_id, "ncclGetUniqueId", Result, (UniqueId*))                                           \
  X(comm_init, "ncclCommInitRankConfig", Result, (Comm*, int, UniqueId, int, Config*))               \
  X(comm_state, "ncclCommGetAsyncError", Result, (Comm, Result*))                                    \
  X(comm_finalize, "ncclCommFinalize", Result, (Comm))                                               \
  X(comm_destroy, "ncclCommDestroy", Result, (Comm))                                                 \
  X(comm_abort, "ncclCommAbort", Result, (Comm))                                                     \
  X(group_start, "ncclGroupStart", Result, (void))                                                   \
  X(group_end, "ncclGroupEnd", Result, (void))                                                       \
  X(all_reduce, "ncclAllReduce", Result,                                                             \
    (const void*, void*, size_t, DataType, Operation, Comm, cudaStream_t))                           \
  X(reduce_scatter, "ncclReduceScatter", Result,                                                     \
    (const void*, void*, size_t, DataType, Operation, Comm, cudaStream_t))                           \
  X(all_gather, "ncclAllGather", Result, (const void*, void*, size_t, DataType, Comm, cudaStream_t)) \
  X(error_string, "ncclGetErrorString", const char*, (Result))                                       \
  X(last_error, "ncclGetLastError", const char*, (Comm))

// Since 2.19; all of them are there, or none is used.
#define DSGD_NCCL_MEMORY_FUNCTIONS(X)                                         \
  X(mem_alloc, "ncclMemAlloc", Result, (void**, size_t))                      \
  X(mem_free, "ncclMemFree", Result, (void*))                                 \
  X(comm_register, "ncclCommRegister", Result, (Comm, void*, size_t, void**)) \
  X(comm_deregister, "ncclCommDeregister", Result, (Comm, void*))

struct Functions {
#define DSGD_NCCL_MEMBER(name, symbol, result, arguments) result(*name) arguments = nullptr;
  DSGD_NCCL_FUNCTIONS(DSGD_NCCL_MEMBER)
  DSGD_NCCL_MEMORY_FUNCTIONS(DSGD_NCCL_MEMBER)
#undef DSGD_NCCL_MEMBER
  bool has_memory = false;
};

}  // namespace dsgd::device::cuda::nccl
