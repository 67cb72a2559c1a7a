#include "core/session/retired_buffers.h"

#include <utility>

namespace dsgd {

void RetiredBuffers::add(std::shared_ptr<device::Device> device, std::function<void()> release) {
  std::lock_guard lock(mutex_);
  added_.push_back({std::move(device), std::move(release)});
}

// One wait releases the buffers added before it began; later ones wait for the next.
void RetiredBuffers::release_unused(const WhenDone& when_done) {
  if (waiting_) return;
  {
    std::lock_guard lock(mutex_);
    in_use_.swap(added_);
  }
  if (in_use_.empty()) return;
  waiting_ = true;
  when_done([this, when_done](const Status& status) {
    if (!status.ok()) return;  // the session has failed; release_all() follows
    for (const Buffers& buffers : std::exchange(in_use_, {})) buffers.release();
    waiting_ = false;
    release_unused(when_done);
  });
}

void RetiredBuffers::release_all() {
  for (auto* all : {&in_use_, &added_})
    for (Buffers& buffers : std::exchange(*all, {}))
      buffers.device->release_in_order(std::move(buffers.release));
}

}  // namespace dsgd
