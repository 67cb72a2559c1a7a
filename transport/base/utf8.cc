#include "transport/base/utf8.h"

namespace dsgd {
namespace {

unsigned byte(std::string_view text, size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
}

}  // namespace

size_t character_bytes(std::string_view text) {
  const auto continues = [&](size_t i) { return (byte(text, i) & 0xc0) == 0x80; };
  const unsigned first = byte(text, 0);
  if (first < 0x80) return text.empty() ? 0 : 1;
  if (first >= 0xc2 && first < 0xe0 && continues(1)) return 2;
  if (first >= 0xe0 && first < 0xf0 && continues(1) && continues(2)) {
    const bool shorter = first == 0xe0 && byte(text, 1) < 0xa0,
               surrogate = first == 0xed && byte(text, 1) >= 0xa0;
    return shorter || surrogate ? 0 : 3;
  }
  if (first >= 0xf0 && first < 0xf5 && continues(1) && continues(2) && continues(3)) {
    const bool shorter = first == 0xf0 && byte(text, 1) < 0x90,
               beyond = first == 0xf4 && byte(text, 1) >= 0x90;
    return shorter || beyond ? 0 : 4;
  }
  return 0;
}

std::optional<size_t> invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = character_bytes(text.substr(at));
    if (bytes == 0) return at;
    at += bytes;
  }
  return std::nullopt;
}

size_t control_bytes(std::string_view text) {
  const unsigned first = byte(text, 0), second = byte(text, 1);
  if (!text.empty() && (first < 0x20 || first == 0x7f)) return 1;
  return first == 0xc2 && second >= 0x80 && second < 0xa0 ? 2 : 0;
}

bool has_control_character(std::string_view text) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (control_bytes(text.substr(at)) > 0) return true;
  }
  return false;
}

}  // namespace dsgd
