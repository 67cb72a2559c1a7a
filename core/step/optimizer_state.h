// The optimizer's state of this worker. Where all workers make the same updates, each of its devices has all
// of it. Where owners update (ps), it is on the host: of the ranges that this worker keeps, and twice, since
// the next state is computed before the commit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/step/device_path.h"
#include "core/step/step_state.h"

namespace dsgd {

class OptimizerStateStore {
 public:
  OptimizerStateStore(StepState& state, DevicePath& devices) : state_(state), devices_(devices) {}
  // Makes what is missing, zeroed, for the plan of the step.
  Status make();
  size_t nbytes() const { return bytes_; }

  // On the host: of the owner's ranges, or of all where the host has replicas.
  OptimizerState& on_host() { return on_host_; }
  OptimizerState& of(DeviceContext& context) { return context.is_host() ? on_host_ : context.state; }
  // The state that an owner computes until the commit; take_next() then makes it the present one.
  OptimizerState& next() { return next_; }
  void take_next(size_t parameter) { std::swap(on_host_[parameter], next_[parameter]); }

  // Where owners update: another worker has made these numbers of updates, by parameter. This worker's own
  // ranges and copies have the state of the next step already, since none gives out values before; it becomes
  // the present one.
  void advance(const std::vector<uint64_t>& updates);
  // Where owners update: releases the state of other ranges than these [begin, end), by parameter.
  Status keep_only(const std::vector<std::vector<std::pair<uint64_t, uint64_t>>>& ranges);
  // Copies the state of the first device to on_host(). Does nothing if owners keep the state, if no replica
  // is on a device, or if the host has a replica, whose state on_host() is.
  void fetch_to_host(transport::Time deadline, std::function<void(const Status&)> done);
  // Copies the state in on_host() to all devices. Does nothing if owners keep the state, or if no replica is
  // on a device.
  void spread_to_devices(transport::Time deadline, std::function<void(const Status&)> done);

 private:
  bool is_on_devices() const;
  size_t owned_bytes() const;
  size_t replicated_bytes() const;
  Result<Memory> untouched(size_t nbytes) const;

  StepState& state_;
  DevicePath& devices_;
  OptimizerState on_host_, next_;
  size_t bytes_ = 0;
};

}  // namespace dsgd
