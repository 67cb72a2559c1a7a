// A stand-in for NCCL over the fake runtime's streams, as a library, so that `run` and its jobs can be tried
// without a GPU: ranks in any processes of this machine send what they have to a thread in the process that
// made the id, which adds it up. Only what libdsgd_cuda.so calls is there. As with NCCL, streams wait for all
// ranks, and who has gone is a remote error to the others. Never a back end for users.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

// The descriptions that a rank sends of itself, and of a collective.
struct Hello {
  int32_t rank, size;
};
struct Header {
  Collective kind;
  uint32_t element;
  uint64_t count;
  bool operator==(const Header&) const = default;
};

[[noreturn]] void misuse(const char* what) {
  std::fprintf(stderr, "NCCL's stand-in: %s\n", what);
  std::abort();
}

// False: the other end has gone.
bool send_all(int socket, const void* data, size_t nbytes) {
  for (auto at = static_cast<const char*>(data); nbytes > 0;) {
    const ssize_t n = send(socket, at, nbytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n, nbytes -= static_cast<size_t>(n);
  }
  return true;
}
bool receive_all(int socket, void* data, size_t nbytes) {
  return nbytes == 0 || recv(socket, data, nbytes, MSG_WAITALL) == static_cast<ssize_t>(nbytes);
}

size_t sent_elements(const Header& header, size_t ranks) {
  return header.kind == Collective::kReduceScatter ? header.count * ranks : header.count;
}
size_t received_elements(const Header& header, size_t ranks) {
  return header.kind == Collective::kAllGather ? header.count * ranks : header.count;
}

template <typename T>
void add(std::vector<char>* sum, const std::vector<char>& more) {
  for (size_t i = 0; i < more.size(); i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, sum->data() + i, sizeof a);
    std::memcpy(&b, more.data() + i, sizeof b);
    a += b;
    std::memcpy(sum->data() + i, &a, sizeof a);
  }
}

// One collective of all ranks; false when one has gone.
bool serve_one(const std::vector<int>& ranks) {
  Header header{};
  std::vector<char> result, part;
  for (size_t r = 0; r < ranks.size(); ++r) {
    Header theirs{};
    if (!receive_all(ranks[r], &theirs, sizeof theirs)) return false;
    if (r == 0) header = theirs;
    if (theirs != header) misuse("ranks have enqueued different collectives");
    part.resize(sent_elements(header, ranks.size()) * header.element);
    if (!receive_all(ranks[r], part.data(), part.size())) return false;
    if (header.kind == Collective::kAllGather || r == 0) {
      result.insert(result.end(), part.begin(), part.end());
    } else {
      header.element == 4 ? add<float>(&result, part) : add<double>(&result, part);
    }
  }
  const size_t nbytes = received_elements(header, ranks.size()) * header.element;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const size_t offset = header.kind == Collective::kReduceScatter ? r * nbytes : 0;
    if (!send_all(ranks[r], result.data() + offset, nbytes)) return false;
  }
  return true;
}

void serve(int listener) {
  std::vector<int> ranks;
  for (size_t joined = 0; ranks.empty() || joined < ranks.size(); ++joined) {
    const int rank = accept(listener, nullptr, nullptr);
    Hello hello{};
    if (rank < 0 || !receive_all(rank, &hello, sizeof hello)) misuse("a rank has not joined");
    ranks.resize(static_cast<size_t>(hello.size), -1);
    ranks[static_cast<size_t>(hello.rank)] = rank;
  }
  close(listener);
  bool all = true;
  for (int rank : ranks) all = send_all(rank, "j", 1) && all;
  while (all && serve_one(ranks)) {
  }
  for (int rank : ranks) close(rank);
}

sockaddr_un address_of(const nccl::UniqueId& id) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Abstract: it goes with the process.
  std::memcpy(address.sun_path + 1, id.internal, sizeof address.sun_path - 1);
  return address;
}

}  // namespace

// A rank.
struct dsgd::device::cuda::nccl::Opaque {
  int socket = -1;
  size_t size = 0;
  bool joined = false;
  std::atomic<bool> lost = false;
  std::atomic<int> in_streams = 0;
};

namespace {

struct Call {
  nccl::Comm comm;
  Header header;
  const void* sent;
  void* received;
  cudaStream_t stream;
};
thread_local int depth = 0;
thread_local std::vector<Call> calls;

nccl::Result collective(Collective kind, const void* sent, void* received, size_t count, nccl::DataType type,
                        nccl::Comm comm, cudaStream_t stream) {
  if (depth == 0) misuse("a collective outside of a group");
  calls.push_back({comm, {kind, type == nccl::kFloat32 ? 4u : 8u, count}, sent, received, stream});
  return nccl::kSuccess;
}

// In a stream, on its thread.
void take_part(const Call& call) {
  nccl::Comm comm = call.comm;
  const size_t nbytes = received_elements(call.header, comm->size) * call.header.element;
  if (!send_all(comm->socket, &call.header, sizeof call.header) ||
      !send_all(comm->socket, call.sent, sent_elements(call.header, comm->size) * call.header.element) ||
      !receive_all(comm->socket, call.received, nbytes)) {
    comm->lost = true;
    std::memset(call.received, 0xa5, nbytes);
  }
  --comm->in_streams;
}

}  // namespace

extern "C" {

#define STAND_IN __attribute__((visibility("default"))) nccl::Result

STAND_IN ncclGetVersion(int* version) {
  *version = 22809;
  return nccl::kSuccess;
}
STAND_IN ncclGetUniqueId(nccl::UniqueId* id) {
  static std::atomic<int> made = 0;
  std::snprintf(id->internal, sizeof id->internal, "dsgd-nccl-stand-in-%d-%d", getpid(), ++made);
  const sockaddr_un address = address_of(*id);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener, 64) != 0) {
    return nccl::kSystemError;
  }
  std::thread(serve, listener).detach();
  return nccl::kSuccess;
}
STAND_IN ncclCommInitRankConfig(nccl::Comm* comm, int size, nccl::UniqueId id, int rank, nccl::Config*) {
  const sockaddr_un address = address_of(id);
  const Hello hello{rank, size};
  auto* made = new nccl::Opaque;
  made->size = static_cast<size_t>(size);
  made->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  *comm = made;
  const bool there = connect(made->socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  return there && send_all(made->socket, &hello, sizeof hello) ? nccl::kInProgress : nccl::kSystemError;
}
STAND_IN ncclCommGetAsyncError(nccl::Comm comm, nccl::Result* state) {
  char told;
  if (!comm->joined) comm->joined = recv(comm->socket, &told, 1, MSG_DONTWAIT) == 1;
  *state = comm->lost ? nccl::kRemoteError : comm->joined ? nccl::kSuccess : nccl::kInProgress;
  return nccl::kSuccess;
}
STAND_IN ncclCommFinalize(nccl::Comm) { return nccl::kSuccess; }
STAND_IN ncclCommAbort(nccl::Comm comm) {
  shutdown(comm->socket, SHUT_RDWR);
  while (comm->in_streams > 0) std::this_thread::yield();
  close(comm->socket);
  delete comm;
  return nccl::kSuccess;
}
STAND_IN ncclCommDestroy(nccl::Comm comm) {
  if (comm->in_streams > 0) misuse("a communicator is destroyed in use");
  return ncclCommAbort(comm);
}
STAND_IN ncclGroupStart(void) {
  ++depth;
  return nccl::kSuccess;
}
STAND_IN ncclGroupEnd(void) {
  if (--depth > 0) return nccl::kSuccess;
  for (const Call& call : std::exchange(calls, {})) {
    ++call.comm->in_streams;
    fake_cuda::enqueue(call.stream, [call] { take_part(call); });
  }
  return nccl::kSuccess;
}
STAND_IN ncclAllReduce(const void* sent, void* received, size_t count, nccl::DataType type, nccl::Operation,
                       nccl::Comm comm, cudaStream_t stream) {
  return collective(Collective::kAllReduce, sent, received, count, type, comm, stream);
}
STAND_IN ncclReduceScatter(const void* sent, void* received, size_t count, nccl::DataType type,
                           nccl::Operation, nccl::Comm comm, cudaStream_t stream) {
  return collective(Collective::kReduceScatter, sent, received, count, type, comm, stream);
}
STAND_IN ncclAllGather(const void* sent, void* received, size_t count, nccl::DataType type, nccl::Comm comm,
                       cudaStream_t stream) {
  return collective(Collective::kAllGather, sent, received, count, type, comm, stream);
}
__attribute__((visibility("default"))) const char* ncclGetErrorString(nccl::Result result) {
  return result == nccl::kRemoteError ? "remote process exited or there was a network error"
                                      : "a system call failed";
}
__attribute__((visibility("default"))) const char* ncclGetLastError(nccl::Comm) { return ""; }

}  // extern "C"
