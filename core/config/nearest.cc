#include <algorithm>
#include <cctype>
#include <cstdint>

#include "core/config/nearest.h"

namespace dsgd {
namespace {

// Characters that users often confuse compare as equal.
std::string normalised(std::string_view name) {
  std::string text(name);
  for (char& c : text) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Insertions, deletions, substitutions and swaps of neighbours (Damerau 1964, optimal string alignment).
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, row);
  }
  return previous[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 256;  // the cost is quadratic; longer names are not compared
  if (name.empty() || name.size() > kLongest) return "";
  const std::string wanted = normalised(name);
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    const std::string known = normalised(candidate);
    size_t distance = edit_distance(wanted, known);
    const size_t limit = (std::max(wanted.size(), known.size()) + 2) / 3;
    // A word that was cut short or spelt out, such as "heartbeat" or "learning_rate_decay", is near too.
    const size_t shorter = std::min(wanted.size(), known.size());
    if (shorter >= 4 && wanted.compare(0, shorter, known, 0, shorter) == 0)
      distance = std::min(distance, limit);
    if (distance <= limit && distance < best_distance) best = candidate, best_distance = distance;
  }
  return best;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates,
                         const std::string& otherwise) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? otherwise : "; did you mean '" + nearest + "'?";
}

}  // namespace dsgd
