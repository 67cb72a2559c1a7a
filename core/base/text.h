// Text of unknown origin in messages.
#pragma once

#include <string>
#include <string_view>

namespace dsgd {

// Text that can stand in a message or a log line, whatever was given: control characters become '?', long text is cut.
inline std::string printable(std::string_view value) {
  constexpr size_t kShown = 80;
  std::string text;
  for (const char c : value.substr(0, kShown)) text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return value.size() > kShown ? text + "..." : text;
}

}  // namespace dsgd
