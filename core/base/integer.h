// Reading a whole number.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dsgd {

// "12", "-1"; nothing on bad syntax or overflow.
template <typename T = int64_t>
std::optional<T> parse_integer(std::string_view text, int base = 10) {
  T number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace dsgd
