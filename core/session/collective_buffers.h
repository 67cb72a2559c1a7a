// The buffers of a collective, and the host memory that it uses in their place. Collectives with buffers on a
// device run in host memory: the input is first copied to the host, and the result is copied back when the
// collective has ended.
#pragma once

#include <cstddef>
#include <memory>

#include "core/device/device.h"

namespace dsgd {

struct CollectiveBuffers {
  std::shared_ptr<device::Device> device;      // null: all buffers are in host memory
  std::shared_ptr<device::DeviceEvent> after;  // the work that the host's stream held at the call
  bool send = false, receive = false;          // on the device
  std::shared_ptr<void> memory;                // on the host, in place of a buffer

  struct Transfer {
    void* to = nullptr;
    const void* from = nullptr;
    size_t nbytes = 0;  // 0: none
  };
  Transfer fetch, store;
};

}  // namespace dsgd
