// The addresses under which other machines may reach this one.
#pragma once

#include <string>
#include <vector>

namespace dsgd_tool {

// Returns this machine's addresses without loopback and link-local ones; IPv6 in brackets. A router may
// translate them.
std::vector<std::string> machine_addresses(bool with_ipv6);

}  // namespace dsgd_tool
