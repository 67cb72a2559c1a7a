#include "core/config/device_name.h"

#include <algorithm>
#include <charconv>

#include "core/base/text.h"

namespace dsgd::config {

Result<DeviceName> parse_device_name(const std::string& name, const std::vector<std::string>& backends) {
  const auto fail = [](Code code, const std::string& message) {
    return Status(code, message).with_parameter("devices");
  };
  DeviceName device{name, 0};
  if (name == "cpu") return device;
  const std::string shown = "'" + printable(name) + "'";
  const size_t colon = name.find(':');
  device.backend = name.substr(0, colon);
  if (std::find(backends.begin(), backends.end(), device.backend) == backends.end()) {
    std::string known = "cpu";
    for (const std::string& other : backends) known += " or " + other + ":N";
    return fail(Code::kUnsupported, "unknown device " + shown + "; use " + known);
  }
  const char* const end = name.data() + name.size();
  const auto read = colon == std::string::npos ? std::from_chars_result{end, std::errc::invalid_argument}
                                               : std::from_chars(name.data() + colon + 1, end, device.index);
  if (read.ec == std::errc::result_out_of_range)
    return fail(Code::kInvalidArgument,
                "device " + shown + " does not exist: its index is too large; use a smaller one");
  if (read.ec != std::errc() || read.ptr != end || name[colon + 1] == '-') {
    const bool several = name.find_first_of(",;") != std::string::npos;
    return fail(Code::kInvalidArgument, "device " + shown + " has no valid index; write " + device.backend +
                                            ":0 for the first one" +
                                            (several ? ", and name one device for each replica" : ""));
  }
  return device;
}

}  // namespace dsgd::config
