// Properties of an address that follow from its text.
#pragma once

#include <string>

namespace dsgd {

// Is this an address that only its own machine reaches ("127.0.0.1:7700", "[::1]:0", "localhost:7700",
// "unix:...")?
inline bool is_loopback(const std::string& address) {
  return address.rfind("unix:", 0) == 0 || address.rfind("127.", 0) == 0 || address.rfind("[::1]", 0) == 0 ||
         address.rfind("localhost:", 0) == 0 || address == "localhost";
}

}  // namespace dsgd
