#include "transport/uv/local_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <vector>

#include "transport/uv/address.h"
#include "transport/uv/guard.h"

namespace dsgd::transport::uv {

namespace {

struct Local {
  std::string interface, host;
  int family;
  std::vector<uint8_t> bytes;
};

std::vector<uint8_t> raw_bytes(const sockaddr* address) {
  const auto copy = [](const auto& ip) {
    const auto* data = reinterpret_cast<const uint8_t*>(&ip);
    return std::vector<uint8_t>(data, data + sizeof ip);
  };
  return address->sa_family == AF_INET ? copy(reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                                       : copy(reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

std::string host_text(const sockaddr* address) {
  char host[NI_MAXHOST];
  const socklen_t length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return host;
}

std::vector<Local> local_addresses() {
  std::vector<Local> locals;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return locals;
  for (const ifaddrs* it = list; it; it = it->ifa_next) {
    if (!it->ifa_addr || !(it->ifa_flags & IFF_UP)) continue;
    const int family = it->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    locals.push_back({it->ifa_name, host_text(it->ifa_addr), family, raw_bytes(it->ifa_addr)});
  }
  freeifaddrs(list);
  return locals;
}

bool has_prefix(const std::vector<uint8_t>& bytes, const std::vector<uint8_t>& network, size_t bits) {
  if (bytes.size() != network.size()) return false;
  for (size_t i = 0; i < bits; ++i) {
    const int shift = 7 - static_cast<int>(i % 8);
    if (((bytes[i / 8] ^ network[i / 8]) >> shift) & 1) return false;
  }
  return true;
}

// "10.0.0.0/8", or an address: all its bits.
bool parse_prefix(const std::string& text, std::vector<uint8_t>* network, size_t* bits) {
  const size_t slash = text.find('/');
  const std::string host = text.substr(0, slash);
  uint8_t raw[16];
  size_t size = 0;
  if (inet_pton(AF_INET, host.c_str(), raw) == 1) size = 4;
  if (size == 0 && inet_pton(AF_INET6, host.c_str(), raw) == 1) size = 16;
  if (size == 0) return false;
  network->assign(raw, raw + size);
  *bits = size * 8;
  if (slash == std::string::npos) return true;
  const std::string count = text.substr(slash + 1);
  if (count.empty() || count.size() > 3 || count.find_first_not_of("0123456789") != std::string::npos)
    return false;
  *bits = std::stoul(count);
  return *bits <= size * 8;
}

Result<std::string> by_interface(const std::string& interface, int family, const std::string& target,
                                 std::string* why) {
  std::vector<uint8_t> network;
  size_t bits = 0;
  const bool prefix = parse_prefix(interface, &network, &bits);
  const Local* found = nullptr;
  const auto locals = local_addresses();
  std::string known;
  for (const Local& local : locals) {
    known += (known.empty() ? "" : ", ") + local.interface + " " + local.host;
    const bool matches = prefix ? has_prefix(local.bytes, network, bits) : local.interface == interface;
    // The family of the target first; link-local addresses say nothing without their scope.
    if (!matches || (found && found->family == family)) continue;
    if (!found || local.family == family) found = &local;
  }
  if (!found) {
    return Status(
        Code::kInvalidArgument,
        "interface = '" + interface +
            "' does not match an interface, address or prefix of this machine; use one of: " + known);
  }
  *why = "address " + found->host + " of interface " + found->interface + " is used because interface = '" +
         interface + "' asks for it" + (target.empty() ? "" : " (to reach " + target + ")");
  return found->host;
}

// The address from which the system routes to the target.
Result<std::string> by_route(SocketAddress target, const std::string& address, std::string* why) {
  // Connecting a datagram socket sends nothing; it asks the routing table.
  Fd fd(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return Status(Code::kLimit, "cannot open a socket: " + errno_text(errno));
  // Port 0 is refused by connect on some systems; any other asks the same question.
  if (target.family() == AF_INET) {
    target.as<sockaddr_in>().sin_port = htons(9);
  } else {
    target.as<sockaddr_in6>().sin6_port = htons(9);
  }
  SocketAddress local;
  if (::connect(fd.get(), target.get(), target.length) != 0 ||
      ::getsockname(fd.get(), local.room(), &local.length) != 0) {
    return Status(Code::kUnreachable, "no route to " + address + ": " + errno_text(errno) +
                                          "; check the network, or set interface");
  }
  std::string host = host_text(local.get());
  std::string name = "?";
  for (const Local& candidate : local_addresses()) {
    if (candidate.bytes == raw_bytes(local.get())) name = candidate.interface;
  }
  *why = "address " + host + " of interface " + name + " is used because the system routes to " + address +
         " from it; set interface to choose another";
  return host;
}

}  // namespace

Result<std::string> choose_local_address(const std::vector<std::string>& addresses,
                                         const std::string& interface, std::string* why,
                                         const std::shared_ptr<ResolveLimit>& limit) {
  std::string unused;
  if (!why) why = &unused;
  std::vector<ParsedAddress> parsed(addresses.size());
  for (size_t i = 0; i < addresses.size(); ++i)
    DSGD_RETURN_IF_ERROR(parse_address(addresses[i]).into(&parsed[i]));
  LookUps look_ups(std::move(parsed), false, limit);
  Status no_route;  // of the last address that was resolved
  for (;;) {
    auto found = look_ups.next();
    if (!found.ok()) return no_route.ok() ? found.status() : no_route;
    const std::string& address = addresses[found.value().index];
    const std::vector<SocketAddress>& targets = found.value().addresses;
    if (targets.front().family() == AF_UNIX) {
      *why = "address 127.0.0.1 is used because " + address + " is on this machine";
      return std::string("127.0.0.1");
    }
    if (!interface.empty()) return by_interface(interface, targets.front().family(), address, why);
    for (const SocketAddress& target : targets) {
      auto host = by_route(target, address, why);
      if (host.ok()) return host;
      no_route = host.status();
    }
  }
}

}  // namespace dsgd::transport::uv
