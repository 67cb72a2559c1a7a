// Reads JSON that another process has written.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace dsgd {

// Returns a discarded value if the text is not JSON. Parts below level 10 are left out: what dsgd reads has
// few levels, and deeper parts may take a hundred times the memory of their text.
inline nlohmann::json parse_json(std::string_view text) {
  constexpr int kMaxLevels = 10;
  const auto is_kept = [](int level, nlohmann::json::parse_event_t, const nlohmann::json&) {
    return level <= kMaxLevels;
  };
  return nlohmann::json::parse(text, is_kept, false);
}

}  // namespace dsgd
