// Finds out whether workers hold the same values, and says in which parameters and on which ranks they do
// not.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/model/model.h"

namespace dsgd {

// Folds the digests of all trained parameters, in order, so that they fit a small message: in a model with
// very many parameters one digest covers several neighbours.
std::vector<uint64_t> fold_digests(const std::vector<uint64_t>& by_parameter);

// OK if all ranks have equal digests. Else kDiverged: names the ranks that differ from the majority, or from
// the lowest rank where there is none, and the first parameter in which they do. `when`: "step 7",
// "dsgd_close".
Status find_divergence(const Model& model, const std::map<int32_t, std::vector<uint64_t>>& digests,
                       const std::string& when);

// Compares the replicas of this worker that are on the host.
Status compare_replicas(const Model& model, int32_t rank, const std::string& when);

// Error of a session whose models differ; `what` says where.
Status diverged(const std::string& when, const std::string& what,
                const std::string& remedy = "load a checkpoint or start a new session");

}  // namespace dsgd
