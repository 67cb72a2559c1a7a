#include "core/config/units.h"

#include <charconv>
#include <initializer_list>
#include <limits>
#include <system_error>
#include <utility>

namespace dsgd::config {
namespace {

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

}  // namespace

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

}  // namespace dsgd::config
