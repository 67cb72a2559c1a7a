// The process's limit on open descriptors.
#pragma once

#include <cstdint>

namespace dsgd::transport::uv {

// How many descriptors this process may still open. INT64_MAX when there is no limit, or when it cannot be
// known.
int64_t free_descriptors();

}  // namespace dsgd::transport::uv
