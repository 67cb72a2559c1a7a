// Read-only zero pages that stand in for payload in Cap'n Proto messages. Nothing ever reads payload through
// the library: a sender references the region and the frame writer puts the true bytes in their place; a
// receiver shows the region in place of a segment that has landed elsewhere. So no object of the library
// holds a pointer to the host's memory, and spans need neither alignment nor padding. Should a hostile
// message point structures into the payload, they read as zero.
#pragma once

#include <cstddef>

#include "capnp/common.h"

namespace dsgd::transport::uv {

class ZeroRegion {
 public:
  static constexpr size_t kMaxPayload = size_t{64} << 20;  // bytes of one payload
  static constexpr size_t kSlots = 4096;                   // distinct beginnings, one word apart

  static const capnp::word* begin();  // null when the system gave no address space
  static bool contains(const void* address);
  static size_t slot(const void* address);  // of an address inside
};

}  // namespace dsgd::transport::uv
