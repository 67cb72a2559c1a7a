// Reading and checking single values.
#include <algorithm>

#include "core/base/address.h"
#include "core/base/integer.h"
#include "core/base/text.h"
#include "core/config/device_name.h"
#include "core/config/table.h"
#include "transport/base/utf8.h"

namespace dsgd::config {
namespace {

std::string devices_fault(std::string_view text) {
  const std::vector<std::string> backends = {"cuda"};
  const std::vector<std::string> devices = split_list(text);
  for (const std::string& device : devices) {
    if (device == "auto") {
      if (devices.size() == 1) return "";
      return "has auto among other devices; write auto alone, or name all devices";
    }
    if (device.empty()) return "is not a list of devices; write for example auto, cpu or cuda:0,cuda:1";
    if (const auto name = parse_device_name(device, backends); !name.ok())
      return "is not a list of devices: " + name.status().message() +
             "; auto, as the only entry, takes every GPU of this process";
  }
  return "";
}

std::string text_fault(const ConfigKey& key, std::string_view value) {
  if (value.empty() && *key.default_value) return "must not be empty";
  const size_t longest = key.kind == Type::kText ? 255 : key.kind == Type::kLongText ? 4095 : value.size();
  if (value.size() > longest) return "is longer than " + std::to_string(longest) + " bytes";
  if (const auto at = invalid_utf8(value))
    return "is not UTF-8 from byte " + std::to_string(*at) + " on; encode it as UTF-8";
  if (has_control_character(value)) return "contains a control character";
  if (value.empty()) return "";
  if (key.kind == Type::kAddress) return address_fault(value, "port 0 lets the system choose");
  if (key.kind == Type::kAddresses) {
    for (const std::string& one : split_addresses(std::string(value))) {
      if (one.starts_with("unix:") && one.size() < value.size())
        return "has a Unix socket beside other heads";
      const std::string wrong = address_fault(one, "port 0 lets the system choose where `dsgd head` listens");
      if (!wrong.empty()) return wrong;
    }
    return "";
  }
  if (key.kind == Type::kDevices) return devices_fault(value);
  if (key.kind == Type::kPorts && !parse_ports(value))
    return "is not a port or a range of ports; write for example 7701-7720";
  return "";
}

using Parse = std::optional<int64_t>(std::string_view);

std::optional<int64_t> parse_whole(std::string_view text) { return parse_integer(text); }

// Reads the ends of a range: "1..8", or behind other values, as in "0 or 10ms..24h".
bool in_range(int64_t number, std::string_view range, Parse parse) {
  const size_t dots = range.find("..");
  const std::string_view least = range.substr(0, dots);
  return number >= parse(least.substr(least.rfind(' ') + 1)) && number <= parse(range.substr(dots + 2));
}

std::string number_fault(const ConfigKey& key, std::string_view value, Parse parse, const char* what) {
  if (value.empty() && !*key.default_value) return "";
  const auto number = parse(value);
  if (!number) return std::string("is not ") + what + " (range " + key.range + ")";
  if (*number == 0 && key.default_value == std::string_view("0")) return "";
  return in_range(*number, key.range, parse) ? "" : std::string("is out of range; use ") + key.range;
}

std::string choice_fault(const ConfigKey& key, std::string_view value, const std::vector<std::string>& more) {
  std::vector<std::string> names = split_list(key.range, '|');
  names.insert(names.end(), more.begin(), more.end());
  for (const std::string& name : names)
    if (value == name) return "";
  std::string all = key.range;
  for (const std::string& name : more) all += " | " + name;
  return "is not one of " + all + did_you_mean(value, names);
}

std::string fault(const ConfigKey& key, std::string_view value, const std::vector<std::string>& more) {
  switch (key.kind) {
    case Type::kText:
    case Type::kLongText:
    case Type::kAddress:
    case Type::kAddresses:
    case Type::kDevices:
    case Type::kPorts:
      return text_fault(key, value);
    case Type::kInteger:
      return number_fault(key, value, parse_whole, "a whole number");
    case Type::kIntegerOrWord: {
      std::vector<std::string> words = split_list(key.range, '|');
      words.pop_back();  // the integers
      if (std::find(words.begin(), words.end(), value) != words.end()) return "";
      const auto number = parse_whole(value);
      return number && in_range(*number, key.range, parse_whole) ? ""
                                                                 : std::string("is not one of ") + key.range;
    }
    case Type::kDuration:
      return number_fault(key, value, parse_duration,
                          "a duration; write a whole number and a unit, such as 500ms, 10s or 5m");
    case Type::kSize:
      return number_fault(key, value, parse_size, "a size; write for example 64K, 4M or 1G");
    case Type::kSwitch:
      return value == "0" || value == "1" ? "" : "is not a switch; write 0 or 1";
    case Type::kChoice:
      return choice_fault(key, value, more);
  }
  return "";
}

}  // namespace

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::vector<std::string> split_list(std::string_view text, char separator) {
  std::vector<std::string> entries;
  for (;;) {
    const size_t end = text.find(separator);
    entries.emplace_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) return entries;
    text.remove_prefix(end + 1);
  }
}

std::optional<PortRange> parse_ports(std::string_view text) {
  const size_t dash = text.find('-');
  const std::string_view low = text.substr(0, dash),
                         high = dash == std::string_view::npos ? low : text.substr(dash + 1);
  const auto first = parse_integer(low), last = parse_integer(high);
  if (!first || !last || *first < 1 || *last < *first || *last > 65535) return std::nullopt;
  return PortRange{static_cast<uint16_t>(*first), static_cast<uint16_t>(*last)};
}

Status check_value(const ConfigKey& key, std::string_view value, const std::vector<std::string>& more) {
  const std::string wrong = fault(key, value, more);
  if (wrong.empty()) return {};
  const std::string name = key.name;
  const std::string shown =
      name == "token" ? "the value" : std::string("'").append(printable(value)) + "'";  // a secret stays one
  return Status(Code::kInvalidArgument, "key '" + name + "': " + shown + " " + wrong).with_parameter(name);
}

}  // namespace dsgd::config
