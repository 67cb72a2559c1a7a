// Buffers of devices that the host has unbound. A device may still use them: a step can end before its work
// does. They are released when all devices have passed that work.
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
  // Any thread; call release_passed() afterwards.
  void add(std::shared_ptr<device::Device> device, std::function<void()> release);
  // On the engine's loop.
  void release_passed(Engine& engine);
  // Releases the rest. The engine is gone, and with it its memory on the devices, which was freed behind all
  // work; where a device hangs, that memory is freed later, and these buffers after it.
  void release_all();

 private:
  struct Buffers {
    std::shared_ptr<device::Device> device;
    std::function<void()> release;
  };

  std::mutex mutex_;
  std::vector<Buffers> added_;
  std::vector<Buffers> passing_;  // what the devices are to pass; used on the loop
  bool waits_ = false;            // used on the loop
};

}  // namespace dsgd
