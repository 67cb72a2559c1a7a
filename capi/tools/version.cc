#include <cstdio>

#include "capi/tools/tool.h"

namespace dsgd_tool {

Command add_version(CLI::App&) {
  return [] {
    std::printf("dsgd %s\n", dsgd_version_string());
    return 0;
  };
}

}  // namespace dsgd_tool
