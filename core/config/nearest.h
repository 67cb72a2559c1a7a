// The suggestion for a misspelt name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsgd {

// Name in `candidates` that a person most likely meant (edit distance), "" if none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace dsgd
