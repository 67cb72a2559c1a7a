#include "core/device/cuda/staging.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "core/device/cuda/context.h"

namespace dsgd::device::cuda {
namespace {

// A mapping has pages for this, and for the ranges that are pinned, in front of the memory.
struct Header {
  void* mapping;
  size_t nbytes;
  uint32_t pinned;
};

Header* header_of(void* data) { return static_cast<Header*>(data) - 1; }

}  // namespace

int32_t allocate_staging_parts(DeviceHandle* device, uint64_t nbytes, const ByteRange* parts, uint32_t count,
                               void** data, Message* message) {
  DSGD_ENTER_CONTEXT(device);
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto up = [page](uint64_t position) { return (position + page - 1) / page * page; };
  const uint64_t head = up(sizeof(Header) + count * sizeof(ByteRange));
  const uint64_t room = head + up(std::max<uint64_t>(nbytes, 1));
  void* const mapping = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return fail(message, Code::kNoMemory, "cuda:%d: no host memory for %llu bytes", device->index,
                static_cast<unsigned long long>(room));
  }
  // After a fork a write would give the host another page than the pinned one, which the device uses.
  (void)madvise(mapping, room, MADV_DONTFORK);
  char* const memory = static_cast<char*>(mapping) + head;
  auto* const pinned = static_cast<ByteRange*>(mapping);
  Header* const header = header_of(memory);
  *header = {mapping, room, 0};
  for (uint32_t p = 0; p < count;) {
    ByteRange range{parts[p].begin / page * page, up(parts[p].end)};
    for (++p; p < count && parts[p].begin / page * page <= range.end; ++p)
      range.end = std::max(range.end, up(parts[p].end));
    if (range.begin == range.end) continue;
    const cudaError_t error =
        cudaHostRegister(memory + range.begin, range.end - range.begin, cudaHostRegisterPortable);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      release_staging_parts(device, memory);
      return fail(message, error == cudaErrorMemoryAllocation ? Code::kNoMemory : Code::kInternal,
                  "cuda:%d: cudaHostRegister failed: %s (%s)", device->index, cudaGetErrorString(error),
                  cudaGetErrorName(error));
    }
    pinned[header->pinned++] = range;
  }
  *data = memory;
  return 0;
}

void release_staging_parts(DeviceHandle* device, void* data) {
  const Header header = *header_of(data);
  const auto* pinned = static_cast<const ByteRange*>(header.mapping);
  if (const ContextGuard current(device); current.ok()) {
    for (uint32_t p = 0; p < header.pinned; ++p)
      (void)cudaHostUnregister(static_cast<char*>(data) + pinned[p].begin);
  }
  (void)munmap(header.mapping, header.nbytes);
}

}  // namespace dsgd::device::cuda
