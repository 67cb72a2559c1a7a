// A socket that listens at an address given as text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/base/status.h"
#include "transport/uv/fd.h"
#include "transport/uv/resolve.h"

namespace dsgd::transport::uv {

struct BoundSocket {
  Fd fd;
  std::string address;
  std::string unlink_path;         // of a Unix socket
  uint64_t device = 0, inode = 0;  // identity of the file of a Unix socket
};
// Binds and listens. An error names the address and what to do. Blocks to resolve a name. Any thread.
Result<BoundSocket> bind_and_listen(const std::string& address, const std::shared_ptr<ResolveLimit>& limit);

}  // namespace dsgd::transport::uv
