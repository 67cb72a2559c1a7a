#include "capi/tools/machine_addresses.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace dsgd_tool {

std::vector<std::string> machine_addresses(bool with_ipv6) {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* it = list; it; it = it->ifa_next) {
    if (!it->ifa_addr || !(it->ifa_flags & IFF_UP) || (it->ifa_flags & IFF_LOOPBACK)) continue;
    const bool ipv6 = it->ifa_addr->sa_family == AF_INET6;
    if (!ipv6 && it->ifa_addr->sa_family != AF_INET) continue;
    if (ipv6 && (!with_ipv6 ||
                 IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(it->ifa_addr)->sin6_addr)))
      continue;
    char host[NI_MAXHOST];
    const socklen_t length = ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (getnameinfo(it->ifa_addr, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) continue;
    addresses.push_back(ipv6 ? "[" + std::string(host) + "]" : host);
  }
  freeifaddrs(list);
  return addresses;
}

}  // namespace dsgd_tool
