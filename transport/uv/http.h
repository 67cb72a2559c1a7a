// Http by libcurl, on a thread of its own.
#pragma once

#include <memory>
#include <optional>

#include "transport/http.h"
#include "transport/network.h"

namespace dsgd::transport::uv {

// `tls`: as of Environment::new_http.
Result<std::unique_ptr<Http>> make_http(std::optional<TlsFiles> tls);

}  // namespace dsgd::transport::uv
