// Plug-ins as a host registers them: the algorithms of tests/unit/collectives/algorithms.h, and strategies.
#pragma once

#include <string>

#include "job.h"
#include "tests/unit/collectives/algorithms.h"

namespace dsgd_test {

inline auto adder(dsgd_schedule* schedule) {
  return [schedule](int32_t transfer, int32_t round, int32_t peer, uint64_t begin, uint64_t count) {
    Error error;
    EXPECT_EQ(dsgd_schedule_add(schedule, transfer, round, peer, begin, count, error), DSGD_OK)
        << error.message();
  };
}
inline int32_t ring_plugin(void*, int32_t rank, int32_t size, uint64_t count, dsgd_schedule* schedule) {
  ring_schedule(rank, size, count, adder(schedule));
  return DSGD_OK;
}
inline int32_t doubling_plugin(void*, int32_t rank, int32_t size, uint64_t count, dsgd_schedule* schedule) {
  doubling_schedule(rank, size, count, adder(schedule));
  return DSGD_OK;
}
inline int32_t tree_plugin(void*, int32_t rank, int32_t size, uint64_t count, dsgd_schedule* schedule) {
  tree_schedule(rank, size, count, adder(schedule));
  return DSGD_OK;
}

using AllReduce = int32_t (*)(void*, int32_t, int32_t, uint64_t, dsgd_schedule*);
inline void register_algorithm(dsgd_config* config, const char* name, AllReduce allreduce,
                               void* user = nullptr, void (*release)(void*) = nullptr) {
  dsgd_algorithm algorithm;
  dsgd_algorithm_init(&algorithm, sizeof algorithm);
  algorithm.version = DSGD_PLUGIN_VERSION;
  algorithm.user = user;
  algorithm.allreduce = allreduce;
  algorithm.release = release;
  DSGD_OK_OR_FAIL(dsgd_algorithm_register(config, name, &algorithm, error_));
}

// Ranges go round the workers, each parameter beginning with another of them.
inline int32_t deal_owner(void*, const dsgd_placement* placement) {
  const uint64_t first = static_cast<uint64_t>(dsgd_placement_parameter(placement)[1]);
  const auto size = static_cast<uint64_t>(dsgd_placement_size(placement));
  return static_cast<int32_t>((dsgd_placement_begin(placement) / 65536 + first) % size);
}
using Owner = int32_t (*)(void*, const dsgd_placement*);
inline void register_strategy(dsgd_config* config, const char* name, uint32_t flags, Owner owner,
                              void* user = nullptr, void (*release)(void*) = nullptr) {
  dsgd_strategy strategy;
  dsgd_strategy_init(&strategy, sizeof strategy);
  strategy.version = DSGD_PLUGIN_VERSION;
  strategy.flags = flags;
  strategy.user = user;
  strategy.owner = owner;
  strategy.release = release;
  DSGD_OK_OR_FAIL(dsgd_strategy_register(config, name, &strategy, error_));
}

inline void register_all(dsgd_config* config) {
  register_algorithm(config, "my_ring", ring_plugin);
  register_algorithm(config, "my_doubling", doubling_plugin);
  register_algorithm(config, "my_tree", tree_plugin);
  register_strategy(config, "dealt_means", DSGD_STRATEGY_MEAN_AT_OWNER, deal_owner);
  register_strategy(config, "dealt_values", DSGD_STRATEGY_UPDATE_AT_OWNER, deal_owner);
}

}  // namespace dsgd_test
