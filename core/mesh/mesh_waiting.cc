#include <algorithm>
#include <iterator>

#include "core/mesh/mesh.h"

namespace dsgd {

Mesh::Missing Mesh::waiting(uint64_t call) const {
  Missing found;
  for (auto it = tasks_.lower_bound(operation(call, 0)); it != tasks_.end() && call_of(it->first) == call;
       ++it) {
    const Entry& entry = it->second;
    std::vector<int32_t> ranks = missing(entry), silent;
    // A peer may itself wait for another one. Those that have sent nothing yet come first.
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(silent), [&](int32_t rank) {
      return entry.agreed.empty() ? !entry.heard[rank] : !entry.agreed[rank];
    });
    if (!silent.empty()) ranks = std::move(silent);
    if (ranks.empty()) continue;
    if (found.operations.empty()) {
      found.name = entry.task->name();
      found.first = is_first(it->first) && entry.to_agree > 0;
    }
    found.operations.push_back(it->first);
    found.ranks.insert(found.ranks.end(), ranks.begin(), ranks.end());
    if (found.first) break;  // nothing else of the call can have come
  }
  std::sort(found.ranks.begin(), found.ranks.end());
  found.ranks.erase(std::unique(found.ranks.begin(), found.ranks.end()), found.ranks.end());
  return found;
}

}  // namespace dsgd
