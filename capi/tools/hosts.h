// The hosts of `dsgd run --hosts` and --hostfile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsgd_tool {

struct Host {
  std::string name;      // as ssh takes it: an alias, a name, an address, USER@HOST
  uint32_t workers = 0;  // 0: not given
};

// "a,b:2": host b has two workers. Throws a UsageError.
std::vector<Host> parse_hosts(const std::string& text);
// Lines "HOST", "HOST:2" or "HOST slots=2"; '#' begins a comment.
std::vector<Host> read_hostfile(const std::string& path);

// The address of a host as this machine resolves its name; IPv6 in brackets. "": it cannot, for the reason
// `why`; ssh may know more.
std::string resolve(const std::string& host, std::string* why);
bool is_loopback(const std::string& address);

}  // namespace dsgd_tool
