// The traits of a strategy: who owns a range of elements, and what the owner does with its sum and gives out.
// The plan and the step ask for these and never for the name of a strategy.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "transport/base/status.h"

namespace dsgd {

struct OwnedRange {  // of one parameter
  uint32_t parameter;
  const std::string& name;  // of the parameter
  uint64_t begin, count;    // elements
  uint64_t key_range;       // index of the parameter's key range that holds it
};

struct Placement {
  int32_t workers, servers;  // ranks 0 .. servers-1 hold server shards
  int32_t copies = 1;        // of the optimizer's state of a range
  std::vector<int32_t> numbers =
      {};                    // of the workers, by rank: they stay when ranks change; empty: the ranks
  std::string options = {};  // of a registered strategy
};

struct Traits {
  enum class Gives : uint8_t {
    kSum,     // there are no owners: slices are equal, cut anywhere, and sums are given out
    kMean,    // the owner divides
    kValues,  // the owner divides and updates, and keeps the optimizer's state
  };
  // Returns the rank that owns a range, then those that keep copies of its state. A pure function, so all
  // workers get the same answer.
  using Owners = std::function<Result<std::vector<int32_t>>(const OwnedRange& range)>;

  Gives owner_gives = Gives::kSum;
  bool key_ranges = false;       // parameters are cut in key ranges, which may have different owners
  bool takes_algorithm = false;  // an all-reduce makes the sums; its algorithm is an option
  bool takes_copies = false;  // other workers may keep copies of an owner's state; their number is an option
  std::function<Owners(const Placement& placement)> owners = {};  // null: rank 0 owns all

  bool owner_transforms() const { return owner_gives != Gives::kSum; }
  bool owner_updates() const { return owner_gives == Gives::kValues; }
};

}  // namespace dsgd
