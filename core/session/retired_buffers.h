// Buffers on devices that the host has unbound. A device may still use them, since a step can end before its
// work on the device does. They are released when that work has ended.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/device/device.h"

namespace dsgd {

class Engine;

class RetiredBuffers {
 public:
  // Any thread. Call release_unused() afterwards.
  void add(std::shared_ptr<device::Device> device, std::function<void()> release);
  // On the engine's loop. Releases the buffers when the devices no longer use them.
  void release_unused(Engine& engine);
  // Releases all buffers that are left. Call it once the engine is destroyed, which waits until the devices
  // no longer use its memory. The buffers of a device that hangs are released when it goes on.
  void release_all();

 private:
  struct Buffers {
    std::shared_ptr<device::Device> device;
    std::function<void()> release;
  };

  std::mutex mutex_;
  std::vector<Buffers> added_;
  std::vector<Buffers> in_use_;  // covered by the wait in progress; used on the loop
  bool waiting_ = false;         // used on the loop
};

}  // namespace dsgd
