// Reading and checking single values.
#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "core/base/text.h"
#include "core/config/device_name.h"
#include "core/config/table.h"
#include "transport/base/utf8.h"

namespace dsgd::config {
namespace {

constexpr size_t kLongestText = 255;
constexpr size_t kLongestSocketPath = 107;  // sizeof(sockaddr_un::sun_path) of Linux, less the final zero

// Digits and then one of the units; nothing on overflow.
std::optional<int64_t> parse_scaled(std::string_view text,
                                    std::initializer_list<std::pair<std::string_view, int64_t>> units) {
  int64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || number < 0 || text.front() == '-') return std::nullopt;
  const std::string_view unit(end, text.data() + text.size() - end);
  for (const auto& [name, scale] : units) {
    if (unit != name) continue;
    if (number > std::numeric_limits<int64_t>::max() / scale) return std::nullopt;
    return number * scale;
  }
  return std::nullopt;
}

// "" if it is HOST:PORT, [IPV6]:PORT or unix:PATH, else what is wrong.
// `any_port` says what port 0 means.
std::string address_fault(std::string_view text, const std::string& any_port) {
  if (text.starts_with("unix:")) {
    const size_t path = text.size() - std::string_view("unix:").size();
    if (path == 0) return "has no path; write unix:PATH";
    if (path > kLongestSocketPath)
      return "has a path of " + std::to_string(path) + " bytes, but a Unix socket's has at most " +
             std::to_string(kLongestSocketPath) + "; choose a shorter path";
    return "";
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos && parse_integer(text)) return "has no host; write HOST:PORT";
  if (colon == std::string_view::npos || text.ends_with(']'))
    return "has no port; write HOST:PORT (" + any_port + ")";
  const std::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  if (host.empty()) return "has no host; write HOST:PORT";
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed ? host.size() == 2 : host.find_first_of("[]") != std::string_view::npos)
    return "is not an address; write HOST:PORT or [IPV6]:PORT";
  if (!bracketed && host.find(':') != std::string_view::npos)
    return "is ambiguous; write an IPv6 address as [IPV6]:PORT";
  if (host.find_first_of(" \t/") != std::string_view::npos)
    return "has a blank or '/' in its host; write HOST:PORT";
  const auto number = parse_integer(port);
  if (!number || *number < 0 || *number > 65535 || port.front() == '-')
    return "has a bad port '" + std::string(port) + "'; ports are 0..65535";
  return "";
}

std::string devices_fault(std::string_view text) {
  static const std::vector<std::string> kBackends = {"cuda"};
  const std::vector<std::string> devices = split_list(text);
  for (const std::string& device : devices) {
    if (device == "auto") {
      if (devices.size() == 1) return "";
      return "has auto among other devices; write auto alone, or name all devices";
    }
    if (device.empty()) return "is not a list of devices; write for example auto, cpu or cuda:0,cuda:1";
    if (const auto name = parse_device_name(device, kBackends); !name.ok())
      return "is not a list of devices: " + name.status().message() +
             "; auto, as the only entry, takes every GPU of this process";
  }
  return "";
}

std::string text_fault(const Rule& rule, std::string_view value) {
  if (value.empty() && !rule.empty_too) return "must not be empty";
  const size_t longest = rule.maximum > 0 ? static_cast<size_t>(rule.maximum) : kLongestText;
  if (rule.type == Type::kText && value.size() > longest)
    return "is longer than " + std::to_string(longest) + " characters";
  if (const auto at = invalid_utf8(value))
    return "is not UTF-8 from byte " + std::to_string(*at) + " on; encode it as UTF-8";
  if (has_control_character(value)) return "contains a control character";
  if (value.empty()) return "";
  if (rule.type == Type::kAddress)
    return address_fault(value, rule.key.name == std::string_view("head")
                                    ? "port 0 lets the system choose where `dsgd head` listens"
                                    : "port 0 lets the system choose");
  if (rule.type == Type::kDevices) return devices_fault(value);
  if (rule.type == Type::kPorts && !parse_ports(value))
    return "is not a port or a range of ports; write for example 7701-7720";
  return "";
}

std::string number_fault(const Rule& rule, std::string_view value, std::optional<int64_t> number,
                         const char* what) {
  if (value.empty() && rule.empty_too) return "";
  if (!number) return std::string("is not ") + what + " (range " + rule.key.range + ")";
  if (*number == 0 && rule.zero_too) return "";
  if (*number < rule.minimum || *number > rule.maximum) return std::string("is outside ") + rule.key.range;
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
    case Type::kDevices:
    case Type::kPorts:
      return text_fault(rule, value);
    case Type::kInteger:
      return number_fault(rule, value, parse_integer(value), "a whole number");
    case Type::kIntegerOrWord: {
      std::vector<std::string> words = choices(rule.key.range);
      words.pop_back();  // the integers
      if (std::find(words.begin(), words.end(), value) != words.end()) return "";
      return number_fault(rule, value, parse_integer(value), "a whole number, nor one of the words");
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

std::optional<int64_t> parse_duration(std::string_view text) {
  if (text == "0") return 0;
  return parse_scaled(text, {{"ns", 1},
                             {"us", 1'000},
                             {"ms", 1'000'000},
                             {"s", 1'000'000'000},
                             {"m", 60'000'000'000},
                             {"h", 3'600'000'000'000}});
}

std::optional<int64_t> parse_size(std::string_view text) {
  return parse_scaled(text, {{"", 1},
                             {"K", int64_t{1} << 10},
                             {"M", int64_t{1} << 20},
                             {"G", int64_t{1} << 30},
                             {"T", int64_t{1} << 40}});
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
