#include "capi/tools/hosts.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "capi/tools/tool.h"

namespace dsgd_tool {
namespace {

uint32_t parse_workers(const std::string& where, const std::string& text) {
  if (!whole_number(1, kMaxWorkers)(text).empty())
    throw UsageError(where,
                     "'" + text + "' is not a number of workers (1 to " + std::to_string(kMaxWorkers) + ")");
  return static_cast<uint32_t>(std::stoul(text));
}

// An IPv6 address needs brackets if a number follows.
Host parse_host(const std::string& where, const std::string& text) {
  Host host{text};
  const size_t bracket = text.empty() || text[0] != '[' ? std::string::npos : text.find(']');
  if (bracket != std::string::npos) {
    host.name = text.substr(1, bracket - 1);
    const std::string rest = text.substr(bracket + 1);
    if (!rest.empty()) host.workers = parse_workers(where, rest[0] == ':' ? rest.substr(1) : rest);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    const size_t colon = text.find(':');
    host = {text.substr(0, colon), parse_workers(where, text.substr(colon + 1))};
  }
  if (host.name.empty() || host.name[0] == '-')  // ssh would read it as an option
    throw UsageError(where, "'" + text + "' is not a host; write HOST, HOST:WORKERS or [IPV6]:WORKERS");
  return host;
}

}  // namespace

std::vector<Host> parse_hosts(const std::string& text) {
  std::vector<Host> hosts;
  std::stringstream words(text + ",");
  for (std::string word; std::getline(words, word, ',');) hosts.push_back(parse_host("--hosts", word));
  return hosts;
}

std::vector<Host> read_hostfile(const std::string& path) {
  const auto unreadable = [&path] {
    return Failure("--hostfile: cannot read '" + path + "': " + std::strerror(errno) +
                   "; give a file with lines HOST or HOST slots=N");
  };
  std::ifstream file(path);
  if (!file) throw unreadable();
  std::vector<Host> hosts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string where = path + ":" + std::to_string(number);
    std::stringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) continue;
    Host host = parse_host(where, word);
    while (words >> word) {
      if (word.rfind("slots=", 0) != 0)
        throw UsageError(where, "unknown word '" + word + "'; write HOST slots=WORKERS");
      host.workers = parse_workers(where, word.substr(6));
    }
    hosts.push_back(host);
  }
  if (file.bad()) throw unreadable();
  if (hosts.empty()) throw UsageError("--hostfile", "'" + path + "' names no host");
  return hosts;
}

std::string resolve(const std::string& host, std::string* why) {
  const std::string name = host.substr(host.find('@') + 1);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(name.c_str(), nullptr, &hints, &found)) {
    *why = gai_strerror(error);
    return "";
  }
  char address[NI_MAXHOST];
  const int error =
      getnameinfo(found->ai_addr, found->ai_addrlen, address, sizeof address, nullptr, 0, NI_NUMERICHOST);
  const bool ipv6 = found->ai_family == AF_INET6;
  freeaddrinfo(found);
  if (error) {
    *why = gai_strerror(error);
    return "";
  }
  return ipv6 ? "[" + std::string(address) + "]" : address;
}

bool is_loopback(const std::string& address) { return address.rfind("127.", 0) == 0 || address == "[::1]"; }

}  // namespace dsgd_tool
