#include "core/session/retired_buffers.h"

#include <utility>

#include "core/session/engine.h"

namespace dsgd {

void RetiredBuffers::add(std::shared_ptr<device::Device> device, std::function<void()> release) {
  std::lock_guard lock(mutex_);
  added_.push_back({std::move(device), std::move(release)});
}

// One wait at a time covers what many calls have added.
void RetiredBuffers::release_passed(Engine& engine) {
  if (waits_) return;
  {
    std::lock_guard lock(mutex_);
    passing_.swap(added_);
  }
  if (passing_.empty()) return;
  waits_ = true;
  engine.when_devices_passed([this, &engine](const Status& status) {
    if (!status.ok()) return;  // the session has failed; release_all() comes
    for (const Buffers& buffers : std::exchange(passing_, {})) buffers.release();
    waits_ = false;
    release_passed(engine);
  });
}

void RetiredBuffers::release_all() {
  for (auto* all : {&passing_, &added_})
    for (Buffers& buffers : std::exchange(*all, {}))
      buffers.device->release_after_work(std::move(buffers.release));
}

}  // namespace dsgd
