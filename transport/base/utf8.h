// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing beyond U+10FFFF.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace dsgd {

// Returns the length in bytes of the first character of `text`; 0 if `text` is empty or does not begin with
// valid UTF-8.
size_t character_bytes(std::string_view text);
// Returns where `text` stops being valid UTF-8; nothing if all of it is.
std::optional<size_t> invalid_utf8(std::string_view text);

// Returns the length in bytes of the control character (below U+0020, or U+007F to U+009F) at the beginning
// of `text`; 0 if there is none.
size_t control_bytes(std::string_view text);
bool has_control_character(std::string_view text);

}  // namespace dsgd
