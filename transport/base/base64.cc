#include "transport/base/base64.h"

#include <sodium/utils.h>

namespace dsgd {

namespace {
constexpr int kVariant = sodium_base64_VARIANT_ORIGINAL;
}

std::string to_base64(std::string_view bytes) {
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), kVariant), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), kVariant);
  text.pop_back();  // the final zero
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3 + 3, '\0');
  size_t nbytes = 0;
  const char* end = nullptr;
  if (sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                        text.size(), nullptr, &nbytes, &end, kVariant) != 0 ||
      end != text.data() + text.size())
    return std::nullopt;
  bytes.resize(nbytes);
  return bytes;
}

}  // namespace dsgd
