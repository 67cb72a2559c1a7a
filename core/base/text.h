// Text of unknown origin in messages.
#pragma once

#include <string>
#include <string_view>

namespace dsgd {

// At most `most` bytes of the text, and no half character of UTF-8 at the end.
inline std::string_view cut(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return text.substr(0, most);
}

// Text that can stand in a message or a log line, whatever was given: control characters become '?', long text is cut.
inline std::string printable(std::string_view value) {
  constexpr size_t kShown = 80;
  std::string text;
  for (const char c : cut(value, kShown)) text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return value.size() > kShown ? text + "..." : text;
}

}  // namespace dsgd
