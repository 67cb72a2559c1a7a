// Sorts a vector and removes repeated values.
#pragma once

#include <algorithm>
#include <vector>

namespace dsgd {

template <typename T>
void sort_unique(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

}  // namespace dsgd
