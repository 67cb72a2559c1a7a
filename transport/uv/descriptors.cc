#include "transport/uv/descriptors.h"

#include <sys/resource.h>

#include <filesystem>
#include <iterator>
#include <system_error>

namespace dsgd::transport::uv {

int64_t free_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return INT64_MAX;
  std::error_code error;
  std::filesystem::directory_iterator open("/proc/self/fd", error);
  if (error) return INT64_MAX;
  const int64_t listing = 1;  // the iterator's own descriptor
  return static_cast<int64_t>(limit.rlim_cur) - std::distance(begin(open), end(open)) + listing;
}

}  // namespace dsgd::transport::uv
