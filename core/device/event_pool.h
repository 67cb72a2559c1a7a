// Events of devices, used again and again.
#pragma once

#include <memory>

#include "core/device/device.h"

namespace dsgd::device {

// To destroy an event may wait while memory of the device is allocated, so events are kept. Any thread. The
// devices outlive the pool.
class EventPool {
 public:
  EventPool();
  Result<std::shared_ptr<DeviceEvent>> take(Device& device);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace dsgd::device
