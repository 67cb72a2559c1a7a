// Which address of this machine another one can be reached from.
#pragma once

#include <string>

#include "transport/base/status.h"

namespace dsgd::transport::uv {

// As Network::local_address_for. Blocks for the look-up of a name.
Result<std::string> choose_local_address(const std::string& address, const std::string& interface,
                                         std::string* why);

}  // namespace dsgd::transport::uv
