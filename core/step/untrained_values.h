// Synchronises the values of untrained parameters, such as batch-norm's statistics. Each replica changes its
// own values. At the end of a step those with `sync` become the weighted mean over all replicas, or the first
// replica's values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/device/waiter.h"
#include "core/step/device_path.h"
#include "core/step/step_group.h"
#include "core/step/step_in_flight.h"
#include "core/step/step_state.h"
#include "core/step/step_tasks.h"

namespace dsgd {

class UntrainedValues {
 public:
  UntrainedValues(StepState& state, const StepGroup& group, const StepInFlight& step, StepTasks& tasks,
                  DevicePath& devices, device::Waiter& waiter)
      : state_(state), group_(group), step_(step), tasks_(tasks), devices_(devices), waiter_(waiter) {}
  Status make_buffers();
  bool find_due();  // finds the parameters that are due in this step; false: there are none
  // Exchanges their values with the other workers, then calls `then`, unless the step has ended.
  void exchange(std::function<void()> then);
  // Gives the exchanged values to all replicas of this worker.
  Status write();

 private:
  Status copy_to_host();        // enqueues the values of replicas on devices
  void add_up(bool has_first);  // this worker's values; `has_first`: it has the first replica
  void exchange_sums(std::function<void()> then);
  std::vector<uint32_t> due_for(UntrainedSync sync) const;
  const std::byte* value(uint32_t replica, uint32_t parameter) const;  // on the host

  StepState& state_;
  const StepGroup& group_;
  const StepInFlight& step_;
  StepTasks& tasks_;
  DevicePath& devices_;
  device::Waiter& waiter_;
  std::vector<uint32_t> mean_due_, first_due_;  // parameters
  std::vector<double> mean_sums_;               // weighted, one parameter after the other
  std::vector<std::byte> first_values_;
  // By replica, by parameter: host buffers; null for replicas on the host.
  std::vector<std::vector<Memory>> staging_;
};

}  // namespace dsgd
