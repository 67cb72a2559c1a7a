#include "core/session/arguments.h"

#include <optional>

#include "core/config/config.h"

namespace dsgd {

namespace {

constexpr double kLeastWeight = 1e-12, kLargestWeight = 1e12;
constexpr size_t kLongestName = 1024;

// Where the text ceases to be UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing beyond U+10FFFF).
std::optional<size_t> first_bad_byte(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    const unsigned lead = byte(at);
    size_t more = 0;
    unsigned low = 0x80, high = 0xbf;  // of the second byte
    if (lead >= 0xc2 && lead <= 0xdf) {
      more = 1;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      more = 2;
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      more = 3;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    } else if (lead >= 0x80) {
      return at;
    }
    for (size_t i = 1; i <= more; ++i, low = 0x80, high = 0xbf) {
      if (byte(at + i) < low || byte(at + i) > high) return at;
    }
    at += 1 + more;
  }
  return std::nullopt;
}

}  // namespace

Status check_weight(double weight) {
  if (weight == 0 || (weight >= kLeastWeight && weight <= kLargestWeight)) return {};
  return Status(Code::kInvalidArgument, "the contribution weight is " + number_text(weight) +
                                            "; it is 0 (no data left) or from 1e-12 to 1e12, usually the number of "
                                            "samples. Only the ratios of weights matter: scale them on all workers")
      .with_parameter("weight");
}

Status check_name(const std::string& what, const std::string& name) {
  auto bad = [&](const std::string& why) { return Status(Code::kInvalidArgument, "the name of a" + why); };
  const std::string of = std::string(what.find_first_of("aeiou") == 0 ? "n " : " ") + what;
  if (name.empty()) return bad(of + " is empty; give it one");
  if (name.size() > kLongestName) {
    return bad(of + " has " + std::to_string(name.size()) + " bytes, at most " + std::to_string(kLongestName) +
               " are possible; shorten it");
  }
  if (auto at = first_bad_byte(name)) {
    return bad(of + " is not UTF-8 from byte " + std::to_string(*at) + " on; encode it as UTF-8");
  }
  return {};
}

}  // namespace dsgd
