// Reading and checking single values.
#include <algorithm>

#include "core/base/address.h"
#include "core/base/text.h"
#include "core/config/device_name.h"
#include "core/config/table.h"
#include "transport/base/utf8.h"

namespace dsgd::config {
namespace {

constexpr size_t kLongestText = 255;

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

std::string text_fault(const Rule& rule, std::string_view value) {
  if (value.empty() && *rule.key.default_value) return "must not be empty";
  const size_t longest = rule.maximum > 0 ? static_cast<size_t>(rule.maximum) : kLongestText;
  if (rule.type == Type::kText && value.size() > longest)
    return "is longer than " + std::to_string(longest) + " bytes";
  if (const auto at = invalid_utf8(value))
    return "is not UTF-8 from byte " + std::to_string(*at) + " on; encode it as UTF-8";
  if (has_control_character(value)) return "contains a control character";
  if (value.empty()) return "";
  if (rule.type == Type::kAddress) return address_fault(value, "port 0 lets the system choose");
  if (rule.type == Type::kAddresses) {
    for (const std::string& one : split_addresses(std::string(value))) {
      if (one.starts_with("unix:") && one.size() < value.size())
        return "has a Unix socket beside other heads";
      const std::string wrong = address_fault(one, "port 0 lets the system choose where `dsgd head` listens");
      if (!wrong.empty()) return wrong;
    }
    return "";
  }
  if (rule.type == Type::kDevices) return devices_fault(value);
  if (rule.type == Type::kPorts && !parse_ports(value))
    return "is not a port or a range of ports; write for example 7701-7720";
  return "";
}

std::string number_fault(const Rule& rule, std::string_view value, std::optional<int64_t> number,
                         const char* what) {
  if (value.empty() && !*rule.key.default_value) return "";
  if (!number) return std::string("is not ") + what + " (range " + rule.key.range + ")";
  if (*number == 0 && rule.key.default_value == std::string_view("0")) return "";
  if (*number < rule.minimum || *number > rule.maximum)
    return std::string("is out of range; use ") + rule.key.range;
  return "";
}

std::string choice_fault(const Rule& rule, std::string_view value, const std::vector<std::string>& more) {
  std::vector<std::string> names = choices(rule.key.range);
  names.insert(names.end(), more.begin(), more.end());
  for (const std::string& name : names)
    if (value == name) return "";
  const std::string nearest = nearest_name(value, names);
  std::string all = rule.key.range;
  for (const std::string& name : more) all += " | " + name;
  return "is not one of " + all + (nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
}

std::string fault(const Rule& rule, std::string_view value, const std::vector<std::string>& more) {
  switch (rule.type) {
    case Type::kText:
    case Type::kAddress:
    case Type::kAddresses:
    case Type::kDevices:
    case Type::kPorts:
      return text_fault(rule, value);
    case Type::kInteger:
      return number_fault(rule, value, parse_integer(value), "a whole number");
    case Type::kIntegerOrWord: {
      std::vector<std::string> words = choices(rule.key.range);
      words.pop_back();  // the integers
      if (std::find(words.begin(), words.end(), value) != words.end()) return "";
      const auto number = parse_integer(value);
      if (number && *number >= rule.minimum && *number <= rule.maximum) return "";
      return std::string("is not one of ") + rule.key.range;
    }
    case Type::kDuration:
      return number_fault(rule, value, parse_duration(value),
                          "a duration; write a whole number and a unit, such as 500ms, 10s or 5m");
    case Type::kSize:
      return number_fault(rule, value, parse_size(value), "a size; write for example 64K, 4M or 1G");
    case Type::kSwitch:
      return value == "0" || value == "1" ? "" : "is not a switch; write 0 or 1";
    case Type::kChoice:
      return choice_fault(rule, value, more);
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

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> entries;
  for (;;) {
    const size_t comma = text.find(',');
    entries.emplace_back(trim(text.substr(0, comma)));
    if (comma == std::string_view::npos) return entries;
    text.remove_prefix(comma + 1);
  }
}

std::vector<std::string> choices(const char* range) {
  std::vector<std::string> names;
  std::string_view rest = range;
  for (;;) {
    const size_t bar = rest.find('|');
    names.emplace_back(trim(rest.substr(0, bar)));
    if (bar == std::string_view::npos) return names;
    rest.remove_prefix(bar + 1);
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

Status check_value(const Rule& rule, std::string_view value, const std::vector<std::string>& more) {
  const std::string wrong = fault(rule, value, more);
  if (wrong.empty()) return {};
  const std::string name = rule.key.name;
  const std::string shown =
      name == "token" ? "the value" : std::string("'").append(printable(value)) + "'";  // a secret stays one
  return Status(Code::kInvalidArgument, "key '" + name + "': " + shown + " " + wrong).with_parameter(name);
}

}  // namespace dsgd::config
