// Plug-ins for devices, loaded when their first device is asked for.
#pragma once

#include "core/device/backend.h"
#include "transport/base/status.h"

namespace dsgd::capi {

// libdsgd_cuda.so: beside this library, or where the dynamic loader looks. Loaded once and never unloaded. Any thread.
Result<const device::Backend*> load_cuda();

}  // namespace dsgd::capi
