// Which address of this machine another one can be reached from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/base/status.h"
#include "transport/uv/resolve.h"

namespace dsgd::transport::uv {

// As Network::local_address_for.
Result<std::string> choose_local_address(const std::vector<std::string>& addresses,
                                         const std::string& interface, std::string* why,
                                         const std::shared_ptr<ResolveLimit>& limit);

}  // namespace dsgd::transport::uv
