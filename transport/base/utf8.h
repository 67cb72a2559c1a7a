// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing beyond U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace dsgd {

// Bytes of the character that the text begins with; 0 if it begins with none.
size_t character_bytes(std::string_view text);

// Bytes of the control character (below U+0020, or U+007F to U+009F) that the text begins with; 0 if it begins with none.
size_t control_bytes(std::string_view text);

}  // namespace dsgd
