// Plug-ins for devices, loaded when their first device is asked for.
#pragma once

#include <cstddef>

#include "core/device/backend.h"
#include "transport/base/status.h"

namespace dsgd::capi {

// libdsgd_cuda.so: beside this library, or where the dynamic loader looks. Loaded once and never unloaded.
// Any thread.
Result<const device::Backend*> load_cuda();

// An error if the buffer is memory of a GPU. Looks only in a process that has CUDA's driver loaded. Any
// thread.
Status check_host_memory(const void* data, size_t nbytes);

}  // namespace dsgd::capi
