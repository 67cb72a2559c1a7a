// Host memory of which devices copy only parts: just these are pinned, and the pages of the rest cost nothing
// until the host touches them.
#pragma once

#include "core/device/backend.h"

namespace dsgd::device::cuda {

int32_t allocate_staging_parts(DeviceHandle* device, uint64_t nbytes, const ByteRange* parts, uint32_t count,
                               void** data, Message* message);
void release_staging_parts(DeviceHandle* device, void* data);

}  // namespace dsgd::device::cuda
