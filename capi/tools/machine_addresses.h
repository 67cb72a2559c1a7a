// The addresses under which other machines may reach this one.
#pragma once

#include <string>
#include <vector>

namespace dsgd_tool {

// Without loopback and link-local ones; IPv6 in brackets. What a router makes of them is not known here.
std::vector<std::string> machine_addresses(bool with_ipv6);

}  // namespace dsgd_tool
