// Reading durations and sizes. `dsgd run` uses it, too.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dsgd::config {

// "500ms" in nanoseconds, units ns, us, ms, s, m, h; "64K" in bytes, units K, M, G, T. Nothing on bad syntax
// or overflow.
std::optional<int64_t> parse_duration(std::string_view text);
std::optional<int64_t> parse_size(std::string_view text);

}  // namespace dsgd::config
