// Plug-ins for devices, loaded when their first device is asked for.
#pragma once

#include <cstddef>
#include <string>

#include "core/device/backend.h"
#include "transport/base/status.h"

namespace dsgd::capi {

// libdsgd_cuda.so: beside this library, or where the dynamic loader looks. Loaded once and never unloaded.
// Any thread.
Result<const device::Backend*> load_cuda();

// Returns the name of the GPU whose memory the buffer is; "": the host's. Returns "" at once if the
// process has not loaded the CUDA driver. Any thread.
Result<std::string> locate(const void* data, size_t nbytes);

}  // namespace dsgd::capi
