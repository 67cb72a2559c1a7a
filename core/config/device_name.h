// Names of devices, as the key `devices` and dsgd_replica_add take them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/base/status.h"

namespace dsgd::config {

struct DeviceName {
  std::string backend;  // "cpu", "cuda"
  int32_t index = 0;
};

// Reads "cpu" or, of a backend in `backends`, "cuda:1". Fails with kUnsupported if the backend is another,
// and with kInvalidArgument if the index is missing or wrong.
Result<DeviceName> parse_device_name(const std::string& name, const std::vector<std::string>& backends);

}  // namespace dsgd::config
