#include "transport/uv/zero_region.h"

#include <sys/mman.h>

namespace dsgd::transport::uv {

namespace {
constexpr size_t kBytes = ZeroRegion::kMaxPayload + ZeroRegion::kSlots * sizeof(capnp::word);
}

const capnp::word* ZeroRegion::begin() {
  // Mapped once and never unmapped; costs address space only.
  static const void* const region = [] {
    void* mapped = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return mapped == MAP_FAILED ? nullptr : mapped;
  }();
  return static_cast<const capnp::word*>(region);
}

bool ZeroRegion::contains(const void* address) {
  const auto* first = reinterpret_cast<const char*>(begin());
  const auto* place = static_cast<const char*>(address);
  return first && place >= first && place < first + kBytes;
}

size_t ZeroRegion::slot(const void* address) { return static_cast<const capnp::word*>(address) - begin(); }

}  // namespace dsgd::transport::uv
