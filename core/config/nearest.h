// The suggestion for a misspelt name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsgd {

// Name in `candidates` that a person most likely meant (edit distance), "" if none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);
// "; did you mean 'NAME'?", or `otherwise` if none is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates,
                         const std::string& otherwise = "");

}  // namespace dsgd
