// A strategy that the host has registered: a function of the host's places the key ranges. The owner works as
// in `simple` or as in `ps`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/strategy/traits.h"

namespace dsgd {

struct RegisteredStrategy {
  // The owner updates and gives out values, as in `ps`; else it gives out the mean.
  bool update_at_owner = false;
  // The rank that owns elements [begin, begin + count) of a parameter. A pure function of its arguments.
  std::function<Result<int32_t>(const std::string& parameter, uint64_t begin, uint64_t count, int32_t size,
                                const std::string& options)>
      owner;
};

inline Traits registered_traits(std::shared_ptr<const RegisteredStrategy> registered) {
  return {.owner_gives = registered->update_at_owner ? Traits::Gives::kValues : Traits::Gives::kMean,
          .key_ranges = true,
          .owners = [registered](const Placement& placement) {
            return [registered, placement](const OwnedRange& range) -> Result<std::vector<int32_t>> {
              auto owner = registered->owner(range.name, range.begin, range.count, placement.workers,
                                             placement.options);
              if (!owner.ok()) return owner.status();
              return std::vector<int32_t>{owner.value()};
            };
          }};
}

}  // namespace dsgd
