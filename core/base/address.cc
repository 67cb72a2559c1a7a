#include "core/base/address.h"

#include <algorithm>

#include "core/base/integer.h"

namespace dsgd {
namespace {

constexpr size_t kLongestSocketPath = 107;  // sizeof(sockaddr_un::sun_path) of Linux, less the final zero

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool has_only(std::string_view text, std::string_view others) {
  return std::all_of(text.begin(), text.end(), [others](char c) {
    return is_letter_or_digit(c) || others.find(c) != std::string_view::npos;
  });
}

}  // namespace

std::string server_fault(std::string_view text, const std::string& any_port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos && parse_integer(text)) return "has no host; write HOST:PORT";
  if (colon == std::string_view::npos || text.ends_with(']'))
    return "has no port; write HOST:PORT" + (any_port.empty() ? "" : " (" + any_port + ")");
  const std::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  if (host.empty()) return "has no host; write HOST:PORT";
  if (host.starts_with('[')) {
    if (host.size() < 3 || !host.ends_with(']') || !has_only(host.substr(1, host.size() - 2), ":.%-_"))
      return "is not an address; write HOST:PORT or [IPV6]:PORT";
  } else {
    if (host.find(':') != std::string_view::npos) return "is ambiguous; write an IPv6 address as [IPV6]:PORT";
    if (!has_only(host, ".-_"))
      return "has a bad host; write letters, digits, '.', '-' and '_' only, or [IPV6]:PORT";
  }
  const int lowest = any_port.empty() ? 1 : 0;
  const auto number = parse_integer(port);
  if (!number || *number < lowest || *number > 65535 || port.front() == '-')
    return "has a bad port '" + std::string(port) + "'; ports are " + std::to_string(lowest) + "..65535";
  return "";
}

std::string address_fault(std::string_view text, const std::string& any_port) {
  if (!text.starts_with("unix:")) return server_fault(text, any_port);
  const size_t path = text.size() - std::string_view("unix:").size();
  if (path == 0) return "has no path; write unix:PATH";
  if (path <= kLongestSocketPath) return "";
  return "has a path of " + std::to_string(path) + " bytes, but a Unix socket's has at most " +
         std::to_string(kLongestSocketPath) + "; choose a shorter path";
}

}  // namespace dsgd
