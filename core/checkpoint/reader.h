// Reads the tensors of a checkpoint into memory, wherever its files have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/store.h"

namespace dsgd::checkpoint {

// Where a tensor goes.
struct Target {
  DType dtype = DType::kFloat32;
  uint64_t count = 0;         // elements
  bool required = true;       // the checkpoint must have it
  std::byte* data = nullptr;  // all elements; null for none
  // The elements that are wanted, in order; the others are left alone.
  std::vector<std::pair<uint64_t, uint64_t>> wanted;
};
// By parameter and name of the state tensor; "" for values.
using Targets = std::map<std::pair<std::string, std::string>, Target>;

// Reads all files. Tensors without a target are read for their checksum alone. Blocks.
Status read_tensors(transport::Files& files, const Store::Found& found, Targets* targets);

}  // namespace dsgd::checkpoint
