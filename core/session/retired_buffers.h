// Buffers on devices that the host has unbound. A device may still use them, since a step can end before its
// work on the device does. They are released when that work has ended.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/device/device.h"

namespace dsgd {

class RetiredBuffers {
 public:
  using WhenDone = std::function<void(std::function<void(const Status&)>)>;

  // Any thread. Post release_unused() to the loop afterwards.
  void add(std::shared_ptr<device::Device> device, std::function<void()> release);
  // On the loop. Releases the buffers when the devices no longer use them: `when_done` calls its argument
  // when all work that is enqueued on the devices now has ended.
  void release_unused(const WhenDone& when_done);
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
