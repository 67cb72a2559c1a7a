// The text of a version number of NCCL: "2.28.9" for 22809.
#pragma once

#include <cstdint>
#include <string>

namespace dsgd::device {

inline std::string nccl_version_text(int32_t version) {
  return std::to_string(version / 10000) + '.' + std::to_string(version / 100 % 100) + '.' +
         std::to_string(version % 100);
}

}  // namespace dsgd::device
