// Compares the values with which the workers close their sessions: the goodbyes of workers carry digests.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/model/model.h"
#include "transport/base/status.h"

namespace dsgd {

class LastValues {
 public:
  explicit LastValues(const Model& model) : model_(model) {}
  // This worker closes its session after `steps` steps.
  void set_own(int32_t rank, uint64_t steps, std::vector<uint64_t> digests);
  const std::vector<uint64_t>& own() const { return own_; }  // empty: not known
  void on_goodbye(int32_t rank, uint64_t steps, std::vector<uint64_t> digests) {
    goodbyes_[rank] = {steps, std::move(digests)};
    compare();
  }
  // Earlier goodbyes have ranks of another view. `rank`: of this worker.
  void change_view(int32_t rank) { rank_ = rank, goodbyes_.clear(); }
  // Names the worker whose values differ, among this one and those that have closed after as many steps; OK:
  // none is known.
  const Status& divergence() const { return divergence_; }

 private:
  struct Goodbye {
    uint64_t steps;
    std::vector<uint64_t> digests;
  };
  void compare();

  const Model& model_;
  int32_t rank_ = 0;
  uint64_t steps_ = 0;
  std::vector<uint64_t> own_;
  std::map<int32_t, Goodbye> goodbyes_;  // by rank
  Status divergence_;
};

}  // namespace dsgd
