// The table of keys, and the check of a value by its row.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/config.h"
#include "core/config/units.h"

namespace dsgd::config {

enum class Type {
  kText,      // up to 255 bytes
  kLongText,  // up to 4095 bytes
  kAddress,
  kAddresses,
  kDevices,
  kPorts,
  kInteger,
  kIntegerOrWord,
  kDuration,
  kSize,
  kSwitch,
  kChoice
};

const ConfigKey* find_key(std::string_view name);  // null: unknown
std::vector<std::string> key_names();
std::vector<std::string> environment_names();

// A value that does not fit gives an error that names the key, the value and what would do. A default of ""
// or "0", which stands for a derived value or none, is valid whatever the range is. `more`: further values of
// a choice.
Status check_value(const ConfigKey& key, std::string_view value, const std::vector<std::string>& more = {});

// "7701-7720" or "7701"; nothing on bad syntax, port 0, or where the last is below the first.
std::optional<PortRange> parse_ports(std::string_view text);

// Entries of "cpu, cpu" or "a | b", without blanks.
std::vector<std::string> split_list(std::string_view text, char separator = ',');
std::string_view trim(std::string_view text);

}  // namespace dsgd::config
