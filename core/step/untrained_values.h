// Synchronises the values of untrained parameters, such as batch-norm's statistics. Each replica changes its
// own values. At the end of a step those with `sync` become the weighted mean over all replicas, or the first
// replica's values. The step exchanges means() and first_values() with the other workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/step/step_state.h"

namespace dsgd {

class UntrainedValues {
 public:
  explicit UntrainedValues(StepState& state) : state_(state) {}
  Status make_buffers();
  bool begin_sync();      // finds what is due in this step; false: nothing is
  Status copy_to_host();  // enqueues the values of replicas on devices
  // Adds up this worker's values. `first`: this worker has the first replica.
  void add_up(bool first);
  std::vector<double>& means() { return mean_sums_; }  // weighted sums, one parameter after the other
  std::vector<std::byte>& first_values() { return first_values_; }
  // Gives the exchanged values to all replicas of this worker.
  Status write();

 private:
  std::vector<uint32_t> due_for(UntrainedSync sync) const;
  const std::byte* value(uint32_t replica, uint32_t parameter) const;  // on the host

  StepState& state_;
  std::vector<uint32_t> mean_due_, first_due_;  // parameters
  std::vector<double> mean_sums_;
  std::vector<std::byte> first_values_;
  // By replica, by parameter: host buffers; null for replicas on the host.
  std::vector<std::vector<Memory>> staging_;
};

}  // namespace dsgd
