// Properties of an address that follow from its text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsgd {

// The addresses of the key `head`: "a:7700,b:7700". A Unix socket is the only one, for its path may have
// commas.
inline std::vector<std::string> split_addresses(const std::string& text) {
  if (text.rfind("unix:", 0) == 0) return {text};
  std::vector<std::string> addresses;
  size_t begin = 0;
  for (size_t comma; (comma = text.find(',', begin)) != std::string::npos; begin = comma + 1)
    addresses.push_back(text.substr(begin, comma - begin));
  addresses.push_back(text.substr(begin));
  return addresses;
}

// The fault of "HOST:PORT" or "[IPV6]:PORT"; "": it is valid. `any_port` says what port 0 means; "": it is a
// fault.
std::string server_fault(std::string_view text, const std::string& any_port = "");
// The same of an address that may also be "unix:PATH".
std::string address_fault(std::string_view text, const std::string& any_port);

// Is this an address that only its own machine reaches ("127.0.0.1:7700", "[::1]:0", "localhost:7700",
// "unix:...")?
inline bool is_loopback(const std::string& address) {
  return address.rfind("unix:", 0) == 0 || address.rfind("127.", 0) == 0 || address.rfind("[::1]", 0) == 0 ||
         address.rfind("localhost:", 0) == 0 || address == "localhost";
}

// "nodea" of "nodea:7700", "[::1]" of "[::1]:7700".
inline std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }
// "7700" of "nodea:7700". A Unix socket has no port: returns the whole address.
inline std::string port_of(const std::string& address) {
  return address.rfind("unix:", 0) == 0 ? address : address.substr(address.rfind(':') + 1);
}

// Is this an address to listen on, on all interfaces, to which no machine can connect?
inline bool is_any_interface(const std::string& address) {
  const std::string host = host_of(address);
  return host == "0.0.0.0" || host == "[::]";
}

}  // namespace dsgd
