// Files of the system.
#pragma once

#include <memory>

#include "transport/files.h"

namespace dsgd::transport::uv {

std::shared_ptr<Files> make_files();

}  // namespace dsgd::transport::uv
