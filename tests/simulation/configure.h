// The configuration of the simulated workers of a job whose head is on the first node.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/config/config.h"

namespace dsgd::simulation {

// `settings` come before the defaults.
inline void configure(Config& config, int32_t workers, int32_t rank,
                      std::map<std::string, std::string> settings = {}) {
  settings.insert({{"head", "node0:7700"},
                   {"token", "secret"},
                   {"num_workers", std::to_string(workers)},
                   {"rank", std::to_string(rank)}});
  for (const auto& [key, value] : settings) {
    const Status set = config.set(key, value);
    EXPECT_TRUE(set.ok()) << set.message();
  }
}

}  // namespace dsgd::simulation
