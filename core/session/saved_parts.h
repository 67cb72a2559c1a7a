// Which parts of the model a worker writes into its file of a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/model.h"
#include "core/strategy/plan.h"

namespace dsgd {

struct SavedPart {
  uint32_t parameter = 0;
  int32_t state = -1;  // index of the tensor of state; -1: the values
  uint64_t begin = 0, count = 0;
};

// Returns the name of a tensor of state. The index behind the optimizer's tensors stands for the master
// values of a half type.
std::string state_name(const Optimizer& optimizer, int32_t state);

// `states`: tensors of state, by parameter. Values and state that all workers hold are divided among
// them evenly by bytes; a tensor is cut only where a share ends. Rank 0 writes untrained values, which may
// differ between workers. `owners`: null, or a plan of all trained parameters whose owners have the state.
std::vector<SavedPart> saved_parts(const Model& model, const std::vector<size_t>& states, const Plan* owners,
                                   int32_t rank, int32_t size);

// Elements of a parameter that the rank owns, and, `with_copies`, those of which it keeps copies, in order,
// as [begin, end).
std::vector<std::pair<uint64_t, uint64_t>> owned_ranges(const Plan& plan, uint32_t parameter, int32_t rank,
                                                        bool with_copies = false);

// The key ranges of a plan, by parameter and beginning: the order of their bits in ViewReport::held. All
// views of a job have the same.
std::vector<const Piece*> key_ranges(const Plan& plan);

}  // namespace dsgd
