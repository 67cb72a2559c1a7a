// Reading a whole number. The command line shares it, without the table of keys.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dsgd::config {

// "12", "-1"; nothing on bad syntax or overflow.
inline std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace dsgd::config
