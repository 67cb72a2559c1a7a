// Text of unknown origin in messages, and text that workers compare.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/base/utf8.h"

namespace dsgd {

// At most `most` bytes of the text, and no half character of UTF-8 at the end.
inline std::string_view cut(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return text.substr(0, most);
}

// Text that can stand in a message or a log line, whatever was given: control characters become '?', long
// text is cut.
inline std::string printable(std::string_view value) {
  constexpr size_t kShown = 80;
  std::string text;
  for (std::string_view rest = cut(value, kShown); !rest.empty();) {
    const size_t control = control_bytes(rest);
    text += control > 0 ? '?' : rest.front();
    rest.remove_prefix(std::max<size_t>(control, 1));
  }
  return value.size() > kShown ? text + "..." : text;
}

// "1 bucket", "2 buckets".
inline std::string counted(size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// "a, b, c and 4 more": names the first items of `total`.
inline std::string list_text(const std::vector<std::string>& first_items, size_t total) {
  std::string text;
  for (const std::string& item : first_items) text += (text.empty() ? "" : ", ") + item;
  const size_t more = total - first_items.size();
  return more > 0 ? text + " and " + std::to_string(more) + " more" : text;
}

// "[2, 3]".
inline std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

inline std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The first line in which a rank's text differs from the first rank's, in words: "rank 0 has 'a', rank 2 has
// 'b'"; empty if none does.
inline std::string first_difference(std::string_view zero, std::string_view here, int32_t rank,
                                    int32_t first_rank = 0) {
  while (!zero.empty() || !here.empty()) {
    const std::string_view a = zero.substr(0, zero.find('\n')), b = here.substr(0, here.find('\n'));
    const auto shown = [](std::string_view text, std::string_view line) {
      return text.empty() ? std::string("nothing more") : std::string("'").append(cut(line, 2000)) + "'";
    };
    if (a != b || zero.empty() != here.empty()) {
      return "rank " + std::to_string(first_rank) + " has " + shown(zero, a) + ", rank " +
             std::to_string(rank) + " has " + shown(here, b);
    }
    zero.remove_prefix(std::min(a.size() + 1, zero.size()));
    here.remove_prefix(std::min(b.size() + 1, here.size()));
  }
  return {};
}

}  // namespace dsgd
