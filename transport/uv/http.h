// Http by libcurl, on a thread of its own.
#pragma once

#include <memory>

#include "transport/http.h"

namespace dsgd::transport::uv {

Result<std::unique_ptr<Http>> make_http();

}  // namespace dsgd::transport::uv
