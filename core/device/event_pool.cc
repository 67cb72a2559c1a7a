#include "core/device/event_pool.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace dsgd::device {

// Held by each event that take() has returned, so it may outlive the pool.
struct EventPool::State {
  std::mutex mutex;
  std::map<const Device*, std::vector<std::unique_ptr<DeviceEvent>>> free;
};

EventPool::EventPool() : state_(std::make_shared<State>()) {}

Result<std::shared_ptr<DeviceEvent>> EventPool::take(Device& device) {
  std::unique_ptr<DeviceEvent> event;
  {
    std::lock_guard lock(state_->mutex);
    auto& free = state_->free[&device];
    if (!free.empty()) {
      event = std::move(free.back());
      free.pop_back();
    }
  }
  if (!event) DSGD_RETURN_IF_ERROR(device.new_event().into(&event));
  return std::shared_ptr<DeviceEvent>(event.release(), [state = state_, key = &device](DeviceEvent* used) {
    std::lock_guard lock(state->mutex);
    state->free[key].emplace_back(used);
  });
}

}  // namespace dsgd::device
