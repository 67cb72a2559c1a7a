// The real environment of a process: sockets, threads and the system's clock.
#pragma once

#include <memory>

#include "transport/network.h"

namespace dsgd::transport {

std::unique_ptr<Environment> make_uv_environment();

}  // namespace dsgd::transport
